// SpMM with CSR by chunks for several units of vectors: a group of lanes, one for each unit, sums a
// run of consecutive entries. For the modules of csr_spmm.cu; layouts: src/formats/csr/mod.rs and
// unit.cuh.

#pragma once

#include "csr_chunks.cuh"

// Largest number of lanes of a group: `MOST_LANES` in src/formats/csr/cuda/spmm.rs.
constexpr u32 MOST_LANES = 16;

// Number of entries that a group gathers together, and of row ends that a thread loads ahead.
constexpr u32 GROUP_ENTRIES = 4, GROUP_ENDS = 2;

// Copies of the entries of a block.
extern __shared__ float4 dynamic_shared[];

// Vectors of launches that overlap: not read as constants.
template <typename U>
struct GatheredColumns : UnitColumns<U> {
    __device__ __forceinline__ U at(u32 col) const {
        auto from = reinterpret_cast<const typename LoadType<sizeof(U)>::Type *>(this->offset_by(this->x, col));
        auto bits = fetch<true>(from);
        return *reinterpret_cast<U *>(&bits);
    }
};

#define GATHERED_COLUMNS(T, N) GatheredColumns<Unit<T, N>>{UNIT_COLUMNS(T, N)}

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

// Returns the sum of previous groups of the block, of `1 << shift` lanes, for the row with which
// the run of this one begins. `open` is the sum after the last row end of a run, or of all of it if
// no row ends in it.
template <typename U>
__device__ __forceinline__ U sum_of_previous_groups(U open, bool has_end, u32 shift) {
    __shared__ U warp_open[WARPS][MOST_LANES];
    alignas(WARPS) __shared__ bool warp_ended[WARPS];
    u32 lanes = 1u << shift, own = lane_id(), lane = own & (lanes - 1), warp = threadIdx.x / WARP;
    // Scan over the warp that restarts at every group with an end.
    u32 ended = __ballot_sync(ALL_LANES, has_end);
    u32 ended_here = ended & (ALL_LANES >> (WARP - 1 - own));
    u32 start = ended_here == 0 ? 0 : (WARP - 1 - __clz(ended_here)) >> shift << shift;
    for (u32 offset = lanes; offset < WARP; offset *= 2) {
        U other = lane_up(open, offset);
        if (own >= start + offset) open += other;
    }
    if (own >= WARP - lanes) {
        warp_open[warp][lane] = open;
        warp_ended[warp] = ended != 0;
    }
    U before = lane_up(open, lanes);
    if (own < lanes) before = {};
    __syncthreads();
    // Warps back to one with an end.
    bool ended_before = (ended & ~(ALL_LANES << (own - lane))) != 0;
    if (ended_before || warp == 0) return before;
    static_assert(WARPS == sizeof(u64));
    u64 all_ended = *reinterpret_cast<const u64 *>(warp_ended) & ((u64(1) << 8 * warp) - 1);
    U earlier = {};
    for (u32 w = all_ended == 0 ? 0 : (63 - __clzll(all_ended)) / 8; w < warp; ++w) earlier += warp_open[w][lane];
    return earlier + before;
}

// A block multiplies a chunk with up to `1 << shift` units. `spacing` is the distance of two cuts.
// The entries are divided among the groups of the block. `capacity` entries fit its dynamic shared
// memory (`capacity` in src/formats/csr/cuda/spmm.rs).
template <typename T, u32 N, typename O>
__device__ __forceinline__ void rows_by_groups(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                               const T *__restrict__ values, const Chunk *__restrict__ chunks,
                                               u32 nrows, u64 nnz, u32 spacing, GatheredColumns<Unit<T, N>> x,
                                               UnitSums<T> sums, u32 shift, u32 capacity, u64 *carries) {
    using U = Unit<T, N>;
    using Marks = PackedMarks<GROUP_ENTRIES>;
    struct alignas(16) GroupValues {
        T at[GROUP_ENTRIES];
    };
    // Copies of the entries. The mark of an entry is 1 + i if row i of the block ends with it, else
    // 0.
    float4 *block_cols = dynamic_shared, *block_values = block_cols + capacity * sizeof(u32) / sizeof(float4);
    u16 *end_marks = reinterpret_cast<u16 *>(block_values + capacity * sizeof(T) / sizeof(float4));
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
    for (u32 i = threadIdx.x; i < capacity / 8; i += BLOCK) reinterpret_cast<PackedMarks<8> *>(end_marks)[i] = {};
    if (group == 0) heads[lane] = {};

    u32 number = blockIdx.x;
    Chunk chunk = load_chunk(chunks, number), next = load_chunk(chunks, u64(number) + 1);
    u64 cut = u64(number) * spacing;
    u64 first = cut - chunk.moved - chunk.row;
    u64 end = min(cut + spacing, nrows + nnz) - next.moved - next.row;
    // Entry numbers are relative to `base`, where copies begin. The block has entries
    // `skipped..count`.
    u32 skipped = u32(first % 4);
    u64 base = first - skipped;
    u32 count = u32(end - base), ends = next.row - chunk.row;
    if (threadIdx.x == 0) {
        end_count = ends;
        continues = next.first != number + 1;
        first_block = chunk.first;
        last_block = chunk.last;
    }
    // With those that are gathered together with the last entries, if the matrix has them.
    u32 copied = u32(min(u64(count + GROUP_ENTRIES - 1) / GROUP_ENTRIES * GROUP_ENTRIES, nnz - base));
    begin_copies<BLOCK>(block_cols, cols + base, copied);
    if (threadIdx.x < GROUP_ENTRIES) reinterpret_cast<u32 *>(block_cols)[copied + threadIdx.x] = 0;
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
    begin_copies<BLOCK>(block_values, values + base, copied);

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
    ChunkOutput<U, UnitEpilogue<T, N>> output = {y, number, 0, ends, chunk.first != number, false, heads + lane,
                                                 carries + u64(lane) * gridDim.x * CARRY_WORDS<U>};
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
    output.from_before = first_block != number;
    output.continues = continues;
    U before = sum_of_previous_groups(sum, first_mark != 0, shift);
    if (first_mark != 0) output.put_row(first_mark - 1, before + first_sums[threadIdx.x]);
    if (group == groups - 1) output.put_segment(end_count, first_mark != 0 ? sum : before + sum);

    // As `add_chunk_carries`: every group adds some of the carries.
    if (!output.from_before || last_block != number) return;
    __shared__ U warp_carries[WARPS][MOST_LANES];
    U carried = {};
    for (u64 from = u64(first_block) + group; from < number; from += groups) {
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
