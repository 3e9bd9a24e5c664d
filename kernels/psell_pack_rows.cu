// Packing on a GPU: order of the rows, long rows, and prefix sums.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_pack.cuh"

// Sorts rows by length within windows of `sigma`, longest first. The sort is stable.

// Windows that fit in a block: `windows` of them, sorted by a bitonic network (Batcher, AFIPS 1968)
// over `size` keys, a power of two. A key consists of the window, the inverted length and, in its
// low `bits`, the position in the window, so that all keys differ.
KERNEL(pack_sort_windows)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 windows, u32 size, u32 bits, u32 *perm) {
    __shared__ u32 keys[SORTED];
    Rows rows{row_ptr, nullptr, nrows, limit};
    u64 base = u64(blockIdx.x) * windows * sigma;
    u32 count = u32(min(u64(windows) * sigma, nrows - base));
    for (u32 i = threadIdx.x; i < size; i += BLOCK) {
        u32 window = i / sigma;
        keys[i] = i >= count ? ALL_LANES
                             : (window << WIDTH_BITS | (MAX_WIDTH - rows.short_length(u32(base + i)))) << bits | (i - window * sigma);
    }
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < size / 2; pair += BLOCK) {
                u32 i = (pair & ~(apart - 1)) << 1 | (pair & (apart - 1)), j = i | apart;
                u32 one = keys[i], other = keys[j];
                if ((one > other) == ((i & run) == 0)) {
                    keys[i] = other;
                    keys[j] = one;
                }
            }
        }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += BLOCK) {
        u32 key = keys[i];
        perm[base + i] = u32(base) + (key >> (WIDTH_BITS + bits)) * sigma + (key & ((1u << bits) - 1));
    }
}

// Larger windows: radix sort, lowest digit first. A block has a tile of rows in their present
// order.

constexpr u32 DIGIT_TILE = DIGIT_ROUNDS * BLOCK;

// Digit of a row. The key is the window and, in `bits` bits, the inverted length.
struct Digit {
    Rows rows;
    u32 sigma;
    u32 bits;
    u32 shift;

    __device__ __forceinline__ u32 of(u32 row) const {
        u64 key = u64(row / sigma) << bits | (rows.limit - rows.short_length(row));
        return u32(key >> shift) % DIGITS;
    }
};

// Position of this thread's row in a tile in a round; a warp has consecutive rows.
__device__ __forceinline__ u64 tile_place(u32 round) {
    return u64(blockIdx.x) * DIGIT_TILE + (threadIdx.x / WARP * DIGIT_ROUNDS + round) * WARP + lane_id();
}

// Histogram of the digits of every tile: counts[digit · tiles + tile].
KERNEL(pack_sort_count)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 bits, u32 shift, const u32 *from, u64 *counts) {
    __shared__ u32 found[DIGITS];
    Digit digit{{row_ptr, nullptr, nrows, limit}, sigma, bits, shift};
    found[threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < DIGIT_ROUNDS; ++round) {
        u64 i = tile_place(round);
        if (i < nrows) atomicAdd(&found[digit.of(from ? from[i] : u32(i))], 1);
    }
    __syncthreads();
    counts[u64(threadIdx.x) * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Moves every row to its position: after all rows with lower digits, and after earlier rows with
// the same digit.
KERNEL(pack_sort_place)(const u64 *row_ptr, u32 nrows, u32 limit, u32 sigma, u32 bits, u32 shift, const u32 *from, const u64 *before,
                       u32 *to) {
    __shared__ u32 next[WARPS][DIGITS];
    Digit digit{{row_ptr, nullptr, nrows, limit}, sigma, bits, shift};
    u32 warp = threadIdx.x / WARP;
    for (u32 w = 0; w < WARPS; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < DIGIT_ROUNDS; ++round) {
        u64 i = tile_place(round);
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
        u64 i = tile_place(round);
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

// Long rows.

constexpr u32 LONG_TILE = SCANNED * BLOCK;

// Number of long rows, of their pieces and of their entries among the rows of a thread.
struct LongRowCounts {
    u64 rows = 0;
    u64 pieces = 0;
    u64 entries = 0;

    __device__ __forceinline__ void add(u64 len) {
        ++rows;
        pieces += (len + PIECE - 1) / PIECE;
        entries += len;
    }
};

// Calls `visit(row, length)` for the long rows of this thread.
template <typename Visit>
__device__ __forceinline__ void visit_long_rows(const Rows &rows, Visit visit) {
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 row = u64(blockIdx.x) * LONG_TILE + threadIdx.x * SCANNED + k;
        if (row >= rows.count) return;
        u64 len = rows.length(u32(row));
        if (len > rows.limit) visit(u32(row), len);
    }
}

// Number of long rows, pieces and entries of every tile: three arrays of one number per block.
KERNEL(pack_long_count)(const u64 *row_ptr, u32 nrows, u32 limit, u64 *sums) {
    LongRowCounts own;
    visit_long_rows({row_ptr, nullptr, nrows, limit}, [&](u32, u64 len) { own.add(len); });
    u64 all[] = {block_scan(own.rows).all, block_scan(own.pieces).all, block_scan(own.entries).all};
    if (threadIdx.x < 3) sums[threadIdx.x * gridDim.x + blockIdx.x] = threadIdx.x == 0 ? all[0] : threadIdx.x == 1 ? all[1] : all[2];
}

// Number, first piece and first entry of every long row. `sums` are the prefix sums over the tiles.
KERNEL(pack_long_rows)(const u64 *row_ptr, u32 nrows, u32 limit, const u64 *sums, u32 *long_rows, u32 *firsts, u64 *begins) {
    Rows rows{row_ptr, nullptr, nrows, limit};
    LongRowCounts own;
    visit_long_rows(rows, [&](u32, u64 len) { own.add(len); });
    LongRowCounts before;
    before.rows = sums[blockIdx.x] + block_scan(own.rows).own;
    before.pieces = sums[gridDim.x + blockIdx.x] + block_scan(own.pieces).own;
    before.entries = sums[2 * gridDim.x + blockIdx.x] + block_scan(own.entries).own;
    visit_long_rows(rows, [&](u32 row, u64 len) {
        long_rows[before.rows] = row;
        firsts[before.rows] = u32(before.pieces);
        begins[before.rows] = before.entries;
        before.add(len);
    });
}

// Writes the pieces, with one warp per long row.
KERNEL(pack_long_pieces)(const u64 *row_ptr, const u32 *long_rows, const u32 *firsts, const u64 *begins, u32 count, Piece *pieces) {
    u64 r = thread_id() / WARP;
    if (r >= count) return;
    u32 row = long_rows[r], first = firsts[r];
    u64 len = row_ptr[row + 1ull] - row_ptr[row], begin = begins[r];
    u32 all = u32((len + PIECE - 1) / PIECE);
    for (u32 p = lane_id(); p < all; p += WARP) {
        u64 start = u64(p) * PIECE;
        pieces[u64(first) + p] = {begin + start, u32(min(len - start, u64(PIECE))), row, first, all};
    }
}

// Copies the entries of the long rows, with one warp per piece.
template <typename B>
__device__ __forceinline__ void long_entries(const u64 *row_ptr, const u32 *col_idx, const B *values, const Piece *pieces, u32 count,
                                             u32 *cols, Sink<B> sink) {
    u64 p = thread_id() / WARP;
    if (p >= count) return;
    Piece piece = pieces[p];
    u64 from = row_ptr[piece.row] + (p - piece.first) * PIECE;
    for (u32 k = lane_id(); k < piece.count; k += WARP) {
        cols[piece.begin + k] = __ldcs(col_idx + from + k);
        if (sink.values) sink.put(piece.begin + k, __ldcs(values + from + k));
    }
}

#define COPY_LONG_ENTRIES(NAME, B)                                                                                                 \
    KERNEL(NAME)(const u64 *row_ptr, const u32 *col_idx, const B *values, const Piece *pieces, u32 count, u32 *cols, void *stored, \
                const u64 *keys, const u8 *codes) {                                                                              \
        long_entries<B>(row_ptr, col_idx, values, pieces, count, cols, Sink<B>{stored, keys, codes});                            \
    }

COPY_LONG_ENTRIES(pack_long_entries_f32, u32)
COPY_LONG_ENTRIES(pack_long_entries_f64, u64)
