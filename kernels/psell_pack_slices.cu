// Packing on a GPU: encoding of every slice, its position, its values and its index. One warp per
// slice, or per portion of a wide slice, with one row per lane.

#include "common.cuh"
#include "psell_pack_slice.cuh"

// Zero marks free positions of the table.
__device__ __forceinline__ u64 table_key(u64 hash) { return hash == 0 ? 1 : hash; }

// Chooses the encoding of every slice, as `Chooser` in src/formats/psell/index.rs, and for diagonal
// ones computes a hash that slices with equal slots share. `skip` gets the mask of lanes with long
// rows. Wide slices are only cut into `portions`.
KERNEL(psell_pack_choose)(const u64 *row_ptr, const u32 *col_idx, const u32 *perm, u32 nrows,
                          u32 ncols, u32 split, uint4 *encoded, u64 *hashes, u32 *skip,
                          Portion *portions, u64 *counts) {
    u32 slice = own_slice();
    if (!has_slice(nrows)) return;
    Lane own(OrderedRows{row_ptr, perm, nrows, split}, slice);
    const u32 *cols = col_idx + own.begin;
    u32 long_lanes = __ballot_sync(ALL_LANES, own.is_long);
    if (lane_id() == 0) skip[slice] = long_lanes;
    if (is_wide(own)) {
        u32 count = (lanes_max(own.len) + PORTION - 1) / PORTION;
        u64 at = lane_id() == 0 ? atomicAdd(counts + COUNT_PORTIONS, u64(count)) : 0;
        at = __shfl_sync(ALL_LANES, at, 0);
        for (u32 p = lane_id(); p < count; p += WARP) portions[at + p] = {slice, p};
        // Initial value for the properties of its portions, which are combined there.
        if (lane_id() == 0) encoded[slice] = make_uint4(ALL_LANES, 0, ASCENDING | TWOS | THREES, 0);
        return;
    }
    u64 end = min((u64(slice) + 1) * WARP, u64(nrows)), hash;
    uint4 chosen = choose_slice(own, cols, ncols, !perm && end <= ncols, hash);
    if (lane_id() == 0) {
        encoded[slice] = chosen;
        hashes[slice] = table_key(hash);
    }
}

// Wide slices. The warps of a grid share the portions, whose number only the GPU knows yet.
template <typename Visit>
__device__ __forceinline__ void visit_portions(const Portion *portions, const u64 *counts, Visit visit) {
    u64 warps = u64(gridDim.x) * WARPS;
    for (u64 i = thread_id() / WARP; i < counts[COUNT_PORTIONS]; i += warps) visit(i, portions[i]);
}

// Combines the properties of the columns of all portions.
KERNEL(psell_pack_survey_wide)(const u64 *row_ptr, const u32 *col_idx, const u32 *perm, u32 nrows,
                               u32 split, const Portion *portions, const u64 *counts,
                               uint4 *encoded) {
    visit_portions(portions, counts, [&](u64, Portion portion) {
        Lane own(OrderedRows{row_ptr, perm, nrows, split}, portion.slice);
        ColumnSurvey columns = LaneSurvey(col_idx + own.begin, own.len, portion.from(own.len), portion.to(own.len)).columns();
        if (lane_id() == 0) {
            atomicMin(&encoded[portion.slice].x, columns.first);
            atomicMax(&encoded[portion.slice].y, columns.last);
            atomicAnd(&encoded[portion.slice].z, columns.flags);
        }
    });
}
__device__ __forceinline__ ColumnSurvey surveyed(const uint4 *encoded, u32 slice) {
    const u32 *all = reinterpret_cast<const u32 *>(encoded + slice);
    return {all[0], all[1], all[2]};
}

// Number of slots of a portion that has too many.
constexpr u32 MANY = ~0u;

// Counts the slots of rows in their order, and those of the slice in the last word of `encoded`,
// until they are too many.
KERNEL(psell_pack_count_wide)(const u64 *row_ptr, const u32 *col_idx, u32 nrows, u32 ncols,
                              u32 split, const Portion *portions, const u64 *counts,
                              uint4 *encoded, SlotCounts *counted) {
    // Number of slots after which a warp reads the counts of the others.
    constexpr u32 ROUND = 32;
    visit_portions(portions, counts, [&](u64 i, Portion portion) {
        Lane own(OrderedRows{row_ptr, nullptr, nrows, split}, portion.slice);
        const u32 *cols = col_idx + own.begin;
        ColumnSurvey columns = surveyed(encoded, portion.slice);
        u32 most = most_slots(own, relative(own, columns));
        SlotCounts slots;
        slots.count = MANY;
        u64 end = min((u64(portion.slice) + 1) * WARP, u64(nrows));
        bool reached = own.len == 0 || (in_reach(__ldg(cols), own.row) && in_reach(__ldg(cols + own.len - 1), own.row));
        if (end <= ncols && columns.flags & ASCENDING && __all_sync(ALL_LANES, reached)) {
            Lane some = slots_of_portion(own, cols, portion.number);
            u32 seen = 0, room = most;
            u32 count = visit_slots(some, col_idx + some.begin, ncols, room, [&](int delta, u32 mask) {
                slots.add(delta, mask);
                if (++seen % ROUND != 0) return;
                u32 all = lane_id() == 0 ? atomicAdd(&encoded[portion.slice].w, ROUND) + ROUND : 0;
                if (__shfl_sync(ALL_LANES, all, 0) > most) room = 0;
            });
            if (count <= room) slots.count = count;
        }
        if (lane_id() == 0) counted[i] = slots;
    });
}

// Chooses the encoding of wide slices. Without `counted` they are not diagonal.
KERNEL(psell_pack_choose_wide)(const u64 *row_ptr, const u32 *perm, u32 nrows, u32 split,
                               const Portion *portions, const u64 *counts,
                               const SlotCounts *counted, uint4 *encoded, u64 *hashes) {
    visit_portions(portions, counts, [&](u64 i, Portion portion) {
        if (portion.number != 0) return;
        Lane own(OrderedRows{row_ptr, perm, nrows, split}, portion.slice);
        uint4 chosen = relative(own, surveyed(encoded, portion.slice));
        u32 count = (lanes_max(own.len) + PORTION - 1) / PORTION;
        SlotCounts slots;
        bool many = !counted;
        for (u32 p = 0; p < count && !many; ++p) {
            SlotCounts some = counted[i + p];
            many = some.count == MANY;
            slots.count += some.count;
            slots.full += some.full;
            slots.mix(some.hash);
        }
        if (!many) chosen = diagonal_or(own, chosen, slots, most_slots(own, chosen));
        __syncwarp();
        if (lane_id() == 0) {
            encoded[portion.slice] = chosen;
            hashes[portion.slice] = table_key(slots.hash);
        }
    });
}

// Position of a hash in the table of slots that slices share. The table has room for `mask` + 1
// hashes, a power of two, and for the first slice with each hash, stored as its complement so that
// zero means none.
__device__ __forceinline__ u64 table_place(u64 hash, u32 mask) { return (hash >> 24) & mask; }

// Enters the slots of the diagonal slices into the table.
KERNEL(psell_pack_share)(const uint4 *encoded, const u64 *hashes, u32 slices, u64 *keys,
                         u32 *firsts, u32 mask) {
    u64 s = thread_id();
    if (s >= slices || SliceShape::of(encoded[s].x).kind != DIAGONAL) return;
    u64 hash = hashes[s], place = table_place(hash, mask);
    while (true) {
        u64 found = __ldcg(keys + place);
        if (found == 0) found = atomicCAS(keys + place, 0ull, hash);
        if (found == 0 || found == hash) break;
        place = (place + 1) & mask;
    }
    u32 own = ~u32(s);
    if (__ldcg(firsts + place) < own) atomicMax(firsts + place, own);
}

// For every slice the first slice with its index, which is itself for a relative slice, and two
// arrays: the units of its values, and those of an index of its own.
KERNEL(psell_pack_units)(const uint4 *encoded, const u64 *hashes, u32 slices, const u64 *keys,
                         const u32 *firsts, u32 mask, u32 value_size, u32 *owners, u64 *units,
                         u64 *counts) {
    u64 s = thread_id();
    if (s >= slices) return;
    uint4 own = encoded[s];
    u32 owner = u32(s);
    if (SliceShape::of(own.x).kind == DIAGONAL) {
        u64 hash = hashes[s], place = table_place(hash, mask);
        while (keys[place] != hash) place = (place + 1) & mask;
        owner = ~firsts[place];
        // Different slots with one hash: a later comparison of the slots could read out of bounds.
        if (encoded[owner].x != own.x) counts[COUNT_HASH_COLLISION] = 1;
    } else {
        counts[COUNT_RELATIVE] = 1;
    }
    owners[s] = owner;
    units[s] = padded_bytes(own.z * value_size) / ALIGNMENT;
    units[slices + s] = owner == u32(s) ? own.w / ALIGNMENT : 0;
}

// Computes the header of every slice from the prefix sums of the units.
KERNEL(psell_pack_headers)(const uint4 *encoded, const u32 *owners, const u64 *units, u32 slices,
                           uint4 *headers) {
    u64 s = thread_id();
    if (s >= slices) return;
    headers[s] = make_uint4(u32(units[s]), u32(units[slices + owners[s]]), encoded[s].y, encoded[s].x);
}

// Writes the slots of the slices that own their index.
KERNEL(psell_pack_slots)(const u64 *row_ptr, const u32 *col_idx, u32 nrows, u32 ncols, u32 split,
                         const uint4 *headers, const u32 *owners, u8 *index) {
    u32 slice = own_slice();
    if (!has_slice(nrows)) return;
    uint4 header = headers[slice];
    SliceShape shape = SliceShape::of(header.w);
    if (shape.kind != DIAGONAL || owners[slice] != slice) return;
    Lane own(OrderedRows{row_ptr, nullptr, nrows, split}, slice);
    if (!is_wide(own)) put_slots(own, col_idx + own.begin, ncols, shape, index + u64(header.y) * ALIGNMENT, 0, 0);
}

// The same for a portion of a wide slice.
KERNEL(psell_pack_slots_wide)(const u64 *row_ptr, const u32 *col_idx, u32 nrows, u32 ncols, u32 split,
                              const uint4 *headers, const u32 *owners, u8 *index,
                              const Portion *portions, const SlotCounts *counted, u32 count) {
    u64 i = thread_id() / WARP;
    if (i >= count) return;
    Portion portion = portions[i];
    uint4 header = headers[portion.slice];
    SliceShape shape = SliceShape::of(header.w);
    if (shape.kind != DIAGONAL || owners[portion.slice] != portion.slice) return;
    u32 full = 0, partial = 0;
    for (u32 p = lane_id(); p < portion.number; p += WARP) {
        const SlotCounts &before = counted[i - portion.number + p];
        full += before.full;
        partial += before.count - before.full;
    }
    Lane own(OrderedRows{row_ptr, nullptr, nrows, split}, portion.slice);
    Lane some = slots_of_portion(own, col_idx + own.begin, portion.number);
    put_slots(some, col_idx + some.begin, ncols, shape, index + u64(header.y) * ALIGNMENT,
              subwarp_sum(full, WARP), subwarp_sum(partial, WARP));
}

// Writes the values of a slice, and its index if it is relative. `group` is the binary logarithm of
// the group. Sets COUNT_HASH_COLLISION if its slots differ from those of the slice whose index it
// shares. For wide slices it writes the steps or slots of a portion, else all.
template <bool WIDE, typename B>
__device__ __forceinline__ void write_slice(const OrderedRows &rows, Portion portion, const u32 *col_idx,
                                            const B *values, const uint4 *headers, u32 group,
                                            u8 *index, Sink<B> sink, u64 *counts) {
    uint4 header = headers[portion.slice];
    Lane own(rows, portion.slice);
    if (!WIDE && is_wide(own)) return;
    SliceShape shape = SliceShape::of(header.w);
    const u32 *cols = col_idx + own.begin;
    u8 *at = index + u64(header.y) * ALIGNMENT;
    u64 first = u64(header.x) * sink.per_unit();
    values += own.begin;
    u32 single = shape.full * WARP;
    if (shape.kind != DIAGONAL) {
        u32 from = 0, to = shape.width;
        if (WIDE) {
            from = min(to, portion.number * (PORTION / shape.step_columns));
            to = min(to, from + PORTION / shape.step_columns);
            u32 steps = own.filled() >> lane_id() & 1 ? shape.full : own.len / shape.step_columns;
            single = subwarp_sum(min(steps, max(from, shape.full)), WARP);
        }
        put_relative(own, cols, values, shape, header.z, at, group, first, sink, from, to, single);
    } else {
        Cut from{0, 0, 0}, to{shape.full, shape.width - shape.full, own.len};
        if (WIDE) {
            from = cut_slots(own, cols, shape, at, portion.number, from, to);
            to = cut_slots(own, cols, shape, at, portion.number + 1, Cut{0, 0, 0}, to);
            u32 before = own.filled() >> lane_id() & 1 ? from.full : from.next;
            single += subwarp_sum(before, WARP) - from.full * WARP;
        }
        if (!put_diagonal(own, cols, values, shape, at, group, first, sink, from, to, single)) counts[COUNT_HASH_COLLISION] = 1;
    }
}

#define WRITE(NAME, B)                                                                                                                    \
    KERNEL_WITH(NAME, COPY_BLOCKS)(const u64 *row_ptr, const u32 *col_idx, const B *values, const u32 *perm, u32 nrows, u32 split,        \
                        const uint4 *headers, u32 group, u8 *index, void *stored, const u64 *keys, const u8 *codes, u64 *counts) {        \
        if (!has_slice(nrows)) return;                                                                                                    \
        write_slice<false, B>({row_ptr, perm, nrows, split}, {own_slice(), 0}, col_idx, values, headers, group, index,                    \
                              {stored, keys, codes}, counts);                                                                             \
    }                                                                                                                                     \
    KERNEL_WITH(NAME##_wide, COPY_BLOCKS)(const u64 *row_ptr, const u32 *col_idx, const B *values, const u32 *perm, u32 nrows, u32 split, \
                       const uint4 *headers, u32 group, u8 *index, void *stored, const u64 *keys, const u8 *codes, u64 *counts,           \
                       const Portion *portions, u32 count) {                                                                              \
        u64 i = thread_id() / WARP;                                                                                                       \
        if (i >= count) return;                                                                                                           \
        write_slice<true, B>({row_ptr, perm, nrows, split}, portions[i], col_idx, values, headers, group, index, {stored, keys, codes},   \
                             counts);                                                                                                     \
    }

WRITE(psell_pack_write_f32, u32)
WRITE(psell_pack_write_f64, u64)
