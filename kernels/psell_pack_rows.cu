// Packing on a GPU: order of the rows, long rows, and prefix sums.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_pack.cuh"

// Exclusive prefix sums of several arrays of `count` numbers, stored one after the other. Each tile
// of TILE numbers has a block, and each array has `tiles` of them.

constexpr u32 TILE = SCANNED * BLOCK;

// Sum of every tile.
KERNEL(pack_scan_sums)(const u64 *data, u64 count, u32 tiles, u64 *sums) {
    u32 array = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    u64 sum = 0;
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(tile) * TILE + k * BLOCK + threadIdx.x;
        if (i < count) sum += data[array * count + i];
    }
    u64 all = block_scan(sum).all;
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// Exclusive prefix sums over the tiles, by one block per array, and the total sums.
KERNEL(pack_scan_tiles)(u64 *sums, u32 tiles, u64 *totals) {
    sums += u64(blockIdx.x) * tiles;
    u64 carry = 0;
    for (u32 base = 0; base < tiles; base += BLOCK) {
        u32 i = base + threadIdx.x;
        u64 own = i < tiles ? sums[i] : 0;
        Before before = block_scan(own);
        if (i < tiles) sums[i] = carry + before.own;
        carry += before.all;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = carry;
}

// Prefix sums of the numbers from those of the tiles.
KERNEL(pack_scan_numbers)(u64 *data, u64 count, u32 tiles, const u64 *sums) {
    u32 array = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    data += array * count;
    u64 carry = sums[blockIdx.x];
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(tile) * TILE + k * BLOCK + threadIdx.x;
        u64 own = i < count ? data[i] : 0;
        Before before = block_scan(own);
        if (i < count) data[i] = carry + before.own;
        carry += before.all;
    }
}

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

// Distinct values of a matrix, as in `ValueSet`. Zero marks a free slot. `counts` are the number of
// values other than zero, and 1 if zero is among the values.

// Adds a key to a table. Returns false if the table is full.
__device__ __forceinline__ bool add_value(u64 *slots, u32 *count, u64 bits) {
    u32 slot = value_slot(bits);
    for (u32 tries = 0; tries < VALUE_SLOTS; ++tries, slot = (slot + 1) % VALUE_SLOTS) {
        u64 found = *reinterpret_cast<volatile u64 *>(slots + slot);
        if (found == 0) found = atomicCAS(slots + slot, 0ull, bits);
        if (found == 0) atomicAdd(count, 1);
        if (found == 0 || found == bits) return true;
    }
    return false;
}

// Every block collects its distinct values and adds them to the common table at the end. Blocks
// stop early when there are too many values.
template <typename B>
__device__ __forceinline__ void distinct_values(const B *values, u64 count, u64 *slots, u32 *counts) {
    __shared__ u64 own[VALUE_SLOTS];
    __shared__ u32 own_counts[2];
    for (u32 slot = threadIdx.x; slot < VALUE_SLOTS; slot += BLOCK) own[slot] = 0;
    if (threadIdx.x < 2) own_counts[threadIdx.x] = 0;
    __syncthreads();
    auto is_full = [](u32 *count) { return *reinterpret_cast<volatile u32 *>(count) > DICTIONARY; };
    u64 last = 0;
    u32 round = 0;
    for (u64 i = thread_id(); i < count; i += u64(gridDim.x) * BLOCK, ++round) {
        u64 bits = values[i];
        if (bits == 0) own_counts[1] = 1;
        if (bits != 0 && bits != last) {
            // After the limit is reached, a block adds at most one key per thread, for which the
            // table has space.
            if (is_full(own_counts)) break;
            add_value(own, own_counts, bits);
        }
        last = bits;
        if (round % 16 == 0 && is_full(counts)) break;
    }
    __syncthreads();
    if (threadIdx.x == 0 && own_counts[1]) counts[1] = 1;
    if (is_full(own_counts)) {
        if (threadIdx.x == 0) atomicMax(counts, DICTIONARY + 1);
        return;
    }
    for (u32 slot = threadIdx.x; slot < VALUE_SLOTS; slot += BLOCK)
        if (own[slot] && !is_full(counts) && !add_value(slots, counts, own[slot])) atomicMax(counts, DICTIONARY + 1);
}

KERNEL(pack_distinct_f32)(const u32 *values, u64 count, u64 *slots, u32 *counts) { distinct_values(values, count, slots, counts); }
KERNEL(pack_distinct_f64)(const u64 *values, u64 count, u64 *slots, u32 *counts) { distinct_values(values, count, slots, counts); }
