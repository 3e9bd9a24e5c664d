// SELL-C-σ: see src/formats/sell/mod.rs for the layout.

#include "common.cuh"

// A thread a lane, and with C = 32 a warp a slice. `C` is 0 where only `c` knows the number of lanes. Without `perm` the rows are
// in their order.
template <u32 C, typename T>
__device__ __forceinline__ void slices(const u64 *__restrict__ slice_ptr, const u32 *__restrict__ full,
                                       const u32 *__restrict__ cols, const T *__restrict__ values,
                                       const u32 *__restrict__ perm, u32 c, u32 nrows, u32 ncols,
                                       const T *__restrict__ x, T *__restrict__ y) {
    u64 i = thread_id();
    if (i >= nrows) return;
    u32 lanes = C == 0 ? c : C;
    u32 slice = u32(i) / lanes;
    u32 lane = u32(i) % lanes;
    u64 begin = __ldg(slice_ptr + slice);
    u64 width = (__ldg(slice_ptr + slice + 1) - begin) / lanes;
    u32 row = perm ? __ldcs(perm + i) : u32(i);
    y[row] = sum_slots(cols, values, Factors<T>{x, ncols}, begin + lane, lanes, __ldg(full + slice), width);
}

#define SLICES(NAME, C, T)                                                                                       \
    KERNEL NAME(const u64 *slice_ptr, const u32 *full, const u32 *cols, const T *values, const u32 *perm, u32 c, \
                u32 nrows, u32 ncols, const T *x, T *y) {                                                        \
        slices<C>(slice_ptr, full, cols, values, perm, c, nrows, ncols, x, y);                                   \
    }

SLICES(sell_f32, 0, float)
SLICES(sell_f64, 0, double)
SLICES(sell32_f32, 32, float)
SLICES(sell32_f64, 32, double)
