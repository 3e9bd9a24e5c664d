// Packing of cache blocks on a GPU: panels, hot columns, and the entries of the cells.

#include "common.cuh"
#include "blocked_pack.cuh"

// Least column of a row without entries; its largest is 0.
constexpr u32 NO_COLUMN = ~0u;

// Columns of the first and of the last entry of every row: the least and the largest one if the row
// is sorted. Subtracts from `descents` the row starts among them: a smaller column at a row start
// is no descent.
KERNEL(blocked_cells_spans)(const u64 *row_ptr, const u32 *col_idx, u32 nrows, uint2 *spans, u64 *descents) {
    u64 row = thread_id();
    bool falls = false;
    if (row < nrows) {
        u64 start = row_ptr[row], end = row_ptr[row + 1];
        spans[row] = start < end ? make_uint2(col_idx[start], col_idx[end - 1]) : make_uint2(NO_COLUMN, 0);
        falls = start < end && start > 0 && col_idx[start] < col_idx[start - 1];
    }
    u32 all = __syncthreads_count(falls);
    if (threadIdx.x == 0 && all > 0) atomicAdd(descents, u64(0) - all);
}

// Adds the number of entries with a column below that of the previous entry to `descents`. All rows
// are sorted if it is then 0.
KERNEL(blocked_cells_descents)(const u32 *col_idx, u64 nnz, u64 *descents) {
    u64 first = u64(blockIdx.x) * (BLOCK * BATCH) + threadIdx.x;
    u32 all = 0;
    for (u32 u = 0; u < BATCH; ++u) {
        u64 k = first + u * BLOCK;
        all += __syncthreads_count(k > 0 && k < nnz && col_idx[k] < col_idx[k - 1]);
    }
    if (threadIdx.x == 0 && all > 0) atomicAdd(descents, u64(all));
}

// Least and largest column of every row, with a warp per row.
KERNEL(blocked_cells_unsorted_spans)(const u64 *row_ptr, const u32 *col_idx, u32 nrows, uint2 *spans) {
    u64 row = thread_id() / WARP;
    if (row >= nrows) return;
    u32 least = NO_COLUMN, most = 0;
    for (u64 k = row_ptr[row] + lane_id(); k < row_ptr[row + 1]; k += WARP) {
        u32 col = __ldg(col_idx + k);
        least = min(least, col);
        most = max(most, col);
    }
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        least = min(least, __shfl_xor_sync(ALL_LANES, least, offset));
        most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
    }
    if (lane_id() == 0) spans[row] = make_uint2(least, most);
}

// Panels, cut one after the other by one block by the rule of `Panel::starting_at` in
// src/formats/blocked/panel.rs: first row, end, least and largest column of each.

constexpr u32 PANEL_WARPS = PANEL_THREADS / WARP;

// Consecutive rows of a thread at a time.
constexpr u32 PANEL_ROWS = 8;

// Least and largest column of some rows.
struct ColumnSpan {
    u32 least;
    u32 most;

    __device__ __forceinline__ ColumnSpan with(ColumnSpan other) const {
        return {min(least, other.least), max(most, other.most)};
    }
    // Number of columns, from the aligned start of the first window on.
    __device__ __forceinline__ u64 columns() const {
        return least > most ? 0 : u64(most) + 1 - least / PANEL_ALIGN * PANEL_ALIGN;
    }
};

KERNEL_OF(blocked_cells_panels, PANEL_THREADS, 1)(const u64 *row_ptr, const uint2 *spans, u32 nrows,
                                                  u32 widest, uint4 *panels, u32 *count) {
    __shared__ ColumnSpan of_warp[PANEL_WARPS];
    __shared__ u32 stop;
    const ColumnSpan nothing{NO_COLUMN, 0};
    u32 first = 0, found = 0;
    ColumnSpan carry = nothing;
    for (u32 base = 0; base < nrows;) {
        u64 begin = row_ptr[first];
        ColumnSpan own = nothing;
        ColumnSpan rows[PANEL_ROWS];
        u32 start = base + threadIdx.x * PANEL_ROWS;
#pragma unroll
        for (u32 k = 0; k < PANEL_ROWS; ++k) {
            uint2 span = start + k < nrows ? spans[start + k] : make_uint2(NO_COLUMN, 0);
            rows[k] = {span.x, span.y};
            own = own.with(rows[k]);
        }
        // Exclusive scan over the threads, after the carry of earlier rows of the panel.
        ColumnSpan sum = own;
#pragma unroll
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            ColumnSpan other{__shfl_up_sync(ALL_LANES, sum.least, offset), __shfl_up_sync(ALL_LANES, sum.most, offset)};
            if (lane_id() >= offset) sum = sum.with(other);
        }
        __syncthreads();
        if (lane_id() == WARP - 1) of_warp[threadIdx.x / WARP] = sum;
        if (threadIdx.x == 0) stop = nrows;
        ColumnSpan before{__shfl_up_sync(ALL_LANES, sum.least, 1), __shfl_up_sync(ALL_LANES, sum.most, 1)};
        if (lane_id() == 0) before = nothing;
        __syncthreads();
        ColumnSpan all = carry;
        for (u32 w = 0; w < PANEL_WARPS; ++w) {
            if (w == threadIdx.x / WARP) before = before.with(all);
            all = all.with(of_warp[w]);
        }
        // The first row of this thread that does not fit into the panel.
        u32 own_stop = nrows;
#pragma unroll
        for (u32 k = 0; k < PANEL_ROWS; ++k) {
            u32 row = start + k;
            if (row < nrows && own_stop == nrows) {
                u64 entries = row_ptr[row] - begin, columns = max(before.columns(), u64(widest));
                ColumnSpan after = before.with(rows[k]);
                bool full = entries >= MOST_DENSITY * columns;
                if (!full && entries >= LEAST_DENSITY * columns)
                    full = (after.columns() + widest - 1) / widest > (before.columns() + widest - 1) / widest;
                if (full) own_stop = row;
                else before = after;
            }
        }
        if (own_stop < nrows) atomicMin(&stop, own_stop);
        __syncthreads();
        if (stop == nrows) {
            carry = all;
            base = min(u64(base) + PANEL_THREADS * PANEL_ROWS, u64(nrows));
        } else {
            if (own_stop == stop) panels[found] = make_uint4(first, stop, before.least, before.most);
            ++found;
            first = base = stop;
            carry = nothing;
        }
    }
    if (threadIdx.x == 0) {
        if (first < nrows) panels[found++] = make_uint4(first, nrows, carry.least, carry.most);
        *count = found;
    }
}

// For sorted rows. For every cell its number of entries (upper half) and 1 if it has any (lower
// half); in `firsts` the number of entries before it in its row.
KERNEL(blocked_cells_sorted)(const u64 *row_ptr, const u32 *col_idx, const Tile *tiles, u32 count,
                             u32 cells, u32 *firsts, u64 *numbers) {
    u64 i = thread_id();
    if (i >= cells) return;
    Tile tile = tiles[first_of(0u, count, [=](u32 t) { return tiles[t].first_cell > i; }) - 1];
    u32 row = tile.first_row + (u32(i) - tile.first_cell);
    u64 start = row_ptr[row], end = row_ptr[row + 1ull];
    u64 behind = u64(tile.first_col) + tile.width;
    u64 from = first_of(start, end, [=](u64 k) { return col_idx[k] >= tile.first_col; });
    u64 to = first_of(from, end, [=](u64 k) { return col_idx[k] >= behind; });
    firsts[i] = u32(from - start);
    numbers[i] = both(u32(to - from), to > from);
}

// If rows are not sorted, the same by three kernels, and the order of the entries by window.

// Calls `visit(cell, position in the row, lanes with an entry in the same cell)` for every entry of
// a row, with a warp.
template <typename Visit>
__device__ __forceinline__ void visit_entries(const u64 *row_ptr, const u32 *col_idx,
                                              const PanelTiles *panels, u32 count,
                                              const Tile *tiles, u32 row, Visit visit) {
    PanelTiles panel = panel_of(panels, count, row);
    if (panel.windows == 0) return;
    Tile first = tiles[panel.first_tile];
    u64 start = row_ptr[row], length = row_ptr[row + 1ull] - start;
    for (u64 base = 0; base < length; base += WARP) {
        u64 k = base + lane_id();
        u32 active = __ballot_sync(ALL_LANES, k < length);
        if (k < length) {
            u32 window = (col_idx[start + k] - first.first_col) / first.width;
            u32 cell = first.first_cell + window * first.rows + (row - first.first_row);
            visit(cell, u32(k), __match_any_sync(active, cell));
        }
        __syncwarp();
    }
}

// Adds the number of entries of every cell to the upper half of its number.
KERNEL(blocked_cells_count)(const u64 *row_ptr, const u32 *col_idx, const PanelTiles *panels,
                            u32 count, const Tile *tiles, u32 nrows, u64 *numbers) {
    u64 row = thread_id() / WARP;
    if (row >= nrows) return;
    visit_entries(row_ptr, col_idx, panels, count, tiles, u32(row), [=](u32 cell, u32, u32 same) {
        if (lanes_before(same) == 0) numbers[cell] += both(__popc(same), 0);
    });
}

// Writes to `firsts` and `next` how many entries of the row precede each of its cells, and sets the
// lower half of the number of a non-empty cell to 1.
KERNEL(blocked_cells_firsts)(const PanelTiles *panels, u32 count, const Tile *tiles, u32 nrows,
                             u64 *numbers, u32 *firsts, u32 *next) {
    u64 row = thread_id();
    if (row >= nrows) return;
    PanelTiles panel = panel_of(panels, count, row);
    u32 earlier = 0;
    for (u32 window = 0; window < panel.windows; ++window) {
        const Tile &tile = tiles[panel.first_tile + window];
        u32 cell = tile.first_cell + (u32(row) - tile.first_row), own = entries_of(numbers[cell]);
        numbers[cell] = both(own, own > 0);
        firsts[cell] = next[cell] = earlier;
        earlier += own;
    }
}

// Positions of entries in their row, sorted by cell. `next` is the place in the row of the next
// entry of each cell.
KERNEL(blocked_cells_order)(const u64 *row_ptr, const u32 *col_idx, const PanelTiles *panels,
                            u32 count, const Tile *tiles, u32 nrows, u32 *next, u32 *order) {
    u64 row = thread_id() / WARP;
    if (row >= nrows) return;
    u64 start = row_ptr[row];
    visit_entries(row_ptr, col_idx, panels, count, tiles, u32(row), [=](u32 cell, u32 k, u32 same) {
        u32 earlier = lanes_before(same), first = next[cell];
        __syncwarp(same);
        if (earlier == 0) next[cell] = first + __popc(same);
        order[start + first + earlier] = k;
    });
}

// Hot columns.

// Bins that a block counts in shared memory: those of few entries, which have most columns.
constexpr u32 FEW_BINS = 2048;

// Number of entries of every column.
KERNEL(blocked_cells_columns)(const u32 *col_idx, u64 nnz, u32 *counts) {
    u64 k = thread_id();
    if (k < nnz) atomicAdd(counts + col_idx[k], 1);
}

// Bin k has the number of columns with k entries, from 1 on; the last bin also of those with more.
KERNEL(blocked_cells_bins)(const u32 *counts, u32 ncols, u32 *bins) {
    __shared__ u32 few[FEW_BINS];
    for (u32 i = threadIdx.x; i < FEW_BINS; i += BLOCK) few[i] = 0;
    __syncthreads();
    for (u64 col = thread_id(); col < ncols; col += u64(gridDim.x) * BLOCK) {
        u32 count = min(counts[col], BINS - 1);
        if (count == 0) continue;
        if (count < FEW_BINS) atomicAdd(few + count, 1);
        else atomicAdd(bins + count, 1);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < FEW_BINS; i += BLOCK)
        if (few[i] > 0) atomicAdd(bins + i, few[i]);
}

// Bound of the `most` columns with the most entries, by one block: they are the columns with more
// than found[0] entries, and found[1] of those with as many. found[2] is 1 if the bound is in the
// last bin, whose columns differ in their numbers of entries. `found` stays 0 if no more than
// `most` columns have entries.
KERNEL(blocked_cells_hottest)(const u32 *bins, u32 most, u32 *found) {
    constexpr u32 OWN = BINS / BLOCK;
    // Bins of this thread, from the largest number of entries down.
    const u32 *last = bins + (BINS - 1 - threadIdx.x * OWN);
    u32 own = 0;
    for (u32 k = 0; k < OWN; ++k) own += *(last - k);
    u32 more = u32(block_scan(own).own);
    if (more > most || more + own <= most) return;
    // The bound is in a bin of this thread, of which not all columns are taken.
    u32 k = 0;
    while (more + *(last - k) <= most) more += *(last - k++);
    found[0] = u32(last - k - bins);
    found[1] = most - more;
    found[2] = found[0] == BINS - 1;
}

// For every column 1 in the upper half if it has more than found[0] entries, and 1 in the lower
// half if it has as many.
KERNEL(blocked_cells_ranks)(const u32 *counts, u32 ncols, const u32 *found, u64 *numbers) {
    u64 col = thread_id();
    if (col >= ncols) return;
    u32 count = counts[col], bound = found[0];
    numbers[col] = both(count > bound, count == bound && bound > 0);
}

// Hot columns in ascending order, and the number of every column among them, or COLD.
KERNEL(blocked_cells_hot)(const u32 *counts, u32 ncols, const u32 *found, const u64 *before, u32 *hot, u32 *places) {
    u64 col = thread_id();
    if (col >= ncols) return;
    u32 count = counts[col], bound = found[0], ties = found[1];
    u32 above = upper(before[col]), equal = lower(before[col]);
    bool is_hot = count > bound || (count == bound && equal < ties);
    u32 place = above + min(equal, ties);
    places[col] = is_hot ? place : COLD;
    if (is_hot) hot[place] = u32(col);
}

// Mask of the hot entries in every word of 32, and their number.
KERNEL(blocked_cells_hot_masks)(const u32 *col_idx, u64 nnz, const u32 *places, u32 *masks, u64 *numbers) {
    u64 k = thread_id();
    u32 mask = __ballot_sync(ALL_LANES, k < nnz && places[col_idx[min(k, nnz - 1)]] != COLD);
    if (k < nnz && lane_id() == 0) {
        masks[k / WARP] = mask;
        numbers[k / WARP] = __popc(mask);
    }
}

// For every row its number of entries in a class (upper half) and 1 if it has any (lower half): a
// class has one cell per row.
KERNEL(blocked_cells_classes)(const u64 *row_ptr, u32 nrows, const u32 *masks, const u64 *before,
                              u64 nnz, u32 hot, u64 *numbers) {
    u64 row = thread_id();
    if (row >= nrows) return;
    Class entries{masks, before, nnz, hot != 0};
    u32 own = u32(entries.before_entry(row_ptr[row + 1]) - entries.before_entry(row_ptr[row]));
    numbers[row] = both(own, own > 0);
}

// Positions of entries in their row, first of the hot ones and then of the others, with a warp per
// row.
KERNEL(blocked_cells_hot_order)(const u64 *row_ptr, u32 nrows, const u32 *masks, const u64 *before,
                                u64 nnz, u32 *order) {
    u64 row = thread_id() / WARP;
    if (row >= nrows) return;
    Class hot{masks, before, nnz, true};
    u64 start = row_ptr[row], end = row_ptr[row + 1];
    u64 first = hot.before_entry(start), all = hot.before_entry(end) - first;
    for (u64 k = start + lane_id(); k < end; k += WARP) {
        u64 earlier = hot.before_entry(k) - first;
        bool is_hot = masks[k / WARP] >> k % WARP & 1;
        order[start + (is_hot ? earlier : all + (k - start) - earlier)] = u32(k - start);
    }
}
