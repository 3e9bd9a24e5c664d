// Prefix sums.

#include "common.cuh"

// Exclusive prefix sums of several arrays of `count` numbers, stored one after the other. Each tile
// of TILE numbers has a block, and each array has `tiles` of them.

constexpr u32 TILE = SCANNED * BLOCK;

// Sum of every tile.
KERNEL(scan_sums)(const u64 *data, u64 count, u32 tiles, u64 *sums) {
    u32 array = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    u64 sum = 0;
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(tile) * TILE + k * BLOCK + threadIdx.x;
        if (i < count) sum += data[array * count + i];
    }
    u64 all = block_scan(sum).all;
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// Exclusive prefix sums over the tiles, by one block per array, and the total sums.
KERNEL(scan_tiles)(u64 *sums, u32 tiles, u64 *totals) {
    sums += u64(blockIdx.x) * tiles;
    u64 carry = 0;
    for (u32 base = 0; base < tiles; base += BLOCK) {
        u32 i = base + threadIdx.x;
        u64 own = i < tiles ? sums[i] : 0;
        Before before = block_scan(own);
        if (i < tiles) sums[i] = carry + before.own;
        carry += before.all;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = carry;
}

// Prefix sums of the numbers from those of the tiles.
KERNEL(scan_numbers)(u64 *data, u64 count, u32 tiles, const u64 *sums) {
    u32 array = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    data += array * count;
    u64 carry = sums[blockIdx.x];
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(tile) * TILE + k * BLOCK + threadIdx.x;
        u64 own = i < count ? data[i] : 0;
        Before before = block_scan(own);
        if (i < count) data[i] = carry + before.own;
        carry += before.all;
    }
}
