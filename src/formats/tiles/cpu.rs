//! Tiles on the CPU: chunk by chunk, both passes in a buffer on the stack. Reference
//! implementation, not tuned: a core has no memory of its own for `x`, and its caches need no
//! blocking.

use super::{GROUP, HostTiles, MAX_CHUNK, UNUSED};
use crate::Scalar;
use crate::device::cpu::{CpuKernel, MAX_TASKS, Output, Vector, run_tasks};
use std::ops::Range;

/// `y = A x`: a task writes the rows that end in it, and carries its sum of the row that does not.
pub(super) fn spmv<T: Scalar>(a: &HostTiles<T>, x: &[T], y: &mut [T]) {
    let mut carries = [T::ZERO; MAX_TASKS + 1];
    let y = Output::new(y);
    // SAFETY: every row ends in one chunk, and a carry is written by its own task.
    unsafe { run_tasks(&a.tasks, &TilesKernel { a, x, y, carries: Output::new(&mut carries) }) };
    for (&chunk, &carry) in a.tasks[1..a.tasks.len() - 1].iter().zip(&carries) {
        // SAFETY: all tasks are done, and further rows end in the chunk of the next task.
        unsafe { y.add(a.chunk_rows[chunk] as usize, carry) };
    }
}

/// Kernel over chunks, with the borrowed arrays of an SpMV; a range is a range of chunks.
struct TilesKernel<'a, T> {
    a: &'a HostTiles<T>,
    x: &'a [T],
    y: Output<T>,
    carries: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for TilesKernel<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, chunks: Range<usize>) {
        let task = self.a.tasks.partition_point(|&p| p < chunks.start);
        let mut products = [T::ZERO; MAX_CHUNK as usize];
        let mut sum = T::ZERO;
        for chunk in chunks {
            self.multiply(chunk, &mut products);
            let entries = self.a.shape.entries(chunk, &self.a.chunk_rows).len();
            let mut next = 0;
            for row in self.a.chunk_rows[chunk] as usize..self.a.chunk_rows[chunk + 1] as usize {
                let end = self.a.row_ends[row] as usize;
                let total = products[next..end].iter().fold(sum, |sum, &product| sum + product);
                // SAFETY: the row ends only in this task.
                unsafe { self.y.set(row, total) };
                (sum, next) = (T::ZERO, end);
            }
            sum = products[next..entries].iter().fold(sum, |sum, &product| sum + product);
        }
        // SAFETY: the carry belongs to this task.
        unsafe { self.carries.set(task, sum) };
    }
}

impl<T: Scalar> TilesKernel<'_, T> {
    /// Computes the products of a chunk in row order.
    #[inline(always)]
    fn multiply(&self, chunk: usize, products: &mut [T; MAX_CHUNK as usize]) {
        let a = self.a;
        a.for_each_group(chunk, |slot, home, first_col| {
            let cols = &a.cols[home..home + GROUP];
            for (i, &position) in a.positions[slot..slot + GROUP].iter().enumerate() {
                if position != UNUSED {
                    products[position as usize] =
                        a.values.at(home + i) * self.x[first_col + cols[i] as usize];
                }
            }
        });
    }
}
