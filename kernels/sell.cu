// SELL-C-σ: see src/formats/sell/mod.rs for the layout.
//
// Variants: scaled, streamed.

#include "common.cuh"

// One thread per lane, and with C = 32 one warp per slice. If `C` is 0, `c` is the number of lanes.
// Without `perm` the rows are in their order.
template <bool IN_L2, u32 C, typename T, typename Epilogue>
__device__ __forceinline__ void slices(const u64 *__restrict__ slice_ptr, const u32 *__restrict__ full,
                                       const u32 *__restrict__ cols, const T *__restrict__ values,
                                       const u32 *__restrict__ perm, u32 c, u32 nrows, u32 ncols,
                                       const T *__restrict__ x, Epilogue y) {
    u64 i = thread_id();
    if (i >= nrows) return;
    u32 lanes = C == 0 ? c : C;
    u32 slice = u32(i) / lanes;
    u32 lane = u32(i) % lanes;
    u64 begin = __ldg(slice_ptr + slice);
    u64 width = (__ldg(slice_ptr + slice + 1) - begin) / lanes;
    u32 row = perm ? fetch<IN_L2>(perm + i) : u32(i);
    y.store(row, sum_slots<IN_L2>(cols, values, XView<T>{x, ncols}, begin + lane, lanes, __ldg(full + slice), width));
}

// Number of slots of a row that a thread loads together if there are few rows: the loads in flight
// then depend on few threads.
template <typename T>
constexpr u32 DEEP = 128 / sizeof(T);

// As `slices` with C = 32, for few rows with many slots.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void deep_slices(const u64 *__restrict__ slice_ptr, const u32 *__restrict__ full,
                                            const u32 *__restrict__ cols, const T *__restrict__ values,
                                            const u32 *__restrict__ perm, u32 nrows, u32 ncols,
                                            const T *__restrict__ x, Epilogue y) {
    u64 i = thread_id();
    if (i >= nrows) return;
    u32 slice = u32(i) / WARP;
    u64 begin = __ldg(slice_ptr + slice);
    u64 width = (__ldg(slice_ptr + slice + 1) - begin) / WARP;
    u64 at = begin + u32(i) % WARP;
    XView<T> factors{x, ncols};
    T sum = 0;
    u64 k = 0;
#pragma unroll 1
    for (; k + DEEP<T> <= width; k += DEEP<T>, at += DEEP<T> * WARP)
        sum = add_slots<IN_L2, DEEP<T>, true>(sum, cols, values, factors, [=](u32 u) { return at + u * WARP; });
    u64 filled = __ldg(full + slice);
    sum += sum_slots<IN_L2>(cols, values, factors, at, WARP, filled > k ? filled - k : 0, width - k);
    y.store(perm ? fetch<IN_L2>(perm + i) : u32(i), sum);
}

#define SLICES(NAME, C, T)                                                                                        \
    KERNEL(NAME)(const u64 *slice_ptr, const u32 *full, const u32 *cols, const T *values, const u32 *perm, u32 c, \
                u32 nrows, u32 ncols, const T *x, EPILOGUE_PARAMETERS(T), u32 l2_shares) {                        \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                      \
            slices<in_l2.value, C>(slice_ptr, full, cols, values, perm, c, nrows, ncols, x, EPILOGUE(T));         \
        });                                                                                                       \
    }

SLICES(sell_f32, 0, float)
SLICES(sell_f64, 0, double)
SLICES(sell32_f32, 32, float)
SLICES(sell32_f64, 32, double)

#define DEEP_SLICES(NAME, T)                                                                                                 \
    KERNEL_WITH(NAME, DEEP_BLOCKS)(const u64 *slice_ptr, const u32 *full, const u32 *cols, const T *values, const u32 *perm, \
                        u32 c, u32 nrows, u32 ncols, const T *x, EPILOGUE_PARAMETERS(T), u32 l2_shares) {                    \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                                 \
            deep_slices<in_l2.value>(slice_ptr, full, cols, values, perm, nrows, ncols, x, EPILOGUE(T));                     \
        });                                                                                                                  \
    }

DEEP_SLICES(sell_deep_f32, float)
DEEP_SLICES(sell_deep_f64, double)
