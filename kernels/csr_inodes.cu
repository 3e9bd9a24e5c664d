// SpMM with CSR by i-nodes: consecutive rows with the same columns, as matrices of finite elements
// have with several unknowns per node. An element of x is gathered once for all rows of an i-node.
// See src/formats/csr/cuda/inodes.rs.
//
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_groups.cuh"

OVERLAPPING

// Largest number of rows of an i-node, and of entries of one: `MOST_ROWS` and `MOST_ENTRIES` in
// src/formats/csr/cuda/inodes.rs.
constexpr u32 MOST_ROWS = 4, MOST_ENTRIES = 2048;

// Sets bit i % 32 of word i / 32 if row i has the columns of the row before it, and adds the
// entries of such rows to `alike`. Rows of more than MOST_ENTRIES entries are not compared.
template <typename O>
__device__ __forceinline__ void compare_rows(const O *row_ptr, const u32 *cols, u32 nrows, u32 *repeats, u64 *alike) {
    wait_for_previous_launch();
    u64 row = thread_id();
    u64 count = 0;
    bool repeated = false;
    if (row > 0 && row < nrows) {
        u64 before = row_ptr[row - 1], begin = row_ptr[row];
        count = row_ptr[row + 1] - begin;
        repeated = begin - before == count && count <= MOST_ENTRIES;
        for (u64 k = 0; repeated && k < count; ++k) repeated = cols[before + k] == cols[begin + k];
    }
    u32 bits = __ballot_sync(ALL_LANES, repeated);
    u64 entries = subwarp_sum(repeated ? count : 0, WARP);
    if (lane_id() != 0 || row >= nrows) return;
    repeats[row / WARP] = bits;
    if (entries != 0) atomicAdd(reinterpret_cast<unsigned long long *>(alike), entries);
}

#define REPEATED_ROWS(NAME, O)                                                                 \
    KERNEL(NAME)(const O *row_ptr, const u32 *cols, u32 nrows, u32 *repeats, u64 *alike) {      \
        compare_rows(row_ptr, cols, nrows, repeats, alike);                                     \
    }
REPEATED_ROWS(csr_repeated_rows_o32, u32)
REPEATED_ROWS(csr_repeated_rows_o64, u64)

// Begins to copy 4 bytes, asynchronously if the GPU supports it.
__device__ __forceinline__ void begin_word_copy(u32 *to, const u32 *from) {
#if HAS_AMPERE
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
#else
    *to = __ldg(from);
#endif
}

// First row and first entry of an i-node. `Inode` in src/formats/csr/cuda/inodes.rs.
struct Inode {
    u32 row, entry;
};

__device__ __forceinline__ Inode load_inode(const Inode *inode) {
    uint2 words = fetch<true>(reinterpret_cast<const uint2 *>(inode));
    return {words.x, words.y};
}

// A block multiplies `1 << nodes_shift` consecutive i-nodes with up to `1 << shift` units. Groups
// share the entries of an i-node if there are fewer i-nodes than groups. One more i-node marks the
// end. `capacity` entries fit the dynamic shared memory.
template <typename T, u32 N>
__device__ __forceinline__ void inodes_by_groups(const u32 *__restrict__ cols, const T *__restrict__ values, u64 nnz,
                                                 const Inode *__restrict__ inodes, u32 inode_count, u32 nodes_shift,
                                                 GatheredColumns<Unit<T, N>> x, UnitSums<T> sums, u32 shift,
                                                 u32 capacity) {
    using U = Unit<T, N>;
    // Sums of the warps that share an i-node.
    __shared__ U warp_sums[MOST_ROWS][WARPS][MOST_LANES];
    T *block_values = reinterpret_cast<T *>(dynamic_shared);
    // Only columns of the first row of each i-node are copied, to the places of their values.
    u32 *block_cols = reinterpret_cast<u32 *>(block_values + capacity);

    u32 lanes = 1u << shift, groups = BLOCK >> shift;
    u32 lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> shift;
    u64 start = u64(blockIdx.x) << nodes_shift;
    u32 node_count = u32(min(u64(1) << nodes_shift, inode_count - start));
    inodes += start;
    u32 split = 0;
    while (1u << (nodes_shift + split + 1) <= groups) ++split;
    u32 parts = 1u << split, part = group & (parts - 1), places = groups >> split;

    u32 base = load_inode(inodes).entry & ~3u, count = load_inode(inodes + node_count).entry - base;
    for (u32 i = group >> split; i < node_count; i += places) {
        Inode inode = load_inode(inodes + i), next = load_inode(inodes + i + 1);
        u32 length = (next.entry - inode.entry) / (next.row - inode.row);
        for (u32 k = part * lanes + lane; k < length; k += parts * lanes)
            begin_word_copy(block_cols + (inode.entry - base) + k, cols + u64(inode.entry) + k);
    }
    wait_for_previous_launch();
    trigger_next_launch();
    begin_copies<BLOCK>(dynamic_shared, values + base, u32(min(u64(count + 3) & ~u64(3), nnz - base)));
    end_copies();
    __syncthreads();

    // A lane without vectors of its own repeats those of the last lane that has some.
    u32 units = (sums.count + N - 1) / N;
    x.x += min(lane, units - 1);
    UnitEpilogue<T, N> y(sums, 0, lane, units);
    for (u32 first = 0; first < node_count; first += places) {
        u32 i = first + (group >> split);
        u32 row = 0, rows = 0, length = 0, from = 0;
        if (i < node_count) {
            Inode inode = load_inode(inodes + i), next = load_inode(inodes + i + 1);
            row = inode.row, rows = next.row - row;
            length = (next.entry - inode.entry) / rows, from = inode.entry - base;
        }
        U sum[MOST_ROWS] = {};
#pragma unroll 1
        for (u32 k = part * GROUP_ENTRIES; k < length; k += parts * GROUP_ENTRIES) {
            U factor[GROUP_ENTRIES];
#pragma unroll
            for (u32 u = 0; u < GROUP_ENTRIES; ++u) factor[u] = x.at(block_cols[from + min(k + u, length - 1)]);
#pragma unroll
            for (u32 r = 0; r < MOST_ROWS; ++r) {
                if (r >= rows) continue;
                const T *value = block_values + from + r * length + k;
#pragma unroll
                for (u32 u = 0; u < GROUP_ENTRIES; ++u)
                    if (k + u < length) add(sum[r], value[u], factor[u]);
            }
        }
        // Sums of the parts, over lanes and then over warps.
        u32 width = parts * lanes;
#pragma unroll 1
        for (u32 offset = min(width, WARP) / 2; offset >= lanes; offset /= 2)
#pragma unroll
            for (u32 r = 0; r < MOST_ROWS; ++r) sum[r] += lane_xor(sum[r], offset);
        if (width > WARP) {
            u32 warp = threadIdx.x / WARP;
#pragma unroll
            for (u32 r = 0; r < MOST_ROWS; ++r)
                if (lane_id() < lanes) warp_sums[r][warp][lane] = sum[r];
            __syncthreads();
#pragma unroll
            for (u32 r = 0; r < MOST_ROWS; ++r)
                for (u32 w = 1; w < width / WARP; ++w)
                    if (part == 0) sum[r] += warp_sums[r][warp + w][lane];
            // The next i-nodes write them again.
            __syncthreads();
        }
#pragma unroll
        for (u32 r = 0; r < MOST_ROWS; ++r)
            if (part == 0 && r < rows) y.store(u64(row) + r, sum[r]);
    }
}

// For Blackwell the compiler needs a few more than 64 registers.
#if HAS_BLACKWELL
#define INODE_BLOCKS 3
#else
#define INODE_BLOCKS 4
#endif

#define INODES(NAME, T, N)                                                                                     \
    KERNEL_WITH(NAME, INODE_BLOCKS)(const u32 *cols, const T *values, u64 nnz, const Inode *inodes,            \
                                    u32 inode_count, u32 nodes_shift, UNIT_PARAMETERS(T, N), u32 shift,        \
                                    u32 capacity) {                                                            \
        inodes_by_groups(cols, values, nnz, inodes, inode_count, nodes_shift, GATHERED_COLUMNS(T, N),          \
                         UNIT_SUMS(T), shift, capacity);                                                       \
    }
INODES(csr_inodes_f32x2, float, 2)
INODES(csr_inodes_f32x4, float, 4)
INODES(csr_inodes_f64x2, double, 2)
