// New values on the same pattern: see src/formats/update.rs.

#include "common.cuh"

// Entries that a block brings to their slots: `CHUNK` in src/formats/update.rs.
constexpr u32 CHUNK = 2048;

// A block takes CHUNK consecutive values to shared memory, and from there to their slots in the order of the slots, which it so writes side by
// side as far as they are neighbours. The i-th slot of a chunk gets its value number `from[i]`; the first array has `split` slots and the second
// the others. Without `slots` the values are in the order of the entries.
template <typename T>
__device__ __forceinline__ void scatter(const u32 *__restrict__ slots, const u16 *__restrict__ from, const T *__restrict__ values,
                                        u64 nnz, T *__restrict__ first, u64 split, T *__restrict__ second) {
    __shared__ T chunk[CHUNK];
    u64 begin = u64(blockIdx.x) * CHUNK;
    u32 count = u32(min(nnz - begin, u64(CHUNK)));
#pragma unroll
    for (u32 i = threadIdx.x; i < CHUNK; i += BLOCK)
        if (i < count) chunk[i] = __ldcs(values + begin + i);
    __syncthreads();
#pragma unroll
    for (u32 i = threadIdx.x; i < CHUNK; i += BLOCK) {
        if (i >= count) return;
        u64 slot = slots ? __ldcs(slots + begin + i) : begin + i;
        T value = chunk[slots ? __ldcs(from + begin + i) : i];
        if (slot < split) first[slot] = value;
        else second[slot - split] = value;
    }
}

#define INSTANCES(SUFFIX, T)                                                                                                        \
    KERNEL update_##SUFFIX(const u32 *slots, const u16 *from, const T *values, u64 nnz, T *first, u64 split, T *second) {           \
        scatter(slots, from, values, nnz, first, split, second);                                                                    \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
// Numbers of 16 bits, whatever they are.
INSTANCES(u16, u16)
