// Sorting of rows by length on a GPU, within windows of `sigma` rows, longest first. The sort is
// stable.

#include "common.cuh"
#include "sort_keys.cuh"

using namespace formats;

// Windows that fit in a block: `windows` of them, with `size` keys, a power of two. A key consists
// of the window, the inverted length and, in its low `bits`, the position in the window, so that
// all keys differ.
KERNEL(sort_rows_windows)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 windows,
                          u32 size, u32 bits, u32 *perm) {
    __shared__ u32 keys[SORTED];
    OrderedRows rows{row_ptr, nullptr, nrows, limit};
    u64 base = u64(blockIdx.x) * windows * sigma;
    u32 count = u32(min(u64(windows) * sigma, nrows - base));
    for (u32 i = threadIdx.x; i < size; i += BLOCK) {
        u32 window = i / sigma;
        keys[i] = i >= count ? ALL_LANES
                             : (window << LENGTH_BITS | (MAX_LENGTH - rows.short_length(u32(base + i)))) << bits |
                                   (i - window * sigma);
    }
    sort_keys(keys, size);
    for (u32 i = threadIdx.x; i < count; i += BLOCK) {
        u32 key = keys[i];
        perm[base + i] = u32(base) + (key >> (LENGTH_BITS + bits)) * sigma + (key & ((1u << bits) - 1));
    }
}

// Larger windows: radix sort, lowest digit first. A block has BLOCK_ROWS rows, adjacent in their
// present order.

constexpr u32 BLOCK_ROWS = DIGIT_ROUNDS * BLOCK;

// Digit of a row. The key is the window and, in `bits` bits, the inverted length.
struct Digit {
    OrderedRows rows;
    u32 sigma;
    u32 bits;
    u32 shift;

    __device__ __forceinline__ u32 of(u32 row) const {
        u64 key = u64(row / sigma) << bits | (rows.limit - rows.short_length(row));
        return u32(key >> shift) % DIGITS;
    }
};

// Position of this thread's row in a round; a warp has consecutive rows.
__device__ __forceinline__ u64 row_place(u32 round) {
    return u64(blockIdx.x) * BLOCK_ROWS + (threadIdx.x / WARP * DIGIT_ROUNDS + round) * WARP + lane_id();
}

// Histogram of the digits of every block: counts[digit · blocks + block].
KERNEL(sort_rows_count)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 bits, u32 shift,
                        const u32 *from, u64 *counts) {
    __shared__ u32 found[DIGITS];
    Digit digit{{row_ptr, nullptr, nrows, limit}, sigma, bits, shift};
    found[threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < DIGIT_ROUNDS; ++round) {
        u64 i = row_place(round);
        if (i < nrows) atomicAdd(&found[digit.of(from ? from[i] : u32(i))], 1);
    }
    __syncthreads();
    counts[u64(threadIdx.x) * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Moves every row to its position: after all rows with lower digits, and after earlier rows with
// the same digit.
KERNEL(sort_rows_place)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 bits, u32 shift,
                        const u32 *from, const u64 *before, u32 *to) {
    __shared__ u32 next[WARPS][DIGITS];
    Digit digit{{row_ptr, nullptr, nrows, limit}, sigma, bits, shift};
    u32 warp = threadIdx.x / WARP;
    for (u32 w = 0; w < WARPS; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < DIGIT_ROUNDS; ++round) {
        u64 i = row_place(round);
        if (i < nrows) atomicAdd(&next[warp][digit.of(from ? from[i] : u32(i))], 1);
    }
    __syncthreads();
    u32 place = u32(before[u64(threadIdx.x) * gridDim.x + blockIdx.x]);
    for (u32 w = 0; w < WARPS; ++w) {
        u32 count = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
    for (u32 round = 0; round < DIGIT_ROUNDS; ++round) {
        u64 i = row_place(round);
        u32 row = i >= nrows ? 0 : from ? from[i] : u32(i);
        u32 own = i < nrows ? digit.of(row) : DIGITS;
        u32 same = __match_any_sync(ALL_LANES, own);
        u32 earlier = lanes_before(same);
        if (i < nrows) to[next[warp][own] + earlier] = row;
        __syncwarp();
        if (i < nrows && earlier == 0) next[warp][own] += __popc(same);
        __syncwarp();
    }
}
