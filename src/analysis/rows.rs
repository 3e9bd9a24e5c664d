//! Statistics of the row lengths.

use serde::{Deserialize, Serialize};

/// Statistics of the row lengths of a matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowStats {
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of stored entries.
    pub nnz: u64,
    /// Length of the longest row.
    pub max: u32,
    /// Entries per row, on average.
    pub mean: f64,
    /// How many rows there are of every length.
    pub histogram: Histogram,
}

impl RowStats {
    /// Measures rows of the given lengths in a matrix with `ncols` columns.
    pub fn of(ncols: usize, row_lengths: &[u32]) -> Self {
        let histogram = Histogram::of(row_lengths);
        let nnz = histogram.entries_beyond(0);
        let nrows = row_lengths.len();
        let max = histogram.classes().last().map_or(0, |c| c.0);
        Self { nrows, ncols, nnz, max, mean: nnz as f64 / nrows.max(1) as f64, histogram }
    }
}

/// How many rows there are of every length that occurs: exact, shortest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram(Vec<(u32, u64)>);

impl Histogram {
    /// Counts the given row lengths.
    pub fn of(row_lengths: &[u32]) -> Self {
        let mut counts = std::collections::BTreeMap::new();
        for &len in row_lengths {
            *counts.entry(len).or_insert(0u64) += 1;
        }
        Self(counts.into_iter().collect())
    }

    /// `(length, rows)` for every length that occurs, shortest first.
    pub fn classes(&self) -> &[(u32, u64)] {
        &self.0
    }

    /// Number of rows.
    pub fn nrows(&self) -> u64 {
        self.0.iter().map(|c| c.1).sum()
    }

    /// Rows with more than `len` entries.
    pub fn rows_longer(&self, len: u32) -> u64 {
        self.0[self.0.partition_point(|c| c.0 <= len)..].iter().map(|c| c.1).sum()
    }

    /// Entries past the first `width` of their row: what a hybrid of that width leaves to its COO part.
    pub fn entries_beyond(&self, width: u32) -> u64 {
        let longer = &self.0[self.0.partition_point(|c| c.0 <= width)..];
        longer.iter().map(|&(len, rows)| u64::from(len - width) * rows).sum()
    }

    /// The smallest length that at least the share `q` of the rows do not exceed; 0 without rows.
    pub fn quantile(&self, q: f64) -> u32 {
        let wanted = (q * self.nrows() as f64).ceil().max(1.0);
        let mut seen = 0;
        for &(len, rows) in &self.0 {
            seen += rows;
            if seen as f64 >= wanted {
                return len;
            }
        }
        self.0.last().map_or(0, |c| c.0)
    }

    /// The row length at place `index` when all are sorted upwards; the longest past the end, 0 without rows.
    pub fn nth(&self, index: u64) -> u32 {
        let mut seen = 0;
        let reached = self.0.iter().find(|&&(_, rows)| {
            seen += rows;
            seen > index
        });
        reached.or(self.0.last()).map_or(0, |c| c.0)
    }

    /// The row lengths when rows longer than `len` are cut to it.
    pub fn clipped(&self, len: u32) -> Self {
        let mut classes = self.0[..self.0.partition_point(|c| c.0 < len)].to_vec();
        let rows = self.nrows() - classes.iter().map(|c| c.1).sum::<u64>();
        if rows > 0 {
            classes.push((len, rows));
        }
        Self(classes)
    }
}
