// SpMM with the chunks of `csr(balanced)`, for as many vectors as a unit has: see
// src/formats/csr/mod.rs for the layout of the matrix, and unit.cuh for that of the vectors.
//
// Variants: streamed.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_chunks.cuh"

template <typename T, u32 N>
struct UnitEpilogue {
    UnitSums<T> sums;

    __device__ __forceinline__ void store(u64 row, const Unit<T, N> &sum) const { sums.put(u32(row), 0, sum); }
};

#define SPMM(NAME, RUN, T, N, O)                                                                                       \
    KERNEL_WITH(NAME, UNIT_BLOCKS)(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks, u32 nrows, \
                                  u64 nnz, UNIT_PARAMETERS(T, N), u64 *carries, u32 l2_shares) {                         \
        rows_by_chunks<RUN, false>(row_ptr, cols, values, chunks, nrows, nnz, UNIT_COLUMNS(T, N),                      \
                                   UnitEpilogue<T, N>{UNIT_SUMS(T)}, carries, l2_shares);                                \
    }

#define RUNS(SUFFIX, T, N, O)                       \
    SPMM(csr_spmm_chunks2_##SUFFIX, 2, T, N, O)     \
    SPMM(csr_spmm_chunks4_##SUFFIX, 4, T, N, O)     \
    SPMM(csr_spmm_chunks8_##SUFFIX, 8, T, N, O)

RUNS(f32x2_o32, float, 2, u32)
RUNS(f32x2_o64, float, 2, u64)
RUNS(f32x4_o32, float, 4, u32)
RUNS(f32x4_o64, float, 4, u64)
RUNS(f64x2_o32, double, 2, u32)
RUNS(f64x2_o64, double, 2, u64)
