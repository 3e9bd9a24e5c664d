//! SpMM with CSR on the CPU.

use super::cpu::{NarrowRows, ask_ahead_of, for_each_block};
use super::{CsrPlan, HostCsr};
use crate::Scalar;
use crate::device::cpu::{Vector, dispatch, element, element_at, for_each_part, read, write};
use crate::formats::{HostSpmm, HostVectors, SpmmKernel, SpmmRows};
use std::ops::Range;

impl<T: Scalar> HostSpmm<T> for HostCsr<T> {
    unsafe fn multiply(&self, vectors: HostVectors<'_, T>) {
        let HostVectors { y, row, .. } = vectors;
        for_each_part(&self.arrangement.parts, |part| {
            let rows = match self.arrangement.plan {
                CsrPlan::Balanced => self.rows_that_begin_in(part),
                _ => part,
            };
            // SAFETY: the matrix was checked; parts share no row.
            for_each_block(self, rows, &|block, rows| unsafe {
                let y = y.skip(block.first_row * row);
                dispatch(&SpmmKernel { a: block, vectors: HostVectors { y, ..vectors } }, rows);
            });
        });
    }
}

impl<T: Scalar> NarrowRows<'_, T> {
    /// Entries of a row.
    #[inline(always)]
    fn entries(&self, row: usize) -> Range<usize> {
        self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize
    }

    /// Returns the value of an entry, and the pointer to its factors, those of the vectors from
    /// `first` on.
    ///
    /// # Safety
    ///
    /// The entry is one of the matrix.
    #[inline(always)]
    unsafe fn entry(&self, x: HostVectors<'_, T>, k: usize, first: usize) -> (T, *const T) {
        // SAFETY: the caller's promise; columns of a checked matrix are those of `x`.
        unsafe {
            let col = element(self.col_idx.as_ptr(), k) as usize;
            let x = element_at(x.x.as_ptr(), col * x.stride + first);
            (element(self.values.as_ptr(), k), x)
        }
    }
}

impl<T: Scalar> SpmmRows<T> for NarrowRows<'_, T> {
    #[inline(always)]
    unsafe fn vectors<V: Vector<T>, const G: usize, const U: usize>(
        &self,
        vectors: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let entries = self.entries(row);
            let mut sums = [[V::zero(); G]; U];
            let whole = entries.start + entries.len() / U * U;
            let mut k = entries.start;
            while k < whole {
                ask_ahead_of(self.values, self.col_idx, k);
                for (u, sums) in sums.iter_mut().enumerate() {
                    let (value, x) = self.entry(vectors, k + u, first);
                    let value = V::splat(value);
                    for (g, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.mul_add(value, V::load(element_at(x, g * V::LANES)));
                    }
                }
                k += U;
            }
            let (total, others) = sums.split_at_mut(1);
            for k in whole..entries.end {
                let (value, x) = self.entry(vectors, k, first);
                let value = V::splat(value);
                for (g, sum) in total[0].iter_mut().enumerate() {
                    *sum = sum.mul_add(value, V::load(element_at(x, g * V::LANES)));
                }
            }
            for (g, total) in total[0].iter_mut().enumerate() {
                for other in others.iter() {
                    *total = total.mul_add(V::splat(T::ONE), other[g]);
                }
                total.store(element_at(to, first + g * V::LANES).cast_mut());
            }
        }
    }

    #[inline(always)]
    unsafe fn array<const K: usize>(
        &self,
        vectors: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    ) {
        const U: usize = 4;
        let entries = self.entries(row);
        let mut sums = [[T::ZERO; K]; U];
        let whole = entries.start + entries.len() / U * U;
        let mut k = entries.start;
        // SAFETY: the caller's promise.
        unsafe {
            while k < whole {
                ask_ahead_of(self.values, self.col_idx, k);
                for (u, sums) in sums.iter_mut().enumerate() {
                    let (value, x) = self.entry(vectors, k + u, first);
                    let x: [T; K] = read(x);
                    for v in 0..K {
                        sums[v] += value * x[v];
                    }
                }
                k += U;
            }
            let [mut total, others @ ..] = sums;
            for k in whole..entries.end {
                let (value, x) = self.entry(vectors, k, first);
                let x: [T; K] = read(x);
                for v in 0..K {
                    total[v] += value * x[v];
                }
            }
            // Without iterator adapters, which are calls from these instructions to those of any
            // CPU where code is not inlined across units of compilation.
            for other in &others {
                for v in 0..K {
                    total[v] += other[v];
                }
            }
            write(element_at(to, first).cast_mut(), total);
        }
    }
}
