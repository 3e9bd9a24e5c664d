//! Matrix features of the cost model: few enough numbers to be stored with measurements.

use crate::analysis::{Analysis, Reuse};
use serde::{Deserialize, Serialize};

/// Matrix features that the cost model reads. See [`RowStats`](crate::analysis::RowStats) and
/// [`Structure`](crate::analysis::Structure) for their definitions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MatrixFeatures {
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of stored entries.
    pub nnz: u64,
    /// Rows without entries.
    pub empty_rows: u64,
    /// Length of the longest row.
    pub max: u32,
    /// Mean number of entries per row.
    pub mean: f64,
    /// Coefficient of variation of the row lengths.
    pub cv: f64,
    /// Gini coefficient of the row lengths.
    pub gini: f64,
    /// Number of rows whose length differs from that of the row before.
    pub changes: u64,
    /// Share of the entries whose column is that of the row above, shifted by one.
    pub shifted: f64,
    /// Share of the entries whose column follows that of the entry before in their row.
    pub contiguous: f64,
    /// Reuse distances of the gathers from parts of `x`.
    pub reuse: Reuse,
}

impl From<&Analysis> for MatrixFeatures {
    fn from(analysis: &Analysis) -> Self {
        let (rows, structure) = (&analysis.rows, &analysis.structure);
        Self {
            nrows: rows.nrows,
            ncols: rows.ncols,
            nnz: rows.nnz,
            empty_rows: rows.empty_rows,
            max: rows.max,
            mean: rows.mean,
            cv: rows.cv,
            gini: rows.gini,
            changes: rows.changes,
            shifted: structure.shifted,
            contiguous: structure.contiguous,
            reuse: structure.reuse,
        }
    }
}
