//! Several vectors at once with CSR on the CPU: a row's sums side by side in registers.

use super::cpu::Offset;
use super::{Host, Offsets, Plan};
use crate::Scalar;
use crate::device::cpu::{Kernel, Output, Vector, run_parts};
use std::ops::Range;

/// Where several vectors are in host memory, and where their products go.
///
/// Element `c` of vector `v` is at `x[c · stride + v]`, row `r` of its product at `y[r · row + v · vector]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostVectors<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) stride: usize,
    pub(crate) y: Output<T>,
    pub(crate) row: usize,
    pub(crate) vector: usize,
    /// How many vectors there are.
    pub(crate) count: usize,
}

impl<T: Scalar> Host<T> {
    /// The products with several vectors; `y` is overwritten without being read, and its bits do not depend on the number of threads.
    ///
    /// # Safety
    ///
    /// `x` holds the elements of every column and vector, `y` has room for every row and vector, and nobody else writes there.
    pub(crate) unsafe fn multiply_several(&self, vectors: HostVectors<'_, T>) {
        // SAFETY: the matrix was checked; parts share no row.
        unsafe {
            match &self.row_ptr {
                Offsets::Narrow(row_ptr) => run_parts(&self.parts, &Rows { a: self, row_ptr, vectors }),
                Offsets::Wide(row_ptr) => run_parts(&self.parts, &Rows { a: self, row_ptr, vectors }),
            }
        }
    }
}

/// The range is one of rows; of entries where the plan is balanced, for the rows that begin there.
struct Rows<'a, T, O> {
    a: &'a Host<T>,
    row_ptr: &'a [O],
    vectors: HostVectors<'a, T>,
}

impl<T: Scalar, O: Offset> Kernel<T> for Rows<'_, T, O> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let count = self.vectors.count;
        for row in self.rows(range) {
            let entries = self.row_ptr[row].get()..self.row_ptr[row + 1].get();
            let mut first = 0;
            // SAFETY: the entries are the row's, which is this part's, and the vectors are there.
            unsafe {
                while first + 2 * V::LANES <= count {
                    self.vectors::<V, 2>(row, entries.clone(), first);
                    first += 2 * V::LANES;
                }
                if first + V::LANES <= count {
                    self.vectors::<V, 1>(row, entries.clone(), first);
                    first += V::LANES;
                }
                // What is left is less than a vector: its binary digits.
                if (count - first) & 8 != 0 {
                    self.array::<8>(row, entries.clone(), first);
                    first += 8;
                }
                if (count - first) & 4 != 0 {
                    self.array::<4>(row, entries.clone(), first);
                    first += 4;
                }
                if (count - first) & 2 != 0 {
                    self.array::<2>(row, entries.clone(), first);
                    first += 2;
                }
                if (count - first) & 1 != 0 {
                    self.array::<1>(row, entries, first);
                }
            }
        }
    }
}

impl<T: Scalar, O: Offset> Rows<'_, T, O> {
    /// The rows of a part.
    fn rows(&self, range: Range<usize>) -> Range<usize> {
        if self.a.plan != Plan::Balanced {
            return range;
        }
        let nrows = self.row_ptr.len() - 1;
        let first = |entry: usize| self.row_ptr[..nrows].partition_point(|p| p.get() < entry);
        let last = range.end == self.row_ptr[nrows].get();
        first(range.start)..if last { nrows } else { first(range.end) }
    }

    /// Calls `add(value, factors)` for every entry, the factors those of the vectors from `first` on.
    ///
    /// # Safety
    ///
    /// The entries are some of the matrix.
    #[inline(always)]
    unsafe fn each(&self, entries: Range<usize>, first: usize, mut add: impl FnMut(T, *const T)) {
        let x = self.vectors.x.as_ptr().wrapping_add(first);
        for k in entries {
            // SAFETY: the caller's promise; columns of a checked matrix are those of `x`.
            let (value, col) =
                unsafe { (*self.a.values.get_unchecked(k), *self.a.col_idx.get_unchecked(k) as usize) };
            add(value, x.wrapping_add(col * self.vectors.stride));
        }
    }

    /// A row's products with `G` vectors of lanes.
    #[inline(always)]
    unsafe fn vectors<V: Vector<T>, const G: usize>(&self, row: usize, entries: Range<usize>, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::zero(); G];
            self.each(entries, first, |value, x| {
                let value = V::splat(value);
                for (g, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.mul_add(value, V::load(x.add(g * V::LANES)));
                }
            });
            for (g, sum) in sums.into_iter().enumerate() {
                let first = first + g * V::LANES;
                if self.vectors.vector == 1 {
                    sum.store(self.vectors.y.at(row * self.vectors.row + first));
                } else {
                    let mut lanes = [T::ZERO; 16];
                    sum.store(lanes.as_mut_ptr());
                    self.put(row, first, &lanes[..V::LANES]);
                }
            }
        }
    }

    /// A row's products with `K` vectors, fewer than a vector of lanes.
    #[inline(always)]
    unsafe fn array<const K: usize>(&self, row: usize, entries: Range<usize>, first: usize) {
        let mut sums = [T::ZERO; K];
        // SAFETY: the caller's promise.
        unsafe {
            self.each(entries, first, |value, x| {
                let x = x.cast::<[T; K]>().read_unaligned();
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum += value * x;
                }
            });
            self.put(row, first, &sums);
        }
    }

    /// Writes the sums of a row for the vectors from `first` on.
    #[inline(always)]
    unsafe fn put(&self, row: usize, first: usize, sums: &[T]) {
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: the row is this part's, and there is room for every vector.
            unsafe { self.vectors.y.set(row * self.vectors.row + (first + v) * self.vectors.vector, sum) };
        }
    }
}
