// Packing of cache blocks on a GPU: pieces, their targets and their contents.

#include "common.cuh"
#include "blocked_pack.cuh"

constexpr u32 LANE_SLOTS = LANE;
constexpr u32 BATCH_SLOTS = WARP * LANE_SLOTS;
constexpr u32 PIECE_SLOTS = BATCHES * BATCH_SLOTS;

// Number of entries before every tile.
KERNEL(blocked_pack_tiles)(const Tile *tiles, u32 count, const u64 *before, u32 *first_entries) {
    u64 t = thread_id();
    if (t < count) first_entries[t] = entries_of(before[tiles[t].first_cell]);
}

// First cell that begins in each piece or behind it, and 1 if the cell before it continues in the
// piece. The pieces of a tile begin at every PIECE_SLOTS-th of its entries.
KERNEL(blocked_pack_pieces)(const Tile *tiles, u32 count, const u64 *before, u32 pieces, u32 *cells, u64 *cuts) {
    u64 piece = thread_id();
    if (piece >= pieces) return;
    Tile tile = tile_of(tiles, count, piece);
    u32 entry = tile.first_entry + (u32(piece) - tile.first_piece) * PIECE_SLOTS;
    u32 cell = first_of(tile.first_cell, tile.first_cell + tile.rows, [=](u32 i) {
        return entries_of(before[i]) >= entry;
    });
    cells[piece] = cell;
    cuts[piece] = entries_of(before[cell]) > entry;
}

// Number of segments before every piece, and of all. It is the number of non-empty cells that begin
// before the piece (`all` behind the last one), plus, from `cuts`, the number of earlier pieces
// into which a cell continues.
KERNEL(blocked_pack_piece_ptr)(const u64 *before, const u32 *cells, const u64 *cuts, u32 pieces,
                               u32 all, u32 *piece_ptr) {
    u64 piece = thread_id();
    if (piece <= pieces) piece_ptr[piece] = (piece < pieces ? nonempty_of(before[cells[piece]]) : all) + u32(cuts[piece]);
}

// Calls `visit(cell, first piece, last piece)` for the non-empty cells of a row. A cell has a
// segment in each of these pieces.
template <typename Visit>
__device__ __forceinline__ void visit_cells(const PanelTiles *panels, u32 count, const Tile *tiles,
                                            const u64 *before, u32 row, Visit visit) {
    PanelTiles panel = panel_of(panels, count, row);
    for (u32 window = 0; window < panel.windows; ++window) {
        const Tile &tile = tiles[panel.first_tile + window];
        u32 cell = tile.first_cell + (row - tile.first_row);
        u32 start = entries_of(before[cell]) - tile.first_entry,
            end = entries_of(before[cell + 1ull]) - tile.first_entry;
        if (end > start)
            visit(cell, tile.first_piece + start / PIECE_SLOTS,
                  tile.first_piece + (end - 1) / PIECE_SLOTS);
    }
}

// Adds the number of segments of every row to `segments`.
KERNEL(blocked_pack_segments)(const PanelTiles *panels, u32 count, const Tile *tiles,
                              const u64 *before, u32 nrows, u32 *segments) {
    u64 row = thread_id();
    if (row >= nrows) return;
    u32 all = segments[row];
    visit_cells(panels, count, tiles, before, u32(row), [&](u32, u32 from, u32 to) { all += to - from + 1; });
    segments[row] = all;
}

// For every split row, which has no segment or several: their number in the upper half, and 1 in
// the lower. Otherwise 0.
KERNEL(blocked_pack_split)(const u32 *segments, u32 nrows, u64 *numbers) {
    u64 row = thread_id();
    if (row < nrows) numbers[row] = segments[row] == 1 ? 0 : both(segments[row], 1);
}

// Lists the split rows and the first partial sum of each. Replaces `segments` by the first target
// of every row: the row itself, or behind all rows the place of its first partial sum. `before` are
// the sums of blocked_pack_split.
KERNEL(blocked_pack_rows)(u32 *segments, u32 nrows, const u64 *before, u32 *split_rows, u32 *split_ptr) {
    u64 row = thread_id();
    if (row > nrows) return;
    u32 first = upper(before[row]), place = lower(before[row]);
    if (row == nrows) {
        split_ptr[place] = first;
    } else if (segments[row] == 1) {
        segments[row] = u32(row);
    } else {
        split_rows[place] = u32(row);
        split_ptr[place] = first;
        segments[row] = nrows + first;
    }
}

// Assigns consecutive targets to the segments of every row, from `next` on, and adds their number
// to `next`.
KERNEL(blocked_pack_targets)(const PanelTiles *panels, u32 count, const Tile *tiles,
                             const u64 *before, u32 nrows, const u32 *piece_ptr, const u64 *cuts,
                             u32 *next, u32 *targets) {
    u64 row = thread_id();
    if (row >= nrows) return;
    u32 target = next[row];
    visit_cells(panels, count, tiles, before, u32(row), [&](u32 cell, u32 from, u32 to) {
        targets[nonempty_of(before[cell]) + u32(cuts[from + 1ull])] = target++;
        // The segment of a continued cell is the first of its piece.
        for (u32 piece = from + 1; piece <= to; ++piece) targets[piece_ptr[piece]] = target++;
    });
    next[row] = target;
}

// Finds the entries of a class in the matrix, for consecutive numbers in the class.
struct Cursor {
    Class entries;
    u64 word;
    // Entries of the class in the word that follow the last one found.
    u32 left;

    __device__ __forceinline__ explicit Cursor(Class entries) : entries(entries), word(0), left(0) {}
    __device__ __forceinline__ void find(u32 entry) {
        u64 words = (entries.nnz + WARP - 1) / WARP;
        const Class &own = entries;
        word = first_of(u64(0), words, [=](u64 w) { return own.earlier(w) > entry; }) - 1;
        left = entries.mask(word);
        for (u32 skipped = u32(entry - entries.earlier(word)); skipped > 0; --skipped) left &= left - 1;
    }
    __device__ __forceinline__ u64 at(u32 entry) {
        if (left == 0) find(entry);
        u64 k = word * WARP + (__ffs(left) - 1);
        left &= left - 1;
        return k;
    }
};

// Filling of pieces, with a warp per batch.

// Stores the numbers of a lane in a batch: first 16 bytes of every lane, then the next 16 bytes of
// each.
template <typename N>
__device__ __forceinline__ void put(N *to, u64 batch, const N (&own)[LANE_SLOTS]) {
    constexpr u32 LOADS = LANE_SLOTS * sizeof(N) / 16, EACH = LANE_SLOTS / LOADS;
    uint4 *at = reinterpret_cast<uint4 *>(to + batch * BATCH_SLOTS);
#pragma unroll
    for (u32 l = 0; l < LOADS; ++l) {
        alignas(16) N load[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) load[k] = own[l * EACH + k];
        at[l * WARP + lane_id()] = *reinterpret_cast<const uint4 *>(load);
    }
}

// Fills a batch. C is the type of a stored column; `locate(tile, cell, entry)` is the position in
// the matrix of an entry of a cell, and `column(tile, col)` the number of its column in the tile.
// Values are not stored if `stored` is null.
template <typename B, typename C, typename Locate, typename Column>
__device__ __forceinline__ void fill(const u32 *col_idx, const B *values, const Tile *tiles,
                                     u32 count, const u64 *before, u32 pieces, void *cols,
                                     B *stored, u16 *flags, Locate locate, Column column) {
    u64 batch = thread_id() / WARP;
    if (batch >= u64(pieces) * BATCHES) return;
    u32 piece = u32(batch / BATCHES);
    Tile tile = tile_of(tiles, count, piece);
    u32 slot = u32(batch % BATCHES) * BATCH_SLOTS + lane_id() * LANE_SLOTS;
    u64 first = tile.first_entry + u64(piece - tile.first_piece) * PIECE_SLOTS + slot;
    u32 end_cell = tile.first_cell + tile.rows, end = entries_of(before[end_cell]);
    auto behind = [=](u64 entry) { return [=](u32 i) { return entries_of(before[i]) > entry; }; };
    C own_cols[LANE_SLOTS];
    B own_values[LANE_SLOTS];
    u32 end_bits = 0, cell = 0, cell_end = 0;
#pragma unroll
    for (u32 u = 0; u < LANE_SLOTS; ++u) {
        u64 entry = first + u;
        own_cols[u] = 0;
        own_values[u] = 0;
        if (entry >= end) continue;
        if (u == 0 || entry >= cell_end) {
            cell = first_of(u == 0 ? tile.first_cell : cell + 1, end_cell, behind(entry)) - 1;
            cell_end = entries_of(before[cell + 1ull]);
        }
        u64 k = locate(tile, cell, u32(entry));
        own_cols[u] = C(column(tile, col_idx[k]));
        if (stored) own_values[u] = values[k];
        if (entry + 1 == cell_end || slot + u + 1 == PIECE_SLOTS) end_bits |= 1u << u;
    }
    put(static_cast<C *>(cols), batch, own_cols);
    if (stored) put(stored, batch, own_values);
    u32 earlier = __popc(end_bits);
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        u32 other = __shfl_up_sync(ALL_LANES, earlier, offset);
        if (lane_id() >= offset) earlier += other;
    }
    flags[batch * WARP + lane_id()] = u16(end_bits | (earlier - __popc(end_bits)) << LANE_SLOTS);
}

// The kernels that fill pieces have the same parameters: those for windows read `firsts`, and
// `order` if rows are not sorted; those for near (hot) and far entries `masks` and the sums
// `hot_before`, for near ones also `places`.
#define FILL(SUFFIX, B)                                                                                                         \
    KERNEL_WITH(blocked_pack_window_##SUFFIX, FILL_BLOCKS)                                                                      \
        (const u64 *row_ptr, const u32 *col_idx, const B *values, const Tile *tiles, u32 count, const u64 *before, u32 pieces,  \
         const u32 *firsts, const u32 *order, const u32 *masks, const u64 *hot_before, u64 nnz, const u32 *places, void *cols,  \
         B *stored, u16 *flags) {                                                                                               \
        auto locate = [=](const Tile &tile, u32 cell, u32 entry) {                                                              \
            u64 start = row_ptr[tile.first_row + (cell - tile.first_cell)];                                                     \
            u64 k = start + firsts[cell] + (entry - entries_of(before[cell]));                                                  \
            return order ? start + order[k] : k;                                                                                \
        };                                                                                                                      \
        auto column = [](const Tile &tile, u32 col) { return col - tile.first_col; };                                           \
        fill<B, u16>(col_idx, values, tiles, count, before, pieces, cols, stored, flags, locate, column);                       \
    }                                                                                                                           \
    KERNEL_WITH(blocked_pack_near_##SUFFIX, FILL_BLOCKS)                                                                        \
        (const u64 *row_ptr, const u32 *col_idx, const B *values, const Tile *tiles, u32 count, const u64 *before, u32 pieces,  \
         const u32 *firsts, const u32 *order, const u32 *masks, const u64 *hot_before, u64 nnz, const u32 *places, void *cols,  \
         B *stored, u16 *flags) {                                                                                               \
        Cursor cursor{Class{masks, hot_before, nnz, true}};                                                                     \
        auto locate = [&](const Tile &, u32, u32 entry) { return cursor.at(entry); };                                           \
        auto column = [=](const Tile &, u32 col) { return places[col]; };                                                       \
        fill<B, u16>(col_idx, values, tiles, count, before, pieces, cols, stored, flags, locate, column);                       \
    }                                                                                                                           \
    KERNEL_WITH(blocked_pack_far_##SUFFIX, FILL_BLOCKS)                                                                         \
        (const u64 *row_ptr, const u32 *col_idx, const B *values, const Tile *tiles, u32 count, const u64 *before, u32 pieces,  \
         const u32 *firsts, const u32 *order, const u32 *masks, const u64 *hot_before, u64 nnz, const u32 *places, void *cols,  \
         B *stored, u16 *flags) {                                                                                               \
        Cursor cursor{Class{masks, hot_before, nnz, false}};                                                                    \
        auto locate = [&](const Tile &, u32, u32 entry) { return cursor.at(entry); };                                           \
        auto column = [](const Tile &, u32 col) { return col; };                                                                \
        fill<B, u32>(col_idx, values, tiles, count, before, pieces, cols, stored, flags, locate, column);                       \
    }

FILL(f32, u32)
FILL(f64, u64)
