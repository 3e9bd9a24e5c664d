// Packing of cache blocks on a GPU: see src/formats/blocked/device_pack/mod.rs for the steps and
// src/formats/blocked/mod.rs for the layout.
//
// A *cell* holds the entries of a row in a tile, perhaps none. The cells of a tile are consecutive,
// in the order of its rows. Two numbers of a cell, its entries and 1 if it has any, are the upper
// and the lower half of a u64, so that one prefix sum adds both: entries, and non-empty cells.
// `before` has these sums before every cell, and behind the last one that of all cells.

#pragma once

using namespace blocked;

// A tile of `rows` rows from `first_row` and `width` columns from `first_col` on, with its first
// cell, entry and piece, which are counted over all tiles.
struct Tile {
    u32 first_cell;
    u32 rows;
    u32 first_row;
    u32 first_col;
    u32 width;
    u32 first_entry;
    u32 first_piece;
};

// Tiles of a panel, one for each of its windows; the panel ends where the next one begins.
struct PanelTiles {
    u32 first_row;
    u32 windows;
    u32 first_tile;
};

// Panel of a row.
__device__ __forceinline__ PanelTiles panel_of(const PanelTiles *panels, u32 count, u64 row) {
    return panels[first_of(0u, count, [=](u32 p) { return panels[p].first_row > row; }) - 1];
}

// Tile of a piece.
__device__ __forceinline__ Tile tile_of(const Tile *tiles, u32 count, u64 piece) {
    return tiles[first_of(0u, count, [=](u32 t) { return tiles[t].first_piece > piece; }) - 1];
}

__device__ __forceinline__ u32 upper(u64 both) { return u32(both >> 32); }
__device__ __forceinline__ u32 lower(u64 both) { return u32(both); }
__device__ __forceinline__ u64 both(u32 upper, u32 lower) { return u64(upper) << 32 | lower; }
__device__ __forceinline__ u32 entries_of(u64 both) { return upper(both); }
__device__ __forceinline__ u32 nonempty_of(u64 both) { return lower(both); }

// A class of entries: the hot ones, or all others.
struct Class {
    // Bit of every entry in a word of 32: set if it is hot.
    const u32 *masks;
    // Number of hot entries before each word, and of all.
    const u64 *before;
    u64 nnz;
    bool hot;

    // Entries of the class in a word.
    __device__ __forceinline__ u32 mask(u64 word) const {
        u32 present = word * WARP + WARP <= nnz ? ALL_LANES : (1u << nnz % WARP) - 1;
        return (hot ? masks[word] : ~masks[word]) & present;
    }
    // Number of entries of the class before a word.
    __device__ __forceinline__ u64 earlier(u64 word) const { return hot ? before[word] : word * WARP - before[word]; }
    // Number of entries of the class before entry k. Behind the last entry there may be no word.
    __device__ __forceinline__ u64 before_entry(u64 k) const {
        if (k % WARP == 0 && k == nnz) return hot ? before[k / WARP] : k - before[k / WARP];
        return earlier(k / WARP) + __popc(mask(k / WARP) & ((1u << k % WARP) - 1));
    }
};
