// ELL: see src/formats/ell/mod.rs for the layout.
//
// Variants: scaled, streamed.

#include "common.cuh"

using formats::ROWS_TOGETHER;

// One thread per row. Every row has at least `full` entries.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void rows_padded(const u32 *__restrict__ cols,
                                            const T *__restrict__ values, u32 nrows, u32 ncols,
                                            u32 full, u32 width, const T *__restrict__ x,
                                            Epilogue y) {
    u64 row = thread_id();
    if (row < nrows) y.store(row, sum_slots<IN_L2>(cols, values, XView<T>{x, ncols}, row, nrows, full, width));
}

// ROWS_TOGETHER rows per thread, for rows of few slots: a slot of each of them at a time.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void short_rows(const u32 *__restrict__ cols, const T *__restrict__ values,
                                           u32 nrows, u32 ncols, u32 full, u32 width,
                                           const T *__restrict__ x, Epilogue y) {
    u64 first = u64(blockIdx.x) * BLOCK * ROWS_TOGETHER + threadIdx.x;
    T sum[ROWS_TOGETHER] = {};
    // The slots k of the rows, which are entries unless they are MASKED.
    auto add = [&](u32 k, auto masked) {
        constexpr bool MASKED = decltype(masked)::value;
        u32 col[ROWS_TOGETHER];
        T value[ROWS_TOGETHER], factor[ROWS_TOGETHER];
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u) {
            u64 at = u64(k) * nrows + min(first + u * BLOCK, u64(nrows) - 1);
            col[u] = fetch<IN_L2>(cols + at);
            value[u] = fetch<IN_L2>(values + at);
        }
        // Padding loads x at the last column: PADDING is larger than all columns.
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u) factor[u] = __ldg(x + (MASKED ? min(col[u], ncols - 1) : col[u]));
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u)
            if (!MASKED || col[u] != PADDING) sum[u] += value[u] * factor[u];
    };
    u32 k = 0;
#pragma unroll 1
    for (; k < full; ++k) add(k, Flag<false>{});
#pragma unroll 1
    for (; k < width; ++k) add(k, Flag<true>{});
#pragma unroll
    for (u32 u = 0; u < ROWS_TOGETHER; ++u)
        if (first + u * BLOCK < nrows) y.store(first + u * BLOCK, sum[u]);
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
    KERNEL(ell_short_##SUFFIX)(const u32 *cols, const T *values, u32 nrows, u32 ncols, u32 full, u32 width,         \
                              const T *x, EPILOGUE_PARAMETERS(T), u32 l2_shares) {                                \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                      \
            short_rows<in_l2.value>(cols, values, nrows, ncols, full, width, x, EPILOGUE(T));                     \
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
