// HYB: ELL and COO have their own kernels. This one is for a tail that is summed on the host.

#include "common.cuh"

// Adds sums to their rows, with one thread per row.
template <typename T>
__device__ __forceinline__ void add_rows(const u32 *__restrict__ rows, const T *__restrict__ sums, u32 count,
                                         T *__restrict__ y) {
    u64 i = thread_id();
    if (i < count) y[rows[i]] += sums[i];
}

KERNEL(hyb_add_f32)(const u32 *rows, const float *sums, u32 count, float *y) { add_rows(rows, sums, count, y); }
KERNEL(hyb_add_f64)(const u32 *rows, const double *sums, u32 count, double *y) { add_rows(rows, sums, count, y); }
