// Packing on a GPU from CSR arrays in its memory: device code shared by psell_pack_rows.cu and
// psell_pack_slices.cu. The result is bitwise that of src/formats/psell on the host, which
// documents the layout.

#pragma once

#include "psell_spmv.cuh"

// Most lanes of a slice with long rows that are filled: `MOST_FILLED` in
// src/formats/psell/index.rs.
constexpr u32 MOST_FILLED = WARP / 4;

// Row of a lane in its slice. Empty if the lane has no row, or a long one.
struct Lane {
    u64 begin;
    u32 len;
    u32 row;
    bool is_long;

    __device__ __forceinline__ Lane(const OrderedRows &rows, u32 slice) : begin(0), len(0), row(0), is_long(false) {
        u64 i = u64(slice) * WARP + threadIdx.x % WARP;
        if (i >= rows.count) return;
        row = rows.perm ? rows.perm[i] : u32(i);
        begin = __ldg(rows.row_ptr + row);
        u64 all = rows.length(row);
        is_long = all > rows.limit;
        len = is_long ? 0 : u32(all);
    }

    // Lanes with long rows that are filled in the slots that all other lanes have, with zeros:
    // `LaneRows::filled` in src/formats/psell/index.rs.
    __device__ __forceinline__ u32 filled() const {
        u32 lanes = __ballot_sync(ALL_LANES, is_long);
        return __popc(lanes) <= MOST_FILLED ? lanes : 0;
    }
};

// Slice of this warp, and whether it exists.
__device__ __forceinline__ u32 own_slice() { return u32(thread_id() / WARP); }
__device__ __forceinline__ bool has_slice(u32 rows) { return thread_id() / WARP * WARP < rows; }

// Values of a dictionary: `Dictionary` in src/formats/encoded.rs.
using analysis::VALUE_SLOTS;

// Destination of values: plain values; with `keys`, codes, which are stored beside the keys;
// nothing if there is no array. B is the type of a value's bits.
template <typename B>
struct Sink {
    void *values;
    const u64 *keys;
    const u8 *codes;

    // Number of values per unit.
    __device__ __forceinline__ u32 per_unit() const { return keys ? ALIGNMENT : ALIGNMENT / sizeof(B); }
    __device__ __forceinline__ void put(u64 at, B bits) const {
        if (!keys) {
            static_cast<B *>(values)[at] = bits;
            return;
        }
        u32 slot = value_slot(bits);
        while (__ldg(keys + slot) != bits) slot = (slot + 1) % VALUE_SLOTS;
        static_cast<u8 *>(values)[at] = __ldg(codes + slot);
    }
};
