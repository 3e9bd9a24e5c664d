// CSR: see src/formats/csr/mod.rs for the layout.
//
// Variants: scaled, streamed.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "csr_chunks.cuh"

OVERLAPPING

// W lanes per row, each with every W-th of its entries. W = 1 is the textbook loop with one thread
// per row.
template <u32 W, typename T, typename O, typename Epilogue>
__device__ __forceinline__ void rows_by_lanes(const O *__restrict__ row_ptr, const u32 *__restrict__ cols,
                                              const T *__restrict__ values, u32 nrows, const T *__restrict__ x,
                                              Epilogue y, u32 l2_shares) {
    u64 row = thread_id() / W;
    u32 lane = threadIdx.x % W;
    u64 at = 0, count = 0;
    if (row < nrows) {
        at = row_ptr[row] + u64(lane);
        u64 end = row_ptr[row + 1];
        count = at < end ? (end - at + W - 1) / W : 0;
    }
    // If lanes return for further entries, the next launch must not evict their lines from the L1
    // cache.
    bool once = CAN_OVERLAP && !__syncthreads_or(count > LANE_ENTRIES);
    wait_for_previous_launch();
    if (once) trigger_next_launch();
    T sum = 0;
    by_l2_share(blockIdx.x, l2_shares, [&](auto in_l2) {
        sum = sum_entries<decltype(in_l2)::value, LANE_ENTRIES>(cols, values, x, at, W, count);
    });
    sum = subwarp_sum(sum, W);
    if (row < nrows && lane == 0) y.store(row, sum);
}

// x as a product by chunks reads it.
template <typename T>
struct XElements {
    const T *x;

    __device__ __forceinline__ T at(u32 col) const { return gather(x + col); }
};

// Chunk table of a matrix of `count` chunks, a thread for every chunk and one for the end.
template <typename O>
__device__ __forceinline__ void make_chunk(const O *__restrict__ row_ptr, u32 nrows, u64 spacing, u64 max_move,
                                           u32 count, Chunk *chunks, u32 *any_cut) {
    wait_for_previous_launch();
    u64 number = thread_id();
    if (number > count) return;
    // Entries and row ends before the entries of a row.
    auto before = [=](u64 row) { return u64(row_ptr[row]) + row; };
    u64 cut = min(number * spacing, before(nrows));
    u64 row = 0, high = u64(nrows) + 1;
    while (high - row > 1) {
        u64 middle = (row + high) / 2;
        if (before(middle) <= cut) row = middle;
        else high = middle;
    }
    u64 behind = cut - before(row);
    Chunk chunk = {u32(row), u32(behind), u32(number), u32(number)};
    if (behind > max_move) {
        // The next cut may be moved back to the beginning of the row.
        chunk.moved = 0;
        chunk.first = u32((before(row) + max_move) / spacing);
        chunk.last = u32((row_ptr[row + 1] + row) / spacing);
    }
    if (chunk.first != number) *any_cut = 1;
    chunks[number] = chunk;
}

// Copies offsets to a narrower type that holds them.
template <typename O>
__device__ __forceinline__ void narrow(const O *__restrict__ offsets, u64 count, u32 *narrowed) {
    wait_for_previous_launch();
    if (thread_id() < count) narrowed[thread_id()] = u32(offsets[thread_id()]);
}

#define OFFSETS(SUFFIX, O)                                                                                     \
    KERNEL(csr_chunks_##SUFFIX)(const O *row_ptr, u32 nrows, u64 spacing, u64 max_move, u32 count, Chunk *chunks, \
                               u32 *any_cut) {                                                                 \
        make_chunk(row_ptr, nrows, spacing, max_move, count, chunks, any_cut);                                    \
    }                                                                                                          \
    KERNEL(csr_narrow_##SUFFIX)(const O *offsets, u64 count, u32 *narrowed) { narrow(offsets, count, narrowed); }

OFFSETS(o32, u32)
OFFSETS(o64, u64)

#define ROWS(NAME, W, T, O)                                                                                         \
    KERNEL(NAME)(const O *row_ptr, const u32 *cols, const T *values, u32 nrows, const T *x, EPILOGUE_PARAMETERS(T), \
                u32 l2_shares) {                                                                                    \
        rows_by_lanes<W>(row_ptr, cols, values, nrows, x, EPILOGUE(T), l2_shares);                                  \
    }

#define BALANCED(NAME, RUN, STRIPED, T, O)                                                                                                         \
    KERNEL_WITH(NAME, CHUNK_BLOCKS(T, O))(const O *row_ptr, const u32 *cols, const T *values, const Chunk *chunks, u32 nrows, u64 nnz, const T *x, \
         EPILOGUE_PARAMETERS(T), u64 *carries, u32 l2_shares) {                                                                                    \
        rows_by_chunks<RUN, STRIPED>(row_ptr, cols, values, chunks, nrows, nnz, XElements<T>{x}, EPILOGUE(T), carries, l2_shares);                 \
    }

#define INSTANCES(SUFFIX, T, O)                      \
    ROWS(csr_scalar_##SUFFIX, 1, T, O)               \
    ROWS(csr_vector2_##SUFFIX, 2, T, O)              \
    ROWS(csr_vector4_##SUFFIX, 4, T, O)              \
    ROWS(csr_vector8_##SUFFIX, 8, T, O)              \
    ROWS(csr_vector16_##SUFFIX, 16, T, O)            \
    ROWS(csr_vector32_##SUFFIX, 32, T, O)            \
    BALANCED(csr_balanced2_##SUFFIX, 2, false, T, O) \
    BALANCED(csr_balanced4_##SUFFIX, 4, false, T, O) \
    BALANCED(csr_balanced8_##SUFFIX, 8, false, T, O) \
    BALANCED(csr_striped8_##SUFFIX, 8, true, T, O)

INSTANCES(f32_o32, float, u32)
INSTANCES(f32_o64, float, u64)
INSTANCES(f64_o32, double, u32)
INSTANCES(f64_o64, double, u64)
