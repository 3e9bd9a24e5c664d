// CSR: see src/formats/csr/mod.rs for the layout.

#include "common.cuh"

// Entries of one row that a lane loads together: rows have few, and the lanes of a row share them.
constexpr u32 LANE_ENTRIES = 4;

// W lanes a row, each with every W-th of its entries; with W = 1 the textbook loop, a thread a row.
template <u32 W, typename T, typename O>
__device__ __forceinline__ void rows_by_lanes(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                              const T *__restrict__ values, u32 nrows, const T *__restrict__ x,
                                              T *__restrict__ y) {
    u64 row = thread_id() / W;
    u32 lane = threadIdx.x % W;
    u64 at = 0, count = 0;
    if (row < nrows) {
        at = row_ptr[row] + u64(lane);
        u64 end = row_ptr[row + 1];
        count = at < end ? (end - at + W - 1) / W : 0;
    }
    T sum = lanes_sum(sum_entries<LANE_ENTRIES>(cols, values, x, at, W, count), W);
    if (row < nrows && lane == 0) y[row] = sum;
}

// Entries and row ends together that a block works on: `CHUNK` in src/formats/csr/mod.rs.
constexpr u32 CHUNK = 2048;

// Equal work for every block, a chunk each. Chunk b begins with the rows from `chunk_rows[b]` on not yet ended. It writes the rows
// that end in it, and keeps back in `carries[b]` what it has of the one that does not.
template <typename T, typename O>
__device__ __forceinline__ void rows_by_chunks(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                               const T *__restrict__ values, const u32 *__restrict__ chunk_rows,
                                               u32 nrows, u64 nnz, const T *__restrict__ x, T *__restrict__ y,
                                               T *__restrict__ carries) {
    // Products from the front, row ends from the back: together they are never more than a chunk.
    __shared__ T shared[CHUNK];

    u64 begin = u64(blockIdx.x) * CHUNK;
    u64 end = min(begin + CHUNK, nrows + nnz);
    u32 first_row = chunk_rows[blockIdx.x];
    u32 ends = chunk_rows[blockIdx.x + 1] - first_row;
    u64 first = begin - first_row;
    u32 entries = u32(end - begin) - ends;
    T *products = shared;
    u32 *row_ends = reinterpret_cast<u32 *>(shared + CHUNK) - ends;

    u32 col[CHUNK / BLOCK];
    T value[CHUNK / BLOCK];
    if (entries > 0) {
#pragma unroll
        for (u32 u = 0; u < CHUNK / BLOCK; ++u) {
            // Those past the end load the last entry again: products are made without conditions.
            u32 i = min(threadIdx.x + u * BLOCK, entries - 1);
            col[u] = __ldcs(cols + first + i);
            value[u] = __ldcs(values + first + i);
        }
    }
    for (u32 i = threadIdx.x; i < ends; i += BLOCK) row_ends[i] = u32(row_ptr[u64(first_row) + 1 + i] - first);
    if (entries > 0) {
#pragma unroll
        for (u32 u = 0; u < CHUNK / BLOCK; ++u) value[u] *= __ldg(x + col[u]);
#pragma unroll
        for (u32 u = 0; u < CHUNK / BLOCK; ++u) {
            u32 i = threadIdx.x + u * BLOCK;
            if (i < entries) products[i] = value[u];
        }
    }

    auto store = [=](u32 i, T sum) {
        if (i == ends) carries[blockIdx.x] = sum;
        else y[u64(first_row) + i] = sum;
    };
    sum_segments<BLOCK, CHUNK, T>(row_ends, ends, entries, [=](u32 k) { return products[k]; }, store);
}

#define ROWS(NAME, W, T, O)                                                                                 \
    KERNEL NAME(const O *row_ptr, const u32 *cols, const T *values, u32 nrows, const T *x, T *y) {          \
        rows_by_lanes<W>(row_ptr, cols, values, nrows, x, y);                                               \
    }

#define INSTANCES(SUFFIX, T, O)                                                                             \
    ROWS(csr_scalar_##SUFFIX, 1, T, O)                                                                      \
    ROWS(csr_vector2_##SUFFIX, 2, T, O)                                                                     \
    ROWS(csr_vector4_##SUFFIX, 4, T, O)                                                                     \
    ROWS(csr_vector8_##SUFFIX, 8, T, O)                                                                     \
    ROWS(csr_vector16_##SUFFIX, 16, T, O)                                                                   \
    ROWS(csr_vector32_##SUFFIX, 32, T, O)                                                                   \
    KERNEL csr_balanced_##SUFFIX(const O *row_ptr, const u32 *cols, const T *values, const u32 *chunk_rows, \
                                 u32 nrows, u64 nnz, const T *x, T *y, T *carries) {                        \
        rows_by_chunks(row_ptr, cols, values, chunk_rows, nrows, nnz, x, y, carries);                       \
    }

INSTANCES(f32_o32, float, u32)
INSTANCES(f32_o64, float, u64)
INSTANCES(f64_o32, double, u32)
INSTANCES(f64_o64, double, u64)

KERNEL csr_carries_f32(const u32 *rows, const float *carries, u64 count, float *y) { add_carries(rows, carries, count, y); }
KERNEL csr_carries_f64(const u32 *rows, const double *carries, u64 count, double *y) { add_carries(rows, carries, count, y); }
