// SpMM with CSR row by row, for several units of vectors. A group of lanes, each with one unit or
// two, sums a row; or several groups of a warp share its entries. Rows with the same columns, as
// matrices of finite elements have with several unknowns per node, are summed together as an
// i-node: an element of x is gathered once for all of them. See src/formats/csr/cuda/rows.rs.
//
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_groups.cuh"

OVERLAPPING

// Largest number of rows of an i-node: `MOST_ROWS` in src/formats/csr/cuda/rows.rs.
constexpr u32 MOST_ROWS = 3;

// Largest number of entries of a row that is compared with the one before.
constexpr u32 MOST_COMPARED = 2048;

// Number of sums of largest lengths: of 1, 2, 4, 8 and 16 adjacent rows.
constexpr u32 LENGTH_SUMS = 5;

// Statistics of the lengths of rows. `LengthSums` in src/formats/csr/cuda/spmm_times.rs.
struct MeasuredLengths {
    // Sum of the largest lengths of 1, 2, 4, 8 and 16 adjacent rows.
    u64 sums[LENGTH_SUMS];
    // Largest length of a row.
    u64 longest;
    // Number of entries of rows with the columns of the row before them.
    u64 repeated;
};

// Sets bit i % 32 of word i / 32 if row i has the columns of the row before it. Rows of more than
// MOST_COMPARED entries are not compared. Adds to `total`, which is zero at first.
template <typename O>
__device__ __forceinline__ void measure_lengths(const O *row_ptr, const u32 *cols, u32 nrows, u32 *repeats,
                                                MeasuredLengths *total) {
    __shared__ MeasuredLengths block;
    wait_for_previous_launch();
    if (threadIdx.x == 0) block = {};
    __syncthreads();
    u64 row = thread_id(), count = 0;
    bool repeated = false;
    if (row < nrows) {
        u64 begin = row_ptr[row];
        count = row_ptr[row + 1] - begin;
        u64 before = row > 0 ? row_ptr[row - 1] : 0;
        repeated = row > 0 && begin - before == count && count <= MOST_COMPARED;
        for (u64 k = 0; repeated && k < count; ++k) repeated = cols[before + k] == cols[begin + k];
    }
    u32 bits = __ballot_sync(ALL_LANES, repeated);
    u64 entries = subwarp_sum(repeated ? count : 0, WARP);
    u64 longest = count;
    bool is_first = lane_id() == 0;
#pragma unroll
    for (u32 i = 0; i < LENGTH_SUMS; ++i) {
        u64 sum = subwarp_sum(lane_id() % (1u << i) == 0 ? longest : 0, WARP);
        if (is_first) atomicAdd(block.sums + i, sum);
        longest = max(longest, lane_xor(longest, 1u << i));
    }
    if (is_first) {
        atomicMax(&block.longest, longest);
        atomicAdd(&block.repeated, entries);
        if (row < nrows) repeats[row / WARP] = bits;
    }
    __syncthreads();
    if (threadIdx.x < LENGTH_SUMS) atomicAdd(total->sums + threadIdx.x, block.sums[threadIdx.x]);
    if (threadIdx.x != 0) return;
    atomicMax(&total->longest, block.longest);
    if (block.repeated != 0) atomicAdd(&total->repeated, block.repeated);
}

#define LENGTHS(NAME, O)                                                                                             \
    KERNEL(NAME)(const O *row_ptr, const u32 *cols, u32 nrows, u32 *repeats, MeasuredLengths *total) {                \
        measure_lengths(row_ptr, cols, nrows, repeats, total);                                                       \
    }
LENGTHS(csr_row_lengths_o32, u32)
LENGTHS(csr_row_lengths_o64, u64)

// Begins to copy a scalar, asynchronously if the GPU supports it.
template <typename S>
__device__ __forceinline__ void begin_scalar_copy(S *to, const S *from) {
#if HAS_AMPERE
    u32 address = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(sizeof(S)) : "memory");
#else
    *to = *from;
#endif
}

// Largest value of the warp.
__device__ __forceinline__ u32 warp_max(u32 value) {
#if HAS_AMPERE
    return __reduce_max_sync(ALL_LANES, value);
#else
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) value = max(value, lane_xor(value, offset));
    return value;
#endif
}

// `count` consecutive rows of `length` entries each, with the same columns. The first one is row
// `row`, and begins with entry `entry`.
struct EqualRows {
    u64 entry;
    u32 row, count, length;
};

// Rows one by one.
template <typename O>
struct SingleRows {
    static constexpr u32 MOST = 1;
    const O *row_ptr;
    __device__ __forceinline__ EqualRows at(u32 number) const {
        u64 begin = fetch<true>(row_ptr + number);
        return {begin, number, 1, u32(fetch<true>(row_ptr + number + 1) - begin)};
    }
};

// First row and first entry of an i-node. `InodeStart` in src/formats/csr/cuda/rows.rs.
struct Inode {
    u32 row, entry;
};

// I-nodes. One more marks the end.
struct InodeRows {
    static constexpr u32 MOST = MOST_ROWS;
    const Inode *inodes;
    __device__ __forceinline__ Inode start(u32 number) const {
        uint2 words = fetch<true>(reinterpret_cast<const uint2 *>(inodes + number));
        return {words.x, words.y};
    }
    __device__ __forceinline__ EqualRows at(u32 number) const {
        Inode first = start(number), next = start(number + 1);
        u32 count = next.row - first.row;
        return {first.entry, first.row, count, (next.entry - first.entry) / count};
    }
};

// `1 << split` groups of `1 << shift` lanes, each with `PER_LANE` units of vectors, sum the rows of
// each of `count` items of a table. They share the entries: four for one group, the next four for
// the next one. Entries are copied to dynamic shared memory, `stage` of every row for each group at
// a time, a multiple of four, while those before them are multiplied (double buffering).
template <typename T, u32 N, u32 PER_LANE, typename Table>
__device__ __forceinline__ void sum_equal_rows(const u32 *__restrict__ cols, const T *__restrict__ values, Table table,
                                               u32 count, GatheredColumns<Unit<T, N>> x, UnitSums<T> sums, u32 shift,
                                               u32 split, u32 stage) {
    using U = Unit<T, N>;
    struct alignas(16) GroupValues {
        T at[GROUP_ENTRIES];
    };
    constexpr u32 MOST = Table::MOST;
    u32 lanes = 1u << shift, parts = 1u << split, width = lanes << split;
    u32 own = lane_id(), lane = own & (lanes - 1), part = (own >> shift) & (parts - 1), place = own & (width - 1);
    // Entries of a row that all its groups copy together, and the number of an item in the block.
    u32 staged = stage << split, items = (BLOCK / PER_LANE) >> (shift + split), own_item = threadIdx.x >> (shift + split);
    T *block_values = reinterpret_cast<T *>(dynamic_shared), *own_values = block_values + own_item * 2 * MOST * staged;
    u32 *block_cols = reinterpret_cast<u32 *>(block_values + items * 2 * MOST * staged);
    u32 *own_cols = block_cols + own_item * 2 * staged;

    u32 item = blockIdx.x * items + own_item;
    EqualRows rows = {};
    if (item < count) rows = table.at(item);
    auto has_row = [&](u32 r) { return MOST == 1 || r < rows.count; };
    cols += rows.entry;
    values += rows.entry;
    auto copy = [&](u32 first, u32 half, auto begin) {
        for (u32 k = place; k < staged && first + k < rows.length; k += width) begin(first + k, half + k);
    };
    auto copy_cols = [&](u32 first, u32 half) {
        copy(first, half, [&](u32 from, u32 to) { begin_scalar_copy(own_cols + to, cols + from); });
    };
    auto copy_values = [&](u32 first, u32 half) {
        copy(first, half, [&](u32 from, u32 to) {
#pragma unroll
            for (u32 r = 0; r < MOST; ++r)
                if (has_row(r))
                    begin_scalar_copy(own_values + r * 2 * staged + to, values + u64(r) * rows.length + from);
        });
    };
    copy_cols(0, 0);
    end_copies();
    __syncwarp();
    wait_for_previous_launch();
    trigger_next_launch();
    copy_values(0, 0);

    // A lane without vectors of its own repeats those of the last lane that has some.
    u32 units = (sums.count + N - 1) / N;
    x.x += min(lane, units - 1);
    u32 distance = lane + lanes < units ? lanes : 0;
    U sum[PER_LANE][MOST] = {};
    // The lanes of a warp iterate uniformly, since each copies entries for others.
    u32 longest = warp_max(rows.length);
#pragma unroll 1
    for (u32 first = 0, half = 0; first < longest; first += staged, half ^= staged) {
        u32 left = max(rows.length, first) - first, longest_left = min(longest - first, staged);
#pragma unroll 1
        for (u32 begin = 0; begin < longest_left; begin += GROUP_ENTRIES * parts) {
            u32 k = begin + part * GROUP_ENTRIES;
            U factor[PER_LANE][GROUP_ENTRIES];
            if (k < left) {
                uint4 col = reinterpret_cast<const uint4 *>(own_cols + half)[k / GROUP_ENTRIES];
                if (k + 1 >= left) col.y = col.x;
                if (k + 2 >= left) col.z = col.x;
                if (k + 3 >= left) col.w = col.x;
#pragma unroll
                for (u32 i = 0; i < PER_LANE; ++i) {
                    GatheredColumns<U> own_x = x;
                    own_x.x += i * distance;
                    factor[i][0] = own_x.at(col.x), factor[i][1] = own_x.at(col.y);
                    factor[i][2] = own_x.at(col.z), factor[i][3] = own_x.at(col.w);
                }
            }
            if (begin == 0) {
                // The values are there, and the other half is free.
                end_copies();
                __syncwarp();
                u32 next = first + staged;
                if (next < longest) copy_cols(next, half ^ staged), copy_values(next, half ^ staged);
            }
            if (k >= left) continue;
#pragma unroll
            for (u32 r = 0; r < MOST; ++r) {
                if (!has_row(r)) continue;
                auto from = reinterpret_cast<const GroupValues *>(own_values + 2 * r * staged + half);
                GroupValues value = from[k / GROUP_ENTRIES];
#pragma unroll
                for (u32 u = 0; u < GROUP_ENTRIES; ++u)
                    if (k + u < left)
#pragma unroll
                        for (u32 i = 0; i < PER_LANE; ++i) add(sum[i][r], value.at[u], factor[i][u]);
            }
        }
        end_copies();
        __syncwarp();
    }
#pragma unroll 1
    for (u32 offset = width / 2; offset >= lanes; offset /= 2)
#pragma unroll
        for (u32 i = 0; i < PER_LANE; ++i)
#pragma unroll
            for (u32 r = 0; r < MOST; ++r) sum[i][r] += lane_xor(sum[i][r], offset);
    // The lanes of the first group store.
    if (item >= count || place >= lanes) return;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; ++i) {
        UnitEpilogue<T, N> y(sums, rows.row, place + i * lanes, units);
#pragma unroll
        for (u32 r = 0; r < MOST; ++r)
            if (has_row(r)) y.store(r, sum[i][r]);
    }
}

#define ROWS(NAME, BLOCKS, T, N, PER_LANE, O)                                                                        \
    KERNEL_OF(NAME, BLOCK / PER_LANE, BLOCKS)(const O *row_ptr, const u32 *cols, const T *values, u32 nrows,         \
                                              UNIT_PARAMETERS(T, N), u32 shift, u32 split, u32 stage) {              \
        sum_equal_rows<T, N, PER_LANE>(cols, values, SingleRows<O>{row_ptr}, nrows, GATHERED_COLUMNS(T, N),          \
                                       UNIT_SUMS(T), shift, split, stage);                                           \
    }

#define INODES(NAME, T, N)                                                                                           \
    KERNEL_WITH(NAME, INODE_BLOCKS)(const u32 *cols, const T *values, const Inode *inodes, u32 inode_count,           \
                                    UNIT_PARAMETERS(T, N), u32 shift, u32 split, u32 stage) {                         \
        sum_equal_rows<T, N, 1>(cols, values, InodeRows{inodes}, inode_count, GATHERED_COLUMNS(T, N), UNIT_SUMS(T),   \
                                shift, split, stage);                                                                \
    }

// Blocks whose registers fit a multiprocessor: fewer for units of four scalars. For other GPUs than
// Hopper's the compiler needs a few more registers.
#if HAS_HOPPER && !HAS_BLACKWELL
#define ROW_BLOCKS 6
#else
#define ROW_BLOCKS KERNEL_BLOCKS
#endif
// I-nodes, and rows by blocks of half the threads, each with a pair of units.
#if HAS_BLACKWELL
#define INODE_BLOCKS 3
#define PAIR_BLOCKS 6
#else
#define INODE_BLOCKS 4
#define PAIR_BLOCKS 7
#endif

ROWS(csr_rows_f32x2_o32, ROW_BLOCKS, float, 2, 1, u32)
ROWS(csr_rows_f32x2_o64, ROW_BLOCKS, float, 2, 1, u64)
ROWS(csr_rows_f32x4_o32, KERNEL_BLOCKS, float, 4, 1, u32)
ROWS(csr_rows_f32x4_o64, KERNEL_BLOCKS, float, 4, 1, u64)
ROWS(csr_rows_f64x2_o32, ROW_BLOCKS, double, 2, 1, u32)
ROWS(csr_rows_f64x2_o64, ROW_BLOCKS, double, 2, 1, u64)
ROWS(csr_rows_by_pairs_f32x2_o32, PAIR_BLOCKS, float, 2, 2, u32)
ROWS(csr_rows_by_pairs_f32x2_o64, PAIR_BLOCKS, float, 2, 2, u64)
ROWS(csr_rows_by_pairs_f32x4_o32, PAIR_BLOCKS, float, 4, 2, u32)
ROWS(csr_rows_by_pairs_f32x4_o64, PAIR_BLOCKS, float, 4, 2, u64)
ROWS(csr_rows_by_pairs_f64x2_o32, PAIR_BLOCKS, double, 2, 2, u32)
ROWS(csr_rows_by_pairs_f64x2_o64, PAIR_BLOCKS, double, 2, 2, u64)
INODES(csr_inodes_f32x2, float, 2)
INODES(csr_inodes_f32x4, float, 4)
INODES(csr_inodes_f64x2, double, 2)
