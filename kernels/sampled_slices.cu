// Encoding of sampled slices, for the analysis of a matrix in the memory of a GPU:
// src/formats/psell/sample/gpu.rs. A warp has a slice, none of whose rows is wide.

#include "common.cuh"
#include "psell_pack_slice.cuh"
#include "sort_keys.cuh"

using namespace formats;

// Results: encoding, hash of the slots of a diagonal slice, and the lanes with long rows.
struct FoundSlices {
    uint4 *encoded;
    u64 *hashes;
    u32 *skip;

    __device__ __forceinline__ void find(u32 at, const Lane &own, const u32 *col_idx, u32 ncols, bool may_be_diagonal) const {
        u64 hash;
        uint4 chosen = choose_slice(own, col_idx + own.begin, ncols, may_be_diagonal, hash);
        u32 long_lanes = __ballot_sync(ALL_LANES, own.is_long);
        if (lane_id() == 0) {
            encoded[at] = chosen;
            hashes[at] = hash;
            skip[at] = long_lanes;
        }
    }
};

// Slices of rows in natural order, by their numbers.
KERNEL(psell_encode_slices)(const u64 *row_ptr, const u32 *col_idx, const u32 *slices, u32 count,
                             u32 nrows, u32 ncols, u32 split, uint4 *encoded, u64 *hashes, u32 *skip) {
    u32 at = own_slice();
    if (at >= count) return;
    u32 slice = slices[at];
    Lane own(OrderedRows{row_ptr, nullptr, nrows, split}, slice);
    u64 end = min((u64(slice) + 1) * WARP, u64(nrows));
    FoundSlices{encoded, hashes, skip}.find(at, own, col_idx, ncols, end <= ncols);
}

// Some slices of windows whose rows are sorted by length, longest first, every `step`th. A block
// has a window of SAMPLED_WINDOW rows, and room for the results of `most` slices. Where it has no
// slice, the lanes with long rows are all.
constexpr u32 SAMPLED_WINDOW = 512;
static_assert(SAMPLED_WINDOW % BLOCK == 0, "a thread has as many keys as others");
KERNEL(psell_encode_windows)(const u64 *row_ptr, const u32 *col_idx, const u32 *windows, u32 step,
                            u32 most, u32 nrows, u32 ncols, u32 split, uint4 *encoded, u64 *hashes,
                            u32 *skip) {
    __shared__ u32 keys[SAMPLED_WINDOW];
    u32 window = windows[blockIdx.x], first = window * SAMPLED_WINDOW;
    OrderedRows rows{row_ptr, keys, min(SAMPLED_WINDOW, nrows - first), split};
    for (u32 i = threadIdx.x; i < SAMPLED_WINDOW; i += BLOCK)
        keys[i] = i >= rows.count ? ALL_LANES : (MAX_LENGTH - rows.short_length(first + i)) * SAMPLED_WINDOW + i;
    sort_keys(keys, SAMPLED_WINDOW);
    for (u32 i = threadIdx.x; i < SAMPLED_WINDOW; i += BLOCK) keys[i] = first + keys[i] % SAMPLED_WINDOW;
    __syncthreads();
    for (u32 k = threadIdx.x / WARP; k < most; k += WARPS) {
        u32 slice = window % step + k * step, at = blockIdx.x * most + k;
        if (slice * WARP < rows.count) FoundSlices{encoded, hashes, skip}.find(at, Lane(rows, slice), col_idx, ncols, false);
        else if (lane_id() == 0) skip[at] = ALL_LANES;
    }
}
