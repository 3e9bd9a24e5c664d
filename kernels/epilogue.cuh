// Epilogues of a product. Every row is stored once, by one thread, with `store(row, sum)` of an
// epilogue, whose type is a template parameter of the device functions.

#pragma once

// Stores an element of `y`: evict-first if `l2_shares` says so, beside a matrix that is streamed.
template <typename W>
__device__ __forceinline__ void store_result(W *to, W value, [[maybe_unused]] u32 l2_shares) {
#ifdef STREAMED
    if (l2_shares & STREAM_RESULTS) return __stcs(to, value);
#endif
    *to = value;
}

// y = A x.
template <typename T>
struct PlainEpilogue {
    T *y;
    u32 l2_shares;

    __device__ __forceinline__ void store(u64 row, T sum) const { store_result(y + row, sum, l2_shares); }
};

// y = alpha A x + beta y. A factor is at its address, or is the value beside it if the address is
// null.
template <typename T>
struct AxpbyEpilogue {
    T *y;
    const T *alpha_at;
    T alpha;
    const T *beta_at;
    T beta;
    u32 l2_shares;

    // With alpha = 0 the sum is ignored, with beta = 0 `y` is not read: neither propagates a NaN.
    __device__ __forceinline__ void store(u64 row, T sum) const {
        T a = alpha_at ? __ldg(alpha_at) : alpha, b = beta_at ? __ldg(beta_at) : beta;
        T value = a == 0 ? T(0) : a * sum;
        if (b != 0) value += b * y[row];
        store_result(y + row, value, l2_shares);
    }
};

// Makes the axpby epilogue. With braces in the entry points instead, the compiler orders the
// instructions differently.
template <typename T>
__device__ __forceinline__ AxpbyEpilogue<T> axpby(T *y, const T *alpha_at, T alpha, const T *beta_at, T beta,
                                                  u32 l2_shares) {
    return {y, alpha_at, alpha, beta_at, beta, l2_shares};
}

// Epilogue of the entry points of a module: the axpby epilogue with SCALED, which defines the
// variant `scaled`. An entry point has the parameters EPILOGUE_PARAMETERS, which are those of `Out`
// in src/device/scaling.rs, and makes the epilogue EPILOGUE from them.
#ifdef SCALED
#define EPILOGUE_PARAMETERS(T) T *y, const T *alpha_at, T alpha, const T *beta_at, T beta
#define EPILOGUE(T) axpby<T>(y, alpha_at, alpha, beta_at, beta, l2_shares)
#else
#define EPILOGUE_PARAMETERS(T) T *y
#define EPILOGUE(T) PlainEpilogue<T>{y, l2_shares}
#endif
