// ELL: see src/formats/ell/mod.rs for the layout.
//
// Variants: scaled, streamed.

#include "common.cuh"

// One thread per row. Every row has at least `full` entries.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void rows_padded(const u32 *__restrict__ cols,
                                            const T *__restrict__ values, u32 nrows, u32 ncols,
                                            u32 full, u32 width, const T *__restrict__ x,
                                            Epilogue y) {
    u64 row = thread_id();
    if (row < nrows) y.store(row, sum_slots<IN_L2>(cols, values, XView<T>{x, ncols}, row, nrows, full, width));
}

// One thread per row, with the length of each row: padding is not even read.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void rows_of_length(const u32 *__restrict__ cols, const T *__restrict__ values,
                                               const u32 *__restrict__ row_len, u32 nrows, const T *__restrict__ x,
                                               Epilogue y) {
    u64 row = thread_id();
    if (row < nrows) y.store(row, sum_entries<IN_L2, BATCH>(cols, values, x, row, nrows, row_len[row]));
}

#define INSTANCES(SUFFIX, T)                                                                                      \
    KERNEL(ell_##SUFFIX)(const u32 *cols, const T *values, u32 nrows, u32 ncols, u32 full, u32 width, const T *x, \
                        EPILOGUE_PARAMETERS(T), u32 l2_shares) {                                                  \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                      \
            rows_padded<in_l2.value>(cols, values, nrows, ncols, full, width, x, EPILOGUE(T));                    \
        });                                                                                                       \
    }                                                                                                             \
    KERNEL_WITH(ell_lengths_##SUFFIX, LENGTH_BLOCKS)(const u32 *cols, const T *values, const u32 *row_len,        \
                                                    u32 nrows, const T *x, EPILOGUE_PARAMETERS(T),                \
                                                    u32 l2_shares) {                                              \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                      \
            rows_of_length<in_l2.value>(cols, values, row_len, nrows, x, EPILOGUE(T));                            \
        });                                                                                                       \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
