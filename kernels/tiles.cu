// Tiles: see src/formats/tiles/mod.rs for the layout.
//
// Variants: streamed.
// Selectable: one kernel at a time.

#include "common.cuh"

using namespace tiles;

// Launch bounds of the multiply and of the sum kernels.
#define MULTIPLY_KERNEL(NAME) KERNEL_OF(NAME, MULTIPLY_THREADS, MULTIPLY_BLOCKS)
#define SUM_KERNEL(NAME) KERNEL_OF(NAME, SUM_THREADS, SUM_BLOCKS)

// A thread processes slots in *runs* of RUN_BYTES bytes of scalars. Accesses of adjacent threads
// are contiguous, and a run of every thread of a group together are whole sectors.
template <typename T>
constexpr u32 RUN = RUN_BYTES / sizeof(T);
template <typename T>
constexpr u32 RUNS = GROUP / RUN<T>;

__device__ __forceinline__ void store(float *to, const float (&from)[4]) {
    *reinterpret_cast<float4 *>(to) = make_float4(from[0], from[1], from[2], from[3]);
}
__device__ __forceinline__ void store(double *to, const double (&from)[2]) {
    *reinterpret_cast<double2 *>(to) = make_double2(from[0], from[1]);
}

// True if the arrays stay in the L2. Blocks share the stripes evenly, so that all arrays stay or
// none.
#ifdef STREAMED
constexpr bool IN_L2 = false;
#else
constexpr bool IN_L2 = true;
#endif

// 16-bit numbers of a run, two per word.
template <u32 N>
struct Shorts {
    u32 word[N / 2];
    __device__ __forceinline__ u32 operator[](u32 i) const {
        return i % 2 == 0 ? word[i / 2] & 0xFFFF : word[i / 2] >> 16;
    }
};
template <bool STAY>
__device__ __forceinline__ void load(const u16 *from, Shorts<4> &to) {
    uint2 two = fetch<STAY>(reinterpret_cast<const uint2 *>(from));
    to.word[0] = two.x, to.word[1] = two.y;
}
template <bool STAY>
__device__ __forceinline__ void load(const u16 *from, Shorts<2> &to) {
    to.word[0] = fetch<STAY>(reinterpret_cast<const u32 *>(from));
}

// Dynamic shared memory, aligned for runs.
extern __shared__ float4 dynamic_shared[];

// A stripe. Its groups are numbered in tile order from `first_group` on; tile t has the groups from
// `tile_ptr[t]` on.
template <typename T>
struct Stripe {
    const u32 *tile_ptr;
    u32 tiles;
    u32 first_group;
    u32 groups;
    const u16 *cols;
    // One value per slot, or null: then every entry has the value `value`.
    const T *values;
    T value;
    // Destination of the products of every group of the stripe: a group in chunk order.
    const u32 *destinations;
};

// Slots of a run, with their values if HAS_VALUES, else with those of the stripe.
template <typename T, bool HAS_VALUES>
struct RunSlots {
    Shorts<RUN<T>> col;
    T value[RUN<T>];
    u32 destination;

    // Loads the i-th run after the beginning of a group.
    __device__ __forceinline__ void load_run(const Stripe<T> &a, u32 group, u32 i) {
        u64 run = u64(group) * RUNS<T> + i;
        load<IN_L2>(a.cols + run * RUN<T>, col);
        if constexpr (HAS_VALUES) load<IN_L2>(a.values + run * RUN<T>, value);
        destination = fetch<IN_L2>(a.destinations + run / RUNS<T>);
    }
};

// Multiplies a stripe and writes `products` in chunk order, from its first group on. All blocks
// have equally many groups, and keep the part of x for the columns of a tile in shared memory.
// Products of padding are not used.
template <bool HAS_VALUES, typename T>
__device__ __forceinline__ void multiply(const Stripe<T> &a, u32 width, u32 ncols, const T *__restrict__ x,
                                         T *__restrict__ products) {
    const T *x_block = reinterpret_cast<const T *>(dynamic_shared);
    u32 begin = a.first_group + u32(u64(a.groups) * blockIdx.x / gridDim.x);
    u32 end = a.first_group + u32(u64(a.groups) * (blockIdx.x + 1) / gridDim.x);

    // Finds the tile of the first group, after all tiles that end at it or before. All threads
    // search together.
    u32 tile = 0, found;
    do {
        u32 t = tile + threadIdx.x;
        found = __syncthreads_count(t < a.tiles && a.tile_ptr[t + 1] <= begin);
        tile += found;
    } while (found == MULTIPLY_THREADS);

    // A thread's runs are the same part of every group.
    u32 part = threadIdx.x % RUNS<T> * RUN<T>;
    for (; begin < end; ++tile) {
        u32 stop = min(end, a.tile_ptr[tile + 1]);
        if (begin == stop) continue;
        // Less than 2^32: a GPU with memory for so many groups has many blocks that share them.
        u32 last = (stop - begin) * RUNS<T> - 1;
        u32 i = threadIdx.x;
        begin_copies<MULTIPLY_THREADS>(dynamic_shared, x + u64(tile) * width, min(width, ncols - tile * width));
        // The load of the next run is always in flight, the first one together with x. Runs
        // past the end repeat the last one.
        RunSlots<T, HAS_VALUES> next;
        next.load_run(a, begin, min(i, last));
        end_copies();
        __syncthreads();
#pragma unroll 1
        while (i <= last) {
            RunSlots<T, HAS_VALUES> slots = next;
            i += MULTIPLY_THREADS;
            next.load_run(a, begin, min(i, last));
            T product[RUN<T>];
#pragma unroll
            for (u32 u = 0; u < RUN<T>; ++u) product[u] = (HAS_VALUES ? slots.value[u] : a.value) * x_block[slots.col[u]];
            store(products + (u64(slots.destination - a.first_group) * GROUP + part), product);
        }
        begin += (last + 1) / RUNS<T>;
        __syncthreads();
    }
}

// The matrix in chunk order. Chunk c begins in row `chunk_rows[c]` and has the groups from
// `chunk_ptr[c]` on. `positions` has the position of each slot's entry in its chunk, `row_ends` the
// number of the chunk's entries before the end of each row.
struct ChunkTable {
    const u32 *chunk_rows;
    const u32 *chunk_ptr;
    const u16 *positions;
    const u16 *row_ends;
    u32 chunk;
    u32 nrows;
    u64 nnz;
};

// Position of the k-th product in shared memory. Threads read products one row apart. The swizzle
// within a line of banks avoids bank conflicts for rows of 2, 4, 8, ... entries.
template <typename T>
__device__ __forceinline__ u32 place(u32 k) {
    constexpr u32 LINE = BANK_LINE / sizeof(T);
    return k ^ (k / LINE % LINE);
}

// Sums the rows of the block's chunk, counted from `first_chunk`. `products` begin with group
// `first_group`.
template <typename T>
__device__ __forceinline__ void sum_chunk(const ChunkTable &a, u32 first_chunk, u32 first_group,
                                          const T *__restrict__ products, T *__restrict__ y,
                                          T *__restrict__ carries) {
    // Number of runs that a thread loads together.
    constexpr u32 N = 2;
    u32 c = first_chunk + blockIdx.x;
    u64 begin = u64(c) * a.chunk;
    u64 end = min(begin + a.chunk, a.nrows + a.nnz);
    u32 first_row = a.chunk_rows[c];
    u32 end_count = a.chunk_rows[c + 1] - first_row;
    u32 entries = u32(end - begin) - end_count;
    u64 first = u64(a.chunk_ptr[c]) * RUNS<T>;
    u64 stop = u64(a.chunk_ptr[c + 1]) * RUNS<T>;
    u64 before = u64(first_group) * GROUP;

    // Products are stored from the front, in whole lines of banks, row ends from the back:
    // `chunk_bytes` in src/formats/tiles/cuda.rs.
    T *in_order = reinterpret_cast<T *>(dynamic_shared);
    u32 *row_ends = reinterpret_cast<u32 *>(in_order + a.chunk + BANK_LINE / sizeof(T)) - end_count;
    for (u32 i = threadIdx.x; i < end_count; i += SUM_THREADS) row_ends[i] = fetch<IN_L2>(a.row_ends + first_row + i);

#pragma unroll 1
    for (u64 run = first + threadIdx.x; run < stop; run += N * SUM_THREADS) {
        Shorts<RUN<T>> position[N];
        T product[N][RUN<T>];
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            // Runs past the end load the last one again, and store it to the same position.
            u64 slot = min(run + n * SUM_THREADS, stop - 1) * RUN<T>;
            load<IN_L2>(a.positions + slot, position[n]);
            load<IN_L2>(products + (slot - before), product[n]);
        }
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 u = 0; u < RUN<T>; ++u)
                if (position[n][u] != UNUSED) in_order[place<T>(position[n][u])] = product[n][u];
    }

    auto store_sum = [=](u32 i, T sum) {
        if (i == end_count) carries[c] = sum;
        else y[u64(first_row) + i] = sum;
    };
    sum_segments<SUM_THREADS, MAX_CHUNK, T>(row_ends, end_count, entries,
                                            [=](u32 k) { return in_order[place<T>(k)]; }, store_sum);
}

#define INSTANCES(SUFFIX, T)                                                                                                        \
    MULTIPLY_KERNEL(tiles_multiply_##SUFFIX)(const u32 *tile_ptr, u32 tiles, u32 first_group, u32 groups, const u16 *cols,          \
                                            const T *values, T value, const u32 *destinations, u32 width, u32 ncols, const T *x,    \
                                            T *products) {                                                                          \
        multiply<true>(Stripe<T>{tile_ptr, tiles, first_group, groups, cols, values, value, destinations}, width, ncols, x,         \
                       products);                                                                                                   \
    }                                                                                                                               \
    MULTIPLY_KERNEL(tiles_multiply_equal_##SUFFIX)(const u32 *tile_ptr, u32 tiles, u32 first_group, u32 groups, const u16 *cols,    \
                                                  const T *values, T value, const u32 *destinations, u32 width, u32 ncols,          \
                                                  const T *x, T *products) {                                                        \
        multiply<false>(Stripe<T>{tile_ptr, tiles, first_group, groups, cols, values, value, destinations}, width, ncols, x,        \
                        products);                                                                                                  \
    }                                                                                                                               \
    SUM_KERNEL(tiles_sum_##SUFFIX)(const u32 *chunk_rows, const u32 *chunk_ptr, const u16 *positions, const u16 *row_ends,          \
                                  u32 chunk, u32 nrows, u64 nnz, u32 first_chunk, u32 first_group, const T *products, T *y,         \
                                  T *carries) {                                                                                     \
        sum_chunk(ChunkTable{chunk_rows, chunk_ptr, positions, row_ends, chunk, nrows, nnz}, first_chunk, first_group, products, y, \
                  carries);                                                                                                         \
    }                                                                                                                               \
    KERNEL(tiles_carries_##SUFFIX)(const u32 *rows, const T *carries, u64 count, T *y) {                                            \
        add_carries(rows, carries, u64(blockIdx.x) * BLOCK, count, y);                                                              \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
