// Prefix sums.

#include "common.cuh"

// Exclusive prefix sums of several arrays of `count` numbers, stored one after the other. A block
// has BLOCK_NUMBERS numbers, and each array has `blocks` blocks.

constexpr u32 BLOCK_NUMBERS = SCANNED * BLOCK;

// Sum of the numbers of every block.
KERNEL(scan_sums)(const u64 *data, u64 count, u32 blocks, u64 *sums) {
    u32 array = blockIdx.x / blocks, block = blockIdx.x % blocks;
    u64 sum = 0;
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(block) * BLOCK_NUMBERS + k * BLOCK + threadIdx.x;
        if (i < count) sum += data[array * count + i];
    }
    u64 all = block_scan(sum).all;
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// Exclusive prefix sums of the block sums of each array, and its total. Each array has one thread
// block.
KERNEL(scan_blocks)(u64 *sums, u32 blocks, u64 *totals) {
    sums += u64(blockIdx.x) * blocks;
    u64 carry = 0;
    for (u32 base = 0; base < blocks; base += BLOCK) {
        u32 i = base + threadIdx.x;
        u64 own = i < blocks ? sums[i] : 0;
        Before before = block_scan(own);
        if (i < blocks) sums[i] = carry + before.own;
        carry += before.all;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = carry;
}

// Prefix sums of the numbers from those of the blocks.
KERNEL(scan_numbers)(u64 *data, u64 count, u32 blocks, const u64 *sums) {
    u32 array = blockIdx.x / blocks, block = blockIdx.x % blocks;
    data += array * count;
    u64 carry = sums[blockIdx.x];
    for (u32 k = 0; k < SCANNED; ++k) {
        u64 i = u64(block) * BLOCK_NUMBERS + k * BLOCK + threadIdx.x;
        u64 own = i < count ? data[i] : 0;
        Before before = block_scan(own);
        if (i < count) data[i] = carry + before.own;
        carry += before.all;
    }
}
