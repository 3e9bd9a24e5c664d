//! Vectors of lanes: AVX-512 where the machine has it, found at run time; plain arrays, compiled for AVX2 or for
//! the baseline, elsewhere.
//!
//! Columns that follow one another are recognised and `x` loaded whole; measured on Zen 4, one core, 5-point stencil in f32:
//! 0.39 ns an entry against 0.59.

use crate::{Scalar, ScalarKind};
use std::ops::Range;
use std::sync::OnceLock;

/// The column of a padded slot. No matrix has it: [`MAX_DIMENSION`](crate::matrix::MAX_DIMENSION) is smaller.
pub(crate) const PADDING: u32 = u32::MAX;

/// Asks for the cache line at `p`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the caches, whatever the address; SSE is part of the baseline.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Several numbers worked on at once. Lane masks have bit `i` set for lane `i`.
pub(crate) trait Vector<T: Scalar>: Copy {
    /// Numbers in one vector, at most 16.
    const LANES: usize;
    /// The mask of all lanes.
    const ALL: u32 = (1u32 << Self::LANES) - 1;

    /// All lanes zero.
    unsafe fn zero() -> Self;
    /// `LANES` numbers from `p` on.
    unsafe fn load(p: *const T) -> Self;
    /// `x[col[i]]` in lane `i`.
    unsafe fn gather(x: *const T, col: *const u32) -> Self;
    /// Whether the columns are `c, c + 1, c + 2, …`.
    unsafe fn consecutive(col: *const u32) -> bool;
    /// The lanes whose column is not [`PADDING`].
    unsafe fn present(col: *const u32) -> u32;
    /// The lanes whose row is longer than `k`.
    unsafe fn longer(row_len: *const u32, k: u32) -> u32;
    /// `self + a · b`, lane by lane.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// `self[i] + values[i] · x[col[i]]` in the lanes of `mask`; the others keep their number and nothing of theirs
    /// is read.
    unsafe fn mul_add_masked(self, mask: u32, values: *const T, x: *const T, col: *const u32) -> Self;
    /// Writes `LANES` numbers from `p` on.
    unsafe fn store(self, p: *mut T);
    /// The sum over the lanes.
    unsafe fn sum(self) -> T;
}

/// A computation written once for vectors of any kind.
pub(crate) trait Kernel<T: Scalar> {
    /// Does the items of `range`.
    ///
    /// # Safety
    ///
    /// The machine has the instructions of `V`, and the kernel's own conditions hold for `range`.
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>);
}

/// The vector instructions of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }
}

/// The best level this machine has, or the one `SPARSEOP_SIMD` (`avx512`, `avx2`, `portable`) lowers it to.
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let wish = std::env::var("SPARSEOP_SIMD").unwrap_or_default();
        let found = levels();
        found.iter().copied().find(|l| l.name() == wish).unwrap_or(found[0])
    })
}

/// Every level this machine has, best first.
pub(crate) fn levels() -> Vec<Level> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut found = vec![];
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let bits = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
        let counts = is_x86_feature_detected!("lzcnt") && is_x86_feature_detected!("popcnt");
        let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        if avx2 && bits && counts && wide {
            found.push(Level::Avx512);
        }
        if avx2 {
            found.push(Level::Avx2);
        }
        found.push(Level::Portable);
        found
    }
    #[cfg(not(target_arch = "x86_64"))]
    vec![Level::Portable]
}

/// Runs `kernel` at this machine's level.
///
/// # Safety
///
/// The kernel's own conditions hold for `range`.
pub(crate) unsafe fn dispatch<T: Scalar>(kernel: &impl Kernel<T>, range: Range<usize>) {
    // SAFETY: `level` only names what the machine has; the rest is the caller's promise.
    unsafe { dispatch_at(level(), kernel, range) }
}

/// Runs `kernel` at a given level.
///
/// # Safety
///
/// The machine has the level, and the kernel's own conditions hold for `range`.
pub(crate) unsafe fn dispatch_at<T: Scalar>(level: Level, kernel: &impl Kernel<T>, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::run_avx512(kernel, range),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::run_avx2(kernel, range),
            Level::Portable => run_portable(kernel, range),
        }
    }
}

unsafe fn run_portable<T: Scalar>(kernel: &impl Kernel<T>, range: Range<usize>) {
    // SAFETY: arrays need no instructions beyond the baseline.
    unsafe {
        match T::KIND {
            ScalarKind::F32 => kernel.run::<Array<T, 16>>(range),
            ScalarKind::F64 => kernel.run::<Array<T, 8>>(range),
        }
    }
}

/// Lanes as a plain array, for the compiler to vectorise.
#[derive(Debug, Clone, Copy)]
struct Array<T, const L: usize>([T; L]);

impl<T: Scalar, const L: usize> Vector<T> for Array<T, L> {
    const LANES: usize = L;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::ZERO; L])
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { p.cast::<[T; L]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn gather(x: *const T, col: *const u32) -> Self {
        // SAFETY: the caller's promise.
        Self(std::array::from_fn(|i| unsafe { *x.add(*col.add(i) as usize) }))
    }

    #[inline(always)]
    unsafe fn consecutive(col: *const u32) -> bool {
        // SAFETY: the caller's promise.
        let col = unsafe { col.cast::<[u32; L]>().read_unaligned() };
        let mut same = true;
        for i in 0..L {
            same &= col[i] == col[0].wrapping_add(i as u32);
        }
        same
    }

    #[inline(always)]
    unsafe fn present(col: *const u32) -> u32 {
        // SAFETY: the caller's promise.
        (0..L).fold(0, |m, i| m | u32::from(unsafe { *col.add(i) } != PADDING) << i)
    }

    #[inline(always)]
    unsafe fn longer(row_len: *const u32, k: u32) -> u32 {
        // SAFETY: the caller's promise.
        (0..L).fold(0, |m, i| m | u32::from(unsafe { *row_len.add(i) } > k) << i)
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + a.0[i] * b.0[i]))
    }

    #[inline(always)]
    unsafe fn mul_add_masked(mut self, mask: u32, values: *const T, x: *const T, col: *const u32) -> Self {
        let mut rest = mask;
        while rest != 0 {
            let i = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: the caller's promise, for the lanes of the mask.
            self.0[i] += unsafe { *values.add(i) * *x.add(*col.add(i) as usize) };
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[T; L]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn sum(self) -> T {
        // Halving, as the AVX-512 reduction does.
        let mut lanes = self.0;
        let mut width = L;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Array, Kernel, PADDING, Vector};
    use crate::{Scalar, ScalarKind};
    use std::arch::x86_64::*;
    use std::marker::PhantomData;
    use std::ops::Range;

    #[target_feature(enable = "avx512f,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn run_avx512<T: Scalar>(kernel: &impl Kernel<T>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { kernel.run::<Avx512<T>>(range) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<T: Scalar>(kernel: &impl Kernel<T>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe {
            match T::KIND {
                ScalarKind::F32 => kernel.run::<Array<T, 16>>(range),
                ScalarKind::F64 => kernel.run::<Array<T, 8>>(range),
            }
        }
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

    /// Gathers take their indices for signed, but columns reach past 2³¹: so 2³¹ is taken from every column, by turning its sign
    /// bit over, and added to the vector's start.
    const SIGN: i32 = i32::MIN;

    /// 2³¹ numbers past `x`; see [`SIGN`].
    #[inline(always)]
    fn middle<T>(x: *const T) -> *const T {
        x.wrapping_add(1 << 31)
    }

    // Each `match T::KIND` is decided when the code is compiled, and the pointer casts only restate `T`.
    // SAFETY (every block): the caller of the trait's method promises the instructions and the memory.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl<T: Scalar> Vector<T> for Avx512<T> {
        const LANES: usize = 64 / size_of::<T>();

        #[inline(always)]
        unsafe fn zero() -> Self {
            Self::single(unsafe { _mm512_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn load(p: *const T) -> Self {
            Self::single(unsafe { _mm512_loadu_ps(p.cast()) })
        }

        #[inline(always)]
        unsafe fn gather(x: *const T, col: *const u32) -> Self {
            unsafe {
                match T::KIND {
                    ScalarKind::F32 => {
                        let col = _mm512_xor_si512(_mm512_loadu_si512(col.cast()), _mm512_set1_epi32(SIGN));
                        Self::single(_mm512_i32gather_ps::<4>(col, middle(x).cast()))
                    }
                    ScalarKind::F64 => {
                        let col = _mm256_xor_si256(_mm256_loadu_si256(col.cast()), _mm256_set1_epi32(SIGN));
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
                        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                        let wanted = _mm512_add_epi32(_mm512_set1_epi32(*col as i32), steps);
                        _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(col.cast()), wanted) == 0
                    }
                    ScalarKind::F64 => {
                        let steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                        let wanted = _mm256_add_epi32(_mm256_set1_epi32(*col as i32), steps);
                        _mm256_cmpneq_epi32_mask(_mm256_loadu_si256(col.cast()), wanted) == 0
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn present(col: *const u32) -> u32 {
            unsafe {
                match T::KIND {
                    ScalarKind::F32 => u32::from(_mm512_cmpneq_epi32_mask(
                        _mm512_loadu_si512(col.cast()),
                        _mm512_set1_epi32(PADDING as i32),
                    )),
                    ScalarKind::F64 => u32::from(_mm256_cmpneq_epi32_mask(
                        _mm256_loadu_si256(col.cast()),
                        _mm256_set1_epi32(PADDING as i32),
                    )),
                }
            }
        }

        #[inline(always)]
        unsafe fn longer(row_len: *const u32, k: u32) -> u32 {
            unsafe {
                match T::KIND {
                    ScalarKind::F32 => u32::from(_mm512_cmpgt_epu32_mask(
                        _mm512_loadu_si512(row_len.cast()),
                        _mm512_set1_epi32(k as i32),
                    )),
                    ScalarKind::F64 => u32::from(_mm256_cmpgt_epu32_mask(
                        _mm256_loadu_si256(row_len.cast()),
                        _mm256_set1_epi32(k as i32),
                    )),
                }
            }
        }

        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            unsafe {
                match T::KIND {
                    ScalarKind::F32 => Self::single(_mm512_fmadd_ps(a.0, b.0, self.0)),
                    ScalarKind::F64 => {
                        Self::double(_mm512_fmadd_pd(a.double_lanes(), b.double_lanes(), self.double_lanes()))
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn mul_add_masked(self, mask: u32, values: *const T, x: *const T, col: *const u32) -> Self {
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
        unsafe fn store(self, p: *mut T) {
            unsafe { _mm512_storeu_ps(p.cast(), self.0) };
        }

        #[inline(always)]
        unsafe fn sum(self) -> T {
            let mut lanes = [T::ZERO; 16];
            unsafe { self.store(lanes.as_mut_ptr()) };
            match T::KIND {
                ScalarKind::F32 => unsafe { Array::<T, 16>(lanes).sum() },
                ScalarKind::F64 => unsafe { Array::<T, 8>::load(lanes.as_ptr()).sum() },
            }
        }
    }
}
