// Conversion of vectors to row-major order: see src/formats/spmm.rs.

#include "common.cuh"

using namespace formats;

// Maximum number of vectors that are copied at a time.
template <typename T>
constexpr u32 WIDTH = ROW_MAJOR_BYTES / sizeof(T);

// Copies element c of vector v from c * element + v * vector to c * width + v, for
// `count` vectors. Vectors from `count` to `width` are zero. A block copies BLOCK elements of all
// vectors.
template <typename T>
__device__ __forceinline__ void to_row_major(const T *__restrict__ x, u64 element, u64 vector,
                                             u32 len, u32 count, u32 width, T *__restrict__ to) {
    // One more column, so that adjacent vectors are in different banks.
    __shared__ T block[WIDTH<T>][BLOCK + 1];
    u64 first = u64(blockIdx.x) * BLOCK;
    u32 here = u32(min(u64(len) - first, u64(BLOCK)));
    // Adjacent threads read along the contiguous dimension.
    if (vector == 1) {
        for (u32 i = threadIdx.x; i < here * width; i += BLOCK) {
            u32 c = i / width, v = i % width;
            to[(first + c) * width + v] = v < count ? x[(first + c) * element + v] : T(0);
        }
        return;
    }
    if (threadIdx.x < here)
        for (u32 v = 0; v < width; ++v)
            block[v][threadIdx.x] = v < count ? x[(first + threadIdx.x) * element + v * vector] : T(0);
    __syncthreads();
    for (u32 i = threadIdx.x; i < here * width; i += BLOCK) to[first * width + i] = block[i % width][i / width];
}

#define INSTANCE(SUFFIX, T)                                                                                            \
    KERNEL(row_major_##SUFFIX)(const T *x, u64 element, u64 vector, u32 len, u32 count, u32 width, T *to) {                \
        to_row_major(x, element, vector, len, count, width, to);                                                     \
    }

INSTANCE(f32, float)
INSTANCE(f64, double)
