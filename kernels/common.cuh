// Device code shared by all kernels. Every kernel file includes it first.
//
// Conventions. A kernel is a template over its scalar T, and over the row offset O if there is one.
// Its instances are the entry points, with plain names that contain their types:
// `csr_vector8_f32_o64`. Positions of slots and entries are 64-bit, rows and columns 32-bit. Arrays
// of the matrix are read by `fetch`, x by `__ldg`, or by `gather` in kernels that overlap with the
// previous launch.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "constants.cuh"

using namespace device;

#include "epilogue.cuh"
#include "policy.cuh"
#include "overlap.cuh"

[[maybe_unused]] constexpr u32 WARPS = BLOCK / WARP;

// Mask of all lanes of a warp.
[[maybe_unused]] constexpr u32 ALL_LANES = 0xFFFFFFFF;

// Number of slots of a row that a thread loads together.
[[maybe_unused]] constexpr u32 BATCH = 8;

// Kernel NAME with launch bounds: THREADS threads per block, and at least BLOCKS blocks per
// multiprocessor. The bounds leave every thread enough registers for a whole batch. Without them
// the compiler saves registers by loading one slot after the other.
//
// With ONE_KERNEL a compilation contains only the kernel for which SELECTED_<name> is defined as
// `~, 1`; the others become templates without an instance, which cost no time. See `options` in
// src/device/cuda/compiler.rs.
#ifdef ONE_KERNEL
#define SECOND(A, B, ...) B
#define IS_SELECTED(...) SECOND(__VA_ARGS__, 0, 0)
#define ENTRY_0(NAME, THREADS, BLOCKS) template <int> __device__ void NAME
#define ENTRY_1(NAME, THREADS, BLOCKS) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME
#define ENTRY_IF(IS, NAME, THREADS, BLOCKS) ENTRY_##IS(NAME, THREADS, BLOCKS)
#define ENTRY(IS, NAME, THREADS, BLOCKS) ENTRY_IF(IS, NAME, THREADS, BLOCKS)
#define KERNEL_OF(NAME, THREADS, BLOCKS) ENTRY(IS_SELECTED(SELECTED_##NAME), NAME, THREADS, BLOCKS)
#else
#define KERNEL_OF(NAME, THREADS, BLOCKS) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME
#endif
#define KERNEL_WITH(NAME, BLOCKS) KERNEL_OF(NAME, BLOCK, BLOCKS)
#define KERNEL(NAME) KERNEL_WITH(NAME, KERNEL_BLOCKS)

// Time of the GPU's clock, in ns.
__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Loads an element of x through the caches.
__device__ __forceinline__ float gather(const float *from) {
    float element;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(element) : "l"(from));
    return element;
}
__device__ __forceinline__ double gather(const double *from) {
    double element;
    asm volatile("ld.global.f64 %0, [%1];" : "=d"(element) : "l"(from));
    return element;
}

// Residency of the matrix in the L2. A matrix that fits, together with the vectors of a product, is
// read by normal loads and stays resident. Modules with STREAMED are for larger matrices:
// `l2_shares` of SHARES blocks read their part by normal loads, so that it stays from product to
// product; the others use evict-first loads. Those with EVICT_FIRST have these alone, for matrices
// of which no part stays: they need fewer registers. `l2_shares` also has STREAM_RESULTS if results
// are stored evict-first. `Residency` in src/device/residency.rs.

template <bool FLAG>
struct Flag {
    static constexpr bool value = FLAG;
};

// Calls `body` with Flag<true> if share number `share` of the matrix stays in the L2, else with
// Flag<false>.
template <typename Body>
__device__ __forceinline__ void by_l2_share([[maybe_unused]] u32 share, [[maybe_unused]] u32 l2_shares, Body body) {
#ifdef EVICT_FIRST
    return body(Flag<false>{});
#elif defined(STREAMED)
    if (share % SHARES >= l2_shares % STREAM_RESULTS) return body(Flag<false>{});
#endif
    body(Flag<true>{});
}

// Loads an element of the matrix, with an evict-first load unless it stays in the L2. Neither is a
// load of constants: the previous launch may write values.
template <bool IN_L2, typename W>
__device__ __forceinline__ W fetch(const W *from) {
    if constexpr (IN_L2) return __ldca(from);
    else return __ldcs(from);
}

// Number of this thread in the grid.
__device__ __forceinline__ u64 thread_id() { return u64(blockIdx.x) * BLOCK + threadIdx.x; }

__device__ __forceinline__ u32 lane_id() { return threadIdx.x % WARP; }
__device__ __forceinline__ u32 lanes_before(u32 mask) { return __popc(mask & ((1u << lane_id()) - 1)); }

// Exclusive sum over the threads of the block before this one, and total sum.
struct Before {
    u64 own;
    u64 all;
};
__device__ __forceinline__ Before block_scan(u64 value) {
    __shared__ u64 sums[WARPS];
    u64 sum = value;
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        u64 other = __shfl_up_sync(ALL_LANES, sum, offset);
        if (lane_id() >= offset) sum += other;
    }
    // Protects the results of an earlier call.
    __syncthreads();
    if (lane_id() == WARP - 1) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    u64 before = 0, all = 0;
    for (u32 w = 0; w < WARPS; ++w) {
        if (w < threadIdx.x / WARP) before += sums[w];
        all += sums[w];
    }
    return {before + sum - value, all};
}

// First slot of the search for a value in a hash table: `ValueSet` in src/analysis/value_set.rs.
__device__ __forceinline__ u32 value_slot(u64 bits) {
    return u32(bits * analysis::SPREAD >> (64 - analysis::VALUE_SLOT_BITS));
}

// Products are made in batches: all loads of one kind are issued before their first result is used,
// and none of them is predicated, since predicated loads would be issued one after the other.

// x and its length.
template <typename T>
struct XView {
    const T *x;
    u32 ncols;
};

// `sum` plus the products of N slots, the u-th at `at(u)`. If MASKED, slots may be padding, which
// is not multiplied.
template <bool IN_L2, u32 N, bool MASKED, typename T, typename At>
__device__ __forceinline__ T add_slots(T sum, const u32 *cols, const T *values, XView<T> x, At at) {
    u32 col[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        col[u] = fetch<IN_L2>(cols + at(u));
        value[u] = fetch<IN_L2>(values + at(u));
    }
    // Padding loads x at the last column: PADDING is larger than all columns.
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = __ldg(x.x + (MASKED ? min(col[u], x.ncols - 1) : col[u]));
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (!MASKED || col[u] != PADDING) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of those of N entries that are wanted. The u-th is at `at(u)`, which must
// be the position of some entry even if it is not wanted.
template <bool IN_L2, u32 N, typename T, typename At, typename Wanted>
__device__ __forceinline__ T add_wanted(T sum, const u32 *cols, const T *values, const T *x, At at, Wanted wanted) {
    u32 col[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        col[u] = fetch<IN_L2>(cols + at(u));
        value[u] = fetch<IN_L2>(values + at(u));
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = gather(x + col[u]);
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (wanted(u)) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of the first `count` <= N slots, which may be padding. Fast if `count` is
// uniform across the warp.
template <bool IN_L2, u32 N, typename T, typename At>
__device__ __forceinline__ T add_rest(u64 count, T sum, const u32 *cols, const T *values, XView<T> x, At at) {
    if constexpr (N == 0) {
        return sum;
    } else {
        return count == N ? add_slots<IN_L2, N, true>(sum, cols, values, x, at)
                          : add_rest<IN_L2, N - 1>(count, sum, cols, values, x, at);
    }
}

// Sum of `width` slots of one row from `at` on, with stride `stride`. The first `full` hold
// entries, the others may be padding. Fast if both are uniform across the warp.
template <bool IN_L2, typename T>
__device__ __forceinline__ T sum_slots(const u32 *cols, const T *values, XView<T> x, u64 at,
                                       u64 stride, u64 full, u64 width) {
    T sum = 0;
    u64 k = 0;
#pragma unroll 1
    for (; k + BATCH <= full; k += BATCH, at += BATCH * stride)
        sum = add_slots<IN_L2, BATCH, false>(sum, cols, values, x, [=](u32 u) { return at + u * stride; });
#pragma unroll 1
    for (; k + BATCH <= width; k += BATCH, at += BATCH * stride)
        sum = add_slots<IN_L2, BATCH, true>(sum, cols, values, x, [=](u32 u) { return at + u * stride; });
    return add_rest<IN_L2, BATCH - 1>(width - k, sum, cols, values, x, [=](u32 u) { return at + u * stride; });
}

// Sum of `count` entries of one row from `at` on, with stride `stride`, N at a time.
template <bool IN_L2, u32 N, typename T>
__device__ __forceinline__ T sum_entries(const u32 *cols, const T *values, const T *x, u64 at, u64 stride, u64 count) {
    T sum = 0;
#pragma unroll 1
    for (u64 k = 0; k < count; k += N, at += N * stride) {
        u32 left = u32(min(count - k, u64(N)));
        sum = add_wanted<IN_L2, N>(sum, cols, values, x, [=](u32 u) { return at + min(u, left - 1) * stride; },
                                   [=](u32 u) { return u < left; });
    }
    return sum;
}

// Value of another lane: the one whose number is that of this lane xor `offset` (`lane_xor`), or
// less `offset` (`lane_up`). All lanes take part.
template <typename T>
__device__ __forceinline__ T lane_xor(T own, u32 offset) {
    return __shfl_xor_sync(ALL_LANES, own, offset);
}
template <typename T>
__device__ __forceinline__ T lane_up(T own, u32 offset) {
    return __shfl_up_sync(ALL_LANES, own, offset);
}

// Sum over each group of `lanes` lanes, a power of two. Every lane of the warp takes part and gets
// the sum of its group.
template <typename T>
__device__ __forceinline__ T subwarp_sum(T sum, u32 lanes) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2)
        if (offset < lanes) sum += lane_xor(sum, offset);
    return sum;
}

// Sum over the lanes of the warp at distances of `stride`, a power of two. Every lane takes part
// and gets the sum of its lanes.
template <typename T>
__device__ __forceinline__ T strided_sum(T sum, u32 stride) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2)
        if (offset >= stride) sum += lane_xor(sum, offset);
    return sum;
}

// Loads 16 bytes of scalars.
template <bool IN_L2>
__device__ __forceinline__ void load(const float *from, float (&to)[4]) {
    float4 four = fetch<IN_L2>(reinterpret_cast<const float4 *>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
template <bool IN_L2>
__device__ __forceinline__ void load(const double *from, double (&to)[2]) {
    double2 two = fetch<IN_L2>(reinterpret_cast<const double2 *>(from));
    to[0] = two.x, to[1] = two.y;
}

// Copies to dynamic shared memory.

// Begins to copy 16 bytes, asynchronously if the GPU supports it.
__device__ __forceinline__ void begin_copy(float4 *to, const float4 *from) {
#if HAS_AMPERE
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
#else
    *to = __ldg(from);
#endif
}

// Waits for the copies of this thread.
__device__ __forceinline__ void end_copies() {
#if HAS_AMPERE
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Begins to copy `count` scalars, by all THREADS of a block; 16 bytes at a time if the source is
// aligned.
template <u32 THREADS, typename T>
__device__ __forceinline__ void begin_copies(float4 *to, const T *from, u32 count) {
    constexpr u32 N = 16 / sizeof(T);
    u32 whole = reinterpret_cast<u64>(from) % 16 == 0 ? count / N : 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < whole; i += THREADS) begin_copy(to + i, reinterpret_cast<const float4 *>(from) + i);
#pragma unroll 1
    for (u32 i = whole * N + threadIdx.x; i < count; i += THREADS) reinterpret_cast<T *>(to)[i] = __ldg(from + i);
}

// Chunks: the sequence of entries and row ends in row order, in parts of equal length, one for each
// block (Merrill & Garland's merge path). Segment i < `end_count` holds the entries of the i-th row
// that ends in the chunk. The last segment, possibly empty, belongs to the row that continues in
// the next chunk.

// Number of products per lane of a row beyond which a whole warp sums it.
[[maybe_unused]] constexpr u32 LANE_PRODUCTS = 32;

// Lanes per segment so that `segments` of them occupy all THREADS: a power of two, at most a warp.
template <u32 THREADS>
__device__ __forceinline__ u32 lanes_for(u32 segments) {
    u32 lanes = WARP;
    while (lanes > 1 && lanes * segments > THREADS) lanes /= 2;
    return lanes;
}

// Calls `store(i, sum)` for every segment i of a chunk of at most CHUNK entries. The k-th of its
// `entries` products is `product(k)`, and its i-th row ends before product `row_ends[i]`. Both may
// be in shared memory: the function begins with a barrier.
template <u32 THREADS, u32 CHUNK, typename T, typename Product, typename Store>
__device__ __forceinline__ void sum_segments(const u32 *row_ends, u32 end_count, u32 entries, Product product, Store store) {
    // Segments that a warp sums. Each has more than LANE_PRODUCTS products.
    __shared__ u32 long_segments[CHUNK / LANE_PRODUCTS];
    __shared__ u32 long_count;
    if (threadIdx.x == 0) long_count = 0;
    __syncthreads();

    auto segment_begin = [=](u32 i) { return i == 0 ? 0 : row_ends[i - 1]; };
    auto segment_end = [=](u32 i) { return i == end_count ? entries : row_ends[i]; };

    u32 lanes = lanes_for<THREADS>(end_count + 1);
    u32 lane = threadIdx.x % lanes;
    // Warps iterate uniformly, since lanes exchange their sums.
    for (u32 base = 0; base <= end_count; base += THREADS / lanes) {
        u32 i = base + threadIdx.x / lanes;
        u32 k = 0, stop = 0;
        if (i <= end_count) {
            k = segment_begin(i);
            stop = segment_end(i);
        }
        bool is_long = lanes < WARP && stop - k > LANE_PRODUCTS * lanes;
        T sum = 0;
        if (!is_long) {
#pragma unroll 4
            for (k += lane; k < stop; k += lanes) sum += product(k);
        }
        sum = subwarp_sum(sum, lanes);
        if (i <= end_count && lane == 0) {
            if (is_long) long_segments[atomicAdd(&long_count, 1)] = i;
            else store(i, sum);
        }
    }
    __syncthreads();

    for (u32 l = threadIdx.x / WARP; l < long_count; l += THREADS / WARP) {
        u32 i = long_segments[l];
        u32 stop = segment_end(i);
        T sum = 0;
#pragma unroll 4
        for (u32 k = segment_begin(i) + threadIdx.x % WARP; k < stop; k += WARP) sum += product(k);
        sum = subwarp_sum(sum, WARP);
        if (threadIdx.x % WARP == 0) store(i, sum);
    }
}

// Segmented sums: every thread of a block sums a run of consecutive products, the runs in thread
// order. `open` is the sum behind the last row end of the run, or of the whole run if no row ends
// in it. Returns the sum of previous runs for the row with which the run begins.
template <u32 THREADS, typename T>
__device__ __forceinline__ T block_segmented_carry(T open, bool has_end) {
    __shared__ T warp_open[THREADS / WARP];
    __shared__ bool warp_ended[THREADS / WARP];
    // Scan over the warp that restarts at every run with an end.
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 ended = __ballot_sync(ALL_LANES, has_end);
    u32 ended_here = ended & (ALL_LANES >> (WARP - 1 - lane));
    u32 start = ended_here == 0 ? 0 : WARP - 1 - __clz(ended_here);
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        T other = lane_up(open, offset);
        if (lane >= start + offset) open += other;
    }
    if (lane == WARP - 1) {
        warp_open[warp] = open;
        warp_ended[warp] = ended != 0;
    }
    __syncthreads();

    // Loaded ahead of their use: one after the other they take as long as a gather.
    T opens[THREADS / WARP];
    bool ended_in[THREADS / WARP];
#pragma unroll
    for (u32 w = 0; w < THREADS / WARP; ++w) {
        opens[w] = warp_open[w];
        ended_in[w] = warp_ended[w];
    }
    T before = {};
#pragma unroll
    for (u32 w = 0; w + 1 < THREADS / WARP; ++w)
        if (w < warp) before = ended_in[w] ? opens[w] : before + opens[w];
    T lanes_before = lane_up(open, 1);
    bool ended_before = (ended & ~(ALL_LANES << lane)) != 0;
    if (lane > 0) before = ended_before ? lanes_before : before + lanes_before;
    return before;
}

// Carries: if entries are cut into equal chunks, a chunk stores the sum of the row that continues
// in the next chunk as its carry, and the chunk in which the row ends writes the row. Carry j
// belongs to row `rows[j]`; the rows ascend.

// Number of carries of one row beyond which the whole block sums them.
[[maybe_unused]] constexpr u32 FEW_CARRIES = 32;

// Adds the carries that begin between `base` and base + BLOCK to their rows, those of a row always
// in the same order, with one thread per carry. Other blocks of the same kernel may have written
// them, so they are not read through the L1 cache.
template <typename T>
__device__ void add_carries(const u32 *rows, const T *carries, u64 base, u64 count, T *y) {
    // First carries of rows with more than FEW_CARRIES of them. They are more than FEW_CARRIES
    // apart.
    __shared__ u32 many[BLOCK / FEW_CARRIES];
    __shared__ u32 many_count;
    __shared__ T warp_sums[WARPS];
    auto row_of = [=](u64 j) { return __ldcg(rows + j); };
    auto add = [=](u32 row, T sum) { y[row] = __ldcg(y + row) + sum; };
    // Protects the results of an earlier call.
    __syncthreads();
    if (threadIdx.x == 0) many_count = 0;
    __syncthreads();

    u64 j = base + threadIdx.x;
    if (j < count && (j == 0 || row_of(j) != row_of(j - 1))) {
        u32 row = row_of(j);
        if (j + FEW_CARRIES < count && row_of(j + FEW_CARRIES) == row) {
            many[atomicAdd(&many_count, 1)] = threadIdx.x;
        } else {
            T sum = __ldcg(carries + j);
            for (u64 i = j + 1; i < count && row_of(i) == row; ++i) sum += __ldcg(carries + i);
            add(row, sum);
        }
    }
    __syncthreads();

    for (u32 m = 0; m < many_count; ++m) {
        u64 first = base + many[m];
        u32 row = row_of(first);
        // End of the row's carries.
        u64 end = first + FEW_CARRIES + 1, high = count;
        while (end < high) {
            u64 middle = end + (high - end) / 2;
            if (row_of(middle) == row) end = middle + 1;
            else high = middle;
        }
        T sum = 0;
#pragma unroll 4
        for (u64 i = first + threadIdx.x; i < end; i += BLOCK) sum += __ldcg(carries + i);
        sum = subwarp_sum(sum, WARP);
        if (threadIdx.x % WARP == 0) warp_sums[threadIdx.x / WARP] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            T total = 0;
            for (u32 w = 0; w < WARPS; ++w) total += warp_sums[w];
            add(row, total);
        }
        __syncthreads();
    }
}

// Increments a counter that wraps around at `limit`, and returns its previous value. What the block
// wrote before its last barrier is visible to a block that sees the increment and then executes a
// fence. Unlike a fence, this keeps the L1 cache valid for the gathers of other blocks.
__device__ __forceinline__ u32 arrive(u32 *counter, u32 limit) {
    u32 before;
    asm volatile("atom.release.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(limit) : "memory");
    return before;
}

// True in the last block of the grid to arrive, which then sees the writes of all blocks.
// `arrivals` is 0 when the kernel begins, and again when it is over.
__device__ __forceinline__ bool is_last_block(u32 *arrivals) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(arrivals, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

#include "packing.cuh"
