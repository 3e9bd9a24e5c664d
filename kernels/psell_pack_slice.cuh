// Packing on a GPU: work of a warp on a slice, or on a portion of a wide slice, with one row per
// lane.

#pragma once

#include "psell_pack.cuh"

// Sign bit. Inverting it gives deltas the order of unsigned numbers.
constexpr u32 SIGN = 0x80000000;

__device__ __forceinline__ u32 padded_bytes(u32 bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// Calls `visit(delta, mask)` for the slots of a slice whose rows have strictly ascending columns,
// in ascending order of the deltas. Returns the number of slots. Stops after `most` of them, which
// `visit` may lower. In every step the warp finds the smallest remaining delta. A slot that all
// lanes but filled ones have is full if its columns exist in these too.
template <typename Visit>
__device__ __forceinline__ u32 visit_slots(const Lane &own, const u32 *cols, u32 ncols, const u32 &most, Visit visit) {
    u32 count = 0, next = 0, filled = own.filled();
    u32 delta = own.len > 0 ? (__ldg(cols) - own.row) ^ SIGN : ALL_LANES;
    while (__any_sync(ALL_LANES, next < own.len)) {
        if (++count > most) break;
        u32 least = lanes_min(delta);
        bool takes = next < own.len && delta == least;
        int slot = int(least ^ SIGN);
        u32 mask = __ballot_sync(ALL_LANES, takes);
        if (mask != ALL_LANES && (mask | filled) == ALL_LANES) {
            bool exists = takes || u64((long long)own.row + slot) < ncols;
            if (__all_sync(ALL_LANES, exists)) mask = ALL_LANES;
        }
        visit(slot, mask);
        if (takes) {
            ++next;
            delta = next < own.len ? (__ldg(cols + next) - own.row) ^ SIGN : ALL_LANES;
        }
    }
    return count;
}

// A slice with a row of more than PORTION entries is wide. A single warp would finish it long after
// all others, so that each of its portions has a warp.
static_assert(PORTION % 6 == 0, "steps are not cut");

__device__ __forceinline__ bool is_wide(const Lane &own) { return __any_sync(ALL_LANES, own.len > PORTION); }

// Portion of a wide slice. The portions of a slice are consecutive.
struct Portion {
    u32 slice;
    u32 number;

    // First entry in a row of `len`, and the entry after the last one.
    __device__ __forceinline__ u32 from(u32 len) const { return min(len, number * PORTION); }
    __device__ __forceinline__ u32 to(u32 len) const { return min(len, (number + 1) * PORTION); }
};

// Properties of the columns of a slice.
enum { ASCENDING = 1, TWOS = 2, THREES = 4 };
struct ColumnSurvey {
    u32 first;
    u32 last;
    // ASCENDING if all rows ascend strictly; TWOS and THREES if all rows consist of steps of two or
    // three consecutive columns.
    u32 flags;
};

// Properties of a lane's row, or of its entries in a portion.
struct LaneSurvey {
    u32 first = ALL_LANES;
    u32 last = 0;
    bool ascending = true;
    bool twos;
    bool threes;

    __device__ __forceinline__ LaneSurvey(const u32 *cols, u32 len, u32 from, u32 to)
        : twos(len % 2 == 0), threes(len % 3 == 0) {
        u32 before = from > 0 && from < to ? __ldg(cols + from - 1) : 0, third = 0;
#pragma unroll 4
        for (u32 k = from; k < to; ++k) {
            u32 col = __ldg(cols + k);
            first = min(first, col);
            last = max(last, col);
            bool follows = col == before + 1;
            if (k > 0) ascending = ascending && before < col;
            if (k % 2 != 0) twos = twos && follows;
            if (third != 0) threes = threes && follows;
            third = third == 2 ? 0 : third + 1;
            before = col;
        }
    }

    // Combines the properties of all lanes.
    __device__ __forceinline__ ColumnSurvey columns() const {
        u32 flags = (__all_sync(ALL_LANES, ascending) ? ASCENDING : 0) | (__all_sync(ALL_LANES, twos) ? TWOS : 0) |
                    (__all_sync(ALL_LANES, threes) ? THREES : 0);
        return {lanes_min(first), lanes_max(last), flags};
    }
};

// Encoding of a relative slice: shape, base, stored values and bytes of its index; `Encoded` in
// src/formats/psell/index.rs.
__device__ __forceinline__ uint4 relative(const Lane &own, const ColumnSurvey &columns) {
    u32 filled = own.filled(), longest = lanes_max(own.len);
    u32 shortest = lanes_min(filled >> lane_id() & 1 ? ALL_LANES : own.len);
    u32 first = min(columns.first, columns.last);
    u32 step_columns = columns.flags & THREES ? 3 : columns.flags & TWOS ? 2 : 1;
    // The largest index is that of the first column of a step.
    u32 span = columns.last - first;
    span -= min(span, step_columns - 1);
    u32 kind = span < 1 << 8 ? RELATIVE8 : span < 1 << 16 ? RELATIVE16 : RELATIVE32;
    u32 size = kind == RELATIVE8 ? 1 : kind == RELATIVE16 ? 2 : 4;
    SliceShape shape{kind, step_columns, shortest / step_columns, longest / step_columns};
    u32 stored = subwarp_sum(own.len, WARP) + __popc(filled) * shape.full * step_columns;
    u32 bytes = padded_bytes((shape.width - shape.full) * u32(sizeof(u32))) + padded_bytes(stored / step_columns * size);
    return make_uint4(shape.bits(), kind == RELATIVE32 ? 0 : first, stored, bytes);
}

// True if column minus row fits in 32 signed bits.
__device__ __forceinline__ bool in_reach(u32 col, u32 row) {
    long long delta = (long long)col - (long long)row;
    return delta == int(delta);
}

// Maximum number of slots with which a slice of rows in their order is diagonal, if it is
// `relative` otherwise. A slot takes at least one word.
__device__ __forceinline__ u32 most_slots(const Lane &own, uint4 relative) {
    return min(min(relative.w / u32(sizeof(u32)), DIAGONAL_SLOTS * lanes_max(own.len)), MAX_WIDTH);
}

// Number of slots of a slice or of a portion, number of those that every lane has, and a hash of
// the slots.
struct SlotCounts {
    u32 count = 0;
    u32 full = 0;
    u64 hash = 0;

    __device__ __forceinline__ void mix(u64 word) {
        hash = (hash ^ word) * analysis::SPREAD;
        hash ^= hash >> 29;
    }
    __device__ __forceinline__ void add(int delta, u32 mask) {
        full += mask == ALL_LANES;
        mix(u64(mask) << 32 | u32(delta));
    }
};

// The diagonal slice with these slots, if they take no more bytes than `relative` and are not more
// than `most`. Else `relative`.
__device__ __forceinline__ uint4 diagonal_or(const Lane &own, uint4 relative, const SlotCounts &slots, u32 most) {
    u32 bytes = (padded(slots.full) + 2 * padded(slots.count - min(slots.full, slots.count))) * u32(sizeof(u32));
    if (slots.count > most || bytes > relative.w) return relative;
    u32 stored = subwarp_sum(own.len, WARP) + __popc(own.filled()) * slots.full;
    return make_uint4(SliceShape{DIAGONAL, 1, slots.full, slots.count}.bits(), 0, stored, bytes);
}

// Encoding of a slice, as `Chooser` in src/formats/psell/index.rs, and the hash of its slots if it
// is diagonal. It is not if its lanes are not consecutive rows whose numbers are columns.
__device__ __forceinline__ uint4 choose_slice(const Lane &own, const u32 *cols, u32 ncols, bool may_be_diagonal, u64 &hash) {
    LaneSurvey survey(cols, own.len, 0, own.len);
    ColumnSurvey columns = survey.columns();
    uint4 chosen = relative(own, columns);
    SlotCounts slots;
    bool reached = own.len == 0 || (in_reach(survey.first, own.row) && in_reach(survey.last, own.row));
    if (may_be_diagonal && columns.flags & ASCENDING && __all_sync(ALL_LANES, reached)) {
        u32 most = most_slots(own, chosen);
        slots.count = visit_slots(own, cols, ncols, most, [&](int delta, u32 mask) { slots.add(delta, mask); });
        chosen = diagonal_or(own, chosen, slots, most);
    }
    hash = slots.hash;
    return chosen;
}

// First delta of a portion: column minus row of the portion's first entry in the longest row, the
// first one of equals, so that equal slots are cut at the same deltas.
__device__ __forceinline__ int portion_delta(const Lane &own, const u32 *cols, u32 portion) {
    u32 longest = __ffs(__ballot_sync(ALL_LANES, own.len == lanes_max(own.len))) - 1;
    u32 delta = lane_id() == longest ? __ldg(cols + portion * PORTION) - own.row : 0;
    return int(__shfl_sync(ALL_LANES, delta, longest));
}
__device__ __forceinline__ bool is_last(const Lane &own, u32 portion) { return (portion + 1) * PORTION >= lanes_max(own.len); }

// Number of those of `count` ascending numbers that are below a bound.
template <typename At>
__device__ __forceinline__ u32 count_below(u32 count, int bound, At at) {
    u32 low = 0;
    while (count > 0) {
        u32 half = count / 2;
        bool below = at(low + half) < bound;
        low = below ? low + half + 1 : low;
        count = below ? count - half - 1 : half;
    }
    return low;
}
__device__ __forceinline__ u32 entries_below(const Lane &own, const u32 *cols, int bound) {
    return count_below(own.len, bound, [&](u32 k) { return int(__ldg(cols + k) - own.row); });
}

// Entries of a row in a portion of the slots, as a row of its own that begins with the first of
// them.
__device__ __forceinline__ Lane slots_of_portion(const Lane &own, const u32 *cols, u32 portion) {
    u32 from = portion == 0 ? 0 : entries_below(own, cols, portion_delta(own, cols, portion));
    u32 to = is_last(own, portion) ? own.len : entries_below(own, cols, portion_delta(own, cols, portion + 1));
    Lane some = own;
    some.begin += from;
    some.len = to - from;
    return some;
}

// Writes slots of a slice to its index, after `full_before` slots of all lanes and `partial_before`
// others.
__device__ __forceinline__ void put_slots(const Lane &own, const u32 *cols, u32 ncols, SliceShape shape,
                                          u8 *index, u32 full_before, u32 partial_before) {
    u32 *full = reinterpret_cast<u32 *>(index), *partial = full + padded(shape.full) + partial_before;
    u32 *masks = partial + padded(shape.width - shape.full);
    full += full_before;
    visit_slots(own, cols, ncols, u32(MAX_WIDTH), [&](int delta, u32 mask) {
        if (mask == ALL_LANES) {
            if (lane_id() == 0) *full = u32(delta);
            ++full;
        } else {
            if (lane_id() == 0) *partial = u32(delta), *masks = mask;
            ++partial, ++masks;
        }
    });
}

// Position of the `k`-th of `full` slots that every lane has, in groups of 1 << `group`:
// src/formats/psell/layout.rs.
__device__ __forceinline__ u32 full_position(u32 k, u32 full, u32 group) {
    u32 grouped = k >> group << group;
    bool in_group = k < full >> group << group;
    return in_group ? grouped * WARP + (lane_id() << group) + (k - grouped) : k * WARP + lane_id();
}

// Position between slots of a diagonal slice: number of earlier slots of all lanes, of other
// earlier slots, and of the own lane's earlier entries.
struct Cut {
    u32 full;
    u32 partial;
    u32 next;
};

// Writes the values of a diagonal slice between two cuts. Returns false if its slots differ from
// those of its index.
template <typename B>
__device__ __forceinline__ bool put_diagonal(const Lane &own, const u32 *cols, const B *values,
                                             SliceShape shape, const u8 *index, u32 group, u64 first,
                                             Sink<B> sink, Cut from, Cut to, u32 single) {
    const int *full = reinterpret_cast<const int *>(index);
    const int *partial = full + padded(shape.full);
    const u32 *masks = reinterpret_cast<const u32 *>(partial + padded(shape.width - shape.full));
    u32 f = from.full, p = from.partial, next = from.next;
    bool right = true;
    // An entry is loaded when the previous one has been stored.
    u32 col = 0;
    B value = 0;
    auto load = [&] {
        if (next >= own.len) return;
        col = __ldg(cols + next);
        if (sink.values) value = __ldg(values + next);
    };
    load();
    for (u32 slot = f + p; slot < to.full + to.partial; ++slot) {
        bool takes_full = f < to.full && (p == to.partial || __ldg(full + f) < __ldg(partial + p));
        int delta = __ldg(takes_full ? full + f : partial + p);
        u32 mask = takes_full ? ALL_LANES : __ldg(masks + p);
        u32 at = takes_full ? full_position(f, shape.full, group) : single + lanes_before(mask);
        if (mask >> lane_id() & 1) {
            if (own.is_long) {
                // Its lane is filled in slots that all lanes have, and only there.
                right = right && takes_full;
            } else {
                bool same = next < own.len && col - own.row == u32(delta);
                if (same && sink.values) sink.put(first + at, value);
                right = right && same;
                ++next;
                load();
            }
        }
        if (takes_full) {
            ++f;
        } else {
            ++p;
            single += __popc(mask);
        }
    }
    return right && next == to.next;
}

// Number of steps that a warp loads together.
constexpr u32 LOADED_STEPS = 4;

// Writes the values and the index of some steps of a relative slice.
template <typename B>
__device__ __forceinline__ void put_relative(const Lane &own, const u32 *cols, const B *values,
                                             SliceShape shape, u32 base, u8 *index, u32 group, u64 first,
                                             Sink<B> sink, u32 from, u32 to, u32 single) {
    u32 *masks = reinterpret_cast<u32 *>(index);
    u8 *indices = index + padded(shape.width - shape.full) * sizeof(u32);
    group = shape.step_columns == 1 ? group : 0;
    // `single` is the position of the indices of the next masked step. Its values begin at
    // `step_columns` times that position.
    for (u32 batch = from; batch < to; batch += LOADED_STEPS) {
        // All loads come before the first store.
        u32 col[LOADED_STEPS];
        B value[LOADED_STEPS];
#pragma unroll
        for (u32 b = 0; b < LOADED_STEPS; ++b) {
            u32 k = (batch + b) * shape.step_columns;
            bool has = batch + b < to && k < own.len;
            col[b] = has ? __ldg(cols + k) : 0;
            value[b] = has && sink.values ? __ldg(values + k) : 0;
        }
#pragma unroll
        for (u32 b = 0; b < LOADED_STEPS; ++b) {
            u32 step = batch + b, k = step * shape.step_columns;
            if (step >= to) break;
            bool has = k < own.len, full = step < shape.full;
            u32 mask = __ballot_sync(ALL_LANES, has), count = __popc(mask);
            if (!full && lane_id() == 0) masks[step - shape.full] = mask;
            if (has) {
                u32 at = full ? full_position(step, shape.full, group) : single + lanes_before(mask);
                u32 offset = col[b] - base;
                if (shape.kind == RELATIVE8) indices[at] = u8(offset);
                else if (shape.kind == RELATIVE16) reinterpret_cast<u16 *>(indices)[at] = u16(offset);
                else reinterpret_cast<u32 *>(indices)[at] = offset;
                for (u32 r = 0; r < shape.step_columns && sink.values; ++r) {
                    u32 place = full ? full_position(k + r, shape.full * shape.step_columns, group)
                                     : single * shape.step_columns + r * count + lanes_before(mask);
                    sink.put(first + place, r == 0 ? value[b] : __ldg(values + k + r));
                }
            }
            if (!full) single += count;
        }
    }
}

// Position of the first slot of a portion, between the positions `start` and `end` of the whole
// slice.
__device__ __forceinline__ Cut cut_slots(const Lane &own, const u32 *cols, SliceShape shape,
                                         const u8 *index, u32 portion, Cut start, Cut end) {
    if (portion == 0) return start;
    if (portion * PORTION >= lanes_max(own.len)) return end;
    const int *full = reinterpret_cast<const int *>(index), *partial = full + padded(shape.full);
    int bound = portion_delta(own, cols, portion);
    return {count_below(end.full, bound, [&](u32 k) { return __ldg(full + k); }),
            count_below(end.partial, bound, [&](u32 k) { return __ldg(partial + k); }),
            entries_below(own, cols, bound)};
}
