// Device code shared by the kernels that pack matrices.

#pragma once

// First number in `from..to` for which `holds`, or `to`. `holds` is false up to some number, and
// true from there on.
template <typename N, typename Holds>
__device__ __forceinline__ N first_of(N from, N to, Holds holds) {
    while (from < to) {
        N middle = from + (to - from) / 2;
        if (holds(middle)) to = middle;
        else from = middle + 1;
    }
    return from;
}

// Rows in the order of `perm`, or in their own order if it is null. Rows with more than `limit`
// entries are long rows, which are empty in slices.
struct OrderedRows {
    const u64 *row_ptr;
    const u32 *perm;
    u32 count;
    u32 limit;

    __device__ __forceinline__ u64 length(u32 row) const { return __ldg(row_ptr + row + 1ull) - __ldg(row_ptr + row); }
    __device__ __forceinline__ u32 short_length(u32 row) const {
        u64 len = length(row);
        return len > limit ? 0 : u32(len);
    }
};

template <typename Combine>
__device__ __forceinline__ u32 lanes_combine(u32 value, Combine combine) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2)
        value = combine(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}
__device__ __forceinline__ u32 lanes_min(u32 value) {
#if HAS_AMPERE
    return __reduce_min_sync(ALL_LANES, value);
#else
    return lanes_combine(value, [](u32 a, u32 b) { return min(a, b); });
#endif
}
__device__ __forceinline__ u32 lanes_max(u32 value) { return ~lanes_min(~value); }
