//! DIA on the CPU: slices of rows, diagonal by diagonal.

use super::{HostDia, SLICE};
use crate::Scalar;
use crate::device::cpu::{CpuKernel, Output, Vector, element_at, run_tasks};
use std::ops::Range;

/// `y = A x`.
pub(super) fn spmv<T: Scalar>(a: &HostDia<T>, x: &[T], y: &mut [T]) {
    // SAFETY: the matrix was checked and the caller checked the vectors; tasks share no row.
    unsafe { run_tasks(&a.tasks, &DiaKernel { a, x, y: Output::new(y) }) };
}

/// Kernel over rows: a range is a range of rows that begins with a slice.
struct DiaKernel<'a, T> {
    a: &'a HostDia<T>,
    x: &'a [T],
    y: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for DiaKernel<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let whole = range.start + (range.end - range.start) / SLICE * SLICE;
        for start in (range.start..whole).step_by(SLICE) {
            // SAFETY: the rows of the slice belong to this task; a slice is so many vectors.
            unsafe {
                match V::LANES {
                    16 => self.slice::<V, 2>(start),
                    _ => self.slice::<V, 4>(start),
                }
            }
        }
        for row in whole..range.end {
            let sum = self
                .a
                .row(row)
                .fold(T::ZERO, |sum, (_, col, value)| sum + value * self.x[col as usize]);
            // SAFETY: as above.
            unsafe { self.y.set(row, sum) };
        }
    }
}

impl<T: Scalar> DiaKernel<'_, T> {
    /// Multiplies a whole slice of `G` vectors from row `start` on.
    #[inline(always)]
    unsafe fn slice<V: Vector<T>, const G: usize>(&self, start: usize) {
        let a = self.a;
        let count = a.offsets.len();
        let masks = &a.masks[start / SLICE * count..][..count];
        let values = &a.values[start * count..][..SLICE * count];
        // SAFETY: `x` is read in the lanes with an entry, whose columns are in range.
        unsafe {
            let mut sums = [V::zero(); G];
            for (k, &mask) in masks.iter().enumerate() {
                let offset = a.offsets[k];
                let values = element_at(values.as_ptr(), k * SLICE);
                let x = self.x.as_ptr().wrapping_offset(start as isize + offset as isize);
                for (g, sum) in sums.iter_mut().enumerate() {
                    let (values, x) =
                        (element_at(values, g * V::LANES), x.wrapping_add(g * V::LANES));
                    match mask >> (g * V::LANES) & V::ALL {
                        0 => {}
                        lanes if lanes == V::ALL => {
                            *sum = sum.mul_add(V::load(values), V::load(x));
                        }
                        lanes => {
                            let x = V::load_masked(lanes, x);
                            *sum = sum.mul_add_where(lanes, V::load(values), x);
                        }
                    }
                }
            }
            for (g, sum) in sums.iter().enumerate() {
                sum.store(self.y.at(start + g * V::LANES));
            }
        }
    }
}
