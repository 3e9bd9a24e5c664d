// SpMV with packed SELL: see src/formats/psell/mod.rs for the layout. A lane processes a row, one
// or several warps a slice, and a warp or half of one a piece of a long row.
//
// Included by the kernels that multiply or pack. psell_spmv.cu and psell_spmm.cu have a module for
// each storage of the values, because their kernels take seconds to compile.

#pragma once

#include "psell_values.cuh"

// Kind, columns of a step and numbers of steps of a slice, from its header: `SliceShape` in
// src/formats/psell/index.rs.
struct SliceShape {
    u32 kind;
    u32 step_columns;
    u32 full;
    u32 width;

    static __device__ __forceinline__ SliceShape of(u32 bits) {
        return {bits & 3, (bits >> 2 & 3) + 1, bits >> 4 & MAX_WIDTH, bits >> (4 + WIDTH_BITS)};
    }
    __device__ __forceinline__ u32 bits() const {
        return kind | (step_columns - 1) << 2 | full << 4 | width << (4 + WIDTH_BITS);
    }
};

// Deltas and masks of a slice are padded to a multiple of this number of words, for vector loads.
constexpr u32 UNIT_WORDS = ALIGNMENT / sizeof(u32);

__device__ __forceinline__ u32 padded(u32 words) { return (words + UNIT_WORDS - 1) / UNIT_WORDS * UNIT_WORDS; }

// Loads N words from an address aligned to ALIGNMENT.
template <u32 N, typename I>
__device__ __forceinline__ void load_words(const I *words, I *out) {
#pragma unroll
    for (u32 g = 0; g < (N + UNIT_WORDS - 1) / UNIT_WORDS; ++g) {
        int4 four = __ldg(reinterpret_cast<const int4 *>(words) + g);
        I all[UNIT_WORDS] = {I(four.x), I(four.y), I(four.z), I(four.w)};
#pragma unroll
        for (u32 w = 0; w < UNIT_WORDS; ++w)
            if (g * UNIT_WORDS + w < N) out[g * UNIT_WORDS + w] = all[w];
    }
}

// Loads four contiguous indices.
template <bool IN_L2>
__device__ __forceinline__ void load_four(const u8 *at, u32 *out) {
    uchar4 c = fetch<IN_L2>(reinterpret_cast<const uchar4 *>(at));
    out[0] = c.x, out[1] = c.y, out[2] = c.z, out[3] = c.w;
}
template <bool IN_L2>
__device__ __forceinline__ void load_four(const u16 *at, u32 *out) {
    ushort4 c = fetch<IN_L2>(reinterpret_cast<const ushort4 *>(at));
    out[0] = c.x, out[1] = c.y, out[2] = c.z, out[3] = c.w;
}
template <bool IN_L2>
__device__ __forceinline__ void load_four(const u32 *at, u32 *out) {
    uint4 c = fetch<IN_L2>(reinterpret_cast<const uint4 *>(at));
    out[0] = c.x, out[1] = c.y, out[2] = c.z, out[3] = c.w;
}

// Loads the values of N slots that every lane has, from slot `first` on. Groups of V slots are
// contiguous.
template <u32 N, u32 V, typename T, typename Values>
__device__ __forceinline__ void load_full(const Values &values, u32 first, u32 lane, T *out) {
    constexpr u32 GROUPED = V == 4 ? N / 4 * 4 : 0;
#pragma unroll
    for (u32 k = 0; k + 4 <= GROUPED; k += 4) values.four((first + k) * WARP + lane * 4, out + k);
#pragma unroll
    for (u32 k = GROUPED; k < N; ++k) out[k] = values.one((first + k) * WARP + lane);
}

template <u32 N, typename T>
__device__ __forceinline__ T add_products(T sum, const T *values, const T *factors) {
#pragma unroll
    for (u32 k = 0; k < N; ++k) sum += values[k] * factors[k];
    return sum;
}

template <u32 N>
struct Constant {
    static constexpr u32 value = N;
};

// Calls `step(left, k)` with `left` <= N as a constant.
template <u32 N, typename Step>
__device__ __forceinline__ void unrolled_remainder(u32 left, u32 k, Step &step) {
    if constexpr (N > 0) {
        if (left == N) step(Constant<N>{}, k);
        else unrolled_remainder<N - 1>(left, k, step);
    }
}

// Calls `step(n, k)`, with a constant n, for k from 0 to `count`: N at a time, then the remainder
// at once. Fast if `count` is uniform across the warp.
template <u32 N, typename Step>
__device__ __forceinline__ void in_batches(u32 count, Step step) {
    u32 k = 0;
#pragma unroll 1
    for (; k + N <= count; k += N) step(Constant<N>{}, k);
    unrolled_remainder<N - 1>(count - k, k, step);
}

// Number of masked slots that are processed together. Each has a mask and a position of its own.
[[maybe_unused]] constexpr u32 PARTIAL = 4;

// True if several warps share a slice: in modules with SHARING, for matrices with too few slices to
// occupy the GPU. Each thread then has more registers.
#ifdef SHARING
constexpr bool SHARED_SLICES = true;
#else
constexpr bool SHARED_SLICES = false;
#endif

// Steps of a slice that one of several warps processes, from `first` to `end`. Step numbers are
// divided in batches of BATCH_STEPS. The first masked step is numbered from the next multiple of
// it, so that no batch has steps of both kinds.
struct SliceSteps {
    u32 first, end;

    // Range of this warp among the full steps, in which all lanes have an entry. `1 << shift` warps
    // share the slice.
    static __device__ __forceinline__ SliceSteps of_all_lanes(u32 full, u32 width, u32 shift) {
        if (!SHARED_SLICES) return {0, full};
        SliceSteps steps = own(full, width, shift);
        return {min(steps.first, full), min(steps.end, full)};
    }
    // Range of this warp among the masked steps.
    static __device__ __forceinline__ SliceSteps masked(u32 full, u32 width, u32 shift) {
        if (!SHARED_SLICES) return {0, width - full};
        SliceSteps steps = own(full, width, shift);
        u32 before = batches(full);
        return {max(steps.first, before) - before, max(steps.end, before) - before};
    }

   private:
    static __device__ __forceinline__ u32 batches(u32 steps) { return (steps + BATCH_STEPS - 1) / BATCH_STEPS * BATCH_STEPS; }
    static __device__ __forceinline__ SliceSteps own(u32 full, u32 width, u32 shift) {
        u32 all = batches(full) + width - full, of_all_warps = BATCH_STEPS << shift;
        u32 number = threadIdx.x / WARP & ((1u << shift) - 1);
        u32 steps = (all + of_all_warps - 1) / of_all_warps * BATCH_STEPS;
        return {min(number * steps, all), min((number + 1) * steps, all)};
    }
};

// Number of entries of the first `steps` masked steps of a slice.
__device__ __forceinline__ u32 entries_before(const u32 *masks, u32 steps, u32 lane) {
    u32 count = 0;
    for (u32 k = lane; k < steps; k += WARP) count += __popc(__ldg(masks + k));
    return steps == 0 ? 0 : subwarp_sum(count, WARP);
}

// Sum of a lane over some slots of a diagonal slice. `x` points to the element of the lane's own
// row.
template <u32 N, u32 V, typename T, typename Values>
__device__ __forceinline__ T diagonal_sum(
    const u8 *index, const Values &values, u32 full, u32 width, u32 shift, u32 lane, const T *x) {
    const int *deltas = reinterpret_cast<const int *>(index);
    T sum = 0;
    SliceSteps full_steps = SliceSteps::of_all_lanes(full, width, shift);
    in_batches<N>(full_steps.end - full_steps.first, [&](auto n, u32 step) {
        constexpr u32 COUNT = decltype(n)::value;
        u32 k = full_steps.first + step;
        int delta[COUNT];
        T value[COUNT], factor[COUNT];
        load_words<COUNT>(deltas + k, delta);
        load_full<COUNT, V>(values, k, lane, value);
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) factor[u] = gather(x + delta[u]);
        sum = add_products<COUNT>(sum, value, factor);
    });
    if (width == full) return sum;
    SliceSteps masked_steps = SliceSteps::masked(full, width, shift);
    if (masked_steps.first == masked_steps.end) return sum;
    const int *partial_deltas = deltas + padded(full);
    const u32 *masks = reinterpret_cast<const u32 *>(partial_deltas + padded(width - full));
    u32 at = full * WARP + entries_before(masks, masked_steps.first, lane), bit = 1u << lane;
    in_batches<PARTIAL>(masked_steps.end - masked_steps.first, [&](auto n, u32 step) {
        constexpr u32 COUNT = decltype(n)::value;
        u32 k = masked_steps.first + step;
        int delta[COUNT];
        u32 mask[COUNT];
        T value[COUNT], factor[COUNT];
        load_words<COUNT>(partial_deltas + k, delta);
        load_words<COUNT>(masks + k, mask);
        // A lane without the slot loads the value at its position, which exists, because some bytes
        // follow the last one, and the factor of its own row. It uses neither.
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) {
            value[u] = values.one(at + __popc(mask[u] & (bit - 1)));
            at += __popc(mask[u]);
        }
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) factor[u] = gather(x + (mask[u] & bit ? delta[u] : 0));
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u)
            if (mask[u] & bit) sum += value[u] * factor[u];
    });
    return sum;
}

// Sum of a lane over steps of a relative slice, N at a time, of R slots each; `x` is at the base
// column.
template <u32 N, u32 V, u32 R, typename I, typename T, typename Values>
__device__ __forceinline__ T relative_sum(
    const u8 *index, const Values &values, u32 full, u32 width, u32 shift, u32 lane, const T *x) {
    const u32 *masks = reinterpret_cast<const u32 *>(index);
    const I *indices = reinterpret_cast<const I *>(masks + padded(width - full));
    constexpr u32 GROUP = R == 1 ? V : 1;
    T sum = 0;
    SliceSteps full_steps = SliceSteps::of_all_lanes(full, width, shift);
    in_batches<N>(full_steps.end - full_steps.first, [&](auto n, u32 step) {
        constexpr u32 COUNT = decltype(n)::value;
        constexpr u32 GROUPED = GROUP == 4 ? COUNT / 4 * 4 : 0;
        u32 k = full_steps.first + step;
        u32 col[COUNT];
        T value[COUNT * R], factor[COUNT * R];
#pragma unroll
        for (u32 u = 0; u + 4 <= GROUPED; u += 4) load_four<Values::IN_L2>(indices + (k + u) * WARP + lane * 4, col + u);
#pragma unroll
        for (u32 u = GROUPED; u < COUNT; ++u) col[u] = fetch<Values::IN_L2>(indices + (k + u) * WARP + lane);
        load_full<COUNT * R, GROUP>(values, k * R, lane, value);
#pragma unroll
        for (u32 u = 0; u < COUNT * R; ++u) factor[u] = gather(x + col[u / R] + u % R);
        sum = add_products<COUNT * R>(sum, value, factor);
    });
    if (width == full) return sum;
    SliceSteps masked_steps = SliceSteps::masked(full, width, shift);
    if (masked_steps.first == masked_steps.end) return sum;
    u32 at = full * WARP + entries_before(masks, masked_steps.first, lane), bit = 1u << lane;
    constexpr u32 MASKED_STEPS = R == 1 ? PARTIAL : 1;
    in_batches<MASKED_STEPS>(masked_steps.end - masked_steps.first, [&](auto n, u32 step) {
        constexpr u32 COUNT = decltype(n)::value;
        u32 k = masked_steps.first + step;
        u32 col[COUNT], mask[COUNT];
        T value[COUNT * R], factor[COUNT * R];
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
        for (u32 u = 0; u < COUNT * R; ++u) factor[u] = gather(x + col[u / R] + u % R);
#pragma unroll
        for (u32 u = 0; u < COUNT * R; ++u)
            if (mask[u / R] & bit) sum += value[u] * factor[u];
    });
    return sum;
}

// Number of steps of a relative slice that are processed together, by slots per step.
template <u32 R>
constexpr u32 STEPS_OF = R == 1 ? BATCH_STEPS : R == 2 ? 4 : 3;

template <u32 V, u32 R, typename T, typename Values>
__device__ __forceinline__ T relative_sum(u32 kind, const u8 *index, const Values &values, u32 full,
                                          u32 width, u32 shift, u32 lane, const T *x) {
    constexpr u32 N = STEPS_OF<R>;
    if (kind == RELATIVE16) return relative_sum<N, V, R, u16>(index, values, full, width, shift, lane, x);
    if (kind == RELATIVE8) return relative_sum<N, V, R, u8>(index, values, full, width, shift, lane, x);
    return relative_sum<N, V, R, u32>(index, values, full, width, shift, lane, x);
}

// Piece of a long row: `Piece` in src/formats/psell/long.rs.
struct Piece {
    u64 begin;
    u32 count;
    u32 row;
    // First piece of the row, and number of its pieces.
    u32 first;
    u32 pieces;
};

// Long rows: entries as in CSR, cut into pieces. `LongRows` in src/formats/psell/long.rs.
template <typename T>
struct LongRows {
    const Piece *pieces;
    const u32 *cols;
    const u8 *values;
    u32 count;
    // Sum of every piece.
    T *sums;
    // Number of finished pieces, at the first piece of every row; 0 between products.
    u32 *done;
};

// True if two sums and six entries of a lane fit into its registers: not of f64 on Blackwell.
template <typename T>
constexpr bool HAS_REGISTERS = sizeof(T) == 4 || ARCHITECTURE < 1000;

// Sums the pieces from `first` on. A piece is summed by `lanes` lanes, the whole warp or with PAIRS
// also half of it, ENTRIES per lane at a time. The last lanes of a row to finish add the sums of
// its pieces, always in the same order. `values_from(k)` are the values of the long rows from
// entry k on.
template <bool PAIRS, u32 ENTRIES, typename T, typename ValuesFrom, typename Epilogue>
__device__ __forceinline__ void long_pieces(const LongRows<T> &rows, ValuesFrom values_from, u32 first, u32 warp_lane,
                                            u32 lanes, const T *x, Epilogue y) {
    static_assert(ENTRIES % 2 == 0, "half a warp adds every second entry of a lane to a sum of its own");
    if (!PAIRS) lanes = WARP;
    u32 lane = warp_lane & (lanes - 1), p = first + (warp_lane != lane);
    bool exists = !PAIRS || p < rows.count;
    if (PAIRS) p = min(p, rows.count - 1);
    Piece piece = rows.pieces[p];
    u32 count = exists ? piece.count : 0;
    auto values = values_from(piece.begin);
    using Values = decltype(values);
    T sum = 0, other = 0;
#pragma unroll 1
    for (u32 k = lane; k < count; k += ENTRIES * lanes) {
        u32 col[ENTRIES];
        T value[ENTRIES], factor[ENTRIES];
#pragma unroll
        for (u32 u = 0; u < ENTRIES; ++u) {
            u32 at = min(k + u * lanes, count - 1);
            col[u] = fetch<Values::IN_L2>(rows.cols + piece.begin + at);
            value[u] = values.one(at);
        }
#pragma unroll
        for (u32 u = 0; u < ENTRIES; ++u) factor[u] = gather(x + col[u]);
#pragma unroll
        for (u32 u = 0; u < ENTRIES; ++u) {
            if (k + u * lanes >= count) continue;
            if (u % 2 == 0 || lanes == WARP) sum += value[u] * factor[u];
            else other += value[u] * factor[u];
        }
    }
    // Nothing is added to the sum of a whole warp, not even 0: -0 would become 0.
    if (lanes < WARP) sum += other;
    sum = subwarp_sum(sum, lanes);
    bool is_part = exists && piece.pieces > 1, stores = exists;
    if (__any_sync(ALL_LANES, is_part)) {
        u32 before = 0;
        if (is_part && lane == 0) {
            rows.sums[p] = sum;
            __threadfence();
            before = atomicInc(rows.done + piece.first, piece.pieces - 1);
        }
        before = __shfl_sync(ALL_LANES, before, warp_lane - lane);
        bool is_last = is_part && before == piece.pieces - 1;
        if (is_last) __threadfence();
        auto sum_from = [&](u32 i) {
            T lane_sum = 0;
#pragma unroll 4
            for (; is_last && i < piece.pieces; i += WARP) lane_sum += __ldcg(rows.sums + piece.first + i);
            return lane_sum;
        };
        T row_sum = sum_from(lane);
        if (lanes < WARP) row_sum += sum_from(lane + lanes);
        row_sum = subwarp_sum(row_sum, lanes);
        if (is_part) sum = row_sum;
        stores = exists && (!is_part || is_last);
    }
    if (stores && lane == 0) y.store(piece.row, sum);
}

// The first blocks process the pieces of long rows, with `1 << piece_shift` pieces per warp. The
// others process the slices, with `1 << shift` warps per slice. With DIAGONALS all slices are
// diagonal. `skip` has the mask of lanes with long rows for every slice.
template <bool DIAGONALS, u32 V, template <typename, bool> typename Values, typename T, typename Epilogue>
__device__ __forceinline__ void packed_rows(
    const uint4 *__restrict__ headers, const u8 *__restrict__ values, const u8 *__restrict__ index,
    const T *__restrict__ dictionary, const u32 *__restrict__ perm, const u32 *__restrict__ skip,
    u32 nrows, LongRows<T> rows, u32 piece_shift, const T *__restrict__ x, Epilogue y, u32 shift, u32 l2_shares) {
    constexpr u32 CODES = Values<T, true>::CODES;
    __shared__ T shared[CODES];
    if constexpr (CODES > 1) {
        wait_for_previous_launch();
        trigger_next_launch();
        for (u32 c = threadIdx.x; c < CODES; c += BLOCK) shared[c] = gather(dictionary + c);
        __syncthreads();
    }
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // Kernels of diagonal slices have registers for few entries, and shared slices mean few warps.
    constexpr bool PAIRS = !DIAGONALS && !SHARED_SLICES;
    if (!PAIRS) piece_shift = 0;
    u32 block_pieces = WARPS << piece_shift, long_blocks = ((rows.count + block_pieces - 1) / WARPS) >> piece_shift;
    if (blockIdx.x < long_blocks) {
        u32 first = (blockIdx.x * WARPS + warp) << piece_shift;
        wait_for_previous_launch();
        trigger_next_launch();
        if (first < rows.count)
            by_l2_share(blockIdx.x, l2_shares, [&](auto in_l2) {
                auto values_from = [&](u64 k) {
                    Values<T, decltype(in_l2)::value> own(rows.values, dictionary, shared);
                    own.skip_values(k);
                    return own;
                };
                constexpr u32 ENTRIES = SHARED_SLICES ? 8 : PAIRS && HAS_REGISTERS<T> ? 6 : 4;
                long_pieces<PAIRS, ENTRIES>(rows, values_from, first, lane, WARP >> piece_shift, x, y);
            });
        return;
    }
    if (!SHARED_SLICES) shift = 0;
    u32 slice = ((blockIdx.x - long_blocks) * WARPS + warp) >> shift;
    bool has_slice = u64(slice) * WARP < nrows;
    if (!SHARED_SLICES && !has_slice) return;
    T sum = 0;
    u32 row = min(slice * WARP + lane, nrows - 1);
    uint4 header = __ldg(headers + (has_slice ? slice : 0));
    wait_for_previous_launch();
    trigger_next_launch();
    if (has_slice) {
        const u8 *at = index + u64(header.y) * ALIGNMENT;
        // As `SliceShape::of`, with which the machine code of modules with SHARING differs.
        u32 kind = header.w & 3, step_columns = (header.w >> 2 & 3) + 1;
        u32 full = header.w >> 4 & MAX_WIDTH, width = header.w >> (4 + WIDTH_BITS);
        by_l2_share(blockIdx.x, l2_shares, [&](auto in_l2) {
            constexpr bool IN_L2 = decltype(in_l2)::value;
            if (!DIAGONALS && kind != DIAGONAL && perm) row = fetch<IN_L2>(perm + row);
            Values<T, IN_L2> own(values, dictionary, shared);
            own.skip(header.x);
            if (DIAGONALS || kind == DIAGONAL) {
                sum = diagonal_sum<BATCH_STEPS, V>(at, own, full, width, shift, lane, x + row);
            } else if constexpr (!DIAGONALS) {
                const T *base = x + header.z;
                if (step_columns == 1) sum = relative_sum<V, 1>(kind, at, own, full, width, shift, lane, base);
                else if (step_columns == 2) sum = relative_sum<V, 2>(kind, at, own, full, width, shift, lane, base);
                else sum = relative_sum<V, 3>(kind, at, own, full, width, shift, lane, base);
            }
        });
    }
    if constexpr (SHARED_SLICES) {
        // Sums of the warps of a slice.
        __shared__ T warp_sums[BLOCK];
        warp_sums[threadIdx.x] = sum;
        __syncthreads();
        if ((threadIdx.x / WARP & ((1u << shift) - 1)) != 0 || !has_slice) return;
        for (u32 w = 1; w < 1u << shift; ++w) sum += warp_sums[threadIdx.x + w * WARP];
    }
    if (u64(slice) * WARP + lane < nrows && !(skip && __ldg(skip + slice) >> lane & 1)) y.store(row, sum);
}

#define PACKED(NAME, PER_SM, DIAGONALS, V, VALUES, T)                                                                                  \
    KERNEL_WITH(NAME, PER_SM)(const uint4 *headers, const u8 *values, const u8 *index, const T *dictionary, const u32 *perm,           \
                             const u32 *skip, u32 nrows, const Piece *pieces, const u32 *long_cols, const u8 *long_values, u32 count,  \
                             T *sums, u32 *done, u32 piece_shift, const T *x, EPILOGUE_PARAMETERS(T), u32 shift, u32 l2_shares) {      \
        packed_rows<DIAGONALS, V, VALUES>(headers, values, index, dictionary, perm, skip, nrows,                                       \
                                          LongRows<T>{pieces, long_cols, long_values, count, sums, done}, piece_shift, x, EPILOGUE(T), \
                                          shift, l2_shares);                                                                           \
    }

// V slots of a row are contiguous. The numbers are the least blocks per multiprocessor of the
// diagonal and of the general kernel.
#define INSTANCES_OF(NAME, V, VALUES, T, KIND, DIAGONAL_BLOCKS, GENERAL_BLOCKS)              \
    PACKED(NAME##_diagonal_v##V##_##KIND, SLICE_BLOCKS(DIAGONAL_BLOCKS), true, V, VALUES, T) \
    PACKED(NAME##_v##V##_##KIND, SLICE_BLOCKS(GENERAL_BLOCKS), false, V, VALUES, T)
// The same for both scalar types.
#define INSTANCES(NAME, V, VALUES, DIAGONAL_F32, DIAGONAL_F64, GENERAL_F32, GENERAL_F64) \
    INSTANCES_OF(NAME, V, VALUES, float, f32, DIAGONAL_F32, GENERAL_F32)                 \
    INSTANCES_OF(NAME, V, VALUES, double, f64, DIAGONAL_F64, GENERAL_F64)
