// Packing of ELL, SELL and JDS on a GPU: see src/formats/device_rows.rs.

#include "common.cuh"
#include "jds_section.cuh"

using namespace formats;

// For every slice of `c` rows, with a warp per slice, the length of its longest row in multiples of
// `portion`, rounded up, times `factor`. Unless they are null, in `full` the length of its shortest
// row, 0 if the slice lacks rows, and in `lengths` that of every row.
KERNEL(pack_rows_widths)(const u64 *row_ptr, const u32 *perm, u32 nrows, u32 c, u32 portion,
                         u32 factor, u64 *widths, u32 *full, u32 *lengths) {
    u64 slice = thread_id() / WARP, first = slice * c, end = first + c;
    if (first >= nrows) return;
    OrderedRows rows{row_ptr, perm, nrows, ALL_LANES};
    u32 most = 0, least = ALL_LANES;
    for (u64 i = first + lane_id(); i < min(end, u64(nrows)); i += WARP) {
        u32 len = u32(rows.length(perm ? perm[i] : u32(i)));
        most = max(most, len);
        least = min(least, len);
        if (lengths) lengths[i] = len;
    }
    most = lanes_max(most);
    least = lanes_min(least);
    if (lane_id() > 0) return;
    widths[slice] = (u64(most) + portion - 1) / portion * factor;
    if (full) full[slice] = end <= nrows ? least : 0;
}

// Number of entries of every row beyond the first `cut`.
KERNEL(pack_rows_beyond)(const u64 *row_ptr, u32 nrows, u32 cut, u64 *numbers) {
    u64 row = thread_id();
    if (row >= nrows) return;
    u64 len = row_ptr[row + 1] - row_ptr[row];
    numbers[row] = len > cut ? len - cut : 0;
}

// Marks all slots as padding.
KERNEL(pack_rows_pad)(u32 *cols, u64 slots) {
    u64 slot = thread_id();
    if (slot < slots) cols[slot] = PADDING;
}

// Calls `put(place in the row, column, bits of the value)` for the entries `from..to` of a row, one
// after the other.
template <typename B, typename Put>
__device__ __forceinline__ void visit_entries(const u32 *cols, const B *values, u64 from, u64 to, Put put) {
    for (u64 k = from; k < to; k += BATCH) {
        u32 left = u32(min(to - k, u64(BATCH)));
        u32 col[BATCH];
        B value[BATCH];
#pragma unroll
        for (u32 u = 0; u < BATCH; ++u)
            if (u < left) {
                col[u] = __ldg(cols + k + u);
                value[u] = __ldg(values + k + u);
            }
#pragma unroll
        for (u32 u = 0; u < BATCH; ++u)
            if (u < left) put(k + u, col[u], value[u]);
    }
}

// Copies entries to their slots, those of a row beyond the first `cut` to the tail, whose number
// before every row is `before_tail`. A warp has 32 adjacent rows in the order of `perm`, of each of
// which a thread copies ROW_PORTION entries at most; `before` has the number of these portions
// before every 32 rows, and of all. With `c` the rows are in slices of `c`, and `table` has the
// first slot of each; with `sections` it has that many sections; with neither the beginnings of the
// diagonals.
template <typename B>
__device__ __forceinline__ void copy_entries(const u64 *row_ptr, const u32 *col_idx,
                                             const B *values, const u32 *perm, u32 nrows,
                                             const u64 *before, u32 slices, const u64 *table,
                                             u32 sections, u32 c, u32 *cols, B *stored, u32 cut,
                                             const u64 *before_tail, u32 *tail_rows, u32 *tail_cols,
                                             B *tail_values) {
    u64 portion = thread_id() / WARP;
    if (portion >= before[slices]) return;
    u32 slice = first_of(0u, slices, [=](u32 s) { return before[s] > portion; }) - 1;
    u64 place = u64(slice) * WARP + lane_id();
    if (place >= nrows) return;
    u32 row = perm ? perm[place] : u32(place);
    u64 begin = row_ptr[row], len = row_ptr[row + 1ull] - begin;
    u64 from = (portion - before[slice]) * ROW_PORTION, to = min(len, from + ROW_PORTION), end = min(to, u64(cut));
    col_idx += begin;
    values += begin;
    auto store = [=](u64 slot, u32 col, B value) {
        cols[slot] = col;
        stored[slot] = value;
    };
    if (c == 0 && sections == 0) {
        visit_entries(col_idx, values, from, end, [=](u64 k, u32 col, B value) {
            store(table[k] + place, col, value);
        });
    } else {
        u64 first, stride;
        if (c > 0) {
            first = table[place / c] + place % c;
            stride = c;
        } else {
            const Section *all = reinterpret_cast<const Section *>(table);
            const Section &own = all[first_of(0u, sections, [=](u32 s) { return all[s].first_row > place; }) - 1];
            first = own.start + (place - own.first_row);
            stride = own.rows;
        }
        u64 slot = first + from * stride;
        // A product for every entry of a batch would take too many registers.
        visit_entries(col_idx, values, from, end, [&](u64, u32 col, B value) {
            store(slot, col, value);
            slot += stride;
        });
    }
    if (to <= cut) return;
    u64 first = max(from, u64(cut)), entry = before_tail[row] + (first - cut);
    visit_entries(col_idx, values, first, to, [&](u64, u32 col, B value) {
        tail_rows[entry] = row;
        tail_cols[entry] = col;
        tail_values[entry++] = value;
    });
}

#define ENTRIES(SUFFIX, B)                                                                                                       \
    KERNEL_WITH(pack_rows_entries_##SUFFIX, COPY_BLOCKS)                                                                         \
        (const u64 *row_ptr, const u32 *col_idx, const B *values, const u32 *perm, u32 nrows, const u64 *before, u32 slices,     \
         const u64 *table, u32 sections, u32 c, u32 *cols, B *stored, u32 cut, const u64 *before_tail, u32 *tail_rows,           \
         u32 *tail_cols, B *tail_values) {                                                                                       \
        copy_entries(row_ptr, col_idx, values, perm, nrows, before, slices, table, sections, c, cols, stored, cut, before_tail,  \
                     tail_rows, tail_cols, tail_values);                                                                         \
    }

ENTRIES(f32, u32)
ENTRIES(f64, u64)
