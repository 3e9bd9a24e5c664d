// What the kernels share. The only header: a kernel file begins with it and includes nothing else.
//
// Conventions. A kernel is a template over its scalar T, and over the row offset O where there is one; its instances are the entry
// points, with plain names that say their types: `csr_vector8_f32_o64`. Positions of slots and entries are 64-bit everywhere, rows
// and columns 32-bit. Arrays of the matrix are read by `fetch`, x by `__ldg`, or `gather` where launches overlap.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of a block: `BLOCK` in src/device/launch.rs.
[[maybe_unused]] constexpr u32 BLOCK = 256;

[[maybe_unused]] constexpr u32 WARP = 32;
[[maybe_unused]] constexpr u32 WARPS = BLOCK / WARP;

// Every lane of a warp, as a mask.
[[maybe_unused]] constexpr u32 ALL_LANES = 0xFFFFFFFF;

// The column of a padded slot: `PADDING` in src/device/cpu/simd.rs.
[[maybe_unused]] constexpr u32 PADDING = 0xFFFFFFFF;

// Slots of one row that a thread loads together.
[[maybe_unused]] constexpr u32 BATCH = 8;

// A kernel of which a multiprocessor shall hold so many blocks of so many threads at least. The promise gives every thread registers
// for a whole batch: without it the compiler saves them by loading one slot after the other.
#define KERNEL_OF(THREADS, BLOCKS) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#define KERNEL_WITH(BLOCKS) KERNEL_OF(BLOCK, BLOCKS)

// 48 registers a thread, or 64 on Turing, whose multiprocessors hold 1024 threads, and on sm_120, which holds 1536.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 750 || __CUDA_ARCH__ >= 1200)
#define KERNEL KERNEL_WITH(4)
#else
#define KERNEL KERNEL_WITH(5)
#endif

// Launches that overlap. A kernel of a file with OVERLAPPING begins, where the GPU can do so, as soon as every block of the launch before it in
// the stream has called `begin_next`, or when that is over. It calls `begin_next` behind `end_previous`: before it, launches would pile up, and
// those that wait would take the places of those that work. Until it has called `end_previous` it reads nothing but what says where the entries
// of the matrix are, and writes nothing: values are updated by kernels, and vectors, scratch and sums are what the launch before may be
// working on. Every kernel of such a file calls it. What it reads afterwards it does not read as constant
// (`__ldg`), since it was not when it began.

// Tells the host, which asks for a variable of this name: see src/device/cuda/mod.rs.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(SCALED)
#define OVERLAPPING extern "C" __device__ u32 launches_overlap = 1;
#else
#define OVERLAPPING
#endif

// Whether a launch can let the next one begin.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
[[maybe_unused]] constexpr bool CAN_OVERLAP = true;
#else
[[maybe_unused]] constexpr bool CAN_OVERLAP = false;
#endif

// Lets the next launch begin when all blocks are here.
__device__ __forceinline__ void begin_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the launch before is over and what it wrote is there.
__device__ __forceinline__ void end_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
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

// Residency of the matrix in the L2. Where all that a product touches fits, the matrix is read by
// normal loads and stays. A module with STREAMED is for larger matrices: `resident` of SHARES blocks
// read their part by normal loads, so that it stays from product to product; the others read theirs
// evict-first. `Residency` in src/device/residency.rs.

// Number of shares in which blocks are counted: `SHARES` in src/device/residency.rs.
[[maybe_unused]] constexpr u32 SHARES = 16;

template <bool FLAG>
struct Flag {
    static constexpr bool value = FLAG;
};

// Calls `body` with Flag<true> where share number `unit` of the matrix stays, else with Flag<false>.
template <typename Body>
__device__ __forceinline__ void by_residency([[maybe_unused]] u32 unit, [[maybe_unused]] u32 resident, Body body) {
#ifdef STREAMED
    if (unit % SHARES >= resident) return body(Flag<false>{});
#endif
    body(Flag<true>{});
}

// Loads an element of the matrix, evict-first where it does not stay. Neither is a load of constants:
// values may be written by the launch before.
template <bool STAYS, typename W>
__device__ __forceinline__ W fetch(const W *from) {
    if constexpr (STAYS) return __ldca(from);
    else return __ldcs(from);
}

// The number of this thread in the grid.
__device__ __forceinline__ u64 thread_id() { return u64(blockIdx.x) * BLOCK + threadIdx.x; }

// Products are made in batches: all loads of one kind are issued before the first result is needed, and none depends on a
// condition, since predicated loads would be issued one after the other.

// What a kernel does with a row sum: every row is put once, by one thread. `y = A x`; with SCALED, which the files *_with.cu define before they
// include another, `y = alpha A x + beta y`. OUT is the type of what is written to, OUT_PARAMETERS and OUTPUT stand for it in an entry point.
#ifndef SCALED

#define OUT(T) T *__restrict__
#define OUT_PARAMETERS(T) T *y
#define OUTPUT y

template <typename T>
__device__ __forceinline__ void put(T *y, u64 row, T sum) {
    y[row] = sum;
}

#else

// A factor is at an address, or, where that is null, what stands beside it.
template <typename T>
struct Scaled {
    T *y;
    const T *alpha_at, *beta_at;
    T alpha, beta;
};

#define OUT(T) Scaled<T>
#define OUT_PARAMETERS(T) T *y, const T *alpha_at, T alpha, const T *beta_at, T beta
#define OUTPUT (scaled(y, alpha_at, alpha, beta_at, beta))

template <typename T>
__device__ __forceinline__ Scaled<T> scaled(T *y, const T *alpha_at, T alpha, const T *beta_at, T beta) {
    return {y, alpha_at, beta_at, alpha, beta};
}

// With alpha = 0 the sum is of no account, with beta = 0 `y` is not read: neither lets a NaN through.
template <typename T>
__device__ __forceinline__ void put(const Scaled<T> &out, u64 row, T sum) {
    T alpha = out.alpha_at ? __ldg(out.alpha_at) : out.alpha, beta = out.beta_at ? __ldg(out.beta_at) : out.beta;
    T value = alpha == 0 ? T(0) : alpha * sum;
    if (beta != 0) value += beta * out.y[row];
    out.y[row] = value;
}

#endif

// x and its length.
template <typename T>
struct Factors {
    const T *x;
    u32 ncols;
};

// `sum` plus the products of N slots, the u-th at `at(u)`. When GUARDED they may be padding, which is not multiplied.
template <bool STAYS, u32 N, bool GUARDED, typename T, typename At>
__device__ __forceinline__ T add_slots(T sum, const u32 *cols, const T *values, Factors<T> x, At at) {
    u32 col[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        col[u] = fetch<STAYS>(cols + at(u));
        value[u] = fetch<STAYS>(values + at(u));
    }
    // Padding takes the last column: PADDING is beyond every one of them.
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = __ldg(x.x + (GUARDED ? min(col[u], x.ncols - 1) : col[u]));
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (!GUARDED || col[u] != PADDING) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of those of N entries that are wanted. The u-th is at `at(u)`, where there must be some entry even when
// it is not wanted.
template <bool STAYS, u32 N, typename T, typename At, typename Wanted>
__device__ __forceinline__ T add_wanted(T sum, const u32 *cols, const T *values, const T *x, At at, Wanted wanted) {
    u32 col[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        col[u] = fetch<STAYS>(cols + at(u));
        value[u] = fetch<STAYS>(values + at(u));
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = gather(x + col[u]);
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (wanted(u)) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of the first `count` <= N slots, which may be padding; quick when the warp agrees on `count`.
template <bool STAYS, u32 N, typename T, typename At>
__device__ __forceinline__ T add_rest(u64 count, T sum, const u32 *cols, const T *values, Factors<T> x, At at) {
    if constexpr (N == 0) {
        return sum;
    } else {
        return count == N ? add_slots<STAYS, N, true>(sum, cols, values, x, at)
                          : add_rest<STAYS, N - 1>(count, sum, cols, values, x, at);
    }
}

// The sum of `width` slots of one row, `stride` apart from `at` on, of which the first `full` hold entries while the others may be
// padding; quick when the warp agrees on both.
template <bool STAYS, typename T>
__device__ __forceinline__ T sum_slots(const u32 *cols, const T *values, Factors<T> x, u64 at, u64 stride, u64 full, u64 width) {
    T sum = 0;
    u64 k = 0;
#pragma unroll 1
    for (; k + BATCH <= full; k += BATCH, at += BATCH * stride)
        sum = add_slots<STAYS, BATCH, false>(sum, cols, values, x, [=](u32 u) { return at + u * stride; });
#pragma unroll 1
    for (; k + BATCH <= width; k += BATCH, at += BATCH * stride)
        sum = add_slots<STAYS, BATCH, true>(sum, cols, values, x, [=](u32 u) { return at + u * stride; });
    return add_rest<STAYS, BATCH - 1>(width - k, sum, cols, values, x, [=](u32 u) { return at + u * stride; });
}

// The sum of `count` entries of one row, `stride` apart from `at` on, N at a time.
template <bool STAYS, u32 N, typename T>
__device__ __forceinline__ T sum_entries(const u32 *cols, const T *values, const T *x, u64 at, u64 stride, u64 count) {
    T sum = 0;
#pragma unroll 1
    for (u64 k = 0; k < count; k += N, at += N * stride) {
        u32 left = u32(min(count - k, u64(N)));
        sum = add_wanted<STAYS, N>(sum, cols, values, x, [=](u32 u) { return at + min(u, left - 1) * stride; },
                                   [=](u32 u) { return u < left; });
    }
    return sum;
}

// The sum over each group of `lanes` lanes, a power of two; every lane of the warp takes part and gets its group's sum.
template <typename T>
__device__ __forceinline__ T lanes_sum(T sum, u32 lanes) {
#pragma unroll
    for (u32 apart = WARP / 2; apart > 0; apart /= 2)
        if (apart < lanes) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
    return sum;
}

// Loads 16 bytes of scalars.
template <bool STAYS>
__device__ __forceinline__ void load(const float *from, float (&to)[4]) {
    float4 four = fetch<STAYS>(reinterpret_cast<const float4 *>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
template <bool STAYS>
__device__ __forceinline__ void load(const double *from, double (&to)[2]) {
    double2 two = fetch<STAYS>(reinterpret_cast<const double2 *>(from));
    to[0] = two.x, to[1] = two.y;
}

// Copies to shared memory, of which a block is given as much as its launch says.

// Begins to copy 16 bytes, past the registers where the GPU can.
__device__ __forceinline__ void begin_copy(float4 *to, const float4 *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
#else
    *to = __ldg(from);
#endif
}

// Waits for what this thread copies.
__device__ __forceinline__ void end_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Begins to copy `count` scalars, by all THREADS of a block; 16 bytes at a time where they lie so that this can be.
template <u32 THREADS, typename T>
__device__ __forceinline__ void begin_copies(float4 *to, const T *from, u32 count) {
    constexpr u32 N = 16 / sizeof(T);
    u32 whole = reinterpret_cast<u64>(from) % 16 == 0 ? count / N : 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < whole; i += THREADS) begin_copy(to + i, reinterpret_cast<const float4 *>(from) + i);
#pragma unroll 1
    for (u32 i = whole * N + threadIdx.x; i < count; i += THREADS) reinterpret_cast<T *>(to)[i] = __ldg(from + i);
}

// Chunks: entries and row ends in the order in which they are met, cut into equal pieces for the blocks (Merrill & Garland's merge
// path). Segment i < `ends` is what a chunk has of the i-th row that ends in it; the last one, perhaps empty, is of the row that
// goes on behind it.

// Products of a row that one lane adds up before a whole warp is better.
[[maybe_unused]] constexpr u32 LANE_PRODUCTS = 32;

// As many lanes for each of `segments` as give every one of THREADS work; a power of two, at most a warp.
template <u32 THREADS>
__device__ __forceinline__ u32 lanes_for(u32 segments) {
    u32 lanes = WARP;
    while (lanes > 1 && lanes * segments > THREADS) lanes /= 2;
    return lanes;
}

// Calls `store(i, sum)` for every segment i of a chunk of at most CHUNK entries. The k-th of its `entries` products is `product(k)`,
// and `row_ends[i]` says behind which of them its i-th row ends. Both may be in shared memory: all threads wait for one another first.
template <u32 THREADS, u32 CHUNK, typename T, typename Product, typename Store>
__device__ __forceinline__ void sum_segments(const u32 *row_ends, u32 ends, u32 entries, Product product, Store store) {
    // Segments that a warp has to sum; each is longer than LANE_PRODUCTS.
    __shared__ u32 long_segments[CHUNK / LANE_PRODUCTS];
    __shared__ u32 long_count;
    if (threadIdx.x == 0) long_count = 0;
    __syncthreads();

    auto segment_begin = [=](u32 i) { return i == 0 ? 0 : row_ends[i - 1]; };
    auto segment_end = [=](u32 i) { return i == ends ? entries : row_ends[i]; };

    u32 lanes = lanes_for<THREADS>(ends + 1);
    u32 lane = threadIdx.x % lanes;
    // Whole warps go round together: the lanes exchange their sums.
    for (u32 base = 0; base <= ends; base += THREADS / lanes) {
        u32 i = base + threadIdx.x / lanes;
        u32 k = 0, stop = 0;
        if (i <= ends) {
            k = segment_begin(i);
            stop = segment_end(i);
        }
        bool is_long = lanes < WARP && stop - k > LANE_PRODUCTS * lanes;
        T sum = 0;
        if (!is_long) {
#pragma unroll 4
            for (k += lane; k < stop; k += lanes) sum += product(k);
        }
        sum = lanes_sum(sum, lanes);
        if (i <= ends && lane == 0) {
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
        sum = lanes_sum(sum, WARP);
        if (threadIdx.x % WARP == 0) store(i, sum);
    }
}

// Segmented sums: every thread of a block sums a run of consecutive products, the runs in the order of the threads. `open` is what
// its run has behind its last row end, or all of it where no row ends. Gives what the runs before it have of the row with which it
// begins.
template <u32 THREADS, typename T>
__device__ __forceinline__ T open_before(T open, bool has_end) {
    __shared__ T warp_open[THREADS / WARP];
    __shared__ bool warp_ended[THREADS / WARP];
    // A scan over the warp, beginning anew at every lane with an end.
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 ended = __ballot_sync(ALL_LANES, has_end);
    u32 ended_here = ended & (ALL_LANES >> (WARP - 1 - lane));
    u32 start = ended_here == 0 ? 0 : WARP - 1 - __clz(ended_here);
#pragma unroll
    for (u32 apart = 1; apart < WARP; apart *= 2) {
        T other = __shfl_up_sync(ALL_LANES, open, apart);
        if (lane >= start + apart) open += other;
    }
    if (lane == WARP - 1) {
        warp_open[warp] = open;
        warp_ended[warp] = ended != 0;
    }
    __syncthreads();

    // Loaded before any is needed: one after the other they take as long as a gather.
    T opens[THREADS / WARP];
    bool ends[THREADS / WARP];
#pragma unroll
    for (u32 w = 0; w < THREADS / WARP; ++w) {
        opens[w] = warp_open[w];
        ends[w] = warp_ended[w];
    }
    T before = 0;
#pragma unroll
    for (u32 w = 0; w + 1 < THREADS / WARP; ++w)
        if (w < warp) before = ends[w] ? opens[w] : before + opens[w];
    T lanes_before = __shfl_up_sync(ALL_LANES, open, 1);
    bool ended_before = (ended & ~(ALL_LANES << lane)) != 0;
    if (lane > 0) before = ended_before ? lanes_before : before + lanes_before;
    return before;
}

// Carries: where entries are cut into equal chunks, a chunk keeps back the sum of the row that goes on in the next one,
// and the chunk in which a row ends writes it. Carry j belongs to row `rows[j]`; rows never fall.

// Carries of one row that one thread adds up; more of them are for the whole block.
[[maybe_unused]] constexpr u32 FEW_CARRIES = 32;

// Adds to every row those of its carries that begin between `base` and base + BLOCK, always in the same order; one thread a carry. They may
// have been written by other blocks of the same kernel, so they are not read through the first-level cache.
template <typename T>
__device__ void add_carries(const u32 *rows, const T *carries, u64 base, u64 count, T *y) {
    // First carries of rows that have many: they stand more than FEW_CARRIES apart.
    __shared__ u32 many[BLOCK / FEW_CARRIES];
    __shared__ u32 many_count;
    __shared__ T warp_sums[WARPS];
    auto row_of = [=](u64 j) { return __ldcg(rows + j); };
    auto add = [=](u32 row, T sum) { y[row] = __ldcg(y + row) + sum; };
    // Nobody counts any more what an earlier call has found.
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
        // Where the row's carries end.
        u64 end = first + FEW_CARRIES + 1, beyond = count;
        while (end < beyond) {
            u64 middle = end + (beyond - end) / 2;
            if (row_of(middle) == row) end = middle + 1;
            else beyond = middle;
        }
        T sum = 0;
#pragma unroll 4
        for (u64 i = first + threadIdx.x; i < end; i += BLOCK) sum += __ldcg(carries + i);
        sum = lanes_sum(sum, WARP);
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

// Adds one to a counter that wraps round behind `limit`, and gives what it was. What the block wrote before its last barrier is seen by whoever
// finds it counted and then passes a fence. Unlike a fence this leaves the first-level cache as it is: others gather from it.
__device__ __forceinline__ u32 arrive(u32 *counter, u32 limit) {
    u32 before;
    asm volatile("atom.release.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(limit) : "memory");
    return before;
}

// Whether this block is the last one of the grid to come here: then it sees what all of them have written. `arrivals` is 0 when
// the kernel begins, and again when it is over.
__device__ __forceinline__ bool is_last_block(u32 *arrivals) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(arrivals, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}
