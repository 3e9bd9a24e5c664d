// COO: see src/formats/coo/mod.rs for the layout.

#include "common.cuh"

// Entries that a block works on: `CHUNK` in src/formats/coo/mod.rs.
constexpr u32 CHUNK = 2048;

// Consecutive entries that a thread sums.
constexpr u32 RUN = CHUNK / BLOCK;

// No row: there are fewer.
constexpr u32 NONE = 0xFFFFFFFF;

// Where entry i of a chunk is in shared memory: runs begin in different banks.
__device__ __forceinline__ u32 spread(u32 i) { return i + i / RUN; }

// A segmented sum over equally many entries for every block. A row is written, or added to when ADD, by the thread in which it ends;
// what a block has of a row that goes on is kept back in `carries`, one for every block, with its row in `carry_rows`.
template <bool ADD, typename T>
__device__ __forceinline__ void segments(const u32 *__restrict__ rows, const u32 *__restrict__ cols,
                                         const T *__restrict__ values, u64 nnz, const T *__restrict__ x,
                                         T *__restrict__ y, u32 *__restrict__ carry_rows, T *__restrict__ carries) {
    __shared__ T products[CHUNK + BLOCK];
    // One more: the row behind the chunk.
    __shared__ u32 row_of[CHUNK + BLOCK + 1];
    __shared__ T warp_open[WARPS];
    __shared__ bool warp_ended[WARPS];

    u64 first = u64(blockIdx.x) * CHUNK;
    u32 count = u32(min(nnz - first, u64(CHUNK)));
    u32 row[RUN], col[RUN];
    T value[RUN];
    // Those past the end load the last entry again: products are made without conditions.
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) {
        u64 i = first + min(threadIdx.x + u * BLOCK, count - 1);
        col[u] = __ldcs(cols + i);
        value[u] = __ldcs(values + i);
        row[u] = __ldcs(rows + i);
    }
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) value[u] *= __ldg(x + col[u]);
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) {
        u32 i = threadIdx.x + u * BLOCK;
        products[spread(i)] = i < count ? value[u] : T(0);
        row_of[spread(i)] = i < count ? row[u] : NONE;
    }
    if (threadIdx.x == 0) row_of[spread(CHUNK)] = first + CHUNK < nnz ? rows[first + CHUNK] : NONE;
    __syncthreads();

    auto put = [=](u32 row, T sum) {
        if (ADD) y[row] += sum;
        else y[row] = sum;
    };
    // Every row that ends in the run is complete but for the first, which may have begun in other runs. `open` is what there is
    // of the row behind the last end.
    u32 first_end = NONE;
    T first_sum = 0, open = 0;
    u32 here = row_of[spread(threadIdx.x * RUN)];
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) {
        open += products[spread(threadIdx.x * RUN + u)];
        u32 next = row_of[spread(threadIdx.x * RUN + u + 1)];
        if (here != next) {
            if (first_end == NONE) {
                first_end = here;
                first_sum = open;
            } else {
                put(here, open);
            }
            open = 0;
        }
        here = next;
    }

    // A scan over the warp of what is open, beginning anew at every lane with an end.
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 ended = __ballot_sync(ALL_LANES, first_end != NONE);
    u32 ended_here = ended & (ALL_LANES >> (WARP - 1 - lane));
    u32 start = ended_here == 0 ? 0 : WARP - 1 - __clz(ended_here);
    T run_open = open;
#pragma unroll
    for (u32 apart = 1; apart < WARP; apart *= 2) {
        T other = __shfl_up_sync(ALL_LANES, open, apart);
        if (lane >= start + apart) open += other;
    }
    if (lane == WARP - 1) {
        warp_open[warp] = open;
        warp_ended[warp] = ended != 0;
    }
    __syncthreads();

    // What there is, in the block, of the row with which this run begins.
    T before = 0;
    for (u32 w = 0; w < warp; ++w) before = warp_ended[w] ? warp_open[w] : before + warp_open[w];
    T lanes_before = __shfl_up_sync(ALL_LANES, open, 1);
    bool ended_before = (ended & ~(ALL_LANES << lane)) != 0;
    if (lane > 0) before = ended_before ? lanes_before : before + lanes_before;

    if (first_end != NONE) put(first_end, before + first_sum);
    if (threadIdx.x == BLOCK - 1) {
        carries[blockIdx.x] = first_end == NONE ? before + run_open : run_open;
        carry_rows[blockIdx.x] = row_of[spread(count - 1)];
    }
}

// A thread an entry; y holds zeros or what is added to.
template <typename T>
__device__ __forceinline__ void entries_by_atomics(const u32 *__restrict__ rows, const u32 *__restrict__ cols,
                                                   const T *__restrict__ values, u64 nnz, const T *__restrict__ x,
                                                   T *y) {
    u64 i = thread_id();
    if (i < nnz) atomicAdd(y + __ldcs(rows + i), __ldcs(values + i) * __ldg(x + __ldcs(cols + i)));
}

// Three arrays are loaded together: 64 registers a thread.
#define INSTANCES(SUFFIX, T)                                                                                      \
    KERNEL_WITH(4) coo_##SUFFIX(const u32 *rows, const u32 *cols, const T *values, u64 nnz, const T *x, T *y,             \
                        u32 *carry_rows, T *carries) {                                                            \
        segments<false>(rows, cols, values, nnz, x, y, carry_rows, carries);                                      \
    }                                                                                                             \
    KERNEL_WITH(4) coo_add_##SUFFIX(const u32 *rows, const u32 *cols, const T *values, u64 nnz, const T *x, T *y,         \
                            u32 *carry_rows, T *carries) {                                                        \
        segments<true>(rows, cols, values, nnz, x, y, carry_rows, carries);                                       \
    }                                                                                                             \
    KERNEL coo_carries_##SUFFIX(const u32 *rows, const T *carries, u64 count, T *y) {                             \
        add_carries(rows, carries, count, y);                                                                     \
    }                                                                                                             \
    KERNEL coo_atomic_##SUFFIX(const u32 *rows, const u32 *cols, const T *values, u64 nnz, const T *x, T *y) {    \
        entries_by_atomics(rows, cols, values, nnz, x, y);                                                        \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
