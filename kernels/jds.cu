// JDS: see src/formats/jds/mod.rs for the layout. Rows are sorted; `perm` has their positions in y.
//
// Variants: scaled, streamed.

#include "common.cuh"
#include "jds_section.cuh"

using formats::ROWS_TOGETHER;

// Sum of the i-th sorted row, which is in section `s`.
template <bool IN_L2, typename T>
__device__ __forceinline__ T section_sum(const Section &s, u64 i, const u32 *cols, const T *values, XView<T> x) {
    return sum_slots<IN_L2>(cols, values, x, s.start + (i - s.first_row), s.rows, s.full, s.width);
}

// All sections in one launch, with one thread per row. A warp searches the section of its first
// row; later rows are in that section or in one of the next.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void all_sections(const Section *__restrict__ sections, u32 count,
                                             const u32 *__restrict__ perm, const u32 *__restrict__ cols,
                                             const T *__restrict__ values, u32 nrows, u32 ncols,
                                             const T *__restrict__ x, Epilogue y) {
    u64 i = thread_id();
    if (i >= nrows) return;
    u32 row = fetch<IN_L2>(perm + i);
    u64 warp_row = i - threadIdx.x % WARP;
    // The last section that begins at the warp's first row or before it. The first one begins with
    // row 0.
    u32 found = 0, high = count;
    while (high - found > 1) {
        u32 middle = found + (high - found) / 2;
        if (sections[middle].first_row <= warp_row) found = middle;
        else high = middle;
    }
    while (i >= sections[found].first_row + sections[found].rows) ++found;
    y.store(row, section_sum<IN_L2>(sections[found], i, cols, values, XView<T>{x, ncols}));
}

// A single section.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void one_section(Section s, const u32 *__restrict__ perm, const u32 *__restrict__ cols,
                                            const T *__restrict__ values, u32 ncols, const T *__restrict__ x,
                                            Epilogue y) {
    u64 i = s.first_row + thread_id();
    if (i >= s.first_row + s.rows) return;
    u32 row = fetch<IN_L2>(perm + i);
    y.store(row, section_sum<IN_L2>(s, i, cols, values, XView<T>{x, ncols}));
}

// Unpadded diagonals, with one thread per sorted row, which has an entry in every diagonal that is
// longer than its position.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void diagonals(const u64 *__restrict__ jd_ptr, u32 count, const u32 *__restrict__ perm,
                                          const u32 *__restrict__ cols, const T *__restrict__ values, u32 nrows,
                                          const T *__restrict__ x, Epilogue y) {
    // Number of diagonals processed together: their bounds take registers too.
    constexpr u32 N = BATCH / 2;
    u64 i = thread_id();
    if (i >= nrows) return;
    u32 row = fetch<IN_L2>(perm + i);
    T sum = 0;
    u64 begin = __ldg(jd_ptr);
#pragma unroll 1
    for (u64 k = 0; k < count; k += N) {
        u64 first = begin + i;
        u64 at[N];
        bool reached[N];
#pragma unroll
        for (u32 u = 0; u < N; ++u) {
            // Beyond the last diagonal no row has an entry: the diagonal ends where it begins.
            u64 end = __ldg(jd_ptr + min(k + u + 1, u64(count)));
            reached[u] = i < end - begin;
            at[u] = reached[u] ? begin + i : first;
            begin = end;
        }
        // Diagonals never get longer.
        if (!reached[0]) break;
        sum = add_wanted<IN_L2, N>(sum, cols, values, x, [&](u32 u) { return at[u]; },
                                   [&](u32 u) { return reached[u]; });
    }
    y.store(row, sum);
}

// The same for short rows: ROWS_TOGETHER of them per thread, an entry of each at a time.
template <bool IN_L2, typename T, typename Epilogue>
__device__ __forceinline__ void short_diagonals(const u64 *__restrict__ jd_ptr, u32 count, const u32 *__restrict__ perm,
                                                const u32 *__restrict__ cols, const T *__restrict__ values, u32 nrows,
                                                const T *__restrict__ x, Epilogue y) {
    u64 first = u64(blockIdx.x) * BLOCK * ROWS_TOGETHER + threadIdx.x;
    u32 row[ROWS_TOGETHER];
    T sum[ROWS_TOGETHER] = {};
#pragma unroll
    for (u32 u = 0; u < ROWS_TOGETHER; ++u) row[u] = fetch<IN_L2>(perm + min(first + u * BLOCK, u64(nrows) - 1));
#pragma unroll 1
    for (u32 k = 0; k < count; ++k) {
        u64 begin = __ldg(jd_ptr + k), length = __ldg(jd_ptr + k + 1) - begin;
        u32 col[ROWS_TOGETHER];
        T value[ROWS_TOGETHER], factor[ROWS_TOGETHER];
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u) {
            // No diagonal is empty.
            u64 at = begin + min(first + u * BLOCK, length - 1);
            col[u] = fetch<IN_L2>(cols + at);
            value[u] = fetch<IN_L2>(values + at);
        }
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u) factor[u] = __ldg(x + col[u]);
#pragma unroll
        for (u32 u = 0; u < ROWS_TOGETHER; ++u)
            if (first + u * BLOCK < length) sum[u] += value[u] * factor[u];
    }
#pragma unroll
    for (u32 u = 0; u < ROWS_TOGETHER; ++u)
        if (first + u * BLOCK < nrows) y.store(row[u], sum[u]);
}

#define INSTANCES(SUFFIX, T)                                                                                \
    KERNEL(jds_sections_##SUFFIX)(const Section *sections, u32 count, const u32 *perm, const u32 *cols,     \
                                 const T *values, u32 nrows, u32 ncols, const T *x, EPILOGUE_PARAMETERS(T), \
                                 u32 l2_shares) {                                                           \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                \
            all_sections<in_l2.value>(sections, count, perm, cols, values, nrows, ncols, x, EPILOGUE(T));   \
        });                                                                                                 \
    }                                                                                                       \
    KERNEL(jds_section_##SUFFIX)(u64 first_row, u64 rows, u64 width, u64 full, u64 start, const u32 *perm,  \
                                const u32 *cols, const T *values, u32 ncols, const T *x,                    \
                                EPILOGUE_PARAMETERS(T), u32 l2_shares) {                                    \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                \
            Section section{first_row, rows, width, full, start};                                           \
            one_section<in_l2.value>(section, perm, cols, values, ncols, x, EPILOGUE(T));                   \
        });                                                                                                 \
    }                                                                                                       \
    KERNEL(jds_diagonals_##SUFFIX)(const u64 *jd_ptr, u32 count, const u32 *perm, const u32 *cols,          \
                                  const T *values, u32 nrows, const T *x, EPILOGUE_PARAMETERS(T),           \
                                  u32 l2_shares) {                                                          \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                \
            diagonals<in_l2.value>(jd_ptr, count, perm, cols, values, nrows, x, EPILOGUE(T));               \
        });                                                                                                 \
    }                                                                                                       \
    KERNEL(jds_short_diagonals_##SUFFIX)(const u64 *jd_ptr, u32 count, const u32 *perm, const u32 *cols,    \
                                        const T *values, u32 nrows, const T *x, EPILOGUE_PARAMETERS(T),     \
                                        u32 l2_shares) {                                                    \
        by_l2_share(blockIdx.x, l2_shares, [=](auto in_l2) {                                                \
            short_diagonals<in_l2.value>(jd_ptr, count, perm, cols, values, nrows, x, EPILOGUE(T));         \
        });                                                                                                 \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
