// COO: see src/formats/coo/mod.rs for the layout.
//
// Variants: streamed.

#include "common.cuh"

using namespace coo;
using formats::NONE;

// Number of consecutive entries that a thread sums.
constexpr u32 RUN = CHUNK / BLOCK;

// Position of entry i of a chunk in shared memory. The padding avoids bank conflicts between runs.
__device__ __forceinline__ u32 spread(u32 i) { return i + i / RUN; }

// Loads a thread's entries of a chunk of `count`. If it is not WHOLE, entries past its end repeat
// the last one, since loads are not predicated.
template <bool IN_L2, bool WHOLE, typename T>
__device__ __forceinline__ void load(const u32 *rows, const u32 *cols, const T *values, u32 count, u32 (&row)[RUN],
                                     u32 (&col)[RUN], T (&value)[RUN]) {
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) {
        u32 i = threadIdx.x + u * BLOCK;
        if (!WHOLE) i = min(i, count - 1);
        col[u] = fetch<IN_L2>(cols + i);
        value[u] = fetch<IN_L2>(values + i);
        row[u] = fetch<IN_L2>(rows + i);
    }
}

// A segmented sum over equally many entries per block. The thread in which a row ends writes the
// row, or, with ADD, adds to it. The sum of a row that continues in the next block goes to
// `carries`, with its row in `carry_rows`; every block has one carry. The last block to arrive adds
// them, or, if `arrivals` is null, another kernel does.
template <bool ADD, typename T>
__device__ __forceinline__ void segments(const u32 *__restrict__ rows, const u32 *__restrict__ cols,
                                         const T *__restrict__ values, u64 nnz, const T *__restrict__ x,
                                         T *y, u32 *carry_rows, T *carries, u32 *arrivals, u32 l2_shares) {
    __shared__ T products[CHUNK + BLOCK];
    // One more element for the row after the chunk.
    __shared__ u32 row_of[CHUNK + BLOCK + 1];

    u64 first = u64(blockIdx.x) * CHUNK;
    u32 count = u32(min(nnz - first, u64(CHUNK)));
    u32 row[RUN], col[RUN];
    T value[RUN];
    by_l2_share(blockIdx.x, l2_shares, [&](auto in_l2) {
        constexpr bool IN_L2 = decltype(in_l2)::value;
        if (count == CHUNK) load<IN_L2, true>(rows + first, cols + first, values + first, count, row, col, value);
        else load<IN_L2, false>(rows + first, cols + first, values + first, count, row, col, value);
    });
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
    // Rows that end in the run are complete except for the first one, which may begin in earlier
    // runs. `open` is the sum behind the last end.
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

    T before = block_segmented_carry<BLOCK>(open, first_end != NONE);
    if (first_end != NONE) put(first_end, before + first_sum);
    if (threadIdx.x == BLOCK - 1) {
        carries[blockIdx.x] = first_end == NONE ? before + open : open;
        carry_rows[blockIdx.x] = row_of[spread(count - 1)];
    }
    // No row continues after the last chunk.
    u32 cuts = gridDim.x - 1;
    if (arrivals != nullptr && is_last_block(arrivals))
        for (u32 base = 0; base < cuts; base += BLOCK) add_carries(carry_rows, carries, base, cuts, y);
}

// One thread per entry. y holds zeros or the sums to add to.
template <bool IN_L2, typename T>
__device__ __forceinline__ void entries_by_atomics(const u32 *__restrict__ rows, const u32 *__restrict__ cols,
                                                   const T *__restrict__ values, u64 nnz, const T *__restrict__ x,
                                                   T *y) {
    u64 i = thread_id();
    if (i < nnz) atomicAdd(y + fetch<IN_L2>(rows + i), fetch<IN_L2>(values + i) * __ldg(x + fetch<IN_L2>(cols + i)));
}

#define SEGMENTS(NAME, ADD, T)                                                                                      \
    KERNEL_WITH(NAME, SEGMENT_BLOCKS)(const u32 *rows, const u32 *cols, const T *values, u64 nnz, const T *x, T *y, \
                        u32 *carry_rows, T *carries, u32 *arrivals, u32 l2_shares) {                                \
        segments<ADD>(rows, cols, values, nnz, x, y, carry_rows, carries, arrivals, l2_shares);                     \
    }

#define INSTANCES(SUFFIX, T)                                                                            \
    SEGMENTS(coo_##SUFFIX, false, T)                                                                    \
    SEGMENTS(coo_add_##SUFFIX, true, T)                                                                 \
    KERNEL(coo_carries_##SUFFIX)(const u32 *rows, const T *carries, u64 count, T *y) {                  \
        add_carries(rows, carries, u64(blockIdx.x) * BLOCK, count, y);                                  \
    }                                                                                                   \
    KERNEL(coo_atomic_##SUFFIX)(const u32 *rows, const u32 *cols, const T *values, u64 nnz, const T *x, \
                               T *y, u32 l2_shares) {                                                   \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                            \
            entries_by_atomics<in_l2.value>(rows, cols, values, nnz, x, y);                             \
        });                                                                                             \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
