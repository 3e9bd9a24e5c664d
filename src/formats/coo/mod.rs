//! COO, coordinates: every entry with its row and its column, sorted by row.
//!
//! ```text
//! 3 . 1 .     row_idx  0 0 2 2 2 3 3
//! . . . .     col_idx  0 2 1 2 3 0 3
//! . 2 4 1     values   3 1 2 4 1 1 1
//! 1 . . 1
//! ```
//!
//! Invariants: three arrays of `nnz` elements; `row_idx` never falls; nothing is padded. Entries of one row keep the order
//! they had.
//!
//! Source: Bell & Garland, SC'09, §4.1; the product is their segmented reduction, cut into equal parts.

mod cpu;

use super::{Format, HostMatrix, PlanArgs, Traffic, Weights, slot_bytes, vector_bytes};
use crate::analysis::Analysis;
use crate::device::cpu::partition;
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Scalar, ScalarKind};
use std::fmt::{self, Display};

/// The format.
pub(crate) struct Coo;

/// `coo`: equally many entries for everyone, rows that are cut put together afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan;

impl Display for Plan {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Bytes of one entry.
pub(crate) const fn entry_bytes(scalar: ScalarKind) -> u64 {
    size_of::<u32>() as u64 + slot_bytes(scalar)
}

impl Format for Coo {
    type Plan = Plan;
    type Host<T: Scalar> = Host<T>;

    const EXAMPLES: &'static [&'static str] = &["coo"];

    fn parse(_: &mut PlanArgs<'_>) -> Result<Plan, Error> {
        Ok(Plan)
    }

    fn candidates(_: &Analysis, _: &Weights) -> Vec<Plan> {
        vec![Plan]
    }

    fn traffic(_: &Plan, analysis: &Analysis, scalar: ScalarKind) -> Traffic {
        Traffic {
            matrix_bytes: analysis.rows.nnz * entry_bytes(scalar),
            vector_bytes: vector_bytes(analysis, scalar),
            tail: analysis.rows.nnz,
            rows: analysis.rows.nrows as u64,
            groups: analysis.rows.nrows as u64 - analysis.rows.empty_rows,
            ..Traffic::default()
        }
    }

    fn kernel(_: &Plan) -> &'static str {
        "coo"
    }

    fn pack<T: Scalar>(_: &Plan, a: CsrView<'_, T>) -> Result<Host<T>, Error> {
        Ok(Host::beyond(a, 0))
    }
}

/// A matrix in COO.
#[derive(Debug)]
pub(crate) struct Host<T> {
    nrows: usize,
    ncols: usize,
    row_idx: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<T>,
    /// Bounds of the parts, in entries.
    parts: Box<[usize]>,
}

impl<T: Scalar> Host<T> {
    /// The entries of `a` past the first `width` of their row.
    pub(crate) fn beyond(a: CsrView<'_, T>, width: usize) -> Self {
        let entries = (0..a.nrows()).map(|row| a.row_len(row).saturating_sub(width)).sum();
        let mut row_idx = Vec::with_capacity(entries);
        let mut col_idx = Vec::with_capacity(entries);
        let mut values = Vec::with_capacity(entries);
        for row in 0..a.nrows() {
            let (cols, vals) = a.row(row);
            if cols.len() > width {
                row_idx.resize(row_idx.len() + cols.len() - width, row as u32);
                col_idx.extend_from_slice(&cols[width..]);
                values.extend_from_slice(&vals[width..]);
            }
        }
        let parts = partition(entries, 1, |k| k as u64);
        Self { nrows: a.nrows(), ncols: a.ncols(), row_idx, col_idx, values, parts }
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

impl<T: Scalar> HostMatrix<T> for Host<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv::<T, false>(self, x, y);
    }

    fn unpack(&self) -> CsrMatrix<T> {
        let mut row_ptr = vec![0; self.nrows + 1];
        for &row in &self.row_idx {
            row_ptr[row as usize + 1] += 1;
        }
        for row in 0..self.nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        // SAFETY: the entries are those of a checked matrix, counted by row.
        unsafe {
            CsrMatrix::new_unchecked(
                self.nrows,
                self.ncols,
                row_ptr,
                self.col_idx.clone(),
                self.values.clone(),
            )
        }
    }

    fn matrix_bytes(&self) -> u64 {
        (size_of_val(&*self.row_idx) + size_of_val(&*self.col_idx) + size_of_val(&*self.values)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chapter;

    #[test]
    fn the_chapters_matrices() {
        let packed = Coo::pack(&Plan, chapter::matrix::<f32>().view()).unwrap();
        assert_eq!(packed.row_idx, [0, 0, 2, 2, 2, 3, 3]);
        assert_eq!(packed.col_idx, [0, 2, 1, 2, 3, 0, 3]);
        assert_eq!(packed.values, [3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0]);

        let exercise = Coo::pack(&Plan, chapter::exercise::<f32>().view()).unwrap();
        assert_eq!(exercise.row_idx, [0, 0, 1, 2, 2, 3, 3]);
        assert_eq!(exercise.col_idx, [0, 2, 2, 1, 2, 0, 3]);
        assert_eq!(exercise.values, [1.0, 7.0, 8.0, 4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn storage_is_three_words_an_entry() {
        let a = chapter::matrix::<f32>();
        assert_eq!(Coo::traffic(&Plan, &Analysis::of(a.view()), ScalarKind::F32).matrix_bytes, 4 * 3 * 7);
    }
}
