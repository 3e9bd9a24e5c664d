// Packs tiles: see src/formats/tiles/device_pack.rs.

#include "common.cuh"

using namespace tiles;

// TileCells of a matrix. Cells are numbered in tile order: by stripe, column block and chunk.
struct TileCells {
    u64 nnz;
    u32 nrows;
    // Entries and row ends of a chunk, columns of a block.
    u32 chunk, width;
    // Number of chunks, of chunks of a stripe, and of column blocks.
    u32 chunks, stripe, blocks;

    // Chunks of the stripe that begins with chunk `first`.
    __device__ __forceinline__ u32 length(u32 first) const { return min(stripe, chunks - first); }
    __device__ __forceinline__ u64 cell(u32 c, u32 block) const {
        u32 first = c / stripe * stripe;
        return u64(first) * blocks + u64(block) * length(first) + (c - first);
    }
    // Entries before chunk `c`, in which the row `row` begins.
    __device__ __forceinline__ u64 entries_before(u32 c, u32 row) const {
        return min(u64(c) * chunk, nnz + nrows) - row;
    }
};

__device__ __forceinline__ u32 groups_of(u32 entries) { return (entries + GROUP - 1) / GROUP; }

// Number of rows that end before each chunk, and of all.
KERNEL(tiles_pack_chunks)(const u64 *row_ptr, u32 nrows, u64 nnz, u32 chunk, u32 chunks, u32 *chunk_rows) {
    u64 c = thread_id();
    if (c > chunks) return;
    u64 before = min(c * chunk, nnz + nrows);
    chunk_rows[c] = first_of(0u, nrows, [=](u32 row) { return row_ptr[row + 1ull] + row >= before; });
}

// Counts the groups of every cell, and of every chunk, which has a block of threads.
KERNEL(tiles_pack_count)(const u32 *col_idx, const u32 *chunk_rows, u64 nnz, u32 nrows, u32 chunk, u32 width,
                         u32 chunks, u32 stripe, u32 blocks, u64 *cell_groups, u64 *chunk_groups) {
    extern __shared__ u32 counts[];
    TileCells a{nnz, nrows, chunk, width, chunks, stripe, blocks};
    u32 c = blockIdx.x;
    u64 begin = a.entries_before(c, chunk_rows[c]), end = a.entries_before(c + 1, chunk_rows[c + 1ull]);
    for (u32 block = threadIdx.x; block < blocks; block += BLOCK) counts[block] = 0;
    __syncthreads();
    for (u64 k = begin + threadIdx.x; k < end; k += BLOCK) atomicAdd(&counts[col_idx[k] / width], 1);
    __syncthreads();
    u64 own = 0;
    for (u32 block = threadIdx.x; block < blocks; block += BLOCK) {
        u32 groups = groups_of(counts[block]);
        cell_groups[a.cell(c, block)] = groups;
        own += groups;
    }
    u64 all = block_scan(own).all;
    if (threadIdx.x == 0) chunk_groups[c] = all;
}

// First group of every chunk in chunk order, and of every tile in tile order, from the sums over
// chunks and over cells.
KERNEL(tiles_pack_tables)(const u64 *chunk_groups, const u64 *cell_groups, u32 chunks, u32 stripe, u32 blocks,
                          u64 tiles, u32 *chunk_ptr, u32 *tile_ptr) {
    TileCells a{0, 0, 1, 1, chunks, stripe, blocks};
    u64 i = thread_id();
    if (i <= chunks) chunk_ptr[i] = u32(chunk_groups[i]);
    if (i < tiles) tile_ptr[i] = u32(cell_groups[a.cell(u32(i / blocks) * stripe, u32(i % blocks))]);
    if (i == tiles) tile_ptr[i] = u32(cell_groups[u64(chunks) * blocks]);
}

// Fills the groups of every chunk, which has a warp. A warp takes the entries in their order, and
// counts those of each cell.
template <typename B>
__device__ __forceinline__ void fill(const TileCells &a, const u64 *row_ptr, const u32 *col_idx, const B *values,
                                     const u32 *chunk_rows, const u32 *chunk_ptr, const u64 *cell_groups,
                                     u16 *positions, u16 *row_ends, u16 *cols, B *stored, u32 *destinations) {
    extern __shared__ u32 shared[];
    // Entries so far, first group in tile order, and in chunk order, by column block.
    u32 *next = shared, *home = next + a.blocks, *place = home + a.blocks;
    u32 c = blockIdx.x, first_row = chunk_rows[c], end_row = chunk_rows[c + 1ull];
    u64 begin = a.entries_before(c, first_row), end = a.entries_before(c + 1, end_row);
    u32 group = chunk_ptr[c];
    for (u32 first = 0; first < a.blocks; first += WARP) {
        u32 block = first + lane_id();
        u64 cell = a.cell(c, min(block, a.blocks - 1)), before = cell_groups[cell];
        u32 own = block < a.blocks ? u32(cell_groups[cell + 1] - before) : 0, sum = own;
#pragma unroll
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            u32 other = __shfl_up_sync(ALL_LANES, sum, offset);
            if (lane_id() >= offset) sum += other;
        }
        if (block < a.blocks) next[block] = 0, home[block] = u32(before), place[block] = group + sum - own;
        group += __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    for (u64 row = first_row + u64(lane_id()); row < end_row; row += WARP)
        row_ends[row] = u16(row_ptr[row + 1] - begin);
    __syncwarp();

    auto column = [=](u64 k) { return k < end ? col_idx[k] : ~0u; };
    u32 following = column(begin + lane_id());
    for (u64 from = begin; from < end; from += WARP) {
        u64 k = from + lane_id();
        u32 col = following, block = k < end ? col / a.width : a.blocks;
        following = column(k + WARP);
        u32 same = __match_any_sync(ALL_LANES, block);
        u32 earlier = lanes_before(same), i = block < a.blocks ? next[block] + earlier : 0;
        __syncwarp();
        if (block < a.blocks) {
            if (earlier == 0) next[block] = i + __popc(same);
            u32 at = place[block] + i / GROUP, to = home[block] + i / GROUP;
            if (i % GROUP == 0) destinations[to] = at;
            positions[u64(at) * GROUP + i % GROUP] = u16(k - begin);
            cols[u64(to) * GROUP + i % GROUP] = u16(col - block * a.width);
            if (stored) stored[u64(to) * GROUP + i % GROUP] = values[k];
        }
        __syncwarp();
    }
    for (u32 block = lane_id(); block < a.blocks; block += WARP)
        for (u32 i = next[block]; i % GROUP != 0; ++i) {
            u32 at = place[block] + i / GROUP, to = home[block] + i / GROUP;
            positions[u64(at) * GROUP + i % GROUP] = UNUSED;
            cols[u64(to) * GROUP + i % GROUP] = 0;
            if (stored) stored[u64(to) * GROUP + i % GROUP] = 0;
        }
}

#define INSTANCES(SUFFIX, B)                                                                                          \
    KERNEL_OF(tiles_pack_fill_##SUFFIX, WARP, 16)                                                                     \
        (const u64 *row_ptr, const u32 *col_idx, const B *values, const u32 *chunk_rows, const u32 *chunk_ptr,        \
         const u64 *cell_groups, u64 nnz, u32 nrows, u32 chunk, u32 width, u32 chunks, u32 stripe, u32 blocks,        \
         u16 *positions, u16 *row_ends, u16 *cols, B *stored, u32 *destinations) {                                    \
        fill(TileCells{nnz, nrows, chunk, width, chunks, stripe, blocks}, row_ptr, col_idx, values, chunk_rows,       \
             chunk_ptr, cell_groups, positions, row_ends, cols, stored, destinations);                                \
    }

INSTANCES(f32, u32)
INSTANCES(f64, u64)
