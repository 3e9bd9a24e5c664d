//! CSR on the CPU.

use super::{CsrPlan, HostCsr};
use crate::Scalar;
use crate::device::cpu::{CpuKernel, MAX_PARTS, Output, Vector, prefetch, run_parts};
use std::ops::Range;

/// Prefetch distance in entries. Measured on Zen 4, 64 to 512 are alike and a tenth faster than no
/// prefetch, except that on long runs of neighbouring columns more than 64 lose what 64 gain.
const AHEAD: usize = 64;

/// Least number of value bytes of a step for which prefetching pays: with smaller steps every line
/// is prefetched repeatedly.
const STEP_BYTES: usize = 32;

/// An offset of either width.
pub(super) trait Offset: Copy + Send + Sync {
    fn get(self) -> usize;
}

impl Offset for u32 {
    #[inline(always)]
    fn get(self) -> usize {
        self as usize
    }
}

impl Offset for u64 {
    #[inline(always)]
    fn get(self) -> usize {
        self as usize
    }
}

/// Prefetches the entries that follow entry `k` at a distance of [`AHEAD`].
#[inline(always)]
pub(super) fn ask_ahead_of<T>(values: &[T], col_idx: &[u32], k: usize) {
    prefetch(values.as_ptr().wrapping_add(k + AHEAD));
    prefetch(col_idx.as_ptr().wrapping_add(k + AHEAD));
}

/// `y = A x` with offsets of one width.
pub(super) fn spmv<T: Scalar, O: Offset>(a: &HostCsr<T>, row_ptr: &[O], x: &[T], y: &mut [T]) {
    let rows = CsrArrays { row_ptr, col_idx: &a.col_idx, values: &a.values, x, y: Output::new(y) };
    let parts = &a.arrangement.parts;
    // SAFETY: the matrix was checked and the caller checked the vectors; parts share no row.
    unsafe {
        match a.arrangement.plan {
            CsrPlan::Scalar => run_parts(parts, &RowSums::<_, _, 1>(rows)),
            CsrPlan::Vector(2) => run_parts(parts, &RowSums::<_, _, 2>(rows)),
            CsrPlan::Vector(4) => run_parts(parts, &RowSums::<_, _, 4>(rows)),
            CsrPlan::Vector(8) => run_parts(parts, &RowSums::<_, _, 8>(rows)),
            CsrPlan::Vector(16) => run_parts(parts, &RowSums::<_, _, 16>(rows)),
            CsrPlan::Vector(_) => run_parts(parts, &RowSums::<_, _, 32>(rows)),
            CsrPlan::Balanced => balanced(rows, parts, y.len()),
        }
    }
}

/// Borrowed arrays of an SpMV.
#[derive(Clone, Copy)]
struct CsrArrays<'a, T, O> {
    row_ptr: &'a [O],
    col_idx: &'a [u32],
    values: &'a [T],
    x: &'a [T],
    y: Output<T>,
}

/// Kernel with `W` running sums per row; a range is a range of rows.
struct RowSums<'a, T, O, const W: usize>(CsrArrays<'a, T, O>);

impl<T: Scalar, O: Offset, const W: usize> CpuKernel<T> for RowSums<'_, T, O, W> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let CsrArrays { row_ptr, y, .. } = self.0;
        let mut start = row_ptr[range.start].get();
        for row in range {
            let end = row_ptr[row + 1].get();
            // SAFETY: the entries are those of the row, and only this part writes it.
            unsafe { y.set(row, self.0.dot::<V, W>(start..end)) };
            start = end;
        }
    }
}

impl<T: Scalar, O: Offset> CsrArrays<'_, T, O> {
    /// Returns the sum of `values[k] · x[col_idx[k]]` over `entries`, in `W` running sums.
    ///
    /// # Safety
    ///
    /// `entries` lies inside the arrays, and the machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn dot<V: Vector<T>, const W: usize>(&self, entries: Range<usize>) -> T {
        // SAFETY: columns of a checked matrix are inside `x`; the entries are the caller's promise.
        unsafe {
            if const { W >= V::LANES } {
                self.dot_vectors::<V>(entries, W / V::LANES)
            } else {
                self.dot_array::<W>(entries)
            }
        }
    }

    #[inline(always)]
    unsafe fn term(&self, k: usize) -> T {
        // SAFETY: as `dot`.
        unsafe {
            *self.values.get_unchecked(k)
                * *self.x.get_unchecked(*self.col_idx.get_unchecked(k) as usize)
        }
    }

    #[inline(always)]
    unsafe fn dot_array<const W: usize>(&self, entries: Range<usize>) -> T {
        let mut sums = [T::ZERO; W];
        let whole = entries.start + (entries.len() / W) * W;
        let mut k = entries.start;
        while k < whole {
            if W * size_of::<T>() >= STEP_BYTES {
                ask_ahead_of(self.values, self.col_idx, k);
            }
            for (lane, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as `dot`.
                *sum += unsafe { self.term(k + lane) };
            }
            k += W;
        }
        for (lane, k) in (whole..entries.end).enumerate() {
            // SAFETY: as `dot`.
            sums[lane] += unsafe { self.term(k) };
        }
        let mut width = W;
        while width > 1 {
            width /= 2;
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
        }
        sums[0]
    }

    /// `dot` with `vectors` vectors (1, 2 or 4) of running sums; loads whole vectors of `x` if
    /// columns are contiguous.
    #[inline(always)]
    unsafe fn dot_vectors<V: Vector<T>>(&self, entries: Range<usize>, vectors: usize) -> T {
        const MOST: usize = 4;
        let (values, cols, x) = (self.values.as_ptr(), self.col_idx.as_ptr(), self.x.as_ptr());
        // SAFETY: as `dot`.
        unsafe {
            let mut sums = [V::zero(); MOST];
            let mut k = entries.start;
            while k + vectors * V::LANES <= entries.end {
                for sum in sums.iter_mut().take(vectors) {
                    ask_ahead_of(self.values, self.col_idx, k);
                    let col = cols.add(k);
                    let x = if V::consecutive(col) {
                        V::load(x.add(*col as usize))
                    } else {
                        V::gather(x, col)
                    };
                    *sum = sum.mul_add(V::load(values.add(k)), x);
                    k += V::LANES;
                }
            }
            while k < entries.end {
                let lanes = V::LANES.min(entries.end - k);
                let mask = (1u32 << lanes) - 1;
                sums[0] = sums[0].mul_add_masked(mask, values.add(k), x, cols.add(k));
                k += lanes;
            }
            sums[..vectors].iter().fold(T::ZERO, |total, sum| total + sum.sum())
        }
    }
}

/// Multiplies with equally many entries per part: the rows that begin in a part are written, the
/// sum of the row that began before it is carried.
unsafe fn balanced<T: Scalar, O: Offset>(rows: CsrArrays<'_, T, O>, parts: &[usize], nrows: usize) {
    let mut carries = [T::ZERO; MAX_PARTS + 1];
    let kernel = Balanced { rows, nrows, parts, carries: Output::new(&mut carries) };
    // SAFETY: as `spmv`; a row is written by the part it begins in and a carry by its own part.
    unsafe { run_parts(parts, &kernel) };
    for (&start, &carry) in parts[1..parts.len() - 1].iter().zip(&carries[1..]) {
        // SAFETY: all parts are done; entry `start` is not the first, so a row began before it, and
        // its part wrote it.
        unsafe { rows.y.add(kernel.first_row(start) - 1, carry) };
    }
}

/// Kernel of [`balanced`]; a range is a range of entries.
struct Balanced<'a, T, O> {
    rows: CsrArrays<'a, T, O>,
    nrows: usize,
    parts: &'a [usize],
    carries: Output<T>,
}

impl<T: Scalar, O: Offset> Balanced<'_, T, O> {
    /// The first row that begins at entry `entry` or later.
    fn first_row(&self, entry: usize) -> usize {
        self.rows.row_ptr[..self.nrows].partition_point(|p| p.get() < entry)
    }

    /// Sum of a row: short rows in four running sums, long ones in vectors.
    #[inline(always)]
    unsafe fn dot<V: Vector<T>>(&self, entries: Range<usize>) -> T {
        /// Row length from which the masked remainder of a vector costs less than vectors save;
        /// measured on Zen 4.
        const LONG: usize = 48;
        // SAFETY: as `CsrArrays::dot`.
        unsafe {
            if entries.len() < LONG {
                self.rows.dot_array::<4>(entries)
            } else {
                self.rows.dot_vectors::<V>(entries, 2)
            }
        }
    }
}

impl<T: Scalar, O: Offset> CpuKernel<T> for Balanced<'_, T, O> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let CsrArrays { row_ptr, y, .. } = self.rows;
        let last = range.end == row_ptr[self.nrows].get();
        let rows =
            self.first_row(range.start)..if last { self.nrows } else { self.first_row(range.end) };
        // SAFETY: the entries are inside the range; the rows begin in this part.
        unsafe {
            if range.start > 0 {
                let part = self.parts.partition_point(|&p| p < range.start);
                let end = row_ptr[rows.start].get().min(range.end);
                self.carries.set(part, self.dot::<V>(range.start..end));
            }
            for row in rows {
                let end = row_ptr[row + 1].get().min(range.end);
                y.set(row, self.dot::<V>(row_ptr[row].get()..end));
            }
        }
    }
}
