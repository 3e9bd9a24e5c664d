//! COO, coordinates: every entry with its row and its column, sorted by row.
//!
//! ```text
//! 3 . 1 .     row_idx  0 0 2 2 2 3 3
//! . . . .     col_idx  0 2 1 2 3 0 3
//! . 2 4 1     values   3 1 2 4 1 1 1
//! 1 . . 1
//! ```
//!
//! Invariants: three arrays of `nnz` elements; `row_idx` never decreases; nothing is padded.
//! Entries of one row keep their order.
//!
//! `coo` sums the entries of a row before it writes them. `coo(atomic)` adds every entry to `y`
//! individually, the textbook kernel of a GPU: the order of the additions, and with it the last
//! bits, vary between runs. On the CPU both run the same loop.
//!
//! The working memory of `coo` on a GPU is a sum and a row for every 2048 entries. It has no kernel
//! with the axpby epilogue.
//!
//! Source: Bell & Garland, SC'09, §4.1; the SpMV is their segmented reduction, cut into equal
//! tasks or chunks.
#![doc = include_str!("operations.md")]

mod access;
mod constants;
mod cpu;
mod cuda;

pub(crate) use cuda::DeviceTail;

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work, megabytes, millions, slot_bytes, vector_bytes,
};
use crate::analysis::Analysis;
use crate::device::Gpu;
use crate::device::cpu::partition;
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{reserved, try_copied, try_zeroed};
use crate::{Error, Scalar, ScalarKind};
use constants::CHUNK;
use std::fmt::{self, Display};

/// The COO format.
pub(crate) struct Coo;

/// Plan of COO: the summation of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CooPlan {
    /// `coo`: equally many entries per task, on a GPU per chunk; the sums of rows that are cut are
    /// added afterwards.
    Segments,
    /// `coo(atomic)`: every entry is added to `y` individually, in any order; the bits of `y` may
    /// differ from one SpMV to the next.
    Atomic,
}

impl Display for CooPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Atomic { "(atomic)" } else { "" })
    }
}

/// Bytes of one entry.
pub(crate) const fn entry_bytes(scalar: ScalarKind) -> u64 {
    size_of::<u32>() as u64 + slot_bytes(scalar)
}

/// Maximum number of chunks whose carries are added by the last block to finish: two rounds of a
/// single block, and about as many blocks as a large GPU runs at a time. The carries of more chunks
/// are added by a second kernel.
const MAX_CHUNKS_ONE_LAUNCH: usize = 512;

/// Number of kernel launches for `entries` entries.
pub(crate) const fn launches(entries: u64) -> u64 {
    match entries {
        0 => 0,
        _ if entries <= (CHUNK * MAX_CHUNKS_ONE_LAUNCH) as u64 => 1,
        _ => 2,
    }
}

impl Format for Coo {
    type Plan = CooPlan;
    type Host<T: Scalar> = HostCoo<T>;

    const EXAMPLES: &'static [&'static str] = &["coo", "coo(atomic)"];

    fn parse(args: &mut PlanArgs<'_>) -> Result<CooPlan, Error> {
        Ok(if args.flag("atomic")? { CooPlan::Atomic } else { CooPlan::Segments })
    }

    fn candidates(_: &Analysis, _: Costs<'_>, on: Target) -> Vec<CooPlan> {
        match on {
            Target::Cpu => vec![CooPlan::Segments],
            Target::Gpu => vec![CooPlan::Segments, CooPlan::Atomic],
        }
    }

    fn work(plan: &CooPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        Work {
            matrix_bytes: analysis.rows.nnz * entry_bytes(scalar),
            vector_bytes: vector_bytes(analysis, scalar),
            outside: analysis.rows.nnz,
            rows: analysis.rows.nrows as u64,
            starts: analysis.rows.nrows as u64 - analysis.rows.empty_rows,
            // If not every row is written, `y` is cleared first.
            relaunches: match plan {
                CooPlan::Segments => {
                    u64::from(analysis.rows.empty_rows > 0)
                        + launches(analysis.rows.nnz).saturating_sub(1)
                }
                CooPlan::Atomic => 1,
            },
            ..Work::default()
        }
    }

    fn properties(plan: &CooPlan) -> PlanProperties {
        // Not eligible on a GPU: on an H200 `coo` is the fastest plan by 3 % on 2 of 2,125
        // matrices, `coo(atomic)` on 5 (docs/adr/028-plans-that-stay.md).
        PlanProperties {
            deterministic: *plan == CooPlan::Segments,
            keeps_order: true,
            eligible_on_gpu: false,
            ..PlanProperties::default()
        }
    }

    fn estimate_us(_: &CooPlan, analysis: &Analysis, work: &Work) -> f64 {
        6.0 + 0.3 * megabytes(work) + 5.6 * millions(analysis.rows.nrows as u64)
    }

    fn cost_key(plan: &CooPlan, on: Target) -> &'static str {
        match (plan, on) {
            (CooPlan::Atomic, Target::Gpu) => "coo.atomic",
            _ => "coo",
        }
    }

    fn pack<T: Scalar>(plan: &CooPlan, a: CsrView<'_, T>) -> Result<HostCoo<T>, Error> {
        Ok(HostCoo { plan: *plan, ..HostCoo::beyond(a, 0)? })
    }
}

/// A matrix in COO.
#[derive(Debug)]
pub(crate) struct HostCoo<T> {
    plan: CooPlan,
    nrows: usize,
    ncols: usize,
    row_idx: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<T>,
    /// Bounds of the tasks, in entries.
    tasks: Box<[usize]>,
}

impl<T: Scalar> HostCoo<T> {
    /// The entries of `a` beyond the first `width` of their row.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn beyond(a: CsrView<'_, T>, width: usize) -> Result<Self, Error> {
        let entries = (0..a.nrows()).map(|row| a.row_len(row).saturating_sub(width)).sum();
        let mut row_idx = reserved(entries)?;
        let mut col_idx = reserved(entries)?;
        let mut values = reserved(entries)?;
        for row in 0..a.nrows() {
            let (cols, vals) = a.row(row);
            if cols.len() > width {
                row_idx.resize(row_idx.len() + cols.len() - width, row as u32);
                col_idx.extend_from_slice(&cols[width..]);
                values.extend_from_slice(&vals[width..]);
            }
        }
        Ok(Self::of(a.nrows(), a.ncols(), row_idx, col_idx, values))
    }

    /// Matrix with the given entries, which are sorted by row.
    fn of(
        nrows: usize,
        ncols: usize,
        row_idx: Vec<u32>,
        col_idx: Vec<u32>,
        values: Vec<T>,
    ) -> Self {
        let tasks = partition(values.len(), 1, |k| k as u64);
        Self { plan: CooPlan::Segments, nrows, ncols, row_idx, col_idx, values, tasks }
    }

    /// Matrix without entries.
    pub(crate) fn empty((nrows, ncols): (usize, usize)) -> Self {
        Self::of(nrows, ncols, Vec::new(), Vec::new(), Vec::new())
    }

    /// The matrix without its empty rows, and the numbers of the other rows.
    pub(crate) fn compacted(&self) -> (Self, Vec<u32>) {
        let mut rows = self.row_idx.clone();
        rows.dedup();
        let mut place = 0;
        let row_idx = self.row_idx.iter().map(|&row| {
            place += u32::from(rows[place as usize] != row);
            place
        });
        let (row_idx, nrows) = (row_idx.collect(), rows.len());
        (Self::of(nrows, self.ncols, row_idx, self.col_idx.clone(), self.values.clone()), rows)
    }

    /// Inverse of [`compacted`](Self::compacted): row `i` becomes row `rows[i]` of `nrows`.
    pub(crate) fn expanded(&self, nrows: usize, rows: &[u32]) -> Self {
        let row_idx = self.row_idx.iter().map(|&place| rows[place as usize]).collect();
        Self::of(nrows, self.ncols, row_idx, self.col_idx.clone(), self.values.clone())
    }

    /// True if every row has an entry.
    fn reaches_every_row(&self) -> bool {
        self.row_idx.len() >= self.nrows
            && self.row_idx.chunk_by(|a, b| a == b).count() == self.nrows
    }

    /// `y = y + A x`.
    pub(crate) fn spmv_add(&self, x: &[T], y: &mut [T]) {
        if !self.values.is_empty() {
            cpu::spmv::<T, true>(self, x, y);
        }
    }

    /// Row, column and value of every entry, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, u32, T)> + '_ {
        self.row_idx
            .iter()
            .zip(&self.col_idx)
            .zip(&self.values)
            .map(|((&row, &col), &value)| (row, col, value))
    }
}

impl<T: Scalar> HostMatrix<T> for HostCoo<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv::<T, false>(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let mut row_ptr = try_zeroed(self.nrows + 1)?;
        for &row in &self.row_idx {
            row_ptr[row as usize + 1] += 1;
        }
        for row in 0..self.nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        let (col_idx, values) = (try_copied(&self.col_idx)?, try_copied(&self.values)?);
        // SAFETY: the entries are those of a checked matrix, counted by row.
        Ok(unsafe { CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, values) })
    }

    fn change_plan(&mut self, plan: &super::Plan) -> Result<bool, Error> {
        let super::Plan::Coo(plan) = plan else { return Ok(false) };
        self.plan = *plan;
        Ok(true)
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
        (size_of_val(&*self.row_idx) + size_of_val(&*self.col_idx) + size_of_val(&*self.values))
            as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceCoo::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chapter;

    #[test]
    fn the_chapters_matrices() {
        let packed = Coo::pack(&CooPlan::Segments, chapter::matrix::<f32>().view()).unwrap();
        assert_eq!(packed.row_idx, [0, 0, 2, 2, 2, 3, 3]);
        assert_eq!(packed.col_idx, [0, 2, 1, 2, 3, 0, 3]);
        assert_eq!(packed.values, [3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0]);

        let exercise = Coo::pack(&CooPlan::Atomic, chapter::exercise::<f32>().view()).unwrap();
        assert_eq!(exercise.row_idx, [0, 0, 1, 2, 2, 3, 3]);
        assert_eq!(exercise.col_idx, [0, 2, 2, 1, 2, 0, 3]);
        assert_eq!(exercise.values, [1.0, 7.0, 8.0, 4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn storage_is_three_words_an_entry() {
        let a = chapter::matrix::<f32>();
        let bytes =
            Coo::work(&CooPlan::Segments, &Analysis::of(a.view()), ScalarKind::F32).matrix_bytes;
        assert_eq!(bytes, 4 * 3 * 7);
    }

    #[test]
    fn rows_without_entries_come_and_go() {
        let whole = Coo::pack(&CooPlan::Segments, chapter::matrix::<f32>().view()).unwrap();
        let (compact, rows) = whole.compacted();
        assert_eq!(
            (compact.nrows, &*compact.row_idx, &*rows),
            (3, &[0, 0, 1, 1, 1, 2, 2][..], &[0, 2, 3][..])
        );
        assert!(!whole.reaches_every_row() && compact.reaches_every_row());
        assert_eq!(compact.expanded(4, &rows).row_idx, whole.row_idx);
        let (nothing, rows) =
            HostCoo::beyond(chapter::matrix::<f32>().view(), 9).unwrap().compacted();
        assert!(nothing.values.is_empty() && rows.is_empty());
    }

    #[test]
    fn only_atomics_leave_bits_to_chance() {
        for (text, deterministic) in
            [("coo", true), ("coo(atomic)", false), ("csr(balanced)", true)]
        {
            assert_eq!(
                text.parse::<super::super::Plan>().unwrap().is_deterministic(),
                deterministic,
                "{text}"
            );
        }
    }
}
