// Values of packed SELL, as stored: in their own type, as codes, in a narrower type, or one for all
// entries.

#pragma once

using namespace psell;

// Plain values; `at` counts values. BYTES is the size of one.
template <typename T, bool STAYS_RESIDENT>
struct Plain {
    static constexpr u32 CODES = 1, BYTES = sizeof(T);
    static constexpr bool IN_L2 = STAYS_RESIDENT;
    const T *values;

    __device__ __forceinline__ Plain(const u8 *bytes, const T *, const T *) : values(reinterpret_cast<const T *>(bytes)) {}
    __device__ __forceinline__ void skip(u64 units) { skip_values(units * (ALIGNMENT / sizeof(T))); }
    __device__ __forceinline__ void skip_values(u64 count) { values += count; }
    __device__ __forceinline__ T one(u32 at) const { return fetch<IN_L2>(values + at); }
    __device__ __forceinline__ void four(u32 at, T *out) const {
        if constexpr (sizeof(T) == 4) {
            float4 v = fetch<IN_L2>(reinterpret_cast<const float4 *>(values + at));
            out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        } else {
            double2 v = fetch<IN_L2>(reinterpret_cast<const double2 *>(values + at));
            double2 w = fetch<IN_L2>(reinterpret_cast<const double2 *>(values + at) + 1);
            out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
        }
    }
};

// Codes of a dictionary, which every block copies to shared memory.
template <typename T, bool STAYS_RESIDENT>
struct Coded {
    static constexpr u32 CODES = 256, BYTES = 1;
    static constexpr bool IN_L2 = STAYS_RESIDENT;
    const u8 *codes;
    const T *dictionary;

    __device__ __forceinline__ Coded(const u8 *bytes, const T *, const T *shared) : codes(bytes), dictionary(shared) {}
    __device__ __forceinline__ void skip(u64 units) { skip_values(units * ALIGNMENT); }
    __device__ __forceinline__ void skip_values(u64 count) { codes += count; }
    __device__ __forceinline__ T one(u32 at) const { return dictionary[fetch<IN_L2>(codes + at)]; }
    __device__ __forceinline__ void four(u32 at, T *out) const {
        uchar4 c = fetch<IN_L2>(reinterpret_cast<const uchar4 *>(codes + at));
        out[0] = dictionary[c.x], out[1] = dictionary[c.y], out[2] = dictionary[c.z], out[3] = dictionary[c.w];
    }
};

// Narrow types: type of one number, of four, and conversion to 32 bits.
struct Bf16 {
    typedef u16 Bits;
    typedef ushort4 Four;
    static __device__ __forceinline__ float widen(u16 bits) { return __uint_as_float(u32(bits) << 16); }
};
struct F16 {
    typedef u16 Bits;
    typedef ushort4 Four;
    static __device__ __forceinline__ float widen(u16 bits) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
        return wide;
    }
};
struct F32 {
    typedef float Bits;
    typedef float4 Four;
    static __device__ __forceinline__ float widen(float value) { return value; }
};

// Values in a narrow type, which holds them exactly; `at` counts values.
template <typename P, typename T, bool STAYS_RESIDENT>
struct Widened {
    static constexpr u32 CODES = 1, BYTES = sizeof(typename P::Bits);
    static constexpr bool IN_L2 = STAYS_RESIDENT;
    const typename P::Bits *values;

    __device__ __forceinline__ Widened(const u8 *bytes, const T *, const T *)
        : values(reinterpret_cast<const typename P::Bits *>(bytes)) {}
    __device__ __forceinline__ void skip(u64 units) { skip_values(units * (ALIGNMENT / sizeof(typename P::Bits))); }
    __device__ __forceinline__ void skip_values(u64 count) { values += count; }
    __device__ __forceinline__ T one(u32 at) const { return P::widen(fetch<IN_L2>(values + at)); }
    __device__ __forceinline__ void four(u32 at, T *out) const {
        typename P::Four v = fetch<IN_L2>(reinterpret_cast<const typename P::Four *>(values + at));
        out[0] = P::widen(v.x), out[1] = P::widen(v.y), out[2] = P::widen(v.z), out[3] = P::widen(v.w);
    }
};
template <typename T, bool IN_L2>
using AsBf16 = Widened<Bf16, T, IN_L2>;
template <typename T, bool IN_L2>
using AsF16 = Widened<F16, T, IN_L2>;
template <typename T, bool IN_L2>
using AsF32 = Widened<F32, T, IN_L2>;

// One value for all entries.
template <typename T, bool STAYS_RESIDENT>
struct Same {
    static constexpr u32 CODES = 1, BYTES = 0;
    static constexpr bool IN_L2 = STAYS_RESIDENT;
    T value;

    __device__ __forceinline__ Same(const u8 *, const T *dictionary, const T *) : value(gather(dictionary)) {}
    __device__ __forceinline__ void skip(u64) {}
    __device__ __forceinline__ void skip_values(u64) {}
    __device__ __forceinline__ T one(u32) const { return value; }
    __device__ __forceinline__ void four(u32, T *out) const { out[0] = out[1] = out[2] = out[3] = value; }
};
