//! ELL: every row padded to the length of the longest, stored column by column.
//!
//! ```text
//! 3 . 1 .     width    3               (_ is padding: column `PADDING`, value 0)
//! . . . .     col_idx  0 _ 1 0   2 _ 2 3   _ _ 3 _
//! . 2 4 1     values   3 _ 2 1   1 _ 4 1   _ _ 1 _
//! 1 . . 1     row_len  2 0 3 2         (only with `lengths`)
//! ```
//!
//! Invariants: slot `k` of row `i` is at `k · nrows + i`; the entries of a row come first, in
//! their order; padding is never multiplied, so that `0 · Inf` cannot put a NaN into a row that
//! does not touch the Inf. Without `lengths` padding is recognised by its column; with them it is
//! not even read.
//!
//! Source: Bell & Garland, SC'09, §4.2; with row lengths, Vázquez, Fernández & Garzón's ELLR
//! (Concurrency and Computation, 2011).
#![doc = include_str!("operations.md")]

mod access;
mod cpu;
mod cuda;

pub(crate) use cuda::DeviceEll;

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work, critical_path_us, device_rows, megabytes, millions, short_rows,
    slot_bytes, vector_bytes,
};
use crate::analysis::Analysis;
use crate::device::cpu::{Output, PADDING, for_each_task, partition};
use crate::device::{CsrSource, Gpu, Module, Residency};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{listed, try_zeroed};
use crate::{Error, Scalar, ScalarKind};
use std::fmt::{self, Display};
use std::sync::Arc;

/// The ELL format.
pub(crate) struct Ell;

/// Plan of ELL: the storage of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EllPlan {
    /// `ell`: padding is recognised by its column.
    Padded,
    /// `ell(lengths)`: with the length of every row.
    Lengths,
}

/// Maximum padding ratio of a candidate: measured, ELL wins over CSR only below about 1.2.
const CANDIDATE_PADDING: f64 = 3.0;

impl Display for EllPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Padded => Ok(()),
            Self::Lengths => f.write_str("(lengths)"),
        }
    }
}

impl Format for Ell {
    type Plan = EllPlan;
    type Host<T: Scalar> = HostEll<T>;

    const EXAMPLES: &'static [&'static str] = &["ell", "ell(lengths)"];

    fn parse(args: &mut PlanArgs<'_>) -> Result<EllPlan, Error> {
        Ok(if args.flag("lengths")? { EllPlan::Lengths } else { EllPlan::Padded })
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, _: Target) -> Vec<EllPlan> {
        let slots = analysis.rows.nrows as f64 * f64::from(analysis.rows.max);
        if slots > CANDIDATE_PADDING * analysis.rows.nnz as f64 {
            return Vec::new();
        }
        vec![EllPlan::Padded, EllPlan::Lengths]
    }

    fn work(plan: &EllPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let work = work_of_width(analysis, scalar, analysis.rows.max);
        match *plan {
            EllPlan::Padded => work,
            EllPlan::Lengths => {
                let lengths = analysis.rows.nrows as u64 * size_of::<u32>() as u64;
                let matrix_bytes = work.matrix_bytes.saturating_add(lengths);
                Work { matrix_bytes, short_rows: false, ..work }
            }
        }
    }

    fn cost_key(plan: &EllPlan, _: Target) -> &'static str {
        match *plan {
            EllPlan::Padded => "ell",
            EllPlan::Lengths => "ell.lengths",
        }
    }

    fn cost_key_of(plan: &EllPlan, on: Target, work: &Work) -> &'static str {
        match (plan, on, work.short_rows) {
            (EllPlan::Padded, Target::Gpu, true) => "ell.short",
            _ => Self::cost_key(plan, on),
        }
    }

    fn fallback_cost_keys(key: &str) -> Vec<String> {
        short_rows::without_short(key)
    }

    fn estimate_us(_: &EllPlan, analysis: &Analysis, work: &Work) -> f64 {
        let rows = 6.5 * millions(analysis.rows.nrows as u64);
        2.3 + 0.07 * megabytes(work) + critical_path_us(work, 0.057, 0.063) + rows
    }

    fn pack<T: Scalar>(plan: &EllPlan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error> {
        let width = (0..a.nrows()).map(|row| a.row_len(row)).max().unwrap_or(0);
        HostEll::of_width(a, width, *plan == EllPlan::Lengths)
    }

    fn gpu_kernels<T: Scalar>(_: &EllPlan, _: &Analysis, _: u64, _: Gpu) -> Vec<(Module, String)> {
        device_rows::kernels()
    }

    fn properties(_: &EllPlan) -> PlanProperties {
        PlanProperties { packs_on_device: device_rows::SUPPORTED, ..PlanProperties::default() }
    }

    fn pack_on_device<T: Scalar>(
        plan: &EllPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        Ok(Some(Arc::new(DeviceEll::pack(*plan == EllPlan::Lengths, source)?)))
    }
}

/// Work of rows cut or padded to `width`, without row lengths.
pub(crate) fn work_of_width(analysis: &Analysis, scalar: ScalarKind, width: u32) -> Work {
    let nrows = analysis.rows.nrows as u64;
    // Neither factor exceeds 2³², but with the bytes of a slot the product may.
    let slots = nrows.saturating_mul(u64::from(width));
    let shortest = analysis.rows.histogram.classes().first().map_or(0, |c| c.0);
    Work {
        matrix_bytes: slots.saturating_mul(slot_bytes(scalar)),
        vector_bytes: vector_bytes(analysis, scalar),
        slots,
        gathered: super::gathered(slots, analysis.structure.shifted),
        strided_slots: nrows * u64::from(width.saturating_sub(super::STREAMS)),
        masked_slots: slots - nrows * u64::from(shortest.min(width)),
        rows: nrows,
        critical_path: u64::from(width),
        short_rows: short_rows::are_short(analysis.rows.nrows, width as usize),
        ..Work::default()
    }
}

/// An ELL matrix, or the ELL part of another format: its first `width` entries per row.
#[derive(Debug)]
pub(crate) struct HostEll<T> {
    nrows: usize,
    ncols: usize,
    width: usize,
    /// Minimum number of entries of a row: slots before it have no padding.
    full: usize,
    col_idx: Vec<u32>,
    values: Vec<T>,
    row_len: Option<Vec<u32>>,
    consecutive: bool,
    /// Bounds of the tasks, in rows.
    tasks: Box<[usize]>,
}

impl<T: Scalar> HostEll<T> {
    /// Packs the first `width` entries of every row of `a`.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn of_width(a: CsrView<'_, T>, width: usize, lengths: bool) -> Result<Self, Error> {
        let nrows = a.nrows();
        let mut col_idx = try_zeroed::<u32>(nrows.saturating_mul(width))?;
        let mut values = try_zeroed::<T>(nrows.saturating_mul(width))?;
        let (cols, vals) = (Output::new(&mut col_idx), Output::new(&mut values));
        let row_len: Vec<u32> = listed((0..nrows).map(|row| a.row_len(row).min(width) as u32))?;
        let tasks = partition(nrows, cpu::STRIP_ROWS, |rows| rows as u64 * (width as u64 + 1));
        for_each_task(&tasks, |rows| {
            // Blocks small enough that their part of the CSR arrays stays in the cache while slot
            // after slot is filled.
            for start in rows.clone().step_by(cpu::STRIP_ROWS) {
                for k in 0..width {
                    let strip = start..(start + cpu::STRIP_ROWS).min(rows.end);
                    for (row, &len) in strip.clone().zip(&row_len[strip]) {
                        let entry = a.row_ptr()[row] + k;
                        let filled = k < len as usize;
                        // SAFETY: slot k of a row belongs to the task that has the row.
                        unsafe {
                            cols.set(
                                k * nrows + row,
                                if filled { a.col_idx()[entry] } else { PADDING },
                            );
                            if filled {
                                vals.set(k * nrows + row, a.values()[entry]);
                            }
                        }
                    }
                }
            }
        });
        Ok(Self {
            nrows,
            ncols: a.ncols(),
            width,
            full: row_len.iter().copied().min().unwrap_or(0) as usize,
            consecutive: super::follow_across_lanes(&col_idx),
            col_idx,
            values,
            row_len: lengths.then_some(row_len),
            tasks,
        })
    }

    /// `(nrows, ncols)`.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.nrows, self.ncols)
    }

    /// Columns and values of all slots, padding included.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> (&[u32], &[T]) {
        (&self.col_idx, &self.values)
    }

    /// Columns and values of a row, in order.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (u32, T)> + '_ {
        let slots = (0..self.width).map(move |k| k * self.nrows + row);
        slots.map(|at| (self.col_idx[at], self.values[at])).take_while(|&(col, _)| col != PADDING)
    }
}

impl<T: Scalar> HostMatrix<T> for HostEll<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        super::from_rows(self.nrows, self.ncols, |row, push| {
            self.row(row).for_each(|(col, value)| push(col, value))
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
        let lengths = self.row_len.as_ref().map_or(0, |l| size_of_val(&**l));
        (size_of_val(&*self.col_idx) + size_of_val(&*self.values) + lengths) as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        let residency =
            Residency::of::<T>(gpu, self.matrix_bytes(), self.shape()).with_final_results();
        Ok(Box::new(DeviceEll::new(self, gpu, residency)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chapter;

    const P: u32 = PADDING;

    #[test]
    fn the_chapters_matrices() {
        let packed = HostEll::of_width(chapter::matrix::<f32>().view(), 3, true).unwrap();
        assert_eq!(packed.width, 3);
        assert_eq!(packed.col_idx, [0, P, 1, 0, 2, P, 2, 3, P, P, 3, P]);
        assert_eq!(packed.values, [3., 0., 2., 1., 1., 0., 4., 1., 0., 0., 1., 0.]);
        assert_eq!(packed.row_len, Some(vec![2, 0, 3, 2]));
        assert_eq!(packed.col_idx.iter().filter(|&&c| c == P).count(), 5, "five padded slots");

        let exercise = HostEll::of_width(chapter::exercise::<f32>().view(), 2, false).unwrap();
        assert_eq!(exercise.col_idx, [0, 2, 1, 0, 2, P, 2, 3]);
        assert_eq!(exercise.values, [1., 8., 4., 2., 7., 0., 3., 1.]);
        assert_eq!(exercise.row_len, None);
    }

    #[test]
    fn storage_is_two_words_for_every_row_and_slot() {
        let a = chapter::matrix::<f32>();
        let (m, k) = (4, 3);
        let work = Ell::work(&EllPlan::Padded, &Analysis::of(a.view()), ScalarKind::F32);
        assert_eq!(work.matrix_bytes, 4 * 2 * m * k);
    }

    #[test]
    fn one_row_of_200_makes_it_twenty_times_csr() {
        // 1000 x 1000 at one per cent: 10 entries a row, but one row has 200.
        let mut row_ptr = vec![0];
        let mut col_idx = Vec::new();
        for row in 0..1000u32 {
            let len = if row == 500 { 200 } else { 10 };
            col_idx.extend((0..len).map(|k| (row + k * 5) % 1000));
            row_ptr.push(col_idx.len());
        }
        let values = vec![1.0f32; col_idx.len()];
        let a = CsrMatrix::try_new(1000, 1000, row_ptr, col_idx, values).unwrap();
        let analysis = Analysis::of(a.view());
        let ell = Ell::work(&EllPlan::Padded, &analysis, ScalarKind::F32);
        assert_eq!(ell.slots, 200_000, "20 times the 10,000 entries that one per cent makes");
        let csr = super::super::Plan::Csr(super::super::csr::CsrPlan::Scalar)
            .work(&analysis, ScalarKind::F32);
        let ratio = ell.matrix_bytes as f64 / csr.matrix_bytes as f64;
        assert!((18.0..20.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_bytes_of_an_absurd_width_do_not_wrap() {
        let mut analysis = Analysis::of(CsrMatrix::<f64>::zeros(0, 0).unwrap().view());
        analysis.rows.nrows = u32::MAX as usize - 1;
        analysis.rows.max = u32::MAX - 1;
        assert_eq!(Ell::work(&EllPlan::Lengths, &analysis, ScalarKind::F64).matrix_bytes, u64::MAX);
    }
}
