// Update of values on the same pattern: see src/formats/update.rs.

#include "common.cuh"

using namespace formats;

// Copies N values per thread to their slots. Slot i % SECTOR of sector `sectors[i / SECTOR]` gets
// the value of entry `from[i]`, or zero if that is NONE, so that whole sectors are written. The
// first array has `split` slots, the second the rest of `slots`. Neighbouring entries of the matrix
// are close together here, so that their values are found in the cache. Without `sectors` the
// values are in the order of the entries.
template <typename T>
__device__ __forceinline__ void scatter(const u32 *__restrict__ sectors, const u32 *__restrict__ from,
                                        u64 count, const T *__restrict__ values, u64 nnz,
                                        T *__restrict__ first, u64 split, T *__restrict__ second,
                                        u64 slots) {
    constexpr u32 N = PER_THREAD;
    u64 at[N];
    // Threads past the end repeat the last copy.
#pragma unroll
    for (u32 u = 0; u < N; ++u) at[u] = min(u64(blockIdx.x) * (BLOCK * N) + u * BLOCK + threadIdx.x, count - 1);
    T value[N];
    if (!sectors) {
#pragma unroll
        for (u32 u = 0; u < N; ++u) value[u] = __ldcs(values + at[u]);
#pragma unroll
        for (u32 u = 0; u < N; ++u) first[at[u]] = value[u];
        return;
    }
    u32 slot[N], entry[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        slot[u] = __ldcs(sectors + at[u] / SECTOR) * SECTOR + u32(at[u]) % SECTOR;
        entry[u] = __ldcs(from + at[u]);
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) value[u] = __ldg(values + min(u64(entry[u]), nnz - 1));
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        T wanted = entry[u] == NONE ? T(0) : value[u];
        if (slot[u] < split) first[slot[u]] = wanted;
        else if (slot[u] < slots) second[slot[u] - split] = wanted;
    }
}

#define INSTANCES(SUFFIX, T)                                                                                                        \
    KERNEL(update_##SUFFIX)(const u32 *sectors, const u32 *from, u64 count, const T *values, u64 nnz, T *first, u64 split, T *second,  \
                           u64 slots) {                                                                                             \
        scatter(sectors, from, count, values, nnz, first, split, second, slots);                                                      \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
// 16-bit numbers of any type, and codes.
INSTANCES(u16, u16)
INSTANCES(u8, unsigned char)
