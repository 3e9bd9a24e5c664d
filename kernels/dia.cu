// DIA: see src/formats/dia/mod.rs for the layout.
//
// Variants: scaled, streamed.

#include "common.cuh"

typedef long long i64;

// Slots of a thread's row: slot k is that of diagonal k. The masks are those of its slice.
template <typename T>
struct Diagonals {
    const i64 *offsets;
    const u32 *masks;
    const T *values;
    u64 row;
    u32 lane, stride;
};

// `sum` plus the products of N slots from diagonal `k` on. Slots without an entry are not
// multiplied; they load x at some column.
template <bool IN_L2, u32 N, typename T>
__device__ __forceinline__ T add_diagonals(T sum, const Diagonals<T> &a, XView<T> x, u32 k) {
    u32 mask[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        mask[u] = fetch<IN_L2>(a.masks + k + u);
        value[u] = fetch<IN_L2>(a.values + u64(k + u) * a.stride);
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = __ldg(x.x + min(u32(a.row + __ldg(a.offsets + k + u)), x.ncols - 1));
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (mask[u] >> a.lane & 1) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of the last `count` <= N slots, from diagonal `k` on.
template <bool IN_L2, u32 N, typename T>
__device__ __forceinline__ T add_last(u32 count, T sum, const Diagonals<T> &a, XView<T> x, u32 k) {
    if constexpr (N == 0) {
        return sum;
    } else {
        return count == N ? add_diagonals<IN_L2, N>(sum, a, x, k) : add_last<IN_L2, N - 1>(count, sum, a, x, k);
    }
}

// One thread per row and one warp per slice.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void slices(const i64 *__restrict__ offsets, const u32 *__restrict__ masks,
                                       const T *__restrict__ values, u32 count, u32 nrows, u32 ncols,
                                       const T *__restrict__ x, Epilogue y) {
    u64 row = thread_id();
    if (row >= nrows) return;
    u32 lane = u32(row) % WARP;
    u64 start = row - lane;
    u32 stride = u32(min(nrows - start, u64(WARP)));
    Diagonals<T> a{offsets, masks + start / WARP * count, values + start * count + lane, row, lane, stride};
    XView<T> factors{x, ncols};
    T sum = 0;
    u32 k = 0;
#pragma unroll 1
    for (; k + BATCH <= count; k += BATCH) sum = add_diagonals<IN_L2, BATCH>(sum, a, factors, k);
    y.store(row, add_last<IN_L2, BATCH - 1>(count - k, sum, a, factors, k));
}

#define INSTANCES(SUFFIX, T)                                                                                     \
    KERNEL(dia_##SUFFIX)(const i64 *offsets, const u32 *masks, const T *values, u32 count, u32 nrows, u32 ncols, \
                        const T *x, EPILOGUE_PARAMETERS(T), u32 l2_shares) {                                     \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                     \
            slices<in_l2.value>(offsets, masks, values, count, nrows, ncols, x, EPILOGUE(T));                    \
        });                                                                                                      \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
