//! Positions of the entries of a matrix, without their values.

use super::CsrView;
use crate::{Scalar, parallel};
use std::ops::Range;

/// Rows that a task checks.
const ROWS_PER_TASK: usize = 1 << 10;

/// Row offsets and columns of a checked matrix. What depends on them alone is compiled once, not
/// once for each type of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CsrColumns<'a> {
    ncols: usize,
    row_ptr: &'a [usize],
    col_idx: &'a [u32],
}

impl<'a, T: Scalar> CsrView<'a, T> {
    /// The matrix without its values.
    pub(crate) fn columns(self) -> CsrColumns<'a> {
        CsrColumns { ncols: self.ncols, row_ptr: self.row_ptr, col_idx: self.col_idx }
    }
}

impl<'a> CsrColumns<'a> {
    /// Number of rows.
    pub(crate) fn nrows(self) -> usize {
        self.row_ptr.len() - 1
    }

    /// Number of columns.
    pub(crate) fn ncols(self) -> usize {
        self.ncols
    }

    /// Number of entries.
    pub(crate) fn nnz(self) -> usize {
        self.col_idx.len()
    }

    /// Beginning of each row, and the end of the last one.
    pub(crate) fn row_ptr(self) -> &'a [usize] {
        self.row_ptr
    }

    /// Column of each entry.
    pub(crate) fn col_idx(self) -> &'a [u32] {
        self.col_idx
    }

    /// Numbers of the entries of a row.
    pub(crate) fn row_range(self, row: usize) -> Range<usize> {
        self.row_ptr[row]..self.row_ptr[row + 1]
    }

    /// Columns of a row.
    pub(crate) fn row(self, row: usize) -> &'a [u32] {
        &self.col_idx[self.row_range(row)]
    }

    /// True if the columns of every row are in order, equal ones allowed.
    pub(crate) fn are_sorted(self) -> bool {
        parallel::all(self.nrows(), ROWS_PER_TASK, |mut rows| {
            rows.all(|row| self.row(row).is_sorted())
        })
    }
}
