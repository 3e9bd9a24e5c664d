// SpMM for packed SELL: see src/formats/psell/mod.rs for the layout of the matrix. An element of a
// vector is identified by its column. The elements of all vectors at one column are contiguous, so
// that one load fetches several factors of an entry.
//
// A lane multiplies with a unit, several adjacent vectors, and a power of two of lanes share a row.
// The lanes of a warp are in one slice and load its entries together. For the modules of
// psell_spmm.cu.

#pragma once

#include "psell_spmv.cuh"
#include "unit.cuh"

template <u32 COUNT, typename T, u32 N>
__device__ __forceinline__ void add_all(Unit<T, N> &sum, const T *values, const Unit<T, N> *factors) {
#pragma unroll
    for (u32 u = 0; u < COUNT; ++u) add(sum, values[u], factors[u]);
}

// An address that the compiler must not decompose: with its terms combined differently a load takes
// up to six instructions instead of one.
template <typename W>
__device__ __forceinline__ const W *whole_address(const W *address) {
    asm("" : "+l"(address));
    return address;
}

// Prefetches the data of a warp to the L2 cache, one line per lane: all of it at once, while loads
// would wait for the ones before them.
__device__ __forceinline__ void prefetch(const u8 *from, u32 bytes) {
    constexpr u32 LINE = 128, MOST = 2 * WARP;
    for (u32 line = threadIdx.x % WARP; line < min(bytes / LINE, MOST); line += WARP)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + line * LINE));
}

// Number of slots that a lane processes at a time, with 64 bytes of factors in flight.
template <typename U>
constexpr u32 SLOTS = 64 / sizeof(U);

// Number of steps of several columns that a lane processes at a time. With grouped slots, which
// such steps do not use, as few registers as possible.
template <typename T, u32 V>
constexpr u32 MULTI_COLUMN_STEPS = V > 1 ? 1 : sizeof(T) == 4 ? 3 : 2;

// Adds the entries of a lane's row in a diagonal slice. As `diagonal_sum` in psell_spmv.cuh; `row`
// is the unit at the column of the lane's row.
template <u32 V, typename T, u32 N, typename Values>
__device__ __forceinline__ void add_diagonals(Unit<T, N> &sum, const u8 *index,
                                              const Values &values, u32 full, u32 width, u32 lane,
                                              UnitColumns<Unit<T, N>> x, const Unit<T, N> *row) {
    using U = Unit<T, N>;
    const int *deltas = reinterpret_cast<const int *>(index);
    in_batches<SLOTS<U>>(full, [&](auto n, u32 k) {
        constexpr u32 COUNT = decltype(n)::value;
        int delta[COUNT];
        T value[COUNT];
        U factor[COUNT];
        load_words<COUNT>(deltas + k, delta);
        load_full<COUNT, V>(values, k, lane, value);
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) factor[u] = x.at(row, delta[u]);
        add_all<COUNT>(sum, value, factor);
    });
    if (width == full) return;
    const int *partial_deltas = deltas + padded(full);
    const u32 *masks = reinterpret_cast<const u32 *>(partial_deltas + padded(width - full));
    u32 at = full * WARP, bit = 1u << lane;
    in_batches<PARTIAL>(width - full, [&](auto n, u32 k) {
        constexpr u32 COUNT = decltype(n)::value;
        int delta[COUNT];
        u32 mask[COUNT];
        T value[COUNT];
        U factor[COUNT];
        load_words<COUNT>(partial_deltas + k, delta);
        load_words<COUNT>(masks + k, mask);
        // A lane without the slot loads the value at its position, which exists, and the factors of
        // its own row. It uses neither.
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) {
            value[u] = values.one(at + __popc(mask[u] & (bit - 1)));
            at += __popc(mask[u]);
        }
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) factor[u] = x.at(row, mask[u] & bit ? delta[u] : 0);
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u)
            if (mask[u] & bit) add(sum, value[u], factor[u]);
    });
}

// Adds the entries of a lane's row in a relative slice with steps of R slots. As `relative_sum` in
// psell_spmv.cuh; columns are relative to that of `x`.
template <u32 V, u32 R, typename I, typename T, u32 N, typename Values>
__device__ __forceinline__ void add_relative(Unit<T, N> &sum, const u8 *index, const Values &values,
                                             u32 full, u32 width, u32 lane, UnitColumns<Unit<T, N>> x) {
    using U = Unit<T, N>;
    const u32 *masks = reinterpret_cast<const u32 *>(index);
    const I *indices = reinterpret_cast<const I *>(masks + padded(width - full));
    constexpr u32 GROUP = R == 1 ? V : 1;
    in_batches<R == 1 ? SLOTS<U> : MULTI_COLUMN_STEPS<T, V>>(full, [&](auto n, u32 k) {
        constexpr u32 COUNT = decltype(n)::value;
        constexpr u32 GROUPED = GROUP == 4 ? COUNT / 4 * 4 : 0;
        u32 col[COUNT];
        T value[COUNT * R];
        U factor[COUNT * R];
#pragma unroll
        for (u32 u = 0; u + 4 <= GROUPED; u += 4)
            load_four<Values::IN_L2>(indices + (k + u) * WARP + lane * 4, col + u);
#pragma unroll
        for (u32 u = GROUPED; u < COUNT; ++u) col[u] = fetch<Values::IN_L2>(indices + (k + u) * WARP + lane);
        load_full<COUNT * R, GROUP>(values, k * R, lane, value);
#pragma unroll
        for (u32 u = 0; u < COUNT * R; ++u) factor[u] = x.at(col[u / R] + u % R);
        add_all<COUNT * R>(sum, value, factor);
    });
    if (width == full) return;
    u32 at = full * WARP, bit = 1u << lane;
    constexpr u32 MASKED_STEPS = R == 1 ? PARTIAL : 1;
    in_batches<MASKED_STEPS>(width - full, [&](auto n, u32 k) {
        constexpr u32 COUNT = decltype(n)::value;
        u32 col[COUNT], mask[COUNT];
        T value[COUNT * R];
        U factor[COUNT * R];
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) mask[u] = __ldg(masks + k + u);
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) {
            // A lane without the step loads the entry of another lane: every step has one.
            u32 lanes = __popc(mask[u]), place = min(u32(__popc(mask[u] & (bit - 1))), lanes - 1);
            col[u] = fetch<Values::IN_L2>(indices + at + place);
#pragma unroll
            for (u32 r = 0; r < R; ++r) value[u * R + r] = values.one(at * R + r * lanes + place);
            at += lanes;
        }
#pragma unroll
        for (u32 u = 0; u < COUNT * R; ++u) factor[u] = x.at(col[u / R] + u % R);
#pragma unroll
        for (u32 u = 0; u < COUNT * R; ++u)
            if (mask[u / R] & bit) add(sum, value[u], factor[u]);
    });
}

template <u32 V, u32 R, typename T, u32 N, typename Values>
__device__ __forceinline__ void add_relative(u32 kind, Unit<T, N> &sum, const u8 *index,
                                             const Values &values, u32 full, u32 width, u32 lane,
                                             UnitColumns<Unit<T, N>> x) {
    if (kind == RELATIVE16) add_relative<V, R, u16>(sum, index, values, full, width, lane, x);
    else if (kind == RELATIVE8) add_relative<V, R, u8>(sum, index, values, full, width, lane, x);
    else add_relative<V, R, u32>(sum, index, values, full, width, lane, x);
}

// Number of entries of a long row that a lane loads together.
[[maybe_unused]] constexpr u32 PIECE_ENTRIES = 4;

// Sums a piece of a long row, an entry for every `1 << shift` lanes of the warp at a time. The last
// warp of a row to finish adds the sums of the row's pieces, always in the same order. `rows.sums`
// has a unit for every piece and each of those lanes.
template <typename T, u32 N, typename Values>
__device__ __forceinline__ void add_piece(const LongRows<T> &rows, Values values, u32 p, u32 shift,
                                          UnitColumns<Unit<T, N>> x, bool in_use, UnitSums<T> sums) {
    using U = Unit<T, N>;
    Piece piece = rows.pieces[p];
    u32 lane = threadIdx.x % WARP, lanes = 1u << shift, unit = lane & (lanes - 1);
    u32 first = lane >> shift, stride = WARP >> shift;
    U *piece_sums = reinterpret_cast<U *>(rows.sums);
    U sum = {};
#pragma unroll 1
    for (u32 k = first; k < piece.count; k += PIECE_ENTRIES * stride) {
        u32 col[PIECE_ENTRIES];
        T value[PIECE_ENTRIES];
        U factor[PIECE_ENTRIES];
#pragma unroll
        for (u32 u = 0; u < PIECE_ENTRIES; ++u) {
            u32 at = min(k + u * stride, piece.count - 1);
            col[u] = fetch<Values::IN_L2>(rows.cols + piece.begin + at);
            value[u] = values.one(at);
        }
#pragma unroll
        for (u32 u = 0; u < PIECE_ENTRIES; ++u) factor[u] = x.at(col[u]);
#pragma unroll
        for (u32 u = 0; u < PIECE_ENTRIES; ++u)
            if (k + u * stride < piece.count) add(sum, value[u], factor[u]);
    }
    sum = strided_sum(sum, lanes);
    if (piece.pieces > 1) {
        if (first == 0) {
            piece_sums[(u64(p) << shift) + unit] = sum;
            __threadfence();
        }
        __syncwarp();
        u32 before = 0;
        if (lane == 0) before = atomicInc(rows.done + piece.first, piece.pieces - 1);
        if (__shfl_sync(ALL_LANES, before, 0) != piece.pieces - 1) return;
        __threadfence();
        sum = {};
        for (u32 i = first; i < piece.pieces; i += stride) {
            U other = load_unit<true>(piece_sums + (u64(piece.first + i) << shift) + unit);
#pragma unroll
            for (u32 v = 0; v < N; ++v) sum.at[v] += other.at[v];
        }
        sum = strided_sum(sum, lanes);
    }
    if (first == 0 && in_use) sums.put(piece.row, unit, sum);
}

// Relative slices are prefetched if at least `1 << PREFETCH_SHIFT` lanes share a row. With fewer
// lanes prefetching is slower.
constexpr u32 PREFETCH_SHIFT = 3;

// The first blocks process the pieces of long rows, with one warp per piece. The others process the
// slices, with `1 << shift` lanes per row. As `packed_rows` in psell_spmv.cuh.
template <u32 V, typename Values, typename T, u32 N>
__device__ __forceinline__ void packed_units(const uint4 *__restrict__ headers,
                                             const u8 *__restrict__ values,
                                             const u8 *__restrict__ index,
                                             const T *__restrict__ dictionary,
                                             const u32 *__restrict__ perm,
                                             const u32 *__restrict__ skip, u32 nrows, LongRows<T> rows,
                                             UnitColumns<Unit<T, N>> x, UnitSums<T> sums, u32 shift) {
    __shared__ T shared[Values::CODES];
    if constexpr (Values::CODES > 1) {
        for (u32 c = threadIdx.x; c < Values::CODES; c += BLOCK) shared[c] = dictionary[c];
        __syncthreads();
    }
    // A lane without vectors of its own repeats those of the last lane that has some.
    u32 unit = threadIdx.x & ((1u << shift) - 1), units = (sums.count + N - 1) / N;
    x.x += min(unit, units - 1);
    u32 long_blocks = (rows.count + WARPS - 1) / WARPS;
    if (blockIdx.x < long_blocks) {
        u32 p = blockIdx.x * WARPS + threadIdx.x / WARP;
        if (p < rows.count) {
            Values own(rows.values, dictionary, shared);
            own.skip_values(rows.pieces[p].begin);
            add_piece(rows, own, p, shift, x, unit < units, sums);
        }
        return;
    }
    u64 i = (u64(blockIdx.x - long_blocks) * BLOCK + threadIdx.x) >> shift;
    u32 slice = u32(i / WARP), lane = u32(i) % WARP;
    if (u64(slice) * WARP >= nrows) return;
    uint4 header = __ldg(headers + slice);
    values += u64(header.x) * ALIGNMENT;
    Values own(whole_address(values), dictionary, shared);
    const u8 *at = whole_address(index + u64(header.y) * ALIGNMENT);
    // As `SliceShape::of`, with which the machine code differs.
    u32 kind = header.w & 3, step_columns = (header.w >> 2 & 3) + 1;
    u32 full = header.w >> 4 & MAX_WIDTH, width = header.w >> (4 + WIDTH_BITS);
    if (kind == DIAGONAL || shift >= PREFETCH_SHIFT) {
        prefetch(values, full * step_columns * (WARP * Values::BYTES));
        if (kind != DIAGONAL) prefetch(at, full * WARP << (kind - 1));
    }
    u32 row = u32(min(i, u64(nrows) - 1));
    Unit<T, N> sum = {};
    if (kind == DIAGONAL) {
        add_diagonals<V>(sum, at, own, full, width, lane, x, x.offset_by(x.x, row));
    } else {
        if (perm) row = fetch<Values::IN_L2>(perm + row);
        x.x = x.offset_by(x.x, header.z);
        if (step_columns == 1) add_relative<V, 1>(kind, sum, at, own, full, width, lane, x);
        else if (step_columns == 2) add_relative<V, 2>(kind, sum, at, own, full, width, lane, x);
        else add_relative<V, 3>(kind, sum, at, own, full, width, lane, x);
    }
    // Recomputed here: keeping it alive takes a register.
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(unit));
    unit &= (1u << shift) - 1;
    if (i < nrows && unit < units && !(skip && __ldg(skip + slice) >> lane & 1)) sums.put(row, unit, sum);
}

// True if slices stay in the caches. Larger matrices use evict-first loads for units of 8 bytes,
// two vectors in f32, since then a warp has a slice for itself. With wider units several warps read
// a slice.
#ifdef STREAMED
template <typename U>
constexpr bool STAY = sizeof(U) != 8;
#else
template <typename U>
constexpr bool STAY = true;
#endif

#define SPMM(NAME, PER_SM, V, VALUES, T, N)                                                                                                \
    KERNEL_WITH(NAME, PER_SM)(const uint4 *headers, const u8 *values, const u8 *index, const T *dictionary, const u32 *perm,               \
                             const u32 *skip, u32 nrows, const Piece *pieces, const u32 *long_cols, const u8 *long_values, u32 long_count, \
                             T *long_sums, u32 *done, UNIT_PARAMETERS(T, N), u32 shift) {                                                  \
        packed_units<V, VALUES<T, STAY<Unit<T, N>>>>(headers, values, index, dictionary, perm, skip, nrows,                                \
                                                         LongRows<T>{pieces, long_cols, long_values, long_count, long_sums, done},         \
                                                         UNIT_COLUMNS(T, N),                                                               \
                                                         UNIT_SUMS(T), shift);                                                             \
    }

#define SPMM_INSTANCES(NAME, PER_SM, V, VALUES)            \
    SPMM(NAME##_v##V##_f32x2, PER_SM, V, VALUES, float, 2) \
    SPMM(NAME##_v##V##_f32x4, PER_SM, V, VALUES, float, 4) \
    SPMM_INSTANCES_F64(NAME, PER_SM, V, VALUES)

#define SPMM_INSTANCES_F64(NAME, PER_SM, V, VALUES) SPMM(NAME##_v##V##_f64x2, PER_SM, V, VALUES, double, 2)
