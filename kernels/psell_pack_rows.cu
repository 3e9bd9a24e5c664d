// Packing on a GPU: long rows.

#include "common.cuh"
#include "psell_pack.cuh"

constexpr u32 BLOCK_ROWS = SCANNED * BLOCK;

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
__device__ __forceinline__ void visit_long_rows(const OrderedRows &rows, Visit visit) {
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 row = u64(blockIdx.x) * BLOCK_ROWS + threadIdx.x * SCANNED + k;
        if (row >= rows.count) return;
        u64 len = rows.length(u32(row));
        if (len > rows.limit) visit(u32(row), len);
    }
}

// Number of long rows, pieces and entries of every block: three arrays of one number per block.
KERNEL(psell_pack_long_count)(const u64 *row_ptr, u32 nrows, u32 split, u64 *sums) {
    LongRowCounts own;
    visit_long_rows({row_ptr, nullptr, nrows, split}, [&](u32, u64 len) { own.add(len); });
    u64 all[] = {block_scan(own.rows).all, block_scan(own.pieces).all, block_scan(own.entries).all};
    if (threadIdx.x < 3)
        sums[threadIdx.x * gridDim.x + blockIdx.x] =
            threadIdx.x == 0 ? all[0] : threadIdx.x == 1 ? all[1] : all[2];
}

// Number, first piece and first entry of every long row. `sums` are the prefix sums of the blocks.
KERNEL(psell_pack_long_rows)(const u64 *row_ptr, u32 nrows, u32 split, const u64 *sums,
                             u32 *long_rows, u32 *firsts, u64 *begins) {
    OrderedRows rows{row_ptr, nullptr, nrows, split};
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
KERNEL(psell_pack_long_pieces)(const u64 *row_ptr, const u32 *long_rows, const u32 *firsts,
                               const u64 *begins, u32 count, Piece *pieces) {
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
__device__ __forceinline__ void long_entries(const u64 *row_ptr, const u32 *col_idx,
                                             const B *values, const Piece *pieces, u32 count,
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
                const u64 *keys, const u8 *codes) {                                                                                \
        long_entries<B>(row_ptr, col_idx, values, pieces, count, cols, Sink<B>{stored, keys, codes});                              \
    }

COPY_LONG_ENTRIES(psell_pack_long_entries_f32, u32)
COPY_LONG_ENTRIES(psell_pack_long_entries_f64, u64)
