// SpMM with the chunks of `csr(balanced)`: see src/formats/csr/mod.rs for the layout of the matrix,
// and unit.cuh for that of the vectors. One unit of vectors is multiplied as a single vector is,
// several by groups of lanes.
//
// Variants: streamed.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_groups.cuh"

OVERLAPPING

#define SPMM(NAME, RUN, T, N, O)                                                                                       \
    KERNEL_WITH(NAME, UNIT_BLOCKS)(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks, u32 nrows, \
                                  u64 nnz, UNIT_PARAMETERS(T, N), u64 *carries, u32 l2_shares) {                         \
        rows_by_chunks<RUN, false>(row_ptr, cols, values, chunks, nrows, nnz, GATHERED_COLUMNS(T, N),                  \
                                   UnitEpilogue<T, N>(UNIT_SUMS(T), 0, 0, 1), carries, l2_shares);                       \
    }

// For sm_100 the compiler needs a few more than 48 registers.
#if HAS_BLACKWELL
#define GROUP_BLOCKS 4
#else
#define GROUP_BLOCKS KERNEL_BLOCKS
#endif

#define GROUPS(NAME, T, N, O)                                                                                        \
    KERNEL_WITH(NAME, GROUP_BLOCKS)(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks, u32 nrows, \
                                    u64 nnz, u32 spacing, UNIT_PARAMETERS(T, N), u32 shift, u32 capacity,               \
                                    u64 *carries) {                                                                     \
        rows_by_groups(row_ptr, cols, values, chunks, nrows, nnz, spacing, GATHERED_COLUMNS(T, N), UNIT_SUMS(T),        \
                       shift, capacity, carries);                                                                       \
    }

#define RUNS(SUFFIX, T, N, O)                    \
    SPMM(csr_spmm_chunks2_##SUFFIX, 2, T, N, O) \
    SPMM(csr_spmm_chunks4_##SUFFIX, 4, T, N, O) \
    SPMM(csr_spmm_chunks8_##SUFFIX, 8, T, N, O)

RUNS(f32x2_o32, float, 2, u32)
RUNS(f32x2_o64, float, 2, u64)
RUNS(f32x4_o32, float, 4, u32)
RUNS(f32x4_o64, float, 4, u64)
RUNS(f64x2_o32, double, 2, u32)
RUNS(f64x2_o64, double, 2, u64)

// Groups copy entries past the L1, whatever stays in the L2.
#ifndef STREAMED
GROUPS(csr_spmm_groups_f32x2_o32, float, 2, u32)
GROUPS(csr_spmm_groups_f32x2_o64, float, 2, u64)
GROUPS(csr_spmm_groups_f32x4_o32, float, 4, u32)
GROUPS(csr_spmm_groups_f32x4_o64, float, 4, u64)
GROUPS(csr_spmm_groups_f64x2_o32, double, 2, u32)
GROUPS(csr_spmm_groups_f64x2_o64, double, 2, u64)
#endif
