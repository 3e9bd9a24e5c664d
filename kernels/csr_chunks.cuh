// SpMV and SpMM with CSR by chunks, for the modules of csr.cu and csr_spmm.cu. Layout:
// src/formats/csr/mod.rs.

#pragma once

#include "unit.cuh"

using namespace csr;

// Chunk of the sequence of entries and row ends (Merrill & Garland's merge path), the work of one
// block. Chunks have equal lengths. A cut is moved back to the beginning of its row if few entries
// of the row precede it. `Chunk` and `Cuts` in src/formats/csr/chunks.rs.
struct alignas(16) Chunk {
    // Row with which the chunk begins.
    u32 row;
    // Number of entries by which the cut is moved back.
    u32 moved;
    // Chunks in which row `row` begins and ends. `first` is this chunk unless the row is cut here.
    u32 first, last;
};

__device__ __forceinline__ Chunk load_chunk(const Chunk *chunks, u64 number) {
    uint4 words = __ldg(reinterpret_cast<const uint4 *>(chunks) + number);
    return {words.x, words.y, words.z, words.w};
}

// Carry of a chunk: its sum of a row that continues in the next chunk. The chunk in which the row
// ends receives it, as 32-bit words, each beside a mark that it has been written, so that no fence
// is needed. The words are 0 before and after the kernel.
template <typename S>
constexpr u32 CARRY_WORDS = sizeof(S) / sizeof(u32);

__device__ __forceinline__ void send(u64 *to, u32 bits) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(u64(1) << 32 | bits) : "memory");
}

template <typename S>
__device__ __forceinline__ void send_carry(u64 *to, const S &carry) {
    const u32 *bits = reinterpret_cast<const u32 *>(&carry);
#pragma unroll
    for (u32 w = 0; w < CARRY_WORDS<S>; ++w) send(to + w, bits[w]);
}

// Loads all words at the same time: one after the other, each would take as long as a gather.
template <typename S>
__device__ __forceinline__ void receive_carry(u64 *from, S &carry) {
    u64 words[CARRY_WORDS<S>];
    bool is_complete;
    do {
        is_complete = true;
#pragma unroll
        for (u32 w = 0; w < CARRY_WORDS<S>; ++w)
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(words[w]) : "l"(from + w) : "memory");
#pragma unroll
        for (u32 w = 0; w < CARRY_WORDS<S>; ++w) is_complete &= words[w] != 0;
    } while (!is_complete);
    u32 *bits = reinterpret_cast<u32 *>(&carry);
#pragma unroll
    for (u32 w = 0; w < CARRY_WORDS<S>; ++w) from[w] = 0, bits[w] = u32(words[w]);
}

// Destination of the sums of a chunk. Segment i has the chunk's entries of row `row` + i. The last
// segment, number `end_count`, is empty unless its row continues in the next chunk.
template <typename S, typename Epilogue>
struct ChunkOutput {
    Epilogue y;
    // Number of the chunk.
    u32 number;
    u32 row, end_count;
    // True if the first row begins before the chunk, and if the last one continues after it.
    bool from_before, continues;
    // Sum of segment 0 if its row begins before the chunk, in shared memory.
    S *head;
    // Carries of all chunks, in global memory.
    u64 *carries;

    __device__ __forceinline__ u64 *carry_of(u64 chunk) const { return carries + chunk * CARRY_WORDS<S>; }

    __device__ __forceinline__ void put_segment(u32 i, S sum) const {
        if (i < end_count) put_row(i, sum);
        else if (continues) send_carry(carry_of(number), sum);
    }

    // Of a row that ends in the chunk.
    __device__ __forceinline__ void put_row(u32 i, S sum) const {
        if (i == 0 && from_before) *head = sum;
        else y.store(u64(row) + i, sum);
    }
};

// Stores the row that begins in chunk `first` and ends in this one: the sum of its carries, always
// added in the same order, and of `head`. Blocks start in the order of their numbers and wait only
// for smaller ones, so that the wait ends.
template <typename S, typename Epilogue>
__device__ __forceinline__ void add_chunk_carries(ChunkOutput<S, Epilogue> sums, u32 first) {
    __shared__ S warp_sums[WARPS];
    auto carry_sum = [=](u32 threads) {
        S sum = {};
        for (u64 chunk = u64(first) + threadIdx.x; chunk < sums.number; chunk += threads) {
            S carry;
            receive_carry(sums.carry_of(chunk), carry);
            sum += carry;
        }
        return strided_sum(sum, 1);
    };
    // `head` has been written.
    __syncthreads();
    S sum = *sums.head;
    if (sums.number - first <= WARP) {
        if (threadIdx.x < WARP) sum += carry_sum(WARP);
    } else {
        S carries = carry_sum(BLOCK);
        if (threadIdx.x % WARP == 0) warp_sums[threadIdx.x / WARP] = carries;
        __syncthreads();
        for (u32 w = 0; w < WARPS; ++w) sum += warp_sums[w];
    }
    if (threadIdx.x == 0) sums.y.store(sums.row, sum);
}

// Maximum number of row ends in a chunk for which the block sums the products of its threads
// together, row by row.
constexpr u32 FEW_ENDS = 2;

// Sums a chunk with few row ends. The u-th product of a thread is at `at(u)`, and segment i ends
// before `row_ends[i]`.
template <u32 RUN, typename S, typename At, typename Epilogue>
__device__ __forceinline__ void sum_by_block(const S (&product)[RUN], u32 begin, u32 end,
                                             const u32 *row_ends,
                                             ChunkOutput<S, Epilogue> sums, At at) {
    __shared__ S warp_sums[FEW_ENDS + 1][WARPS];
    for (u32 i = 0; i <= sums.end_count; ++i) {
        u32 from = i == 0 ? begin : row_ends[i - 1], to = i == sums.end_count ? end : row_ends[i];
        S sum = {};
#pragma unroll
        for (u32 u = 0; u < RUN; ++u)
            if (at(u) >= from && at(u) < to) sum += product[u];
        sum = strided_sum(sum, 1);
        if (threadIdx.x % WARP == 0) warp_sums[i][threadIdx.x / WARP] = sum;
    }
    __syncthreads();
    if (threadIdx.x <= sums.end_count) {
        S sum = {};
        for (u32 w = 0; w < WARPS; ++w) sum += warp_sums[threadIdx.x][w];
        sums.put_segment(threadIdx.x, sum);
    }
}

// Maximum number of row ends in a chunk for which groups of lanes sum the products in shared
// memory, a row each, and maximum number of products of a lane.
constexpr u32 ENDS_BY_ROWS = 31, STEPS_BY_ROWS = 24;
static_assert((ENDS_BY_ROWS + 1) * 8 <= BLOCK);

// Number of lanes for each segment of a chunk: all segments are summed at the same time.
__device__ __forceinline__ u32 lanes_by_rows(u32 end_count) { return end_count < 8 ? 32 : end_count < 16 ? 16 : 8; }

// Sums a chunk with some row ends. Segment i ends before `row_ends[i]`.
template <typename S, typename Epilogue>
__device__ __forceinline__ void sum_by_rows(const S *products, const u16 *row_ends, u32 count,
                                            ChunkOutput<S, Epilogue> sums) {
    u32 lanes = lanes_by_rows(sums.end_count), i = threadIdx.x / lanes;
    u32 from = i == 0 || i > sums.end_count ? 0 : row_ends[i - 1];
    u32 to = i < sums.end_count ? row_ends[i] : i == sums.end_count ? count : 0;
    S sum = {};
#pragma unroll 4
    for (u32 k = from + threadIdx.x % lanes; k < to; k += lanes) sum += products[k];
    sum = subwarp_sum(sum, lanes);
    if (i <= sums.end_count && threadIdx.x % lanes == 0) sums.put_segment(i, sum);
}

// End marks of a run, two in a word, loaded together.
template <u32 RUN>
struct alignas(RUN * sizeof(u16)) PackedMarks {
    u32 pairs[RUN / 2];
};

// Sums a chunk. Every thread has a run of RUN consecutive products. The mark of a product is 1 + i
// if it is the last one of segment i, else 0.
template <u32 RUN, typename S, typename Epilogue>
__device__ __forceinline__ void sum_runs(const S (&product)[RUN], const u16 *end_marks,
                                         ChunkOutput<S, Epilogue> sums) {
    PackedMarks<RUN> marks = reinterpret_cast<const PackedMarks<RUN> *>(end_marks)[threadIdx.x];
    // The first row that ends in the run may begin in earlier runs; further ones are complete.
    // `open` is the sum after the last end.
    u32 first_mark = 0;
    S first_sum = {}, open = {};
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) {
        open += product[u];
        u32 mark = u % 2 == 0 ? marks.pairs[u / 2] & 0xFFFF : marks.pairs[u / 2] >> 16;
        if (mark != 0) {
            if (first_mark == 0) {
                first_mark = mark;
                first_sum = open;
            } else {
                sums.y.store(u64(sums.row) + mark - 1, open);
            }
            open = {};
        }
    }
    S before = block_segmented_carry<BLOCK>(open, first_mark != 0);
    if (first_mark != 0) sums.put_row(first_mark - 1, before + first_sum);
    if (threadIdx.x == BLOCK - 1) sums.put_segment(sums.end_count, first_mark == 0 ? before + open : open);
}

// Vector type of BYTES bytes for one load.
template <u32 BYTES>
struct LoadType;
template <>
struct LoadType<8> {
    typedef uint2 Type;
};
template <>
struct LoadType<16> {
    typedef uint4 Type;
};

// Loads RUN consecutive elements of an array with one element per entry, from number `own` after
// `base` on; both are multiples of four if RUN is. Past `count` the last group of four is loaded
// again.
template <bool IN_L2, u32 RUN, typename V>
__device__ __forceinline__ void load_wide(const V *array, u64 base, u32 own, u32 count, u64 nnz, V (&run)[RUN]) {
    constexpr u32 GROUP = RUN < 4 ? RUN : 4, PER_LOAD = GROUP < 16 / sizeof(V) ? GROUP : 16 / sizeof(V);
    using Bits = typename LoadType<PER_LOAD * sizeof(V)>::Type;
    struct alignas(sizeof(Bits)) LoadedElements {
        V at[PER_LOAD];
    };
    // The array may end within the last four.
    if (base + (count + 3) / 4 * 4 <= nnz) {
#pragma unroll
        for (u32 q = 0; q < RUN; q += GROUP) {
            const V *from = array + base + min(own + q, (count - 1) / GROUP * GROUP);
#pragma unroll
            for (u32 v = 0; v < GROUP; v += PER_LOAD) {
                Bits bits = fetch<IN_L2>(reinterpret_cast<const Bits *>(from + v));
                LoadedElements loaded = *reinterpret_cast<LoadedElements *>(&bits);
#pragma unroll
                for (u32 w = 0; w < PER_LOAD; ++w) run[q + v + w] = loaded.at[w];
            }
        }
    } else {
#pragma unroll
        for (u32 u = 0; u < RUN; ++u) run[u] = fetch<IN_L2>(array + base + min(own + u, count - 1));
    }
}

// Loads RUN elements per thread, BLOCK apart, of an array with one element per entry: a warp has
// the columns of consecutive entries. Elements from `count` on are copies of the last one.
template <bool IN_L2, u32 RUN, typename V>
__device__ __forceinline__ void load_striped(const V *array, u64 base, u32 count, V (&run)[RUN]) {
    // Without the empty asm statements the compiler adds `base` to every index: 5 instructions for
    // each load.
    const V *from = array + base;
    asm("" : "+l"(from));
    if (count > (RUN - 1) * BLOCK) {
        const V *own = from + threadIdx.x;
        asm("" : "+l"(own));
#pragma unroll
        for (u32 u = 0; u + 1 < RUN; ++u) run[u] = fetch<IN_L2>(own + u * BLOCK);
        run[RUN - 1] = fetch<IN_L2>(from + min((RUN - 1) * BLOCK + threadIdx.x, count - 1));
    } else {
#pragma unroll
        for (u32 u = 0; u < RUN; ++u) run[u] = fetch<IN_L2>(from + min(u * BLOCK + threadIdx.x, count - 1));
    }
}

// Index of a product in shared memory. 16 bytes of padding after every line of banks avoid bank
// conflicts, both of stores of consecutive products and of loads of runs.
template <typename T>
__device__ __forceinline__ constexpr u32 padded_index(u32 product) {
    return product + product / (BANK_LINE / u32(sizeof(T))) * (16 / u32(sizeof(T)));
}

// Loads the RUN consecutive products of this thread.
template <u32 RUN, typename T>
__device__ __forceinline__ void load_run_of(const T *products, T (&run)[RUN]) {
    struct alignas(RUN * sizeof(T) < 16 ? RUN * sizeof(T) : 16) RunProducts {
        T at[RUN];
    } own = *reinterpret_cast<const RunProducts *>(products + padded_index<T>(threadIdx.x * RUN));
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) run[u] = own.at[u];
}

// Number of row ends that a thread loads together with its entries. Further ones of a chunk are
// loaded later.
constexpr u32 ROWS_AHEAD = 2;

// SpMV or SpMM by chunks. RUN is the number of entries per thread: 2, 4 or 8 (`RUNS` in
// src/formats/csr/chunks.rs), fewer for small matrices, so that every multiprocessor has blocks.
//
// Every thread sums a run of consecutive products. In the blocked arrangement it loads the entries
// of its run, by wide loads. In the striped arrangement consecutive threads load consecutive
// entries and exchange the products in shared memory; gathers of contiguous columns then touch
// fewer sectors (`striped` in src/formats/csr/chunks.rs). There groups of lanes sum the products of
// long rows.
//
// `x.at(col)` is the factor of an entry: an element of x, or of each vector of a unit.
template <u32 RUN, bool STRIPED, typename T, typename O, typename X, typename Epilogue>
__device__ __forceinline__ void rows_by_chunks(const O *__restrict__ row_ptr,
                                               const u32 *__restrict__ cols,
                                               const T *__restrict__ values,
                                               const Chunk *__restrict__ chunks, u32 nrows, u64 nnz,
                                               X x, Epilogue y, u64 *carries, u32 l2_shares) {
    using S = decltype(x.at(0));
    // Capacity of a block in entries and row ends, and distance between two cuts. The difference is
    // for cuts that are moved back and for wide loads, which begin up to three entries early.
    // `ChunkSize` in src/formats/csr/chunks.rs.
    constexpr u32 CAPACITY = RUN * BLOCK, SPACING = CAPACITY - CAPACITY / RESERVE;
    alignas(16) __shared__ u16 end_marks[CAPACITY];
    alignas(16) __shared__ S products[STRIPED ? padded_index<S>(CAPACITY) : 1];
    __shared__ u32 few_ends[FEW_ENDS];
    __shared__ S head;

    u32 number = blockIdx.x;
    Chunk chunk = load_chunk(chunks, number), next = load_chunk(chunks, u64(number) + 1);
    u64 cut = u64(number) * SPACING;
    u64 first = cut - chunk.moved - chunk.row;
    u64 end = min(cut + SPACING, nrows + nnz) - next.moved - next.row;
    ChunkOutput<S, Epilogue> sums = {y, number, chunk.row, next.row - chunk.row, chunk.first != number,
                                     next.first != number + 1, &head, carries};
    // Entry numbers are relative to `base`, where wide loads begin. The chunk has entries
    // `skipped..count`.
    u32 skipped = STRIPED ? 0 : u32(first % 4);
    u64 base = first - skipped;
    u32 count = u32(end - base);
    auto at = [=](u32 u) { return STRIPED ? u * BLOCK + threadIdx.x : threadIdx.x * RUN + u; };

    // The first row may begin before the chunk.
    auto begin_of = [=](u32 i) { return u32(max(u64(row_ptr[u64(chunk.row) + i]), first) - base); };
    auto end_of = [=](u32 i) { return u32(row_ptr[u64(chunk.row) + i + 1] - base); };
    // A chunk without row ends loads one row end and ignores it.
    u32 begins[ROWS_AHEAD], stops[ROWS_AHEAD];
#pragma unroll
    for (u32 r = 0; r < ROWS_AHEAD; ++r) {
        u32 i = min(threadIdx.x + r * BLOCK, max(sums.end_count, 1) - 1);
        begins[r] = begin_of(i);
        stops[r] = end_of(i);
    }
    u32 col[RUN];
    T value[RUN];
    S factor[RUN], product[RUN];
    auto load_run = [=](const auto *array, auto &run) {
        if (count <= skipped) return;
        by_l2_share(number, l2_shares, [&](auto in_l2) {
            if constexpr (STRIPED) load_striped<decltype(in_l2)::value>(array, base, count, run);
            else load_wide<decltype(in_l2)::value>(array, base, threadIdx.x * RUN, count, nnz, run);
        });
    };
    load_run(cols, col);
    wait_for_previous_launch();
    trigger_next_launch();
    load_run(values, value);
    bool few = sums.end_count <= FEW_ENDS;
    reinterpret_cast<PackedMarks<RUN> *>(end_marks)[threadIdx.x] = {};
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) factor[u] = count > skipped ? x.at(col[u]) : S{};

    // This overlaps with the loads. The thread of the last row also counts the entries after it.
    bool by_rows = false;
    if constexpr (STRIPED) {
        u32 longest = STEPS_BY_ROWS * lanes_by_rows(sums.end_count);
        u32 stop = threadIdx.x + 1 == sums.end_count ? count : stops[0];
        bool is_long = threadIdx.x < sums.end_count && stop - begins[0] > longest;
        by_rows = !__syncthreads_or(is_long) && !few && sums.end_count <= ENDS_BY_ROWS;
    } else {
        __syncthreads();
    }
    // Marks the end of row i, or lists it.
    auto mark_end = [=](u32 i, u32 begin, u32 stop) {
        if (few) few_ends[i] = stop;
        else if (by_rows) end_marks[i] = u16(stop);
        else if (begin < stop) end_marks[stop - 1] = u16(i + 1);
        else sums.put_row(i, S{});
    };
#pragma unroll
    for (u32 r = 0; r < ROWS_AHEAD; ++r)
        if (threadIdx.x + r * BLOCK < sums.end_count) mark_end(threadIdx.x + r * BLOCK, begins[r], stops[r]);
    for (u32 i = threadIdx.x + ROWS_AHEAD * BLOCK; i < sums.end_count; i += BLOCK) mark_end(i, begin_of(i), end_of(i));
    auto is_own = [=](u32 u) { return at(u) >= skipped && at(u) < count; };
#pragma unroll
    for (u32 u = 0; u < RUN; ++u) product[u] = STRIPED || is_own(u) ? value[u] * factor[u] : S{};
    if constexpr (STRIPED) {
        // Only the last products of a chunk are not its own.
        if (!is_own(RUN - 1)) {
#pragma unroll
            for (u32 u = 0; u < RUN; ++u)
                if (!is_own(u)) product[u] = S{};
        }
        if (by_rows) {
#pragma unroll
            for (u32 u = 0; u < RUN; ++u) products[at(u)] = product[u];
        } else if (!few) {
#pragma unroll
            for (u32 u = 0; u < RUN; ++u) products[padded_index<S>(at(u))] = product[u];
        }
    }

    __syncthreads();
    if (few) {
        sum_by_block(product, skipped, count, few_ends, sums, at);
    } else if (by_rows) {
        sum_by_rows(products, end_marks, count, sums);
    } else {
        if constexpr (STRIPED) load_run_of(products, product);
        sum_runs(product, end_marks, sums);
    }
    if (sums.from_before && chunk.last == number) add_chunk_carries(sums, chunk.first);
}
