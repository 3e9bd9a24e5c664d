// y = alpha p + beta y for a finished product p: the axpby epilogue of formats whose kernels do not
// store row sums in their final place.

#define SCALED
#include "common.cuh"

// One thread per row. Without a product it computes `beta y`. The product may be in `y` itself.
template <typename T>
__device__ __forceinline__ void rescale(const T *product, u32 nrows, AxpbyEpilogue<T> y) {
    u64 row = thread_id();
    if (row < nrows) y.store(row, product ? __ldca(product + row) : T(0));
}

KERNEL(scaled_f32)(const float *product, u32 nrows, EPILOGUE_PARAMETERS(float)) {
    rescale(product, nrows, axpby<float>(y, alpha_at, alpha, beta_at, beta, 0));
}
KERNEL(scaled_f64)(const double *product, u32 nrows, EPILOGUE_PARAMETERS(double)) {
    rescale(product, nrows, axpby<double>(y, alpha_at, alpha, beta_at, beta, 0));
}
