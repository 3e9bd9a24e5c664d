//! JDS on the CPU: strips of sorted rows, whose sums are scattered to their rows of `y`.

use super::{HostJds, Section, SlotPositions};
use crate::Scalar;
use crate::device::cpu::{CpuKernel, Output, Slots, Vector, element, run_tasks, strip};
use std::ops::Range;

/// Prefetch distance in slots, for every column; measured on Zen 4, 64 to 512 are alike and a third
/// faster than no prefetch.
const AHEAD: usize = 256;

/// Vectors of a strip.
const VECTORS: usize = 4;

/// `y = A x` without the tail.
pub(super) fn spmv<T: Scalar>(a: &HostJds<T>, x: &[T], y: &mut [T]) {
    let slots = Slots {
        col_idx: &a.col_idx,
        values: &a.values,
        x,
        consecutive: a.consecutive,
        ahead: AHEAD,
    };
    let y = Output::new(y);
    // SAFETY: the matrix was checked and the caller checked the vectors; tasks share no row.
    unsafe {
        match &a.table {
            SlotPositions::Diagonals(jd_ptr) => {
                run_tasks(&a.tasks, &Diagonals { a, slots, jd_ptr, y })
            }
            SlotPositions::Sections(sections) => {
                run_tasks(&a.tasks, &Sections { a, slots, sections, y })
            }
        }
    }
}

/// Scatters the sums of sorted rows, beginning with the first of `rows`.
#[inline(always)]
unsafe fn scatter<T: Scalar, V: Vector<T>>(
    sums: &[V],
    perm: &[u32],
    rows: Range<usize>,
    y: Output<T>,
) {
    for (g, sums) in sums.iter().enumerate() {
        let mut buffer = [T::ZERO; 16];
        // SAFETY: a vector is at most 16 numbers; `perm` is a permutation of the rows.
        unsafe {
            sums.store(buffer.as_mut_ptr());
            let first = rows.start + g * V::LANES;
            for i in first..(first + V::LANES).min(rows.end) {
                y.set(element(perm.as_ptr(), i) as usize, buffer[i - first]);
            }
        }
    }
}

/// Kernel over unpadded diagonals; a range is a range of sorted rows.
struct Diagonals<'a, T> {
    a: &'a HostJds<T>,
    slots: Slots<'a, T>,
    jd_ptr: &'a [usize],
    y: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for Diagonals<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let mut first = range.start;
        // SAFETY: the rows of the range belong to this task.
        unsafe {
            while first + VECTORS * V::LANES <= range.end {
                self.strip::<V, VECTORS>(first, range.end);
                first += VECTORS * V::LANES;
            }
            while first < range.end {
                self.strip::<V, 1>(first, range.end);
                first += V::LANES;
            }
        }
    }
}

impl<T: Scalar> Diagonals<'_, T> {
    /// Number of rows longer than `k`.
    #[inline(always)]
    fn rows_longer(&self, k: usize) -> usize {
        self.jd_ptr[k + 1] - self.jd_ptr[k]
    }

    /// Multiplies `G` vectors of rows from `first` on; rows at or past `end` are not written.
    #[inline(always)]
    unsafe fn strip<V: Vector<T>, const G: usize>(&self, first: usize, end: usize) {
        let diagonals = self.jd_ptr.len() - 1;
        // Diagonals never get longer.
        let reach = |rows: usize| {
            let (mut low, mut high) = (0, diagonals);
            while low < high {
                let mid = usize::midpoint(low, high);
                if self.rows_longer(mid) >= rows { low = mid + 1 } else { high = mid }
            }
            low
        };
        let (full, width) = (reach(first + G * V::LANES), reach(first + 1));
        // SAFETY: a mask excludes the rows beyond the end of a diagonal.
        unsafe {
            let sums: [V; G] = strip(
                self.slots,
                full,
                width,
                |k| self.jd_ptr[k] + first,
                |k, lane| {
                    let lanes = self.rows_longer(k).saturating_sub(first + lane).min(V::LANES);
                    ((1u64 << lanes) - 1) as u32
                },
            );
            scatter(&sums, &self.a.perm, first..(first + G * V::LANES).min(end), self.y);
        }
    }
}

/// Kernel over sections padded to their width; a range is a range of sorted rows.
struct Sections<'a, T> {
    a: &'a HostJds<T>,
    slots: Slots<'a, T>,
    sections: &'a [Section],
    y: Output<T>,
}

impl<T: Scalar> CpuKernel<T> for Sections<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let first = self.sections.partition_point(|s| s.first_row + s.rows <= range.start);
        for s in self.sections[first..].iter().take_while(|s| s.first_row < range.end) {
            let rows = range.start.max(s.first_row)..range.end.min(s.first_row + s.rows);
            // SAFETY: the rows of the range belong to this task.
            unsafe { self.section::<V>(s, rows) };
        }
    }
}

impl<T: Scalar> Sections<'_, T> {
    /// Multiplies some rows of one section.
    #[inline(always)]
    unsafe fn section<V: Vector<T>>(&self, s: &Section, rows: Range<usize>) {
        let mut row = rows.start;
        // SAFETY: the rows exist and are the caller's.
        unsafe {
            while row + VECTORS * V::LANES <= rows.end {
                self.strip::<V, VECTORS>(s, row);
                row += VECTORS * V::LANES;
            }
            while row + V::LANES <= rows.end {
                self.strip::<V, 1>(s, row);
                row += V::LANES;
            }
        }
        for row in row..rows.end {
            let sum = self
                .a
                .row(row)
                .fold(T::ZERO, |sum, (col, value)| sum + value * self.slots.x[col as usize]);
            // SAFETY: as above.
            unsafe { self.y.set(self.a.perm[row] as usize, sum) };
        }
    }

    /// Multiplies `G` vectors of rows from `row` on.
    #[inline(always)]
    unsafe fn strip<V: Vector<T>, const G: usize>(&self, s: &Section, row: usize) {
        let offset = |k: usize| s.start + k * s.rows + (row - s.first_row);
        // SAFETY: the rows exist, so their slots do; the masks exclude padding.
        unsafe {
            let sums: [V; G] = strip(self.slots, s.full, s.width, offset, |k, lane| {
                V::present(crate::device::cpu::element_at(
                    self.slots.col_idx.as_ptr(),
                    offset(k) + lane,
                ))
            });
            scatter(&sums, &self.a.perm, row..row + G * V::LANES, self.y);
        }
    }
}
