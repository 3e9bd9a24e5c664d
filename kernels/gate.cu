// Launch gate: see src/device/cuda/launch_gate.rs.

#include "common.cuh"

// Time of the GPU's clock, in ns.
__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Waits, in one thread, until the host opens the gate with this number or a later one, for at most
// `timeout` ns. `opened`, the number of the last open gate, is in page-locked memory of the host.
KERNEL_OF(gate_wait, 1, 1)(const u32 *opened, u32 number, u64 timeout) {
    const volatile u32 *current = opened;
    u64 start = nanoseconds();
    while (int(*current - number) < 0 && nanoseconds() - start < timeout) {}
}
