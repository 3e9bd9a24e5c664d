//! Matrices assembled entry by entry, in any order.

use super::assemble::{Buckets, MatrixEntry, Repeated, SortedRun, to_csr};
use super::{CsrMatrix, check_dimensions};
use crate::parallel::{self, SparePool};
use crate::{Error, Scalar, memory};

/// Entries sorted at a time: half a megabyte of them, which fits the second-level cache.
const RUN: usize = 1 << 15;

/// A matrix under construction: `(row, column, value)` entries in any order; entries of one place
/// are summed.
///
/// ```
/// # use sparseop::matrix::Triplets;
/// let mut t = Triplets::new(2, 2)?;
/// t.push(1, 0, 2.0f32)?;
/// t.push(0, 1, 1.0)?;
/// t.push(1, 0, 3.0)?;
/// let a = t.to_csr();
/// assert_eq!((a.row_ptr(), a.col_idx()), (&[0, 1, 2][..], &[1, 0][..]));
/// assert_eq!(a.values(), [1.0, 5.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Triplets<T> {
    nrows: usize,
    ncols: usize,
    row_idx: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<T>,
}

impl<T: Scalar> Triplets<T> {
    /// Creates an empty matrix of the given shape.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if a dimension exceeds [`MAX_DIMENSION`](super::MAX_DIMENSION).
    pub fn new(nrows: usize, ncols: usize) -> Result<Self, Error> {
        check_dimensions("triplets", nrows, ncols)?;
        Ok(Self { nrows, ncols, row_idx: Vec::new(), col_idx: Vec::new(), values: Vec::new() })
    }

    /// Takes whole arrays of rows, columns and values, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the arrays differ in length or an index is out of range.
    pub fn from_parts(
        nrows: usize,
        ncols: usize,
        row_idx: Vec<u32>,
        col_idx: Vec<u32>,
        values: Vec<T>,
    ) -> Result<Self, Error> {
        check_dimensions("triplets", nrows, ncols)?;
        if row_idx.len() != col_idx.len() || col_idx.len() != values.len() {
            let (r, c, v) = (row_idx.len(), col_idx.len(), values.len());
            let message = format!(
                "{r} rows, {c} columns and {v} values were given; there must be equally many"
            );
            return Err(Error::InvalidMatrix { format: "triplets", message });
        }
        for (name, indices, size) in [("row", &row_idx, nrows), ("column", &col_idx, ncols)] {
            if let Some(k) = indices.iter().position(|&i| i as usize >= size) {
                return Err(out_of_range(name, indices[k] as usize, size, k));
            }
        }
        Ok(Self { nrows, ncols, row_idx, col_idx, values })
    }

    /// Adds `value` at (`row`, `col`), counted from 0.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the place is outside the matrix.
    pub fn push(&mut self, row: usize, col: usize, value: T) -> Result<(), Error> {
        for (name, index, size) in [("row", row, self.nrows), ("column", col, self.ncols)] {
            if index >= size {
                return Err(out_of_range(name, index, size, self.values.len()));
            }
        }
        self.row_idx.push(row as u32);
        self.col_idx.push(col as u32);
        self.values.push(value);
        Ok(())
    }

    /// Number of entries, repeated places counted each time.
    #[doc(hidden)]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there are no entries.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Converts to CSR: columns ascending in every row, entries of one place summed in the order
    /// they were added, explicit zeros kept. Aborts the process if there is not enough memory;
    /// [`ToCsr::to_csr`](super::ToCsr::to_csr) returns an error.
    pub fn to_csr(&self) -> CsrMatrix<T> {
        T::assemble(self).unwrap_or_else(|error| memory::exhausted(error))
    }

    pub(crate) fn to_csr_impl(&self) -> Result<CsrMatrix<T>, Error> {
        memory::check_room(self.len().saturating_mul(size_of::<MatrixEntry<T>>()))?;
        let buckets = Buckets::new(self.nrows);
        let entry = |i: usize| MatrixEntry {
            row: self.row_idx[i],
            col: self.col_idx[i],
            value: self.values[i],
        };
        let spare = SparePool::new(Vec::new);
        let runs = parallel::map_ranges(self.len(), RUN, |range| {
            spare.with(|sequence| {
                sequence.clear();
                memory::reserve(sequence, range.len())?;
                sequence.extend(range.map(entry));
                SortedRun::new(buckets, sequence)
            })
        });
        let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
        to_csr(self.nrows, self.ncols, buckets, runs, Repeated::Summed)
    }
}

fn out_of_range(name: &str, index: usize, size: usize, entry: usize) -> Error {
    let message =
        format!("{name} {index} of entry {entry} is out of range: there are {size} {name}s");
    Error::InvalidMatrix { format: "triplets", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_add_up_and_zeros_stay() {
        let t = Triplets::from_parts(
            3,
            3,
            vec![2, 0, 2, 2],
            vec![1, 2, 1, 0],
            vec![1.0f64, 0.0, -1.0, 4.0],
        )
        .unwrap();
        let a = t.to_csr();
        assert_eq!(a.row_ptr(), [0, 1, 1, 3]);
        assert_eq!(a.col_idx(), [2, 0, 1]);
        assert_eq!(a.values(), [0.0, 4.0, 0.0]);
    }

    #[test]
    fn bad_triplets_are_named() {
        let mut t = Triplets::<f32>::new(2, 3).unwrap();
        assert!(
            t.push(2, 0, 1.0).unwrap_err().to_string().contains("row 2 of entry 0 is out of range")
        );
        assert!(t.push(0, 3, 1.0).unwrap_err().to_string().contains("column 3"));
        let ragged = Triplets::from_parts(2, 2, vec![0], vec![0, 1], vec![1.0f32]).unwrap_err();
        assert!(ragged.to_string().contains("1 rows, 2 columns and 1 values"));
        assert!(Triplets::from_parts(2, 2, vec![0, 5], vec![0, 1], vec![1.0f32; 2]).is_err());
    }
}
