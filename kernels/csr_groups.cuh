// SpMM with CSR by chunks for several units of vectors: a group of lanes, one for each unit, sums a
// run of consecutive entries. For the modules of csr_spmm.cu; layouts: src/formats/csr/mod.rs and
// unit.cuh.

#pragma once

#include "csr_chunks.cuh"

// Largest number of lanes of a group: `MOST_LANES` in src/formats/csr/cuda/spmm.rs.
constexpr u32 MOST_LANES = 16;

// Capacity of a block in entries and row ends, for each of its threads.
constexpr u32 GROUP_RUN = 8;

// Number of entries that a group loads together, and least number of blocks per multiprocessor.
constexpr u32 GROUP_ENTRIES = 4;
#define GROUP_BLOCKS 4

template <typename T, u32 N>
struct UnitEpilogue {
    UnitSums<T> sums;
    u32 unit;

    __device__ __forceinline__ void store(u64 row, const Unit<T, N> &sum) const { sums.put(u32(row), unit, sum); }
};

// A block multiplies `1 << merged` consecutive chunks, at most CAPACITY entries and row ends, with
// up to `1 << shift` units. `spacing` is the distance of two cuts. The entries are divided among
// the groups of the block.
template <typename T, u32 N, typename O>
__device__ __forceinline__ void rows_by_groups(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                               const T *__restrict__ values, const Chunk *__restrict__ chunks,
                                               u32 nrows, u64 nnz, u32 spacing, UnitColumns<Unit<T, N>> x,
                                               UnitSums<T> sums, u32 shift, u32 merged, u64 *carries) {
    using U = Unit<T, N>;
    using Marks = PackedMarks<GROUP_ENTRIES>;
    constexpr u32 CAPACITY = GROUP_RUN * BLOCK;
    // The mark of an entry is 1 + i if row i of the block ends with it, else 0.
    alignas(16) __shared__ u16 end_marks[CAPACITY];
    // For every lane: number and sum of the first row that ends in its run, and the sum after the
    // last row end.
    __shared__ u16 first_marks[BLOCK];
    __shared__ U first_sums[BLOCK], open_sums[BLOCK];
    // Sums of the first row if it begins in an earlier block.
    __shared__ U heads[MOST_LANES];

    u32 number = blockIdx.x;
    u64 cut = u64(number) * spacing << merged, next_cut = min(cut + (u64(spacing) << merged), nrows + nnz);
    u32 next_number = u32((next_cut + spacing - 1) / spacing);
    Chunk chunk = load_chunk(chunks, u64(number) << merged), next = load_chunk(chunks, next_number);
    u64 first = cut - chunk.moved - chunk.row;
    u64 end = next_cut - next.moved - next.row;
    // Blocks with the beginning and with the end of the first row.
    u32 first_block = chunk.first >> merged, last_block = chunk.last >> merged;
    // Entry numbers are relative to `base`, where loads of four begin. The block has entries
    // `skipped..count`.
    u32 skipped = u32(first % 4);
    u64 base = first - skipped;
    u32 count = u32(end - base);
    u32 lanes = 1u << shift, groups = BLOCK >> shift;
    u32 lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> shift;
    // A lane without vectors of its own repeats those of the last lane that has some, and does not
    // store their sums.
    u32 units = (sums.count + N - 1) / N;
    sums.whole = sums.whole && lane < units;
    x.x += min(lane, units - 1);
    ChunkOutput<U, UnitEpilogue<T, N>> output = {{sums, lane}, number, chunk.row, next.row - chunk.row,
                                                 first_block != number, next.first != next_number, heads + lane,
                                                 carries + u64(lane) * gridDim.x * CARRY_WORDS<U>};

    reinterpret_cast<PackedMarks<GROUP_RUN> *>(end_marks)[threadIdx.x] = {};
    if (group == 0) heads[lane] = {};
    __syncthreads();
    // End of row i if it has entries in the block, else 0.
    auto end_of = [=](u32 i) {
        u64 begin = row_ptr[u64(chunk.row) + i], stop = row_ptr[u64(chunk.row) + i + 1];
        return max(begin, first) < stop ? u32(stop - base) : 0;
    };
    bool has_empty = false;
    for (u32 i = threadIdx.x; i < output.end_count; i += BLOCK) {
        u32 stop = end_of(i);
        if (stop != 0) end_marks[stop - 1] = u16(i + 1);
        else has_empty = true;
    }
    has_empty = __syncthreads_or(has_empty);
    wait_for_previous_launch();
    trigger_next_launch();
    if (has_empty)
        for (u32 i = group; i < output.end_count; i += groups)
            if (end_of(i) == 0) output.put_row(i, U{});

    u32 run = (count + groups * GROUP_ENTRIES - 1) / (groups * GROUP_ENTRIES) * GROUP_ENTRIES;
    u32 first_mark = 0;
    U sum = {};
#pragma unroll 1
    for (u32 k = group * run; k < min((group + 1) * run, count); k += GROUP_ENTRIES) {
        u32 col[GROUP_ENTRIES];
        T value[GROUP_ENTRIES];
        U factor[GROUP_ENTRIES];
        load_wide<true>(cols, base, k, count, nnz, col);
        load_wide<true>(values, base, k, count, nnz, value);
#pragma unroll
        for (u32 u = 0; u < GROUP_ENTRIES; ++u) factor[u] = x.at(col[u]);
        Marks marks = reinterpret_cast<const Marks *>(end_marks)[k / GROUP_ENTRIES];
#pragma unroll
        for (u32 u = 0; u < GROUP_ENTRIES; ++u) {
            if (k + u >= skipped && k + u < count) add(sum, value[u], factor[u]);
            u32 mark = u % 2 == 0 ? marks.pairs[u / 2] & 0xFFFF : marks.pairs[u / 2] >> 16;
            if (mark == 0) continue;
            if (first_mark != 0) output.y.store(u64(chunk.row) + mark - 1, sum);
            else first_sums[threadIdx.x] = sum, first_mark = mark;
            sum = {};
        }
    }

    // The first row that ends in a run may begin in earlier runs.
    first_marks[threadIdx.x] = u16(first_mark);
    open_sums[threadIdx.x] = sum;
    __syncthreads();
    bool sends = group == groups - 1 && output.continues;
    if (first_mark != 0 || sends) {
        U total = first_mark != 0 ? first_sums[threadIdx.x] : sum;
        for (u32 i = threadIdx.x; i >= lanes;) {
            i -= lanes;
            total += open_sums[i];
            if (first_marks[i] != 0) break;
        }
        if (first_mark != 0) output.put_row(first_mark - 1, total);
        if (sends) output.put_segment(output.end_count, first_mark != 0 ? sum : total);
    }

    // As `add_chunk_carries`: every group adds some of the carries.
    if (!output.from_before || last_block != number) return;
    U carried = {};
    for (u64 from = u64(first_block) + group; from < number; from += groups) {
        U carry;
        receive_carry(output.carry_of(from), carry);
        carried += carry;
    }
    __syncthreads();
    open_sums[threadIdx.x] = carried;
    __syncthreads();
    if (group != 0) return;
    U total = heads[lane];
    for (u32 g = 0; g < min(groups, number - first_block); ++g) total += open_sums[g << shift | lane];
    output.y.store(chunk.row, total);
}
