// DIA: see src/formats/dia/mod.rs for the layout.
//
// Variants: scaled, streamed.

#include "common.cuh"

typedef long long i64;

// Slots of a thread's row: slot k is that of diagonal k. The masks are those of its slice.
template <typename T>
struct DiagonalSlots {
    const i64 *offsets;
    const u32 *masks;
    const T *values;
    u64 row;
    u32 lane, stride;
};

// `sum` plus the products of N slots from diagonal `k` on. Slots without an entry are not
// multiplied; they load x at some column.
template <bool IN_L2, u32 N, typename T>
__device__ __forceinline__ T add_diagonals(T sum, const DiagonalSlots<T> &a, XView<T> x, u32 k) {
    u32 mask[N];
    T value[N], factor[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        mask[u] = fetch<IN_L2>(a.masks + k + u);
        value[u] = fetch<IN_L2>(a.values + u64(k + u) * a.stride);
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) factor[u] = __ldg(x.x + min(u32(a.row + __ldg(a.offsets + k + u)), x.ncols - 1));
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (mask[u] >> a.lane & 1) sum += value[u] * factor[u];
    return sum;
}

// `sum` plus the products of the last `count` <= N slots, from diagonal `k` on.
template <bool IN_L2, u32 N, typename T>
__device__ __forceinline__ T add_last(u32 count, T sum, const DiagonalSlots<T> &a, XView<T> x, u32 k) {
    if constexpr (N == 0) {
        return sum;
    } else {
        return count == N ? add_diagonals<IN_L2, N>(sum, a, x, k) : add_last<IN_L2, N - 1>(count, sum, a, x, k);
    }
}

// One thread per row and one warp per slice.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void slices(const i64 *__restrict__ offsets, const u32 *__restrict__ masks,
                                       const T *__restrict__ values, u32 count, u32 nrows, u32 ncols,
                                       const T *__restrict__ x, Epilogue y) {
    u64 row = thread_id();
    if (row >= nrows) return;
    u32 lane = u32(row) % WARP;
    u64 start = row - lane;
    u32 stride = u32(min(nrows - start, u64(WARP)));
    DiagonalSlots<T> a{offsets, masks + start / WARP * count, values + start * count + lane, row, lane, stride};
    XView<T> factors{x, ncols};
    T sum = 0;
    u32 k = 0;
#pragma unroll 1
    for (; k + BATCH <= count; k += BATCH) sum = add_diagonals<IN_L2, BATCH>(sum, a, factors, k);
    y.store(row, add_last<IN_L2, BATCH - 1>(count - k, sum, a, factors, k));
}

#define INSTANCES(SUFFIX, T)                                                                                     \
    KERNEL(dia_##SUFFIX)(const i64 *offsets, const u32 *masks, const T *values, u32 count, u32 nrows, u32 ncols, \
                        const T *x, EPILOGUE_PARAMETERS(T), u32 l2_shares) {                                     \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                     \
            slices<in_l2.value>(offsets, masks, values, count, nrows, ncols, x, EPILOGUE(T));                    \
        });                                                                                                      \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)

#ifndef STREAMED
#ifndef SCALED

// Number of diagonals of a CSR matrix, as `offsets` in src/formats/dia/offsets.rs: `occupied` has a
// bit for every diagonal of an entry in the first ascending sequence of its row, and the hash table
// `later` a key for every sequence and diagonal of the others. Ends early beyond `most`; the table
// has twice as many slots.
KERNEL(dia_diagonals)(const u64 *row_ptr, const u32 *cols, u32 nrows, u64 most, u32 *occupied,
                      u64 *later, u64 slots, u64 *found) {
    u64 row = thread_id();
    if (row >= nrows || *reinterpret_cast<volatile u64 *>(found) > most) return;
    u32 before = 0, count = 0;
    u64 sequence = 0, begin = row_ptr[row];
    for (u64 k = begin; k < row_ptr[row + 1]; ++k) {
        u32 col = cols[k];
        sequence += k > begin && col <= before;
        before = col;
        u64 diagonal = u64(col) + nrows - row;
        if (sequence == 0) {
            u32 bit = 1u << diagonal % 32;
            u32 *word = occupied + diagonal / 32;
            if (*reinterpret_cast<volatile u32 *>(word) & bit) continue;
            if (!(atomicOr(word, bit) & bit)) ++count;
        } else {
            u64 key = sequence << 33 | diagonal, slot = (key * analysis::SPREAD >> 20) % slots;
            u64 other = 1, tries = 0;
            // Full of other keys: there are too many diagonals.
            for (; tries < slots && other != 0 && other != key; ++tries, slot = (slot + 1) % slots)
                other = atomicCAS(later + slot, 0ull, key);
            count += other == 0;
            if (tries == slots && other != 0 && other != key) count = u32(min(most + 1, u64(ALL_LANES)));
        }
        if (count) {
            if (atomicAdd(found, u64(count)) + count > most) return;
            count = 0;
        }
        if (*reinterpret_cast<volatile u64 *>(found) > most) return;
    }
}

#endif
#endif
