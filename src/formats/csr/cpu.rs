//! CSR on the CPU.

use super::{CsrPlan, HostCsr, RowOffsets};
use crate::Scalar;
use crate::device::cpu::{
    CpuKernel, MAX_TASKS, Output, Vector, dispatch, element, element_at, for_each_task, prefetch,
};
use std::ops::Range;

/// Prefetch distance in entries. Measured on Zen 4, 64 to 512 are alike and a tenth faster than no
/// prefetch; where many adjacent columns are contiguous, more than 64 are no faster than no
/// prefetch.
const AHEAD: usize = 64;

/// Least number of value bytes of a step for which prefetching pays: with smaller steps every line
/// is prefetched repeatedly.
const STEP_BYTES: usize = 32;

/// Prefetches the entries that follow entry `k` at a distance of [`AHEAD`].
#[inline(always)]
pub(super) fn prefetch_ahead<T>(values: &[T], col_idx: &[u32], k: usize) {
    prefetch(values.as_ptr().wrapping_add(k + AHEAD));
    prefetch(col_idx.as_ptr().wrapping_add(k + AHEAD));
}

/// Rows whose offsets fit into 32 bits: those of the matrix, or a few of a larger one.
#[derive(Clone, Copy)]
pub(super) struct NarrowRows<'a, T> {
    /// Row of the matrix from which the rows of the block are counted.
    pub(super) first_row: usize,
    /// Entry of the matrix from which the entries of the block are counted.
    first_entry: usize,
    pub(super) row_ptr: &'a [u32],
    pub(super) col_idx: &'a [u32],
    pub(super) values: &'a [T],
}

/// Largest number of rows of a block, if the matrix has 64-bit offsets.
const MAX_NARROW_ROWS: usize = if cfg!(test) { 2 } else { 512 };

/// Calls `multiply(block, rows)` for the blocks that together have these rows of the matrix; its
/// rows are counted in the block.
///
/// The kernels are compiled for 32-bit offsets alone. Wider ones are converted, which costs far
/// less than it takes to read the entries of so large a matrix.
pub(super) fn for_each_block<T>(
    a: &HostCsr<T>,
    rows: Range<usize>,
    multiply: &dyn Fn(NarrowRows<'_, T>, Range<usize>),
) {
    let row_ptr = match &a.row_ptr {
        RowOffsets::Narrow(row_ptr) => {
            let (col_idx, values) = (&a.col_idx, &a.values);
            return multiply(
                NarrowRows { first_row: 0, first_entry: 0, row_ptr, col_idx, values },
                rows,
            );
        }
        RowOffsets::Wide(row_ptr) => row_ptr,
    };
    let mut offsets = [0; MAX_NARROW_ROWS + 1];
    let mut first_row = rows.start;
    while first_row < rows.end {
        let first_entry = row_ptr[first_row] as usize;
        let ends = &row_ptr[first_row + 1..=rows.end.min(first_row + MAX_NARROW_ROWS)];
        let mut len = 0;
        for &end in ends {
            let Ok(end) = u32::try_from(end - first_entry as u64) else { break };
            len += 1;
            offsets[len] = end;
        }
        assert!(len > 0, "a row has fewer than 2³² columns");
        let block = NarrowRows {
            first_row,
            first_entry,
            row_ptr: &offsets[..=len],
            col_idx: &a.col_idx[first_entry..],
            values: &a.values[first_entry..],
        };
        multiply(block, 0..len);
        first_row += len;
    }
}

/// `y = A x`.
pub(super) fn spmv<T: Scalar>(a: &HostCsr<T>, x: &[T], y: &mut [T]) {
    let tasks = &a.assignment.tasks;
    let multiply = match a.assignment.plan {
        CsrPlan::Scalar => sums::<T, 1>,
        CsrPlan::Vector(2) => sums::<T, 2>,
        CsrPlan::Vector(4) => sums::<T, 4>,
        CsrPlan::Vector(8) => sums::<T, 8>,
        CsrPlan::Vector(16) => sums::<T, 16>,
        CsrPlan::Vector(_) => sums::<T, 32>,
        CsrPlan::Balanced => return balanced(a, tasks, x, y),
    };
    let y = Output::new(y);
    for_each_task(tasks, |rows| {
        // SAFETY: the matrix was checked and the caller checked the vectors; tasks share no row.
        for_each_block(a, rows, &|block, rows| unsafe {
            multiply(CsrArrays { block, x, y: y.skip(block.first_row) }, rows);
        });
    });
}

/// Borrowed arrays of an SpMV, from the first row of the block on.
#[derive(Clone, Copy)]
struct CsrArrays<'a, T> {
    block: NarrowRows<'a, T>,
    x: &'a [T],
    y: Output<T>,
}

/// Multiplies a range of rows with `W` running sums per row.
///
/// # Safety
///
/// The rows are those of a checked matrix, and only this call writes them.
unsafe fn sums<T: Scalar, const W: usize>(rows: CsrArrays<'_, T>, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(&RowSums::<_, W>(rows), range) };
}

/// Kernel of [`sums`]; a range is a range of rows.
struct RowSums<'a, T, const W: usize>(CsrArrays<'a, T>);

impl<T: Scalar, const W: usize> CpuKernel<T> for RowSums<'_, T, W> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let CsrArrays { block: NarrowRows { row_ptr, .. }, y, .. } = self.0;
        let mut start = row_ptr[range.start] as usize;
        for row in range {
            let end = row_ptr[row + 1] as usize;
            // SAFETY: the entries are those of the row, and only this task writes it.
            unsafe { y.set(row, self.0.dot::<V, W>(start..end)) };
            start = end;
        }
    }
}

impl<T: Scalar> CsrArrays<'_, T> {
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
            let col = element(self.block.col_idx.as_ptr(), k) as usize;
            element(self.block.values.as_ptr(), k) * element(self.x.as_ptr(), col)
        }
    }

    #[inline(always)]
    unsafe fn dot_array<const W: usize>(&self, entries: Range<usize>) -> T {
        let mut sums = [T::ZERO; W];
        let whole = entries.start + (entries.len() / W) * W;
        let mut k = entries.start;
        while k < whole {
            if W * size_of::<T>() >= STEP_BYTES {
                prefetch_ahead(self.block.values, self.block.col_idx, k);
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
        const MAX: usize = 4;
        let (values, cols, x) =
            (self.block.values.as_ptr(), self.block.col_idx.as_ptr(), self.x.as_ptr());
        // SAFETY: as `dot`.
        unsafe {
            let mut sums = [V::zero(); MAX];
            let mut k = entries.start;
            while k + vectors * V::LANES <= entries.end {
                for sum in sums.iter_mut().take(vectors) {
                    prefetch_ahead(self.block.values, self.block.col_idx, k);
                    let col = element_at(cols, k);
                    let x = if V::consecutive(col) {
                        V::load(element_at(x, element(col, 0) as usize))
                    } else {
                        V::gather(x, col)
                    };
                    *sum = sum.mul_add(V::load(element_at(values, k)), x);
                    k += V::LANES;
                }
            }
            while k < entries.end {
                let lanes = V::LANES.min(entries.end - k);
                let mask = (1u32 << lanes) - 1;
                let (values, cols) = (element_at(values, k), element_at(cols, k));
                sums[0] = sums[0].mul_add_masked(mask, values, x, cols);
                k += lanes;
            }
            sums[..vectors].iter().fold(T::ZERO, |total, sum| total + sum.sum())
        }
    }
}

/// Multiplies with equally many entries per task: the rows that begin in a task are written, the
/// sum of the row that began before it is carried.
fn balanced<T: Scalar>(a: &HostCsr<T>, tasks: &[usize], x: &[T], y: &mut [T]) {
    let y = Output::new(y);
    let mut carries = [T::ZERO; MAX_TASKS + 1];
    let carried = Output::new(&mut carries);
    for_each_task(tasks, |entries| {
        let rows = a.rows_that_begin_in(entries.clone());
        // SAFETY: the matrix was checked and the caller checked the vectors; the rows begin in this
        // task, and a carry is written by its own task.
        unsafe {
            if entries.start > 0 {
                let task = tasks.partition_point(|&p| p < entries.start);
                let end = a.row_ptr.get(rows.start).min(entries.end);
                let block = NarrowRows {
                    first_row: task,
                    first_entry: entries.start,
                    row_ptr: &[0, (end - entries.start) as u32],
                    col_idx: &a.col_idx[entries.start..],
                    values: &a.values[entries.start..],
                };
                let rows = CsrArrays { block, x, y: carried.skip(task) };
                dispatch(&Balanced { rows, end: usize::MAX }, 0..1);
            }
            for_each_block(a, rows, &|block, rows| {
                let end = entries.end - block.first_entry;
                let kernel = CsrArrays { block, x, y: y.skip(block.first_row) };
                dispatch(&Balanced { rows: kernel, end }, rows);
            });
        }
    });
    for (&start, &carry) in tasks[1..tasks.len() - 1].iter().zip(&carries[1..]) {
        let row = a.row_ptr.first_row(start) - 1;
        // SAFETY: all tasks are done; entry `start` is not the first, so a row began before it, and
        // its task wrote it.
        unsafe { y.add(row, carry) };
    }
}

impl<T> HostCsr<T> {
    /// The rows whose first entry is one of `entries`; empty rows belong to the next one.
    pub(super) fn rows_that_begin_in(&self, entries: Range<usize>) -> Range<usize> {
        let nrows = self.row_ptr.len() - 1;
        let last = entries.end == self.row_ptr.get(nrows);
        let end = if last { nrows } else { self.row_ptr.first_row(entries.end) };
        self.row_ptr.first_row(entries.start)..end
    }
}

/// Kernel of [`balanced`] over a range of rows.
struct Balanced<'a, T> {
    rows: CsrArrays<'a, T>,
    /// End of the entries of the task, counted in the block.
    end: usize,
}

impl<T: Scalar> Balanced<'_, T> {
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

impl<T: Scalar> CpuKernel<T> for Balanced<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let CsrArrays { block: NarrowRows { row_ptr, .. }, y, .. } = self.rows;
        for row in range {
            let end = (row_ptr[row + 1] as usize).min(self.end);
            // SAFETY: the entries are those of the row in this task, where it begins.
            unsafe { y.set(row, self.dot::<V>(row_ptr[row] as usize..end)) };
        }
    }
}
