// Packing of cache blocks on a GPU: see src/formats/blocked/device_pack/mod.rs for the steps and
// src/formats/blocked/mod.rs for the layout.
//
// A *cell* holds the entries of a row in a tile: a run, or nothing. The cells of a tile are
// consecutive, in the order of its rows. For every cell, and behind the last one, `before` has the
// entries of earlier cells above 32 bits and their number of runs below.

#pragma once

using namespace blocked;

// Marks a column that is not hot.
constexpr u32 COLD = ALL_LANES;

// Rows of a tile: `first_row` and the next ones. Entries and pieces are counted over all tiles.
struct Tile {
    u32 first_cell;
    u32 rows;
    u32 first_row;
    u32 first_col;
    u32 width;
    u32 first_entry;
    u32 first_piece;
};

// Consecutive rows with the same windows, and the tiles of these.
struct Panel {
    u32 first_row;
    u32 windows;
    u32 first_tile;
};

__device__ __forceinline__ u32 entries_of(u64 both) { return u32(both >> 32); }
__device__ __forceinline__ u32 runs_of(u64 both) { return u32(both); }
__device__ __forceinline__ u64 both(u32 entries, u32 runs) { return u64(entries) << 32 | runs; }

// First number in `from..to`, or `to`, for which `holds`, which then holds for all later ones.
template <typename N, typename Holds>
__device__ __forceinline__ N first_of(N from, N to, Holds holds) {
    while (from < to) {
        N middle = from + (to - from) / 2;
        if (holds(middle)) to = middle;
        else from = middle + 1;
    }
    return from;
}

// Entries of the matrix that are hot, or those that are not.
struct Class {
    const u32 *masks;
    // Number of hot entries before each mask, and of all.
    const u64 *before;
    u64 nnz;
    bool hot;

    __device__ __forceinline__ u32 mask(u64 word) const {
        u32 present = word * WARP + WARP <= nnz ? ALL_LANES : (1u << nnz % WARP) - 1;
        return (hot ? masks[word] : ~masks[word]) & present;
    }
    // Entries of the class before 32 others.
    __device__ __forceinline__ u64 earlier(u64 word) const { return hot ? before[word] : word * WARP - before[word]; }
    // Entries of the class before entry k.
    __device__ __forceinline__ u64 before_entry(u64 k) const {
        if (k % WARP == 0 && k == nnz) return hot ? before[k / WARP] : k - before[k / WARP];
        return earlier(k / WARP) + __popc(mask(k / WARP) & ((1u << k % WARP) - 1));
    }
};
