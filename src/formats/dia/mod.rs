//! DIA: the occupied diagonals, each with a slot for every row, in slices of 32 rows.
//!
//! ```text
//! 3 . 1 .     offsets  -3  -1   0   1   2      (column minus row; _ is padding, value 0)
//! . . . .     values   ___1 __2_ 3_41 __1_ 1___
//! . 2 4 1     masks    1000 0100 1101 0100 0001
//! 1 . . 1
//! ```
//!
//! No column is stored: the entry of row `i` on a diagonal is in column `i + offset`, so that the
//! rows of a slice read consecutive elements of `x`. A mask has bit `r` set if row `r` of the slice
//! has an entry on the diagonal.
//!
//! Invariants: the values of a slice follow one another, diagonal by diagonal, and so do its masks;
//! the last slice has as many slots per diagonal as it has rows. Padding has value 0 and is never
//! multiplied. The entries of a row are in the order of the diagonals. The offsets ascend if the
//! columns of every row do; otherwise they are as many ascending sequences as the rows need, one
//! after the other, and an offset may be stored more than once.
//!
//! A matrix whose diagonals would be mostly padding is refused.
//!
//! Source: Saad, *Iterative Methods for Sparse Linear Systems*, 2nd ed., §3.4; in slices, Bell &
//! Garland, SC'09, §4.1, with the slices of SELL.
#![doc = include_str!("operations.md")]

mod access;
mod cpu;
mod cuda;
mod offsets;

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work, critical_path_us, megabytes, vector_bytes,
};
use crate::analysis::{Analysis, FormatProbe, Measure};
use crate::device::cpu::{Output, for_each_task, partition};
use crate::device::{Gpu, Residency};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::try_zeroed;
use crate::{Error, Scalar, ScalarKind};
use cuda::DeviceDia;
use offsets::{DiagonalCount, most_diagonals, offsets};
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

/// The DIA format.
pub(crate) struct Dia;

/// Plan of DIA, `dia`; it has no parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiaPlan;

/// Rows of a slice, and bits of a mask: the lanes of a warp.
const SLICE: usize = u32::BITS as usize;

/// Maximum padding ratio of a candidate: the bytes of an entry in CSR over those of a slot are 1.5
/// in f64 and 1.9 in f32.
const CANDIDATE_PADDING: f64 = 1.5;

/// Assumed share of the copy bandwidth in a product, until a profile has measured the kernel.
const BANDWIDTH_SHARE: f64 = 0.8;

impl Display for DiaPlan {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Format for Dia {
    type Plan = DiaPlan;
    type Host<T: Scalar> = HostDia<T>;

    const EXAMPLES: &'static [&'static str] = &["dia"];
    const PROBE: Option<FormatProbe> = Some(FormatProbe {
        measure: Measure::BeforeStructure(|a, rows| {
            let count = DiagonalCount::begin(a, rows)?;
            Ok(Box::new(|probes| {
                probes.add(count()?);
                Ok(())
            }))
        }),
        kernels: &[(offsets::FILE, offsets::KERNEL)],
    });

    fn parse(_: &mut PlanArgs<'_>) -> Result<DiaPlan, Error> {
        Ok(DiaPlan)
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, _: Target) -> Vec<DiaPlan> {
        let rows = &analysis.rows;
        let slots = DiagonalCount::of(analysis).at_least() as f64 * rows.nrows as f64;
        let padded = slots > CANDIDATE_PADDING * rows.nnz as f64;
        if padded || DiagonalCount::of(analysis).is_refused() { Vec::new() } else { vec![DiaPlan] }
    }

    fn work(_: &DiaPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let nrows = analysis.rows.nrows as u64;
        let diagonals = DiagonalCount::of(analysis).at_least() as u64;
        let slices = nrows.div_ceil(SLICE as u64);
        let slots = nrows.saturating_mul(diagonals);
        let index = diagonals * size_of::<i64>() as u64 + slices * diagonals * 4;
        Work {
            matrix_bytes: slots.saturating_mul(scalar.size() as u64).saturating_add(index),
            vector_bytes: vector_bytes(analysis, scalar),
            slots,
            rows: nrows,
            starts: slices,
            critical_path: diagonals,
            ..Work::default()
        }
    }

    fn cost_key(_: &DiaPlan, _: Target) -> &'static str {
        "dia"
    }

    fn estimate_bounds(_: &DiaPlan, analysis: &Analysis) -> Result<RangeInclusive<f64>, String> {
        if DiagonalCount::of(analysis).is_refused() {
            return Err(too_many(analysis.rows.nrows, analysis.rows.nnz as usize));
        }
        Ok(1.0..=1.0)
    }

    fn properties(_: &DiaPlan) -> PlanProperties {
        PlanProperties {
            bandwidth_share: Some(BANDWIDTH_SHARE),
            packing_like: Some("ell"),
            ..PlanProperties::default()
        }
    }

    fn estimate_us(_: &DiaPlan, _: &Analysis, work: &Work) -> f64 {
        2.5 + 0.25 * megabytes(work) + critical_path_us(work, 0.03, 0.017)
    }

    fn pack<T: Scalar>(_: &DiaPlan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error> {
        let offsets = offsets(a.columns()).ok_or_else(|| Error::PlanLimit {
            plan: "dia".to_owned(),
            message: too_many(a.nrows(), a.nnz()),
        })?;
        HostDia::new(a, offsets)
    }
}

/// Reason why a matrix is refused.
fn too_many(nrows: usize, nnz: usize) -> String {
    format!(
        "the matrix has more than {} diagonals with entries, which would be mostly padding; choose \
         another format",
        most_diagonals(nrows, nnz)
    )
}

/// A DIA matrix.
#[derive(Debug)]
pub(crate) struct HostDia<T> {
    nrows: usize,
    ncols: usize,
    offsets: Vec<i64>,
    masks: Vec<u32>,
    values: Vec<T>,
    /// Bounds of the tasks, in rows: multiples of [`SLICE`].
    tasks: Box<[usize]>,
}

impl<T: Scalar> HostDia<T> {
    /// Packs `a`, each of whose rows has its entries on some of the diagonals, in their order.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    fn new(a: CsrView<'_, T>, offsets: Vec<i64>) -> Result<Self, Error> {
        let (nrows, count) = (a.nrows(), offsets.len());
        let mut masks = try_zeroed::<u32>(nrows.div_ceil(SLICE) * count)?;
        let mut values = try_zeroed::<T>(nrows.saturating_mul(count))?;
        let (all_masks, slots) = (Output::new(&mut masks), Output::new(&mut values));
        let tasks = partition(nrows, SLICE, |rows| rows as u64 * (count as u64 + 1));
        for_each_task(&tasks, |rows| {
            let mut bits = vec![0u32; count];
            for start in rows.clone().step_by(SLICE) {
                let end = (start + SLICE).min(rows.end);
                for row in start..end {
                    let (cols, numbers) = a.row(row);
                    let mut entries = cols.iter().zip(numbers).peekable();
                    for (diagonal, offset) in offsets.iter().enumerate() {
                        let here = |&(&col, _): &(&u32, _)| i64::from(col) - row as i64 == *offset;
                        if let Some((_, &value)) = entries.next_if(here) {
                            bits[diagonal] |= 1 << (row - start);
                            let slot = start * count + diagonal * (end - start) + row - start;
                            // SAFETY: the slots of a slice belong to the task with its rows.
                            unsafe { slots.set(slot, value) };
                        }
                    }
                    debug_assert!(entries.next().is_none(), "row {row} has all its diagonals");
                }
                for (diagonal, bits) in bits.iter_mut().enumerate() {
                    // SAFETY: as above, for its masks.
                    unsafe { all_masks.set(start / SLICE * count + diagonal, *bits) };
                    *bits = 0;
                }
            }
        });
        Ok(Self { nrows, ncols: a.ncols(), offsets, masks, values, tasks })
    }

    /// Slot of a row on a diagonal, given by its number.
    fn slot(&self, row: usize, diagonal: usize) -> usize {
        let start = row / SLICE * SLICE;
        start * self.offsets.len() + diagonal * SLICE.min(self.nrows - start) + row - start
    }

    /// True if a row has an entry on a diagonal.
    fn has_entry(&self, row: usize, diagonal: usize) -> bool {
        let mask = self.masks[row / SLICE * self.offsets.len() + diagonal];
        mask >> (row % SLICE) & 1 == 1
    }

    /// Slots, columns and values of a row, in order.
    fn row(&self, row: usize) -> impl Iterator<Item = (usize, u32, T)> + '_ {
        let present =
            (0..self.offsets.len()).filter(move |&diagonal| self.has_entry(row, diagonal));
        present.map(move |diagonal| {
            let slot = self.slot(row, diagonal);
            (slot, (row as i64 + self.offsets[diagonal]) as u32, self.values[slot])
        })
    }
}

impl<T: Scalar> HostMatrix<T> for HostDia<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        super::from_rows(self.nrows, self.ncols, |row, push| {
            self.row(row).for_each(|(_, col, value)| push(col, value))
        })
    }

    fn access(&self) -> Option<&dyn Access<T>> {
        Some(self)
    }

    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        Some(self)
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        Ok(ValueArrays::Plain([&mut self.values, &mut []]))
    }

    fn matrix_bytes(&self) -> u64 {
        let index = size_of_val(&*self.offsets) + size_of_val(&*self.masks);
        (index + size_of_val(&*self.values)) as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        let residency = Residency::of::<T>(gpu, self.matrix_bytes(), (self.nrows, self.ncols))
            .with_final_results();
        Ok(Box::new(DeviceDia::new(self, gpu, residency)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Oracle, chapter, x_vector};

    #[test]
    fn the_chapters_matrices() {
        let packed = Dia::pack(&DiaPlan, chapter::matrix::<f32>().view()).unwrap();
        assert_eq!(packed.offsets, [-3, -1, 0, 1, 2]);
        assert_eq!(packed.masks, [0b1000, 0b0100, 0b1101, 0b0100, 0b0001]);
        #[rustfmt::skip]
        assert_eq!(packed.values, [
            0., 0., 0., 1.,  0., 0., 2., 0.,  3., 0., 4., 1.,  0., 0., 1., 0.,  1., 0., 0., 0.,
        ]);
        let exercise = Dia::pack(&DiaPlan, chapter::exercise::<f32>().view()).unwrap();
        assert_eq!(exercise.offsets, [-3, -1, 0, 1, 2]);
        assert_eq!(exercise.masks, [0b1000, 0b0100, 0b1101, 0b0010, 0b0001]);
    }

    #[test]
    fn repeated_and_unsorted_columns_repeat_offsets_and_keep_their_order() {
        let cols = vec![0, 1, 1, 0, 1, 0];
        let a = CsrMatrix::try_new(3, 2, vec![0, 3, 5, 6], cols, vec![1., 2., 3., 4., 5., 6.0f64]);
        let a = a.unwrap();
        let packed = Dia::pack(&DiaPlan, a.view()).unwrap();
        assert_eq!(packed.offsets, [-2, -1, 0, 1, 1]);
        assert_eq!(packed.masks, [0b100, 0b010, 0b011, 0b001, 0b001]);
        assert_eq!(packed.unpack().unwrap(), a);
    }

    #[test]
    fn slices_with_gaps_multiply_only_entries() {
        // Rows of several slices; the first diagonal has gaps, the second ends within a slice.
        let entries: Vec<Vec<u32>> = (0..100u32)
            .map(|row| (0..2).filter(|k| (row % 7 + k) % 3 > 0).map(|k| row / 2 * 2 + k).collect())
            .collect();
        let mut row_ptr = vec![0];
        row_ptr.extend(entries.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        let cols = entries.concat();
        let values = x_vector::<f64>(cols.len());
        let a = CsrMatrix::try_new(100, 100, row_ptr, cols, values).unwrap();
        let packed = Dia::pack(&DiaPlan, a.view()).unwrap();
        assert_eq!(packed.unpack().unwrap(), a);
        for gap in [f64::NAN, f64::INFINITY] {
            let mut x: Vec<f64> = x_vector(100);
            x.iter_mut().step_by(9).for_each(|x| *x = gap);
            let mut y = vec![f64::NAN; 100];
            packed.spmv(&x, &mut y);
            Oracle::of(a.view(), &x).check(&y).unwrap();
        }
    }

    #[test]
    fn mostly_padding_is_refused() {
        let n = 40_000;
        let cols = (0..n).map(|row| ((row * 7919) % n) as u32).collect();
        let a = CsrMatrix::try_new(n, n, (0..=n).collect(), cols, vec![1.0f32; n]).unwrap();
        let analysis = Analysis::of(a.view());
        assert!(Dia::candidates(&analysis, None, Target::Cpu).is_empty());
        let reason = Dia::estimate_bounds(&DiaPlan, &analysis).unwrap_err();
        assert!(reason.contains("more than 7 diagonals"), "{reason}");
        let refused = Dia::pack(&DiaPlan, a.view());
        assert!(matches!(refused, Err(Error::PlanLimit { message, .. }) if message == reason));
    }

    #[test]
    fn a_slot_takes_a_number_and_a_bit() {
        let n = 6400;
        let row_ptr = (0..=n).map(|row| 2 * row).collect();
        let cols = (0..n as u32).flat_map(|row| [row, row + 1]).collect();
        let a = CsrMatrix::try_new(n, n + 1, row_ptr, cols, vec![1.0f64; 2 * n]).unwrap();
        let work = Dia::work(&DiaPlan, &Analysis::of(a.view()), ScalarKind::F64);
        assert_eq!(work.matrix_bytes, 2 * (8 + n as u64 * 8 + n as u64 / 8));
    }
}
