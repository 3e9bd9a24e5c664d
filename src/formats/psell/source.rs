//! Values of packed SELL, in any representation, as vectors.

use crate::Scalar;
use crate::device::cpu::{Vector, element, element_at, prefetch, widened};
use crate::precision::Narrow;

/// Prefetch distance of values and indices: the same as for plain SELL, see
/// `src/formats/sell/cpu.rs`.
pub(super) const AHEAD: usize = 256;

/// Values by their positions.
///
/// Callers promise that the positions are those of the matrix. Vectors may reach past the last
/// value: see [`SLACK`](super::SLACK).
pub(super) trait Source<T: Scalar>: Copy + Send + Sync {
    /// The value at `at`.
    unsafe fn get(self, at: usize) -> T;
    /// Loads a vector of values from `at`.
    unsafe fn load<V: Vector<T>>(self, at: usize) -> V;
    /// Loads successive values from `at` into the lanes of `mask`; the other lanes hold any number.
    unsafe fn expand<V: Vector<T>>(self, mask: u32, at: usize) -> V;
    /// Prefetches the values some distance after `at`.
    fn prefetch_ahead(self, at: usize);
}

/// Values in the matrix's own type.
#[derive(Clone, Copy)]
pub(super) struct Plain<T>(pub(super) *const T);
/// Codes and the dictionary they index.
#[derive(Clone, Copy)]
pub(super) struct Codes<T>(pub(super) *const u8, pub(super) *const T);
/// Narrow numbers, widened when loaded.
#[derive(Clone, Copy)]
pub(super) struct Widened<N>(pub(super) *const N);
/// The same value at all positions.
#[derive(Clone, Copy)]
pub(super) struct Same<T>(pub(super) T);

// SAFETY: the values are only read.
unsafe impl<T: Sync> Send for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Send for Codes<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Codes<T> {}
// SAFETY: as above.
unsafe impl<N: Sync> Send for Widened<N> {}
// SAFETY: as above.
unsafe impl<N: Sync> Sync for Widened<N> {}

// SAFETY (every block): the callers' promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar> Source<T> for Plain<T> {
    #[inline(always)]
    unsafe fn get(self, at: usize) -> T {
        unsafe { element(self.0, at) }
    }

    #[inline(always)]
    unsafe fn load<V: Vector<T>>(self, at: usize) -> V {
        unsafe { V::load(element_at(self.0, at)) }
    }

    #[inline(always)]
    unsafe fn expand<V: Vector<T>>(self, mask: u32, at: usize) -> V {
        unsafe { V::expand(mask, element_at(self.0, at)) }
    }

    #[inline(always)]
    fn prefetch_ahead(self, at: usize) {
        prefetch(self.0.wrapping_add(at + AHEAD));
    }
}

// SAFETY (every block): the callers' promise; every code has its value.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar> Source<T> for Codes<T> {
    #[inline(always)]
    unsafe fn get(self, at: usize) -> T {
        unsafe { element(self.1, usize::from(element(self.0, at))) }
    }

    #[inline(always)]
    unsafe fn load<V: Vector<T>>(self, at: usize) -> V {
        unsafe { V::gather_at(self.1, V::indices(element_at(self.0, at))) }
    }

    #[inline(always)]
    unsafe fn expand<V: Vector<T>>(self, mask: u32, at: usize) -> V {
        unsafe { V::gather_expanded(mask, self.1, V::expand_indices(mask, element_at(self.0, at))) }
    }

    #[inline(always)]
    fn prefetch_ahead(self, at: usize) {
        prefetch(self.0.wrapping_add(at + AHEAD));
    }
}

// SAFETY (every block): the callers' promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar, N: Narrow> Source<T> for Widened<N> {
    #[inline(always)]
    unsafe fn get(self, at: usize) -> T {
        widened(unsafe { element(self.0, at) })
    }

    #[inline(always)]
    unsafe fn load<V: Vector<T>>(self, at: usize) -> V {
        unsafe { V::widen(element_at(self.0, at)) }
    }

    #[inline(always)]
    unsafe fn expand<V: Vector<T>>(self, mask: u32, at: usize) -> V {
        unsafe { V::widen_expanded(mask, element_at(self.0, at)) }
    }

    #[inline(always)]
    fn prefetch_ahead(self, at: usize) {
        prefetch(self.0.wrapping_add(at + AHEAD));
    }
}

// SAFETY (every block): nothing is read.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<T: Scalar> Source<T> for Same<T> {
    #[inline(always)]
    unsafe fn get(self, _: usize) -> T {
        self.0
    }

    #[inline(always)]
    unsafe fn load<V: Vector<T>>(self, _: usize) -> V {
        unsafe { V::splat(self.0) }
    }

    #[inline(always)]
    unsafe fn expand<V: Vector<T>>(self, _: u32, _: usize) -> V {
        unsafe { V::splat(self.0) }
    }

    #[inline(always)]
    fn prefetch_ahead(self, _: usize) {}
}
