// New values on the same pattern: see src/formats/update.rs.

#include "common.cuh"

// A thread an entry: its value goes to its slot, of which the first array has `split` and the second the others. Without `slots` the values are in
// the order of the entries.
template <typename T>
__device__ __forceinline__ void scatter(const u32 *__restrict__ slots, const T *__restrict__ values, u64 nnz, T *__restrict__ first,
                                        u64 split, T *__restrict__ second) {
    u64 entry = thread_id();
    if (entry >= nnz) return;
    u64 slot = slots ? __ldcs(slots + entry) : entry;
    T value = __ldcs(values + entry);
    if (slot < split) first[slot] = value;
    else second[slot - split] = value;
}

#define INSTANCES(SUFFIX, T)                                                                                            \
    KERNEL update_##SUFFIX(const u32 *slots, const T *values, u64 nnz, T *first, u64 split, T *second) {                \
        scatter(slots, values, nnz, first, split, second);                                                              \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
// Numbers of 16 bits, whatever they are.
INSTANCES(u16, u16)
