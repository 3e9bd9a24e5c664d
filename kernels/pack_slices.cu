// Packing on a GPU: how every slice is stored, where, and its values and its index. A warp a slice, a lane a row.

#include "common.cuh"
#include "packed.cuh"
#include "pack.cuh"

// Diagonal slices may have at most so many slots for every entry of their longest row: `DIAGONAL_SLOTS` in src/encoding/index.rs.
constexpr u32 DIAGONAL_SLOTS = 2;

// Bits of a delta that make its order that of unsigned numbers.
constexpr u32 SIGN = 0x80000000;

__device__ __forceinline__ u32 padded_bytes(u32 bytes) { return (bytes + UNIT - 1) / UNIT * UNIT; }

// What a header says of a slice: `Shape` in src/encoding/index.rs.
struct Shape {
    u32 kind;
    u32 run;
    u32 full;
    u32 width;

    static __device__ __forceinline__ Shape of(u32 bits) {
        return {bits & 3, (bits >> 2 & 3) + 1, bits >> 4 & MAX_WIDTH, bits >> (4 + WIDTH_BITS)};
    }
    __device__ __forceinline__ u32 bits() const { return kind | (run - 1) << 2 | full << 4 | width << (4 + WIDTH_BITS); }
};

// Calls `visit(delta, mask)` for the slots of a slice whose rows have strictly ascending columns, deltas ascending, and gives their number;
// gives up behind `most` of them. In every step the lanes agree on the smallest delta that is left.
template <typename Visit>
__device__ __forceinline__ u32 visit_slots(const Lane &own, const u32 *cols, u32 most, Visit visit) {
    u32 count = 0, next = 0;
    u32 delta = own.len > 0 ? (__ldg(cols) - own.row) ^ SIGN : ALL_LANES;
    while (__any_sync(ALL_LANES, next < own.len)) {
        if (++count > most) break;
        u32 least = lanes_min(delta);
        bool takes = next < own.len && delta == least;
        visit(int(least ^ SIGN), __ballot_sync(ALL_LANES, takes));
        if (takes) {
            ++next;
            delta = next < own.len ? (__ldg(cols + next) - own.row) ^ SIGN : ALL_LANES;
        }
    }
    return count;
}

// What a lane finds of its row.
struct Survey {
    u32 first = ALL_LANES;
    u32 last = 0;
    bool rises = true;
    // Whether the row consists of runs of so many consecutive columns.
    bool twos;
    bool threes;

    __device__ __forceinline__ Survey(const u32 *cols, u32 len) : twos(len % 2 == 0), threes(len % 3 == 0) {
        u32 before = 0, third = 0;
#pragma unroll 4
        for (u32 k = 0; k < len; ++k) {
            u32 col = __ldg(cols + k);
            first = min(first, col);
            last = max(last, col);
            bool follows = col == before + 1;
            if (k > 0) rises = rises && before < col;
            if (k % 2 != 0) twos = twos && follows;
            if (third != 0) threes = threes && follows;
            third = third == 2 ? 0 : third + 1;
            before = col;
        }
    }
};

// How a slice is stored: shape, base, entries and bytes of its index; `Encoded` in src/encoding/index.rs.
__device__ __forceinline__ uint4 relative(const Lane &own, const Survey &survey) {
    u32 longest = lanes_max(own.len), shortest = lanes_min(own.len);
    u32 entries = lanes_sum(own.len, WARP);
    u32 last = lanes_max(survey.last), first = min(lanes_min(survey.first), last);
    bool threes = __all_sync(ALL_LANES, survey.threes), twos = __all_sync(ALL_LANES, survey.twos);
    u32 run = threes ? 3 : twos ? 2 : 1;
    // The largest index belongs to the first column of a run.
    u32 span = last - first;
    span -= min(span, run - 1);
    u32 kind = span < 1 << 8 ? RELATIVE8 : span < 1 << 16 ? RELATIVE16 : RELATIVE32;
    u32 size = kind == RELATIVE8 ? 1 : kind == RELATIVE16 ? 2 : 4;
    Shape shape{kind, run, shortest / run, longest / run};
    u32 bytes = padded_bytes((shape.width - shape.full) * u32(sizeof(u32))) + padded_bytes(entries / run * size);
    return make_uint4(shape.bits(), kind == RELATIVE32 ? 0 : first, entries, bytes);
}

// Whether column minus row fits 31 bits and a sign.
__device__ __forceinline__ bool in_reach(u32 col, u32 row) {
    long long delta = (long long)col - (long long)row;
    return delta == int(delta);
}

// Chooses how every slice is stored, `Chooser` in src/encoding/index.rs; of diagonal ones also a number that slices with the same slots share.
// `skip` gets the lanes whose rows are kept apart.
KERNEL pack_choose(const u64 *row_ptr, const u32 *col_idx, const u32 *perm, u32 nrows, u32 ncols, u32 limit, uint4 *encoded, u64 *hashes,
                   u32 *skip) {
    u32 slice = own_slice();
    if (!has_slice(nrows)) return;
    Lane own(Rows{row_ptr, perm, nrows, limit}, slice);
    const u32 *cols = col_idx + own.begin;
    u32 apart = __ballot_sync(ALL_LANES, own.apart);
    Survey survey(cols, own.len);
    uint4 chosen = relative(own, survey);
    u64 hash = 0;

    u64 end = min((u64(slice) + 1) * WARP, u64(nrows));
    bool reached = own.len == 0 || (in_reach(survey.first, own.row) && in_reach(survey.last, own.row));
    if (!perm && end <= ncols && __all_sync(ALL_LANES, survey.rises && reached)) {
        // A slot takes at least a word.
        u32 most = min(min(chosen.w / u32(sizeof(u32)), DIAGONAL_SLOTS * lanes_max(own.len)), MAX_WIDTH);
        u32 full = 0;
        u32 count = visit_slots(own, cols, most, [&](int delta, u32 mask) {
            full += mask == ALL_LANES;
            hash = (hash ^ (u64(mask) << 32 | u32(delta))) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 29;
        });
        u32 bytes = (padded(full) + 2 * padded(count - min(full, count))) * u32(sizeof(u32));
        if (count <= most && bytes <= chosen.w) {
            Shape shape{DIAGONAL, 1, full, count};
            chosen = make_uint4(shape.bits(), 0, chosen.z, bytes);
        }
    }
    if (lane_id() == 0) {
        encoded[slice] = chosen;
        // Zero marks free places of the table.
        hashes[slice] = hash == 0 ? 1 : hash;
        skip[slice] = apart;
    }
}

// The table of slots that slices have in common: places for `mask` + 1 hashes, a power of two, and the first slice with each, as its
// complement, so that zero is none.

__device__ __forceinline__ u64 table_place(u64 hash, u32 mask) { return (hash >> 24) & mask; }

KERNEL pack_share(const uint4 *encoded, const u64 *hashes, u32 slices, u64 *keys, u32 *firsts, u32 mask) {
    u64 s = thread_id();
    if (s >= slices || Shape::of(encoded[s].x).kind != DIAGONAL) return;
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

// What is told to the host: words of `Found` in src/encoding/device/mod.rs.
enum { FOUND_RELATIVE = 5, FOUND_WRONG = 6 };

// Of every slice the first with its index, itself where it is relative; and two arrays: the units of its values, and those of an index of
// its own.
KERNEL pack_units(const uint4 *encoded, const u64 *hashes, u32 slices, const u64 *keys, const u32 *firsts, u32 mask, u32 value_size,
                  u32 *owners, u64 *units, u64 *found) {
    u64 s = thread_id();
    if (s >= slices) return;
    uint4 own = encoded[s];
    u32 owner = u32(s);
    if (Shape::of(own.x).kind == DIAGONAL) {
        u64 hash = hashes[s], place = table_place(hash, mask);
        while (keys[place] != hash) place = (place + 1) & mask;
        owner = ~firsts[place];
        // Different slots with one hash: whoever compares the slots themselves could not even read them.
        if (encoded[owner].x != own.x) found[FOUND_WRONG] = 1;
    } else {
        found[FOUND_RELATIVE] = 1;
    }
    owners[s] = owner;
    units[s] = padded_bytes(own.z * value_size) / UNIT;
    units[slices + s] = owner == u32(s) ? own.w / UNIT : 0;
}

// From the units before every slice to its header.
KERNEL pack_headers(const uint4 *encoded, const u32 *owners, const u64 *units, u32 slices, uint4 *headers) {
    u64 s = thread_id();
    if (s >= slices) return;
    headers[s] = make_uint4(u32(units[s]), u32(units[slices + owners[s]]), encoded[s].y, encoded[s].x);
}

// The slots of the slices that own theirs.
KERNEL pack_slots(const u64 *row_ptr, const u32 *col_idx, u32 nrows, u32 limit, const uint4 *headers, const u32 *owners, u8 *index) {
    u32 slice = own_slice();
    if (!has_slice(nrows)) return;
    uint4 header = headers[slice];
    Shape shape = Shape::of(header.w);
    if (shape.kind != DIAGONAL || owners[slice] != slice) return;
    Lane own(Rows{row_ptr, nullptr, nrows, limit}, slice);
    u32 *full = reinterpret_cast<u32 *>(index + u64(header.y) * UNIT);
    u32 *partial = full + padded(shape.full), *masks = partial + padded(shape.width - shape.full);
    visit_slots(own, col_idx + own.begin, MAX_WIDTH, [&](int delta, u32 mask) {
        if (mask == ALL_LANES) {
            if (lane_id() == 0) *full = u32(delta);
            ++full;
        } else {
            if (lane_id() == 0) *partial = u32(delta), *masks = mask;
            ++partial, ++masks;
        }
    });
}

// Position of the `k`-th of `full` slots that every lane has, in groups of 1 << `group`: src/encoding/layout.rs.
__device__ __forceinline__ u32 full_position(u32 k, u32 full, u32 group) {
    u32 grouped = k >> group << group;
    bool in_group = k < full >> group << group;
    return in_group ? grouped * WARP + (lane_id() << group) + (k - grouped) : k * WARP + lane_id();
}

// The values of a diagonal slice; false where its slots are not those that its index has.
template <typename B>
__device__ __forceinline__ bool put_diagonal(const Lane &own, const u32 *cols, const B *values, Shape shape, const u8 *index, u32 group,
                                             u64 first, Sink<B> sink) {
    const int *full = reinterpret_cast<const int *>(index);
    const int *partial = full + padded(shape.full);
    const u32 *masks = reinterpret_cast<const u32 *>(partial + padded(shape.width - shape.full));
    u32 f = 0, p = 0, next = 0, single = shape.full * WARP;
    bool right = true;
    for (u32 slot = 0; slot < shape.width; ++slot) {
        bool takes_full = f < shape.full && (p == shape.width - shape.full || __ldg(full + f) < __ldg(partial + p));
        int delta = __ldg(takes_full ? full + f : partial + p);
        u32 mask = takes_full ? ALL_LANES : __ldg(masks + p);
        u32 at = takes_full ? full_position(f, shape.full, group) : single + lanes_before(mask);
        if (mask >> lane_id() & 1) {
            bool same = next < own.len && __ldg(cols + next) - own.row == u32(delta);
            if (same && sink.values) sink.put(first + at, __ldg(values + next));
            right = right && same;
            ++next;
        }
        if (takes_full) {
            ++f;
        } else {
            ++p;
            single += __popc(mask);
        }
    }
    return right && next == own.len;
}

// The values and the index of a relative slice.
template <typename B>
__device__ __forceinline__ void put_relative(const Lane &own, const u32 *cols, const B *values, Shape shape, u32 base, u8 *index, u32 group,
                                             u64 first, Sink<B> sink) {
    u32 *masks = reinterpret_cast<u32 *>(index);
    u8 *indices = index + padded(shape.width - shape.full) * sizeof(u32);
    group = shape.run == 1 ? group : 0;
    // Where the indices of the steps that some lanes lack begin; their values begin `run` times as far.
    u32 single = shape.full * WARP;
    for (u32 step = 0; step < shape.width; ++step) {
        u32 k = step * shape.run;
        bool has = k < own.len, full = step < shape.full;
        u32 mask = __ballot_sync(ALL_LANES, has);
        if (!full && lane_id() == 0) masks[step - shape.full] = mask;
        if (has) {
            u32 at = full ? full_position(step, shape.full, group) : single + lanes_before(mask);
            u32 offset = __ldg(cols + k) - base;
            if (shape.kind == RELATIVE8) indices[at] = u8(offset);
            else if (shape.kind == RELATIVE16) reinterpret_cast<u16 *>(indices)[at] = u16(offset);
            else reinterpret_cast<u32 *>(indices)[at] = offset;
            for (u32 r = 0; r < shape.run && sink.values; ++r) {
                u32 slot = k + r;
                u32 place = full ? full_position(slot, shape.full * shape.run, group)
                                 : single * shape.run + r * __popc(mask) + lanes_before(mask);
                sink.put(first + place, __ldg(values + slot));
            }
        }
        if (!full) single += __popc(mask);
    }
}

// The values of all slices, and the index of relative ones; `group` is its binary logarithm. Tells when a slice has other slots than the one
// whose index it shares.
template <typename B>
__device__ __forceinline__ void write_slice(const Rows &rows, const u32 *col_idx, const B *values, const uint4 *headers, u32 group, u8 *index,
                                            Sink<B> sink, u64 *found) {
    u32 slice = own_slice();
    if (!has_slice(rows.count)) return;
    uint4 header = headers[slice];
    Shape shape = Shape::of(header.w);
    Lane own(rows, slice);
    const u32 *cols = col_idx + own.begin;
    u8 *at = index + u64(header.y) * UNIT;
    u64 first = u64(header.x) * sink.per_unit();
    values += own.begin;
    if (shape.kind != DIAGONAL) {
        put_relative(own, cols, values, shape, header.z, at, group, first, sink);
    } else if (!put_diagonal(own, cols, values, shape, at, group, first, sink)) {
        found[FOUND_WRONG] = 1;
    }
}

#define WRITE(NAME, B)                                                                                                                  \
    KERNEL NAME(const u64 *row_ptr, const u32 *col_idx, const B *values, const u32 *perm, u32 nrows, u32 limit, const uint4 *headers,   \
                u32 group, u8 *index, void *stored, const u64 *keys, const u8 *codes, u64 *found) {                                     \
        write_slice<B>(Rows{row_ptr, perm, nrows, limit}, col_idx, values, headers, group, index, Sink<B>{stored, keys, codes}, found); \
    }

WRITE(pack_write_f32, u32)
WRITE(pack_write_f64, u64)
