// Launches that overlap with the previous one. Included by common.cuh, after policy.cuh.
//
// Programmatic dependent launch. A kernel of a file with OVERLAPPING begins, if the GPU supports
// it, as soon as every block of the previous launch in the stream has called `trigger_next_launch`,
// or when that launch is over. It calls `trigger_next_launch` after `wait_for_previous_launch`:
// with the reverse order launches would pile up, and waiting blocks would take the place of working
// ones. Before `wait_for_previous_launch` it reads only the arrays that locate the entries of the
// matrix, and writes nothing: values are updated by kernels, and the previous launch may use
// vectors, scratch memory and sums. Every kernel of such a file calls `wait_for_previous_launch`.
// Data read after it are not read as constants (`__ldg`), since they may change while the kernel
// runs.

#pragma once

// Marks a module for the host, which looks up a variable of this name: src/device/cuda/overlap.rs.
#if HAS_HOPPER && !defined(SCALED)
#define OVERLAPPING extern "C" __device__ u32 launches_overlap = 1;
#else
#define OVERLAPPING
#endif

// True if a launch can let the next one begin.
[[maybe_unused]] constexpr bool CAN_OVERLAP = HAS_HOPPER;

// Allows the next launch to begin when all blocks have called this.
__device__ __forceinline__ void trigger_next_launch() {
#if HAS_HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous launch is over and its writes are visible.
__device__ __forceinline__ void wait_for_previous_launch() {
#if HAS_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
