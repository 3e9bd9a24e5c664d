//! Tiles on the CPU: chunk by chunk, both passes in a buffer on the stack. Right rather than fast: a core has no memory of its own to
//! keep `x` in, and its caches need no help.

use super::{GROUP, Host, MAX_CHUNK, UNUSED};
use crate::Scalar;
use crate::device::cpu::{Kernel, MAX_PARTS, Output, Vector, run_parts};
use std::ops::Range;

/// `y = A x`: the rows that end in a part are written by it, and what it has of the one that does not is carried.
pub(super) fn spmv<T: Scalar>(a: &Host<T>, x: &[T], y: &mut [T]) {
    let mut carries = [T::ZERO; MAX_PARTS + 1];
    let y = Output::new(y);
    // SAFETY: every row ends in one chunk, and a carry is written by its own part.
    unsafe { run_parts(&a.parts, &Chunks { a, x, y, carries: Output::new(&mut carries) }) };
    for (&chunk, &carry) in a.parts[1..a.parts.len() - 1].iter().zip(&carries) {
        // SAFETY: all parts are done, and there are rows yet to end in the chunk of the next part.
        unsafe { y.add(a.chunk_rows[chunk] as usize, carry) };
    }
}

/// The borrowed arrays of a product; the range is one of chunks.
struct Chunks<'a, T> {
    a: &'a Host<T>,
    x: &'a [T],
    y: Output<T>,
    carries: Output<T>,
}

impl<T: Scalar> Kernel<T> for Chunks<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, chunks: Range<usize>) {
        let part = self.a.parts.partition_point(|&p| p < chunks.start);
        let mut products = [T::ZERO; MAX_CHUNK as usize];
        let mut sum = T::ZERO;
        for chunk in chunks {
            self.multiply(chunk, &mut products);
            let entries = self.a.shape.entries(chunk, &self.a.chunk_rows).len();
            let mut next = 0;
            for row in self.a.chunk_rows[chunk] as usize..self.a.chunk_rows[chunk + 1] as usize {
                let end = self.a.row_ends[row] as usize;
                let total = products[next..end].iter().fold(sum, |sum, &product| sum + product);
                // SAFETY: the row ends in this part alone.
                unsafe { self.y.set(row, total) };
                (sum, next) = (T::ZERO, end);
            }
            sum = products[next..entries].iter().fold(sum, |sum, &product| sum + product);
        }
        // SAFETY: the part's own carry.
        unsafe { self.carries.set(part, sum) };
    }
}

impl<T: Scalar> Chunks<'_, T> {
    /// The products of a chunk in row order.
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
