//! COO on the CPU: every task sums the rows that begin in it, and carries the sum of its entries of
//! the previous row.

use super::HostCoo;
use crate::Scalar;
use crate::device::cpu::{CpuKernel, MAX_TASKS, Output, Vector, element, element_at, run_tasks};
use std::ops::Range;

/// `y = A x`, or `y = y + A x` when `ADD`.
pub(super) fn spmv<T: Scalar, const ADD: bool>(a: &HostCoo<T>, x: &[T], y: &mut [T]) {
    let mut carries = [T::ZERO; MAX_TASKS + 1];
    let y = Output::new(y);
    let kernel = CooKernel::<T, ADD> { a, x, y, carries: Output::new(&mut carries) };
    // SAFETY: the matrix was checked and the caller checked the vectors; a row is written by the
    // task it begins in, a carry by its own task.
    unsafe { run_tasks(&a.tasks, &kernel) };
    let inner = &a.tasks[1..a.tasks.len() - 1];
    for (&start, &carry) in inner.iter().zip(&carries[1..]) {
        // SAFETY: all tasks are done, and the row began in an earlier one, which wrote it.
        unsafe { y.add(a.row_idx[start - 1] as usize, carry) };
    }
}

/// Kernel over tasks of the entries: a range is a range of entries.
struct CooKernel<'a, T, const ADD: bool> {
    a: &'a HostCoo<T>,
    x: &'a [T],
    y: Output<T>,
    carries: Output<T>,
}

impl<T: Scalar, const ADD: bool> CpuKernel<T> for CooKernel<'_, T, ADD> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let row_idx = &*self.a.row_idx;
        let mut k = range.start;
        // First row that is not written yet.
        let mut next_row = 0;
        // SAFETY: rows that begin in the range are this task's, as are the empty rows before each
        // of them.
        unsafe {
            if range.start > 0 {
                let row = row_idx[range.start - 1];
                next_row = row as usize + 1;
                let task = self.a.tasks.partition_point(|&p| p < range.start);
                let carry = self.segment::<V>(row, &mut k, range.end);
                self.carries.set(task, carry);
            }
            while k < range.end {
                let row = row_idx[k];
                let sum = self.segment::<V>(row, &mut k, range.end);
                if ADD {
                    self.y.add(row as usize, sum);
                } else {
                    for empty in next_row..row as usize {
                        self.y.set(empty, T::ZERO);
                    }
                    self.y.set(row as usize, sum);
                    next_row = row as usize + 1;
                }
            }
            if !ADD && range.end == row_idx.len() {
                for empty in next_row..self.a.nrows {
                    self.y.set(empty, T::ZERO);
                }
            }
        }
    }
}

impl<T: Scalar, const ADD: bool> CooKernel<'_, T, ADD> {
    /// Sums the entries of `row` from `k` on, before `end`, and moves `k` past them.
    #[inline(always)]
    unsafe fn segment<V: Vector<T>>(&self, row: u32, k: &mut usize, end: usize) -> T {
        let (row_idx, col_idx) = (&*self.a.row_idx, &*self.a.col_idx);
        let (values, x) = (&*self.a.values, self.x);
        let mut sum = T::ZERO;
        // SAFETY: `end` lies inside the arrays; columns of a checked matrix are inside `x`.
        unsafe {
            // Rows are sorted: if the last lane has this row, all lanes have.
            let whole = |k: usize| {
                k + V::LANES <= end && element(row_idx.as_ptr(), k + V::LANES - 1) == row
            };
            if whole(*k) {
                let mut sums = V::zero();
                while whole(*k) {
                    let x = V::gather(x.as_ptr(), element_at(col_idx.as_ptr(), *k));
                    sums = sums.mul_add(V::load(element_at(values.as_ptr(), *k)), x);
                    *k += V::LANES;
                }
                sum = sums.sum();
            }
            while *k < end && element(row_idx.as_ptr(), *k) == row {
                let col = element(col_idx.as_ptr(), *k) as usize;
                sum += element(values.as_ptr(), *k) * element(x.as_ptr(), col);
                *k += 1;
            }
        }
        sum
    }
}
