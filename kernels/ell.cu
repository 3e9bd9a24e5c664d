// ELL: see src/formats/ell/mod.rs for the layout.

#include "common.cuh"

// One thread per row. Every row has at least `full` entries.
template <bool STAYS, typename T>
__device__ __forceinline__ void rows_padded(const u32 *__restrict__ cols, const T *__restrict__ values, u32 nrows, u32 ncols,
                                            u32 full, u32 width, const T *__restrict__ x, OUT(T) y) {
    u64 row = thread_id();
    if (row < nrows) put(y, row, sum_slots<STAYS>(cols, values, Factors<T>{x, ncols}, row, nrows, full, width));
}

// One thread per row, with the length of each row: padding is not even read.
template <bool STAYS, typename T>
__device__ __forceinline__ void rows_of_length(const u32 *__restrict__ cols, const T *__restrict__ values,
                                               const u32 *__restrict__ row_len, u32 nrows, const T *__restrict__ x,
                                               OUT(T) y) {
    u64 row = thread_id();
    if (row < nrows) put(y, row, sum_entries<STAYS, BATCH>(cols, values, x, row, nrows, row_len[row]));
}

#define INSTANCES(SUFFIX, T)                                                                                     \
    KERNEL ell_##SUFFIX(const u32 *cols, const T *values, u32 nrows, u32 ncols, u32 full, u32 width, const T *x, \
                        OUT_PARAMETERS(T), u32 resident) {                                                       \
        by_residency(blockIdx.x, resident, [=](auto stays) {                                                     \
            rows_padded<stays.value>(cols, values, nrows, ncols, full, width, x, OUTPUT);                        \
        });                                                                                                      \
    }                                                                                                            \
    KERNEL ell_lengths_##SUFFIX(const u32 *cols, const T *values, const u32 *row_len, u32 nrows, const T *x,     \
                                OUT_PARAMETERS(T), u32 resident) {                                               \
        by_residency(blockIdx.x, resident, [=](auto stays) {                                                     \
            rows_of_length<stays.value>(cols, values, row_len, nrows, x, OUTPUT);                                \
        });                                                                                                      \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
