// Units of multivectors, the operands of SpMM: adjacent vectors that a lane multiplies together.

#pragma once

// Elements of N vectors at one column, or their sums: the unit of one load.
template <typename T, u32 N>
struct alignas(N * sizeof(T)) Unit {
    T at[N];
};

// A load through the L1 cache for constant data, or past it for data written by other blocks.
template <bool SHARED, typename W>
__device__ __forceinline__ W load_word(const W *from) {
    if constexpr (SHARED) return __ldcg(from);
    else return __ldg(from);
}

template <bool SHARED = false, typename T, u32 N>
__device__ __forceinline__ Unit<T, N> load_unit(const Unit<T, N> *from) {
    if constexpr (sizeof(T) == 8) {
        double2 v = load_word<SHARED>(reinterpret_cast<const double2 *>(from));
        return {v.x, v.y};
    } else if constexpr (N == 2) {
        float2 v = load_word<SHARED>(reinterpret_cast<const float2 *>(from));
        return {v.x, v.y};
    } else {
        float4 v = load_word<SHARED>(reinterpret_cast<const float4 *>(from));
        return {v.x, v.y, v.z, v.w};
    }
}

template <typename T, u32 N>
__device__ __forceinline__ void add(Unit<T, N> &sum, T value, const Unit<T, N> &factor) {
#pragma unroll
    for (u32 v = 0; v < N; ++v) sum.at[v] += value * factor.at[v];
}

template <typename T, u32 N>
__device__ __forceinline__ Unit<T, N> &operator+=(Unit<T, N> &sum, const Unit<T, N> &other) {
#pragma unroll
    for (u32 v = 0; v < N; ++v) sum.at[v] += other.at[v];
    return sum;
}

template <typename T, u32 N>
__device__ __forceinline__ Unit<T, N> operator+(Unit<T, N> sum, const Unit<T, N> &other) {
    return sum += other;
}

template <typename T, u32 N>
__device__ __forceinline__ Unit<T, N> operator*(T value, Unit<T, N> factor) {
#pragma unroll
    for (u32 v = 0; v < N; ++v) factor.at[v] *= value;
    return factor;
}

// As for scalars in common.cuh.
template <typename T, u32 N>
__device__ __forceinline__ Unit<T, N> lane_xor(Unit<T, N> own, u32 offset) {
#pragma unroll
    for (u32 v = 0; v < N; ++v) own.at[v] = lane_xor(own.at[v], offset);
    return own;
}

template <typename T, u32 N>
__device__ __forceinline__ Unit<T, N> lane_up(Unit<T, N> own, u32 offset) {
#pragma unroll
    for (u32 v = 0; v < N; ++v) own.at[v] = lane_up(own.at[v], offset);
    return own;
}

// The vectors as a lane reads them: its own unit at column 0, and the distance between columns.
template <typename U>
struct UnitColumns {
    const U *x;
    // In bytes, so that an address takes one multiply-add.
    int stride;

    // Address `cols` columns after a unit. Units of 8 bytes leave enough registers for addresses in
    // one instruction. With wider ones that would place the loads too close together.
    __device__ __forceinline__ const U *offset_by(const U *from, u32 cols) const {
        if constexpr (sizeof(U) > 8)
            return reinterpret_cast<const U *>(reinterpret_cast<const u8 *>(from) + u64(cols) * u32(stride));
        u64 address;
        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(cols), "r"(stride), "l"(from));
        return reinterpret_cast<const U *>(address);
    }
    __device__ __forceinline__ U at(u32 col) const { return load_unit(offset_by(x, col)); }
    // Loads the column `delta` after that of `row`.
    __device__ __forceinline__ U at(const U *row, int delta) const {
        u64 address;
        asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(address) : "r"(delta), "r"(stride), "l"(row));
        return load_unit(reinterpret_cast<const U *>(address));
    }
};

// Destination of the sums of a lane: y of row r and vector v is at r * row + v * vector.
template <typename T>
struct UnitSums {
    T *y;
    u64 row, vector;
    // Total number of vectors.
    u32 count;
    // True if units can be stored in one access: aligned, complete, and with adjacent vectors.
    bool whole;

    template <u32 N>
    __device__ __forceinline__ void put(u32 r, u32 unit, const Unit<T, N> &sum) const {
        T *to = y + u64(r) * row;
        if (whole) {
            reinterpret_cast<Unit<T, N> *>(to)[unit] = sum;
        } else {
#pragma unroll
            for (u32 v = 0; v < N; ++v)
                if (unit * N + v < count) to[(unit * N + v) * vector] = sum.at[v];
        }
    }
};

// Parameters of the entry points of SpMM, those of `VectorUnits` in src/device/launch.rs, and the
// vectors and the destination that they describe.
#define UNIT_PARAMETERS(T, N) \
    const Unit<T, N> *x, u32 stride, T *y, u64 y_row, u64 y_vector, u32 vectors, u32 whole
#define UNIT_COLUMNS(T, N) UnitColumns<Unit<T, N>>{x, int(stride * sizeof(Unit<T, N>))}
#define UNIT_SUMS(T) UnitSums<T>{y, y_row, y_vector, vectors, whole != 0}
