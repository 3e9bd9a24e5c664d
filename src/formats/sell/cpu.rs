//! SELL-C-σ on the CPU: the lanes of a slice are lanes of vectors.

use super::HostSell;
use crate::Scalar;
use crate::device::cpu::{CpuKernel, Output, Slots, Vector, element, element_at, run_tasks, strip};
use std::ops::Range;

/// Prefetch distance in slots, used where gathers leave the hardware prefetcher too little room;
/// measured on Zen 4 with random columns in f64, 192 to 512 are alike and a seventh faster than no
/// prefetch. If whole vectors of `x` are loaded there is no prefetch, because it would cost a
/// fifth.
const AHEAD: usize = 256;

/// `y = A x`.
pub(super) fn spmv<T: Scalar>(a: &HostSell<T>, x: &[T], y: &mut [T]) {
    // SAFETY: the matrix was checked and the caller checked the vectors; tasks share no slice,
    // slices no row.
    unsafe { run_tasks(&a.tasks, &SellKernel { a, x, y: Output::new(y) }) };
}

/// Kernel over slices: a range is a range of slices.
struct SellKernel<'a, T> {
    a: &'a HostSell<T>,
    x: &'a [T],
    y: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for SellKernel<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        for s in range {
            let lanes = self.a.c.min(self.a.nrows - s * self.a.c);
            let mut lane = 0;
            // SAFETY: the lanes hold rows, and the slice belongs to this task. A vector may reach
            // past them, but not past the slice.
            unsafe {
                while lane + 4 * V::LANES <= self.a.c && lane < lanes {
                    self.lanes::<V, 4>(s, lane, lanes);
                    lane += 4 * V::LANES;
                }
                while lane + 2 * V::LANES <= self.a.c && lane < lanes {
                    self.lanes::<V, 2>(s, lane, lanes);
                    lane += 2 * V::LANES;
                }
                while lane + V::LANES <= self.a.c && lane < lanes {
                    self.lanes::<V, 1>(s, lane, lanes);
                    lane += V::LANES;
                }
                for lane in lane..lanes {
                    let products =
                        self.a.lane(s, lane).map(|(col, value)| value * self.x[col as usize]);
                    self.set(s, lane, products.fold(T::ZERO, |sum, product| sum + product));
                }
            }
        }
    }
}

impl<T: Scalar> SellKernel<'_, T> {
    /// Multiplies `G` vectors of lanes from `lane` on, of which those before `lanes` hold rows.
    #[inline(always)]
    unsafe fn lanes<V: Vector<T>, const G: usize>(&self, s: usize, lane: usize, lanes: usize) {
        let a = self.a;
        let slots = Slots {
            col_idx: &a.col_idx,
            values: &a.values,
            x: self.x,
            consecutive: a.consecutive,
            ahead: if a.consecutive { 0 } else { AHEAD },
        };
        let start = a.slice_ptr[s] + lane;
        let width = (a.slice_ptr[s + 1] - a.slice_ptr[s]) / a.c;
        // SAFETY: the slots lie in the slice; the masks exclude padding; only lanes that hold rows
        // are written.
        unsafe {
            let sums: [V; G] = strip(
                slots,
                a.full[s] as usize,
                width,
                |k| start + k * a.c,
                |k, lane| V::present(element_at(a.col_idx.as_ptr(), start + k * a.c + lane)),
            );
            for (g, sums) in sums.iter().enumerate() {
                let first = lane + g * V::LANES;
                if a.perm.is_none() && first + V::LANES <= lanes {
                    sums.store(self.y.at(s * a.c + first));
                } else {
                    let mut buffer = [T::ZERO; 16];
                    sums.store(buffer.as_mut_ptr());
                    for l in first..(first + V::LANES).min(lanes) {
                        self.set(s, l, buffer[l - first]);
                    }
                }
            }
        }
    }

    /// Writes the sum of one lane to its row.
    #[inline(always)]
    unsafe fn set(&self, s: usize, lane: usize, sum: T) {
        let i = s * self.a.c + lane;
        // SAFETY: the caller's promise; `perm` is a permutation of the rows.
        unsafe {
            let row = self.a.perm.as_ref().map_or(i, |p| element(p.as_ptr(), i) as usize);
            self.y.set(row, sum);
        }
    }
}
