// Signals among GPUs that access each other's memory: see src/device/peers/mod.rs.

#pragma once

using namespace peers;

// Number of tries between two looks at the clock and at the host's word.
[[maybe_unused]] constexpr u32 TRIES = 4096;

// The word that ends all waits, in page-locked memory of the host, and the longest wait in ns.
struct Waits {
    u32 *ended;
    u64 limit;
};

// Makes what the block has written visible to all GPUs. Every thread of the block calls it.
__device__ __forceinline__ void publish() {
    __syncthreads();
    if (threadIdx.x == 0) __threadfence_system();
}

// Tells a peer that a round is complete. The peer sees everything published before.
__device__ __forceinline__ void signal(u32 *flag, u32 round) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
}

// Waits for the signal of a round. False if the host or the limit ends this wait, and with it all
// others.
__device__ __forceinline__ bool is_signalled(const u32 *flag, u32 round, Waits waits) {
    volatile u32 *ended = waits.ended;
    u64 begin = nanoseconds();
    for (u32 tries = 1;; ++tries) {
        u32 found;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
        if (int(found - round) >= 0) return true;
        if (tries % TRIES != 0) continue;
        if (*ended != 0) return false;
        if (nanoseconds() - begin > waits.limit) {
            *ended = 1;
            return false;
        }
    }
}
