// SpMM with the chunks of `csr(balanced)`: see src/formats/csr/mod.rs for the layout of the matrix,
// and unit.cuh for that of the vectors. Neighbouring threads share the entries of a chunk, each with
// a unit, so that they load neighbouring units of x. The blocks of a chunk with more units follow
// one another: its entries are in the L2 for all but the first.
//
// Variants: streamed.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_chunks.cuh"

// Sums of the units of a block, the first of which is number `first`.
template <typename T, u32 N>
struct UnitEpilogue {
    UnitSums<T> sums;
    u32 first;

    __device__ __forceinline__ void store(u64 row, u32 share, const Unit<T, N> &sum) const {
        u32 unit = first + share;
        if (unit * N < sums.count) sums.put(u32(row), unit, sum);
    }
};

template <u32 RUN, typename T, typename O, u32 N>
__device__ __forceinline__ void units_by_chunks(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks,
                                                u32 nrows, u64 nnz, UnitColumns<Unit<T, N>> x, UnitSums<T> sums,
                                                u64 *parts, u32 shift) {
    u32 units = (sums.count + N - 1) / N, blocks = (units + (1u << shift) - 1) >> shift;
    u32 chunk = blockIdx.x / blocks, first = (blockIdx.x % blocks) << shift;
    // A thread without vectors of its own repeats those of the last unit.
    x.x += min(first + ChunkThread<SHARERS>{shift}.share(), units - 1);
    // Other blocks read the entries, too, unless there is one.
    u32 l2_shares = blocks > 1 ? SHARES : 0;
    rows_by_chunks<RUN, false, SHARERS>(row_ptr, cols, values, chunks, chunk, nrows, nnz, x,
                                        UnitEpilogue<T, N>{sums, first}, parts + first * PART_WORDS<Unit<T, N>>,
                                        blocks << shift, shift, l2_shares);
}

#define SPMM(NAME, RUN, T, N, O)                                                                                       \
    KERNEL_WITH(NAME, UNIT_BLOCKS)(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks, u32 nrows, \
                                  u64 nnz, UNIT_PARAMETERS(T, N), u64 *parts, u32 shift) {                             \
        units_by_chunks<RUN>(row_ptr, cols, values, chunks, nrows, nnz,                                                \
                             UNIT_COLUMNS(T, N),                                                                       \
                             UNIT_SUMS(T), parts, shift);                                                              \
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
