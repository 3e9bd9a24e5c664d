//! SpMM on the CPU, row by row: the sums of a row for all vectors are in registers.

use super::HostVectors;
use crate::Scalar;
use crate::device::cpu::{CpuKernel, Vector, element};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Number of sums that are buffered before they are written if vectors are stored one after the
/// other: complete cache lines of each vector, however far apart they are.
const GATHERED: usize = 1024;

/// A matrix, or a part of it, that multiplies several vectors row by row.
pub(crate) trait SpmmRows<T: Scalar> {
    /// Products of a row with `G` vectors of lanes, in `U` running sums each if the format has any
    /// use for more than one. The products are stored from `to` on.
    ///
    /// # Safety
    ///
    /// The matrix has the row, the vectors from `first` on exist, and there is room for their sums.
    unsafe fn vectors<V: Vector<T>, const G: usize, const U: usize>(
        &self,
        x: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    );

    /// Products of a row with `K` vectors, fewer than a vector of lanes.
    ///
    /// # Safety
    ///
    /// As [`vectors`](Self::vectors).
    unsafe fn array<const K: usize>(
        &self,
        x: HostVectors<'_, T>,
        row: usize,
        first: usize,
        to: *mut T,
    );
}

/// Kernel over a range of rows.
pub(crate) struct SpmmKernel<'a, T, A> {
    pub(crate) a: A,
    pub(crate) vectors: HostVectors<'a, T>,
}

impl<T: Scalar, A: SpmmRows<T>> CpuKernel<T> for SpmmKernel<'_, T, A> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, rows: Range<usize>) {
        let HostVectors { y, row: step, vector, count, .. } = self.vectors;
        let direct = vector == 1;
        let at_once = if direct { rows.len().max(1) } else { GATHERED / count };
        let mut gathered = [const { MaybeUninit::<T>::uninit() }; GATHERED];
        let gathered = gathered.as_mut_ptr().cast::<T>();
        // SAFETY: the rows belong to this part, and there is room for every vector. Sums are
        // gathered before they are read.
        unsafe {
            for start in rows.clone().step_by(at_once) {
                let block = start..rows.end.min(start + at_once);
                for row in block.clone() {
                    let to = if direct {
                        y.at(row * step)
                    } else {
                        gathered.wrapping_add((row - start) * count)
                    };
                    self.row::<V>(row, to);
                }
                if direct {
                    continue;
                }
                for v in 0..count {
                    for row in block.clone() {
                        let sum = element(gathered, (row - start) * count + v);
                        y.set(row * step + v * vector, sum);
                    }
                }
            }
        }
    }
}

impl<T: Scalar, A: SpmmRows<T>> SpmmKernel<'_, T, A> {
    /// Products of a row with all vectors, stored consecutively from `to` on.
    ///
    /// # Safety
    ///
    /// The matrix has the row, the vectors exist, and there is room for their sums.
    #[inline(always)]
    unsafe fn row<V: Vector<T>>(&self, row: usize, to: *mut T) {
        let (a, x) = (&self.a, self.vectors);
        let (count, mut first) = (x.count, 0);
        // SAFETY: the caller's promise; `first` and what is multiplied from there on are below
        // `count`.
        unsafe {
            if const { V::COMPACT } {
                while first + 8 <= count {
                    a.array::<8>(x, row, first, to);
                    first += 8;
                }
            }
            while const { !V::COMPACT } && first + 2 * V::LANES <= count {
                a.vectors::<V, 2, 2>(x, row, first, to);
                first += 2 * V::LANES;
            }
            if const { !V::COMPACT } && first + V::LANES <= count {
                a.vectors::<V, 1, 4>(x, row, first, to);
                first += V::LANES;
            }
            // The remainder is less than a vector: eight, four, and up to three at a time.
            if const { V::LANES > 8 && !V::COMPACT } && (count - first) & 8 != 0 {
                a.array::<8>(x, row, first, to);
                first += 8;
            }
            if (count - first) & 4 != 0 {
                a.array::<4>(x, row, first, to);
                first += 4;
            }
            match count - first {
                3 => a.array::<3>(x, row, first, to),
                2 => a.array::<2>(x, row, first, to),
                1 => a.array::<1>(x, row, first, to),
                _ => {}
            }
        }
    }
}
