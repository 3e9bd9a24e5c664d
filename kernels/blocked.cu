// Cache blocking: see src/formats/blocked/mod.rs for the layout.
//
// Variants: streamed.
// Selectable: one kernel at a time.

#include "common.cuh"

using namespace blocked;

// Blocks with x in shared memory.
#define WINDOW_KERNEL(NAME) KERNEL_OF(NAME, WINDOW_THREADS, 1)

#define GATHER_KERNEL_f32(NAME) KERNEL_WITH(NAME, GATHER_BLOCKS_f32)
#define GATHER_KERNEL_f64(NAME) KERNEL_WITH(NAME, GATHER_BLOCKS_f64)

// Entries in pieces. C is the type of a column.
template <typename T, typename C>
struct Pieces {
    const C *cols;
    // One value per slot, or null: then every entry has the value `value`.
    const T *values;
    T value;
    // For every lane of a batch, a bit for each of its entries that ends a segment, and above them
    // the number of ends in the lanes before.
    const u16 *flags;
    // First segment of each piece.
    const u32 *piece_ptr;
    // Target of every segment: a row of y, or, from `nrows` on, a partial sum.
    const u32 *targets;
};

// Destination of the sums of segments.
template <typename T>
struct SegmentSums {
    T *y;
    T *partial_sums;
    u32 nrows;
    __device__ __forceinline__ void put(u32 target, T sum) const {
        if (target < nrows) y[target] = sum;
        else partial_sums[target - nrows] = sum;
    }
};

// Columns of a lane in a batch, as they are loaded.
template <typename C>
struct Cols;
template <>
struct Cols<u16> {
    uint4 all;
    template <bool IN_L2>
    __device__ __forceinline__ void load(const u16 *cols, u64 batch, u32 lane) {
        all = fetch<IN_L2>(reinterpret_cast<const uint4 *>(cols) + batch * WARP + lane);
    }
    __device__ __forceinline__ u32 operator[](u32 u) const {
        u32 two = u / 2 == 0 ? all.x : u / 2 == 1 ? all.y : u / 2 == 2 ? all.z : all.w;
        return u % 2 == 0 ? two & 0xFFFF : two >> 16;
    }
};
template <>
struct Cols<u32> {
    u32 col[LANE];
    template <bool IN_L2>
    __device__ __forceinline__ void load(const u32 *cols, u64 batch, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            uint4 four = fetch<IN_L2>(reinterpret_cast<const uint4 *>(cols) + (batch * 2 + i) * WARP + lane);
            col[4 * i] = four.x, col[4 * i + 1] = four.y, col[4 * i + 2] = four.z, col[4 * i + 3] = four.w;
        }
    }
    __device__ __forceinline__ u32 operator[](u32 u) const { return col[u]; }
};

// Slots of a lane in a batch.
template <bool PLAIN, typename T, typename C>
struct LaneSlots {
    Cols<C> col;
    T value[LANE];
    u32 flags;

    template <bool IN_L2>
    __device__ __forceinline__ void take(const Pieces<T, C> &a, u64 batch, u32 lane) {
        constexpr u32 N = 16 / sizeof(T);
        flags = fetch<IN_L2>(a.flags + batch * WARP + lane);
        col.template load<IN_L2>(a.cols, batch, lane);
        if constexpr (PLAIN) {
#pragma unroll
            for (u32 i = 0; i < LANE / N; ++i)
                ::load<IN_L2>(a.values + ((batch * (LANE / N) + i) * WARP + lane) * N,
                              reinterpret_cast<T(&)[N]>(value[i * N]));
        } else {
#pragma unroll
            for (u32 u = 0; u < LANE; ++u) value[u] = a.value;
        }
    }
};

// Sum of the segment that continues after the batches so far: in the last lane, or `spread` over
// all lanes.
template <typename T>
struct OpenSegment {
    T sum = 0;
    bool spread = false;
};

// Sums the segments in a batch, the first of which is number `segment`. `factor(col)` is the
// element of x at a column. Padding comes after the last end of a piece, so that its products are
// in no sum that is stored.
template <bool PLAIN, typename T, typename C, typename Factor>
__device__ __forceinline__ void sum_batch(const LaneSlots<PLAIN, T, C> &slots, Factor factor, OpenSegment<T> &open,
                                          u32 &segment, const u32 *targets, const SegmentSums<T> &sums, u32 lane) {
    T product[LANE];
#pragma unroll
    for (u32 u = 0; u < LANE; ++u) product[u] = slots.value[u] * factor(slots.col[u]);
    u32 end_bits = slots.flags & 0xFF, before = slots.flags >> LANE;
    u32 ended = __ballot_sync(ALL_LANES, end_bits != 0);
    if (ended == 0) {
        T sum = 0;
#pragma unroll
        for (u32 u = 0; u < LANE; ++u) sum += product[u];
        open.sum = (open.spread || lane == WARP - 1 ? open.sum : T(0)) + sum;
        open.spread = true;
        return;
    }
    // The load of the first target overlaps with the additions.
    const u32 *mine = targets + (u64(segment) + before);
    u32 first_target = end_bits != 0 ? mine[0] : 0;
    T carried = open.spread ? subwarp_sum(open.sum, WARP) : __shfl_sync(ALL_LANES, open.sum, WARP - 1);
    T sum = lane == 0 ? carried : T(0), first = 0;
    u32 count = 0;
#pragma unroll
    for (u32 u = 0; u < LANE; ++u) {
        sum += product[u];
        if (end_bits >> u & 1) {
            if (count == 0) first = sum;
            else sums.put(mine[count], sum);
            ++count;
            sum = 0;
        }
    }
    // Scan over the lanes: adds to each the sums of the lanes before it that are behind their last
    // end, restarting at every lane with an end.
    u32 ended_here = ended & (ALL_LANES >> (WARP - 1 - lane));
    u32 start = ended_here == 0 ? 0 : WARP - 1 - __clz(ended_here);
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        T other = __shfl_up_sync(ALL_LANES, sum, offset);
        if (lane >= start + offset) sum += other;
    }
    T lanes_before = __shfl_up_sync(ALL_LANES, sum, 1);
    if (end_bits != 0) sums.put(first_target, lane == 0 ? first : first + lanes_before);
    open.sum = sum;
    open.spread = false;
    segment += __shfl_sync(ALL_LANES, before + count, WARP - 1);
}

// Sums the segments in a piece, which stays in the L2 if its share does. With AHEAD the whole piece
// is loaded before the first addition.
template <bool PLAIN, bool AHEAD, typename T, typename C, typename Factor>
__device__ __forceinline__ void sum_piece(const Pieces<T, C> &a, u32 piece, Factor factor,
                                          const SegmentSums<T> &sums, u32 l2_shares) {
    u32 lane = threadIdx.x % WARP;
    u32 segment = a.piece_ptr[piece];
    u64 batch = u64(piece) * BATCHES;
    OpenSegment<T> open;
    if constexpr (AHEAD) {
        LaneSlots<PLAIN, T, C> slots[BATCHES];
#pragma unroll
        for (u32 b = 0; b < BATCHES; ++b)
            by_l2_share(piece, l2_shares, [&](auto in_l2) {
                slots[b].template take<decltype(in_l2)::value>(a, batch + b, lane);
            });
#pragma unroll
        for (u32 b = 0; b < BATCHES; ++b) sum_batch(slots[b], factor, open, segment, a.targets, sums, lane);
    } else {
#pragma unroll 1
        for (u32 b = 0; b < BATCHES; ++b) {
            LaneSlots<PLAIN, T, C> slots;
            by_l2_share(piece, l2_shares, [&](auto in_l2) {
                slots.template take<decltype(in_l2)::value>(a, batch + b, lane);
            });
            sum_batch(slots, factor, open, segment, a.targets, sums, lane);
        }
    }
}

// Tiles, whose columns fit in shared memory together: tile t has the pieces from `tile_ptr[t]` on,
// and `windows[t]` is its first column and its number of columns.
struct TileTable {
    const u32 *tile_ptr;
    u32 tiles;
    const uint2 *windows;

    // Tile of a piece.
    __device__ __forceinline__ u32 of_piece(u32 piece) const {
        u32 tile = 0, high = tiles;
        while (high - tile > 1) {
            u32 middle = tile + (high - tile) / 2;
            if (tile_ptr[middle] <= piece) tile = middle;
            else high = middle;
        }
        return tile;
    }
};

// Dynamic shared memory for x, aligned for copies.
extern __shared__ float4 dynamic_shared[];

// Sums all pieces with x in shared memory. All blocks have equally many pieces, and the warps of a
// block take them one after the other.
template <bool PLAIN, typename T>
__device__ __forceinline__ void sum_windows(const Pieces<T, u16> &a, u32 pieces, const TileTable &tiles,
                                            const T *__restrict__ x, const SegmentSums<T> &sums,
                                            u32 l2_shares) {
    // On an H200, loading ahead makes f32 a twentieth faster and f64 a twentieth slower.
    constexpr bool AHEAD = sizeof(T) == 4;
    __shared__ u32 next;
    const T *window = reinterpret_cast<const T *>(dynamic_shared);
    u32 begin = u32(u64(pieces) * blockIdx.x / gridDim.x);
    u32 end = u32(u64(pieces) * (blockIdx.x + 1) / gridDim.x);
    for (u32 tile = begin < end ? tiles.of_piece(begin) : 0; begin < end; ++tile) {
        u32 stop = min(end, tiles.tile_ptr[tile + 1]);
        uint2 columns = tiles.windows[tile];
        // Protects the previous window until all warps are done with it.
        __syncthreads();
        begin_copies<WINDOW_THREADS>(dynamic_shared, x + columns.x, columns.y);
        if (threadIdx.x == 0) next = begin + WINDOW_THREADS / WARP;
        end_copies();
        __syncthreads();
        u32 piece = begin + threadIdx.x / WARP;
        while (piece < stop) {
            sum_piece<PLAIN, AHEAD>(a, piece, [=](u32 col) { return window[col]; }, sums, l2_shares);
            if (threadIdx.x % WARP == 0) piece = atomicAdd(&next, 1);
            piece = __shfl_sync(ALL_LANES, piece, 0);
        }
        begin = stop;
    }
}

// Sums a piece per warp, with x in global memory: for GPUs whose blocks have less shared memory
// than the windows need.
template <bool PLAIN, typename T>
__device__ __forceinline__ void sum_near(const Pieces<T, u16> &a, u32 pieces, const TileTable &tiles,
                                         const T *__restrict__ x, const SegmentSums<T> &sums,
                                         u32 l2_shares) {
    u32 piece = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (piece >= pieces) return;
    const T *window = x + tiles.windows[tiles.of_piece(piece)].x;
    sum_piece<PLAIN, false>(a, piece, [=](u32 col) { return __ldg(window + col); }, sums, l2_shares);
}

// The same for 32-bit columns, without windows.
template <bool PLAIN, typename T>
__device__ __forceinline__ void sum_far(const Pieces<T, u32> &a, u32 pieces,
                                        const T *__restrict__ x, const SegmentSums<T> &sums,
                                        u32 l2_shares) {
    u32 piece = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (piece >= pieces) return;
    sum_piece<PLAIN, false>(a, piece, [=](u32 col) { return __ldg(x + col); }, sums, l2_shares);
}

// Gathers the elements of x at some columns.
template <typename T>
__device__ __forceinline__ void gather(const u32 *cols, u32 count, const T *__restrict__ x, T *to) {
    u64 i = thread_id();
    if (i < count) to[i] = __ldg(x + cols[i]);
}

// Number of partial sums per lane of a row beyond which a whole warp adds them.
constexpr u32 FEW_SUMS = 32;

// Stores the sum of the partial sums of row i, from `ptr[i]` on, with LANES lanes per row. A row
// without any becomes 0.
template <u32 LANES, typename T>
__device__ __forceinline__ void add_partial_sums(const u32 *rows, const u32 *ptr, u32 count,
                                                 const T *partial_sums, T *y) {
    u64 i = thread_id() / LANES;
    u32 lane = threadIdx.x % WARP;
    u32 begin = i < count ? ptr[i] : 0, end = i < count ? ptr[i + 1] : 0;
    bool is_long = LANES < WARP && end - begin > FEW_SUMS * LANES;
    T sum = 0;
    if (!is_long) {
#pragma unroll 4
        for (u32 k = begin + lane % LANES; k < end; k += LANES) sum += partial_sums[k];
    }
    sum = subwarp_sum(sum, LANES);
    if (i < count && lane % LANES == 0 && !is_long) y[rows[i]] = sum;
    for (u32 left = __ballot_sync(ALL_LANES, is_long && lane % LANES == 0); left != 0; left &= left - 1) {
        u32 source = WARP - 1 - __clz(left & (0 - left));
        u32 stop = __shfl_sync(ALL_LANES, end, source);
        T total = 0;
#pragma unroll 4
        for (u32 k = __shfl_sync(ALL_LANES, begin, source) + lane; k < stop; k += WARP) total += partial_sums[k];
        total = subwarp_sum(total, WARP);
        if (lane == source) y[rows[i]] = total;
    }
}

#define SUMS(NAME, PLAIN, SUFFIX, T)                                                                      \
    WINDOW_KERNEL(blocked_window##NAME##_##SUFFIX)(                                                       \
        const u16 *cols, const T *values, T value, const u16 *flags, const u32 *piece_ptr, u32 pieces,    \
        const u32 *targets, T *y, T *partial_sums, u32 nrows, const T *x, const u32 *tile_ptr, u32 tiles, \
        const uint2 *windows, u32 l2_shares) {                                                            \
        Pieces<T, u16> a{cols, values, value, flags, piece_ptr, targets};                                 \
        sum_windows<PLAIN>(a, pieces, TileTable{tile_ptr, tiles, windows}, x,                             \
                           SegmentSums<T>{y, partial_sums, nrows}, l2_shares);                            \
    }                                                                                                     \
    GATHER_KERNEL_##SUFFIX(blocked_near##NAME##_##SUFFIX)(                                                \
        const u16 *cols, const T *values, T value, const u16 *flags, const u32 *piece_ptr, u32 pieces,    \
        const u32 *targets, T *y, T *partial_sums, u32 nrows, const T *x, const u32 *tile_ptr, u32 tiles, \
        const uint2 *windows, u32 l2_shares) {                                                            \
        Pieces<T, u16> a{cols, values, value, flags, piece_ptr, targets};                                 \
        sum_near<PLAIN>(a, pieces, TileTable{tile_ptr, tiles, windows}, x,                                \
                        SegmentSums<T>{y, partial_sums, nrows}, l2_shares);                               \
    }                                                                                                     \
    GATHER_KERNEL_##SUFFIX(blocked_far##NAME##_##SUFFIX)(                                                 \
        const u32 *cols, const T *values, T value, const u16 *flags, const u32 *piece_ptr, u32 pieces,    \
        const u32 *targets, T *y, T *partial_sums, u32 nrows, const T *x, u32 l2_shares) {                \
        Pieces<T, u32> a{cols, values, value, flags, piece_ptr, targets};                                 \
        sum_far<PLAIN>(a, pieces, x, SegmentSums<T>{y, partial_sums, nrows}, l2_shares);                  \
    }

#define ADD(LANES, SUFFIX, T)                                                                                        \
    KERNEL(blocked_add##LANES##_##SUFFIX)(const u32 *rows, const u32 *ptr, u32 count, const T *partial_sums, T *y) { \
        add_partial_sums<LANES>(rows, ptr, count, partial_sums, y);                                                  \
    }

#define INSTANCES(SUFFIX, T)                                                                                       \
    SUMS(, true, SUFFIX, T)                                                                                        \
    SUMS(_equal, false, SUFFIX, T)                                                                                 \
    KERNEL(blocked_gather_##SUFFIX)(const u32 *cols, u32 count, const T *x, T *to) { gather(cols, count, x, to); } \
    ADD(1, SUFFIX, T)                                                                                              \
    ADD(4, SUFFIX, T)                                                                                              \
    ADD(32, SUFFIX, T)

INSTANCES(f32, float)
INSTANCES(f64, double)
