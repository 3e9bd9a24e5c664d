//! What a matrix looks like, measured in two parallel passes: one over its row offsets, one over its columns and
//! values. Everything that later chooses a format reads an [`Analysis`] and never the matrix.

mod rows;

pub use rows::{Histogram, RowStats};

use crate::Scalar;
use crate::matrix::CsrView;

/// The measured facts of one matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Statistics of the row lengths.
    pub rows: RowStats,
    /// Length of every row, in row order.
    pub row_lengths: Vec<u32>,
}

impl Analysis {
    /// Measures `a`.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let row_lengths: Vec<u32> = a.row_ptr().windows(2).map(|w| (w[1] - w[0]) as u32).collect();
        Self { rows: RowStats::of(a.ncols(), &row_lengths), row_lengths }
    }
}
