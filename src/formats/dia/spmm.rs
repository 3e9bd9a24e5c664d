//! SpMM with DIA on the CPU.

use super::{HostDia, SLICE};
use crate::Scalar;
use crate::device::cpu::{Vector, element, element_at, read, run_parts, write};
use crate::formats::{HostSpmm, HostVectors, SpmmKernel, SpmmRows};

impl<T: Scalar> HostSpmm<T> for HostDia<T> {
    unsafe fn multiply(&self, vectors: HostVectors<'_, T>) {
        // SAFETY: the matrix was checked, the vectors are the caller's promise; parts share no row.
        unsafe { run_parts(&self.parts, &SpmmKernel { a: self, vectors }) };
    }
}

impl<T: Scalar> HostDia<T> {
    /// Value and pointer to the factors of a row on a diagonal. None if it has no entry there.
    ///
    /// # Safety
    ///
    /// The matrix has the row and the diagonal, and the vectors from `first` on exist.
    #[inline(always)]
    unsafe fn entry(
        &self,
        x: HostVectors<'_, T>,
        row: usize,
        diagonal: usize,
        first: usize,
    ) -> Option<(T, *const T)> {
        let count = self.offsets.len();
        // SAFETY: the caller's promise; columns of entries are those of `x`.
        unsafe {
            let mask = element(self.masks.as_ptr(), row / SLICE * count + diagonal);
            if mask >> (row % SLICE) & 1 == 0 {
                return None;
            }
            let col = (row as i64 + element(self.offsets.as_ptr(), diagonal)) as usize;
            let value = element(self.values.as_ptr(), self.slot(row, diagonal));
            Some((value, element_at(x.x.as_ptr(), col * x.stride + first)))
        }
    }
}

impl<T: Scalar> SpmmRows<T> for &HostDia<T> {
    #[inline(always)]
    unsafe fn vectors<V: Vector<T>, const G: usize, const U: usize>(
        &self,
        x: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::zero(); G];
            for diagonal in 0..self.offsets.len() {
                let Some((value, x)) = self.entry(x, row, diagonal, first) else { continue };
                let value = V::splat(value);
                for (g, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.mul_add(value, V::load(element_at(x, g * V::LANES)));
                }
            }
            for (g, sum) in sums.iter().enumerate() {
                sum.store(element_at(to, first + g * V::LANES).cast_mut());
            }
        }
    }

    #[inline(always)]
    unsafe fn array<const K: usize>(
        &self,
        x: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [T::ZERO; K];
            for diagonal in 0..self.offsets.len() {
                let Some((value, x)) = self.entry(x, row, diagonal, first) else { continue };
                let x: [T; K] = read(x);
                for v in 0..K {
                    sums[v] += value * x[v];
                }
            }
            write(element_at(to, first).cast_mut(), sums);
        }
    }
}
