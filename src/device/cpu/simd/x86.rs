//! AVX-512 vectors, and the instruction set levels of x86.

use super::super::raw::{read, write};
use super::avx2::Avx2;
use super::{CpuKernel, LaneIndex, PADDING, Vector, sum_of_halves};
use crate::precision::Narrow;
use crate::{Precision, Scalar, ScalarKind};
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

#[target_feature(enable = "avx512f,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run_avx512<T: Scalar>(kernel: &impl CpuKernel<T>, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<Avx512<T>>(range) }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<T: Scalar>(kernel: &impl CpuKernel<T>, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<Avx2<T>>(range) }
}

/// One 512-bit register, holding 16 `f32` or 8 `f64`.
#[derive(Debug, Clone, Copy)]
struct Avx512<T>(__m512, PhantomData<T>);

impl<T> Avx512<T> {
    #[inline(always)]
    fn single(lanes: __m512) -> Self {
        Self(lanes, PhantomData)
    }

    #[inline(always)]
    unsafe fn double(lanes: __m512d) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_castpd_ps(lanes) }, PhantomData)
    }

    #[inline(always)]
    unsafe fn double_lanes(self) -> __m512d {
        // SAFETY: the caller's promise.
        unsafe { _mm512_castps_pd(self.0) }
    }
}

impl<T: Scalar> Avx512<T> {
    /// Moves successive numbers of `self` into the lanes of `mask`; the other lanes are zero.
    #[inline(always)]
    unsafe fn expanded(self, mask: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single(_mm512_maskz_expand_ps(mask as u16, self.0)),
                ScalarKind::F64 => {
                    Self::double(_mm512_maskz_expand_pd(mask as u8, self.double_lanes()))
                }
            }
        }
    }
}

/// Offset between columns and gather indices. Gathers take signed indices, but columns exceed
/// 2³¹. Hence 2³¹ is subtracted from every column, by flipping its sign bit, and added to the
/// start of the vector.
const SIGN: i32 = i32::MIN;

/// Address 2³¹ numbers past `x`; see [`SIGN`].
#[inline(always)]
fn middle<T>(x: *const T) -> *const T {
    x.wrapping_add(1 << 31)
}

// Each `match T::KIND` is resolved at compile time, and the pointer casts only restate `T`.
// SAFETY (every block): the caller of the trait's method promises the instructions and the memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar> Vector<T> for Avx512<T> {
    const LANES: usize = 64 / size_of::<T>();
    // Measured on a Xeon: kernels in `f32` lose a fifteenth, and those of arrays a tenth.
    const ANY_WIDTH: bool = matches!(T::KIND, ScalarKind::F64);
    const EXPANDS: bool = true;
    type Indices = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self::single(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        Self::single(unsafe { read(p) })
    }

    #[inline(always)]
    unsafe fn gather(x: *const T, col: *const u32) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    let col = _mm512_xor_si512(read(col), _mm512_set1_epi32(SIGN));
                    Self::single(_mm512_i32gather_ps::<4>(col, middle(x).cast()))
                }
                ScalarKind::F64 => {
                    let col = _mm256_xor_si256(read(col), _mm256_set1_epi32(SIGN));
                    Self::double(_mm512_i32gather_pd::<8>(col, middle(x).cast()))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn consecutive(col: *const u32) -> bool {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    let steps =
                        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                    let wanted = _mm512_add_epi32(_mm512_set1_epi32(read(col)), steps);
                    _mm512_cmpneq_epi32_mask(read(col), wanted) == 0
                }
                ScalarKind::F64 => {
                    let steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                    let wanted = _mm256_add_epi32(_mm256_set1_epi32(read(col)), steps);
                    _mm256_cmpneq_epi32_mask(read(col), wanted) == 0
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn present(col: *const u32) -> u32 {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => u32::from(_mm512_cmpneq_epi32_mask(
                    read(col),
                    _mm512_set1_epi32(PADDING as i32),
                )),
                ScalarKind::F64 => u32::from(_mm256_cmpneq_epi32_mask(
                    read(col),
                    _mm256_set1_epi32(PADDING as i32),
                )),
            }
        }
    }

    #[inline(always)]
    unsafe fn longer(row_len: *const u32, k: u32) -> u32 {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    u32::from(_mm512_cmpgt_epu32_mask(read(row_len), _mm512_set1_epi32(k as i32)))
                }
                ScalarKind::F64 => {
                    u32::from(_mm256_cmpgt_epu32_mask(read(row_len), _mm256_set1_epi32(k as i32)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single(_mm512_fmadd_ps(a.0, b.0, self.0)),
                ScalarKind::F64 => Self::double(_mm512_fmadd_pd(
                    a.double_lanes(),
                    b.double_lanes(),
                    self.double_lanes(),
                )),
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
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    let mask = mask as u16;
                    let col = _mm512_maskz_loadu_epi32(mask, col.cast());
                    let col = _mm512_xor_si512(col, _mm512_set1_epi32(SIGN));
                    let zero = _mm512_setzero_ps();
                    let x = _mm512_mask_i32gather_ps::<4>(zero, mask, col, middle(x).cast());
                    let values = _mm512_maskz_loadu_ps(mask, values.cast());
                    Self::single(_mm512_mask3_fmadd_ps(values, x, self.0, mask))
                }
                ScalarKind::F64 => {
                    let mask = mask as u8;
                    let col = _mm256_maskz_loadu_epi32(mask, col.cast());
                    let col = _mm256_xor_si256(col, _mm256_set1_epi32(SIGN));
                    let zero = _mm512_setzero_pd();
                    let x = _mm512_mask_i32gather_pd::<8>(zero, mask, col, middle(x).cast());
                    let values = _mm512_maskz_loadu_pd(mask, values.cast());
                    Self::double(_mm512_mask3_fmadd_pd(values, x, self.double_lanes(), mask))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(number: T) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single(_mm512_set1_ps(number.to_f64() as f32)),
                ScalarKind::F64 => Self::double(_mm512_set1_pd(number.to_f64())),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_masked(mask: u32, p: *const T) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single(_mm512_maskz_loadu_ps(mask as u16, p.cast())),
                ScalarKind::F64 => Self::double(_mm512_maskz_loadu_pd(mask as u8, p.cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn expand(mask: u32, p: *const T) -> Self {
        unsafe { Self::load(p).expanded(mask) }
    }

    #[inline(always)]
    unsafe fn widen<N: Narrow>(p: *const N) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => Self::single(match N::PRECISION {
                    Precision::Bf16 => {
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(read(p))))
                    }
                    Precision::F16 => _mm512_cvtph_ps(read(p)),
                    Precision::F32 => read(p),
                }),
                ScalarKind::F64 => Self::double(_mm512_cvtps_pd(match N::PRECISION {
                    Precision::Bf16 => {
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p))))
                    }
                    // Half of the result is not needed; the narrower instruction belongs to a
                    // separate feature.
                    Precision::F16 => {
                        _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(read(p))))
                    }
                    Precision::F32 => read(p),
                })),
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_expanded<N: Narrow>(mask: u32, p: *const N) -> Self {
        unsafe { Self::widen(p).expanded(mask) }
    }

    #[inline(always)]
    unsafe fn indices<N: LaneIndex>(p: *const N) -> __m512i {
        unsafe {
            match (T::KIND, size_of::<N>()) {
                (ScalarKind::F32, 1) => _mm512_cvtepu8_epi32(read(p)),
                (ScalarKind::F32, 2) => _mm512_cvtepu16_epi32(read(p)),
                (ScalarKind::F32, _) => read(p),
                (ScalarKind::F64, 1) => {
                    _mm512_castsi256_si512(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(read(p))))
                }
                (ScalarKind::F64, 2) => _mm512_castsi256_si512(_mm256_cvtepu16_epi32(read(p))),
                (ScalarKind::F64, _) => _mm512_castsi256_si512(read(p)),
            }
        }
    }

    #[inline(always)]
    unsafe fn expand_indices<N: LaneIndex>(mask: u32, p: *const N) -> __m512i {
        unsafe { _mm512_maskz_expand_epi32(mask as u16, Self::indices(p)) }
    }

    #[inline(always)]
    unsafe fn gather_at(x: *const T, indices: __m512i) -> Self {
        unsafe {
            let indices = _mm512_xor_si512(indices, _mm512_set1_epi32(SIGN));
            match T::KIND {
                ScalarKind::F32 => {
                    Self::single(_mm512_i32gather_ps::<4>(indices, middle(x).cast()))
                }
                ScalarKind::F64 => {
                    let indices = _mm512_castsi512_si256(indices);
                    Self::double(_mm512_i32gather_pd::<8>(indices, middle(x).cast()))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn gather_expanded(mask: u32, x: *const T, indices: __m512i) -> Self {
        unsafe {
            let indices = _mm512_xor_si512(indices, _mm512_set1_epi32(SIGN));
            match T::KIND {
                ScalarKind::F32 => {
                    let zero = _mm512_setzero_ps();
                    let gathered =
                        _mm512_mask_i32gather_ps::<4>(zero, mask as u16, indices, middle(x).cast());
                    Self::single(gathered)
                }
                ScalarKind::F64 => {
                    let indices = _mm512_castsi512_si256(indices);
                    let zero = _mm512_setzero_pd();
                    let gathered =
                        _mm512_mask_i32gather_pd::<8>(zero, mask as u8, indices, middle(x).cast());
                    Self::double(gathered)
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn mul_add_where(self, mask: u32, a: Self, b: Self) -> Self {
        unsafe {
            match T::KIND {
                ScalarKind::F32 => {
                    Self::single(_mm512_mask3_fmadd_ps(a.0, b.0, self.0, mask as u16))
                }
                ScalarKind::F64 => {
                    let (a, b) = (a.double_lanes(), b.double_lanes());
                    Self::double(_mm512_mask3_fmadd_pd(a, b, self.double_lanes(), mask as u8))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        unsafe { write(p, self.0) };
    }

    /// Sum of the lanes, by way of memory: with the intrinsics of AVX2 that add halves
    /// `csr(vector:32)` in `f64` took 22 times as long on Zen 4.
    #[inline(always)]
    unsafe fn sum(self) -> T {
        let mut lanes = [T::ZERO; 16];
        unsafe { self.store(lanes.as_mut_ptr()) };
        sum_of_halves(lanes, Self::LANES)
    }
}
