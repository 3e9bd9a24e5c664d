//! ELL on the CPU: strips of rows, a few vectors wide, processed slot by slot.

use super::HostEll;
use crate::Scalar;
use crate::device::cpu::{CpuKernel, Output, Slots, Vector, element_at, run_tasks, strip};
use std::ops::Range;

/// Granularity of tasks in rows: four vectors of 16.
pub(super) const STRIP_ROWS: usize = 64;

/// Prefetch distance in slots, for every column; measured on Zen 4, 64 to 512 are alike and a third
/// faster than no prefetch.
const AHEAD: usize = 64;

/// Vectors of a strip: 256 bytes of every array per slot, so that the hardware prefetcher keeps up.
const VECTORS: usize = 4;

/// `y = A x`.
pub(super) fn spmv<T: Scalar>(a: &HostEll<T>, x: &[T], y: &mut [T]) {
    // SAFETY: the matrix was checked and the caller checked the vectors; tasks share no row.
    unsafe { run_tasks(&a.tasks, &Strips { a, x, y: Output::new(y) }) };
}

/// Kernel over rows: a range is a range of rows.
struct Strips<'a, T> {
    a: &'a HostEll<T>,
    x: &'a [T],
    y: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for Strips<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let mut row = range.start;
        // SAFETY: the rows of the range belong to this task.
        unsafe {
            while row + VECTORS * V::LANES <= range.end {
                self.strip::<V, VECTORS>(row);
                row += VECTORS * V::LANES;
            }
            while row + V::LANES <= range.end {
                self.strip::<V, 1>(row);
                row += V::LANES;
            }
        }
        for row in row..range.end {
            let sum = self
                .a
                .row(row)
                .fold(T::ZERO, |sum, (col, value)| sum + value * self.x[col as usize]);
            // SAFETY: as above.
            unsafe { self.y.set(row, sum) };
        }
    }
}

impl<T: Scalar> Strips<'_, T> {
    /// Multiplies `G` vectors of rows from `row` on.
    #[inline(always)]
    unsafe fn strip<V: Vector<T>, const G: usize>(&self, row: usize) {
        let a = self.a;
        let slots = Slots {
            col_idx: &a.col_idx,
            values: &a.values,
            x: self.x,
            consecutive: a.consecutive,
            ahead: AHEAD,
        };
        let offset = |k: usize| k * a.nrows + row;
        // SAFETY: the rows exist, so their slots do; the masks exclude padding.
        unsafe {
            let sums: [V; G] = match &a.row_len {
                None => strip(slots, a.full, a.width, offset, |k, lane| {
                    V::present(element_at(a.col_idx.as_ptr(), k * a.nrows + row + lane))
                }),
                Some(row_len) => {
                    let lengths = &row_len[row..row + G * V::LANES];
                    let (full, width) =
                        lengths.iter().fold((u32::MAX, 0), |m, &l| (m.0.min(l), m.1.max(l)));
                    strip(slots, full as usize, width as usize, offset, |k, lane| {
                        V::longer(element_at(lengths.as_ptr(), lane), k as u32)
                    })
                }
            };
            for (g, sums) in sums.iter().enumerate() {
                sums.store(self.y.at(row + g * V::LANES));
            }
        }
    }
}
