//! What predictions read of an analysis: few enough numbers to be kept with measurements.

use crate::analysis::{Analysis, Reuse};
use serde::{Deserialize, Serialize};

/// The facts of a matrix that the cost model reads; see [`RowStats`](crate::analysis::RowStats) and
/// [`Structure`](crate::analysis::Structure) for what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Facts {
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
    /// Entries per row, on average.
    pub mean: f64,
    /// Coefficient of variation of the row lengths.
    pub cv: f64,
    /// Gini coefficient of the row lengths.
    pub gini: f64,
    /// Rows of another length than the row before.
    pub changes: u64,
    /// Share of the entries that continue the row above.
    pub affine: f64,
    /// Share of the entries whose column continues the one before them in their row.
    pub runs: f64,
    /// How far apart the gathers from one part of `x` are.
    pub reuse: Reuse,
}

impl From<&Analysis> for Facts {
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
            affine: structure.affine,
            runs: structure.runs,
            reuse: structure.reuse,
        }
    }
}
