//! AVX2 vectors. There is no fused multiplication and addition, and `x` is read by scalar loads:
//! the bits are those of the baseline, and gathers are no faster on many machines.

use super::super::raw::{element, element_at, read, write};
use super::{LaneIndex, PADDING, Vector, set_lanes};
use crate::precision::Narrow;
use crate::{Precision, Scalar, ScalarKind};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Two 256-bit registers, holding 16 `f32` or 8 `f64`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2<T>([__m256; 2], PhantomData<T>);

/// Most lanes of a vector.
const MAX: usize = 16;

impl<T: Scalar> Avx2<T> {
    #[inline(always)]
    fn single(lanes: [__m256; 2]) -> Self {
        Self(lanes, PhantomData)
    }

    #[inline(always)]
    unsafe fn double(low: __m256d, high: __m256d) -> Self {
        // SAFETY: the caller's promise.
        Self::single(unsafe { [_mm256_castpd_ps(low), _mm256_castpd_ps(high)] })
    }

    /// Register `half` as `f64`.
    #[inline(always)]
    unsafe fn double_lanes(self, half: usize) -> __m256d {
        // SAFETY: the caller's promise.
        unsafe { _mm256_castps_pd(self.0[half]) }
    }

    /// All bits of the lanes of `mask` set, for register `half`.
    #[inline(always)]
    unsafe fn selected(mask: u32, half: usize) -> __m256i {
        let mask = (mask >> (half * Self::LANES / 2)) as i32;
        // SAFETY: the caller's promise.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask), bits), bits)
                }
                ScalarKind::F64 => {
                    let bits = _mm256_setr_epi64x(1, 2, 4, 8);
                    let mask = _mm256_set1_epi64x(mask.into());
                    _mm256_cmpeq_epi64(_mm256_and_si256(mask, bits), bits)
                }
            }
        }
    }

    /// The lanes whose 32-bit number has all bits set. An `f64` vector has eight, `first`.
    #[inline(always)]
    unsafe fn lanes_where(first: __m256i, second: __m256i) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            let first = _mm256_movemask_ps(_mm256_castsi256_ps(first)) as u32;
            match T::KIND {
                ScalarKind::F32 => {
                    first | (_mm256_movemask_ps(_mm256_castsi256_ps(second)) as u32) << 8
                }
                ScalarKind::F64 => first,
            }
        }
    }
}

/// Eight numbers as `f32`; see [`Narrow::to_f32`].
#[inline(always)]
unsafe fn eight<N: Narrow>(p: *const N) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match N::PRECISION {
            Precision::F32 => read(p),
            Precision::Bf16 => {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p))))
            }
            Precision::F16 => {
                /// Exponent field of infinities and NaNs.
                const SPECIAL: i32 = 0x1f << 10;
                let bits = _mm256_cvtepu16_epi32(read(p));
                let magnitude =
                    _mm256_slli_epi32::<13>(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fff)));
                let biases = _mm256_set1_ps(f32::from_bits((127 + 127 - 15) << 23));
                let magnitude = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), biases);
                let special = _mm256_set1_epi32(SPECIAL);
                let special = _mm256_cmpeq_epi32(_mm256_and_si256(bits, special), special);
                let special = _mm256_and_si256(special, _mm256_set1_epi32(0xff << 23));
                let sign =
                    _mm256_slli_epi32::<16>(_mm256_and_si256(bits, _mm256_set1_epi32(0x8000)));
                _mm256_or_ps(magnitude, _mm256_castsi256_ps(_mm256_or_si256(special, sign)))
            }
        }
    }
}

/// `x[indices[i]]` for `f32`.
#[inline(always)]
unsafe fn singles(x: *const f32, indices: [u32; 8]) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_setr_ps(
            element(x, indices[0] as usize),
            element(x, indices[1] as usize),
            element(x, indices[2] as usize),
            element(x, indices[3] as usize),
            element(x, indices[4] as usize),
            element(x, indices[5] as usize),
            element(x, indices[6] as usize),
            element(x, indices[7] as usize),
        )
    }
}

/// `x[indices[i]]` for `f64`.
#[inline(always)]
unsafe fn doubles(x: *const f64, indices: [u32; 4]) -> __m256d {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_setr_pd(
            element(x, indices[0] as usize),
            element(x, indices[1] as usize),
            element(x, indices[2] as usize),
            element(x, indices[3] as usize),
        )
    }
}

// Each `match T::KIND` is resolved at compile time, and the pointer casts only restate `T`.
// SAFETY (every block): the caller of the trait's method promises the instructions and the memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar> Vector<T> for Avx2<T> {
    const LANES: usize = 64 / size_of::<T>();
    /// Indices of both registers; an `f64` vector uses the first half. They stay scalars, because
    /// their loads cost less than moves from lanes of a vector.
    type Indices = [[u32; 4]; 4];

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self::single(unsafe { [_mm256_setzero_ps(); 2] })
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        unsafe { Self::single([read(p), read(element_at(p, Self::LANES / 2))]) }
    }

    #[inline(always)]
    unsafe fn gather(x: *const T, col: *const u32) -> Self {
        unsafe { Self::gather_at(x, Self::indices(col)) }
    }

    #[inline(always)]
    unsafe fn consecutive(col: *const u32) -> bool {
        unsafe {
            let steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let wanted = _mm256_add_epi32(_mm256_set1_epi32(read(col)), steps);
            let mut same = _mm256_cmpeq_epi32(read(col), wanted);
            if const { Self::LANES > 8 } {
                let wanted = _mm256_add_epi32(wanted, _mm256_set1_epi32(8));
                let second = _mm256_cmpeq_epi32(read(element_at(col, 8)), wanted);
                same = _mm256_and_si256(same, second);
            }
            _mm256_movemask_epi8(same) == -1
        }
    }

    #[inline(always)]
    unsafe fn present(col: *const u32) -> u32 {
        unsafe {
            let padding = _mm256_set1_epi32(PADDING as i32);
            let first = _mm256_cmpeq_epi32(read(col), padding);
            let second = match T::KIND {
                ScalarKind::F32 => _mm256_cmpeq_epi32(read(element_at(col, 8)), padding),
                ScalarKind::F64 => first,
            };
            !Self::lanes_where(first, second) & Self::ALL
        }
    }

    #[inline(always)]
    unsafe fn longer(row_len: *const u32, k: u32) -> u32 {
        unsafe {
            // The larger of both is `k`.
            let k = _mm256_set1_epi32(k as i32);
            let first = _mm256_cmpeq_epi32(_mm256_max_epu32(read(row_len), k), k);
            let second = match T::KIND {
                ScalarKind::F32 => {
                    _mm256_cmpeq_epi32(_mm256_max_epu32(read(element_at(row_len, 8)), k), k)
                }
                ScalarKind::F64 => first,
            };
            !Self::lanes_where(first, second) & Self::ALL
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single([
                    _mm256_add_ps(self.0[0], _mm256_mul_ps(a.0[0], b.0[0])),
                    _mm256_add_ps(self.0[1], _mm256_mul_ps(a.0[1], b.0[1])),
                ]),
                ScalarKind::F64 => Self::double(
                    _mm256_add_pd(
                        self.double_lanes(0),
                        _mm256_mul_pd(a.double_lanes(0), b.double_lanes(0)),
                    ),
                    _mm256_add_pd(
                        self.double_lanes(1),
                        _mm256_mul_pd(a.double_lanes(1), b.double_lanes(1)),
                    ),
                ),
            }
        }
    }

    #[inline(always)]
    unsafe fn mul_add_masked(
        self,
        mask: u32,
        values: *const T,
        x: *const T,
        col: *const u32,
    ) -> Self {
        let mut lanes = [T::ZERO; MAX];
        unsafe {
            self.store(lanes.as_mut_ptr());
            for i in set_lanes(mask) {
                lanes[i] += element(values, i) * element(x, element(col, i) as usize);
            }
            Self::load(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn splat(number: T) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single([_mm256_set1_ps(number.to_f64() as f32); 2]),
                ScalarKind::F64 => {
                    let number = _mm256_set1_pd(number.to_f64());
                    Self::double(number, number)
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_masked(mask: u32, p: *const T) -> Self {
        let next = p.wrapping_add(Self::LANES / 2);
        unsafe {
            let (first, second) = (Self::selected(mask, 0), Self::selected(mask, 1));
            match T::KIND {
                ScalarKind::F32 => Self::single([
                    _mm256_maskload_ps(p.cast(), first),
                    _mm256_maskload_ps(next.cast(), second),
                ]),
                ScalarKind::F64 => Self::double(
                    _mm256_maskload_pd(p.cast(), first),
                    _mm256_maskload_pd(next.cast(), second),
                ),
            }
        }
    }

    #[inline(always)]
    unsafe fn widen<N: Narrow>(p: *const N) -> Self {
        unsafe {
            let first = eight(p);
            match T::KIND {
                ScalarKind::F32 => Self::single([first, eight(element_at(p, 8))]),
                ScalarKind::F64 => Self::double(
                    _mm256_cvtps_pd(_mm256_castps256_ps128(first)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(first)),
                ),
            }
        }
    }

    #[inline(always)]
    unsafe fn indices<N: LaneIndex>(p: *const N) -> [[u32; 4]; 4] {
        let mut indices = [[0; 4]; 4];
        for i in 0..Self::LANES {
            indices[i / 4][i % 4] = unsafe { read::<N>(element_at(p, i)) }.widen();
        }
        indices
    }

    #[inline(always)]
    unsafe fn gather_at(x: *const T, [a, b, c, d]: [[u32; 4]; 4]) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single([
                    singles(x.cast(), [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]),
                    singles(x.cast(), [c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]),
                ]),
                ScalarKind::F64 => Self::double(doubles(x.cast(), a), doubles(x.cast(), b)),
            }
        }
    }

    #[inline(always)]
    unsafe fn mul_add_where(self, mask: u32, a: Self, b: Self) -> Self {
        unsafe {
            let Self(sums, _) = self.mul_add(a, b);
            let first = _mm256_castsi256_ps(Self::selected(mask, 0));
            let second = _mm256_castsi256_ps(Self::selected(mask, 1));
            Self::single([
                _mm256_blendv_ps(self.0[0], sums[0], first),
                _mm256_blendv_ps(self.0[1], sums[1], second),
            ])
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        unsafe {
            write(p, self.0[0]);
            write(element_at(p, Self::LANES / 2).cast_mut(), self.0[1]);
        }
    }

    /// Pairwise halving, as `sum_of_halves`.
    #[inline(always)]
    unsafe fn sum(self) -> T {
        let mut total = T::ZERO;
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    let eight = _mm256_add_ps(self.0[0], self.0[1]);
                    let (low, high) =
                        (_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                    let four = _mm_add_ps(low, high);
                    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                    let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
                    write(&raw mut total, _mm_cvtss_f32(one));
                }
                ScalarKind::F64 => {
                    let four = _mm256_add_pd(self.double_lanes(0), self.double_lanes(1));
                    let (low, high) =
                        (_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
                    let two = _mm_add_pd(low, high);
                    let one = _mm_add_sd(two, _mm_unpackhi_pd(two, two));
                    write(&raw mut total, _mm_cvtsd_f64(one));
                }
            }
        }
        total
    }
}
