// SpMM with CSR by chunks for several units of vectors: a group of lanes, one for each unit, sums a
// run of consecutive entries. For the modules of csr_spmm.cu; layouts: src/formats/csr/mod.rs and
// unit.cuh.

#pragma once

#include "csr_chunks.cuh"

// Largest number of lanes of a group: `MOST_LANES` in src/formats/csr/cuda/spmm.rs.
constexpr u32 MOST_LANES = 16;

// Capacity of a block in entries and row ends, for each of its threads.
constexpr u32 GROUP_RUN = 8;

// Number of entries that a group gathers together, and of row ends that a thread loads ahead.
constexpr u32 GROUP_ENTRIES = 4, GROUP_ENDS = 2;

// Vectors of launches that overlap: not read as constants.
template <typename U>
struct GatheredColumns : UnitColumns<U> {
    __device__ __forceinline__ U at(u32 col) const {
        auto from = reinterpret_cast<const typename LoadType<sizeof(U)>::Type *>(this->offset_by(this->x, col));
        auto bits = fetch<true>(from);
        return *reinterpret_cast<U *>(&bits);
    }
};

// Stores one unit of rows that are numbered from the first of a block.
template <typename T, u32 N>
struct UnitEpilogue {
    UnitSums<T> sums;

    // `sums` with y at a row and a unit, of which there are `units`.
    __device__ __forceinline__ UnitEpilogue(UnitSums<T> all, u64 row, u32 unit, u32 units) : sums(all) {
        sums.y += row * sums.row + u64(unit) * N * sums.vector;
        sums.count = unit < units ? sums.count - unit * N : 0;
        sums.whole = sums.whole && unit < units;
    }
    __device__ __forceinline__ void store(u64 row, const Unit<T, N> &sum) const { sums.put(u32(row), 0, sum); }
};

// Returns the sum of previous groups of the block, of `lanes` lanes, for the row with which the run
// of this one begins. `open` is the sum after the last row end of a run, or of all of it if no row
// ends in it.
template <typename U>
__device__ __forceinline__ U sum_of_previous_groups(U open, bool has_end, u32 lanes) {
    __shared__ U warp_open[WARPS][MOST_LANES];
    __shared__ bool warp_ended[WARPS];
    u32 own = lane_id(), lane = own & (lanes - 1), warp = threadIdx.x / WARP;
    bool ended = has_end;
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        if (offset < lanes) continue;
        U other = lane_up(open, offset);
        bool other_ended = lane_up(u32(ended), offset) != 0;
        if (own < offset) continue;
        if (!ended) open += other;
        ended |= other_ended;
    }
    if (own >= WARP - lanes) {
        warp_open[warp][lane] = open;
        warp_ended[warp] = ended;
    }
    __syncthreads();
    U before = {};
#pragma unroll
    for (u32 w = 0; w + 1 < WARPS; ++w)
        if (w < warp) before = warp_ended[w] ? warp_open[w][lane] : before + warp_open[w][lane];
    U previous = lane_up(open, lanes);
    bool previous_ended = lane_up(u32(ended), lanes) != 0;
    if (own >= lanes) before = previous_ended ? previous : before + previous;
    return before;
}

// A block multiplies `1 << merged` consecutive chunks, at most CAPACITY entries and row ends, with
// up to `1 << shift` units. `spacing` is the distance of two cuts. The entries are divided among
// the groups of the block.
template <typename T, u32 N, typename O>
__device__ __forceinline__ void rows_by_groups(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                               const T *__restrict__ values, const Chunk *__restrict__ chunks,
                                               u32 nrows, u64 nnz, u32 spacing, GatheredColumns<Unit<T, N>> x,
                                               UnitSums<T> sums, u32 shift, u32 merged, u64 *carries) {
    using U = Unit<T, N>;
    using Marks = PackedMarks<GROUP_ENTRIES>;
    constexpr u32 CAPACITY = GROUP_RUN * BLOCK;
    struct alignas(16) GroupValues {
        T at[GROUP_ENTRIES];
    };
    // Copies of the entries. The mark of an entry is 1 + i if row i of the block ends with it, else
    // 0.
    __shared__ float4 block_cols[CAPACITY * sizeof(u32) / 16], block_values[CAPACITY * sizeof(T) / 16];
    alignas(16) __shared__ u16 end_marks[CAPACITY];
    // For every lane: sum of the first row that ends in its run.
    __shared__ U first_sums[BLOCK];
    // Sums of the first row if it begins in an earlier block.
    __shared__ U heads[MOST_LANES];
    // Read after the gathers, for which registers are needed: number of row ends, whether the last
    // row continues, and the blocks with the beginning and with the end of the first row.
    __shared__ u32 end_count, first_block, last_block;
    __shared__ bool continues;

    u32 lanes = 1u << shift, groups = BLOCK >> shift;
    u32 lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> shift;
    reinterpret_cast<PackedMarks<GROUP_RUN> *>(end_marks)[threadIdx.x] = {};
    if (group == 0) heads[lane] = {};

    u64 cut = u64(blockIdx.x) * spacing << merged, next_cut = min(cut + (u64(spacing) << merged), nrows + nnz);
    u32 next_number = u32((next_cut + spacing - 1) / spacing);
    Chunk chunk = load_chunk(chunks, u64(blockIdx.x) << merged), next = load_chunk(chunks, next_number);
    u64 first = cut - chunk.moved - chunk.row;
    u64 end = next_cut - next.moved - next.row;
    // Entry numbers are relative to `base`, where copies begin. The block has entries
    // `skipped..count`.
    u32 skipped = u32(first % 4);
    u64 base = first - skipped;
    u32 count = u32(end - base), ends = next.row - chunk.row;
    if (threadIdx.x == 0) {
        end_count = ends;
        continues = next.first != next_number;
        first_block = chunk.first >> merged;
        last_block = chunk.last >> merged;
    }
    begin_copies<BLOCK>(block_cols, cols + base, count);
    // Gathers of the last entries together; the capacity has room for them.
    if (threadIdx.x < GROUP_ENTRIES) reinterpret_cast<u32 *>(block_cols)[count + threadIdx.x] = 0;
    // End of row i if it has entries in the block, else 0.
    auto end_of = [=](u32 i) {
        u64 begin = row_ptr[u64(chunk.row) + i], stop = row_ptr[u64(chunk.row) + i + 1];
        return max(begin, first) < stop ? u32(stop - base) : 0;
    };
    u32 stops[GROUP_ENDS];
#pragma unroll
    for (u32 r = 0; r < GROUP_ENDS; ++r) {
        u32 i = threadIdx.x + r * BLOCK;
        stops[r] = i < ends ? end_of(i) : 0;
    }
    wait_for_previous_launch();
    trigger_next_launch();
    begin_copies<BLOCK>(block_values, values + base, count);

    // `end_marks` are zero.
    __syncthreads();
    bool has_empty = false;
    auto mark_end = [&](u32 i, u32 stop) {
        if (stop != 0) end_marks[stop - 1] = u16(i + 1);
        else has_empty = true;
    };
#pragma unroll
    for (u32 r = 0; r < GROUP_ENDS; ++r)
        if (threadIdx.x + r * BLOCK < ends) mark_end(threadIdx.x + r * BLOCK, stops[r]);
    for (u32 i = threadIdx.x + GROUP_ENDS * BLOCK; i < ends; i += BLOCK) mark_end(i, end_of(i));
    end_copies();
    has_empty = __syncthreads_or(has_empty);

    // A lane without vectors of its own repeats those of the last lane that has some.
    u32 units = (sums.count + N - 1) / N;
    x.x += min(lane, units - 1);
    UnitEpilogue<T, N> y(sums, chunk.row, lane, units);
    ChunkOutput<U, UnitEpilogue<T, N>> output = {y, blockIdx.x, 0, ends, chunk.first >> merged != blockIdx.x,
                                                 false, heads + lane, carries + u64(lane) * gridDim.x * CARRY_WORDS<U>};
    if (has_empty)
        for (u32 i = group; i < ends; i += groups)
            if (end_of(i) == 0) output.put_row(i, U{});

    u32 run = (count + groups * GROUP_ENTRIES - 1) / (groups * GROUP_ENTRIES) * GROUP_ENTRIES;
    u32 stop = min((group + 1) * run, count);
    u32 first_mark = 0;
    U sum = {};
#pragma unroll 1
    for (u32 k = group * run; k < stop; k += GROUP_ENTRIES) {
        uint4 col = reinterpret_cast<const uint4 *>(block_cols)[k / GROUP_ENTRIES];
        U factor[GROUP_ENTRIES] = {x.at(col.x), x.at(col.y), x.at(col.z), x.at(col.w)};
        GroupValues value = reinterpret_cast<const GroupValues *>(block_values)[k / GROUP_ENTRIES];
        Marks marks = reinterpret_cast<const Marks *>(end_marks)[k / GROUP_ENTRIES];
#pragma unroll
        for (u32 u = 0; u < GROUP_ENTRIES; ++u) {
            if (k + u >= skipped && k + u < count) add(sum, value.at[u], factor[u]);
            u32 mark = u % 2 == 0 ? marks.pairs[u / 2] & 0xFFFF : marks.pairs[u / 2] >> 16;
            if (mark == 0) continue;
            if (first_mark != 0) y.store(mark - 1, sum);
            else first_sums[threadIdx.x] = sum, first_mark = mark;
            sum = {};
        }
    }

    // The first row that ends in a run may begin in earlier runs.
    output.end_count = end_count;
    output.from_before = first_block != blockIdx.x;
    output.continues = continues;
    U before = sum_of_previous_groups(sum, first_mark != 0, lanes);
    if (first_mark != 0) output.put_row(first_mark - 1, before + first_sums[threadIdx.x]);
    if (group == groups - 1) output.put_segment(end_count, first_mark != 0 ? sum : before + sum);

    // As `add_chunk_carries`: every group adds some of the carries.
    if (!output.from_before || last_block != blockIdx.x) return;
    __shared__ U warp_carries[WARPS][MOST_LANES];
    U carried = {};
    for (u64 from = u64(first_block) + group; from < blockIdx.x; from += groups) {
        U carry;
        receive_carry(output.carry_of(from), carry);
        carried += carry;
    }
    carried = strided_sum(carried, lanes);
    if (lane_id() < lanes) warp_carries[threadIdx.x / WARP][lane] = carried;
    __syncthreads();
    if (group != 0) return;
    U total = heads[lane];
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) total += warp_carries[w][lane];
    y.store(0, total);
}
