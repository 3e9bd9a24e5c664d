//! Parallel transposition.

use super::assemble::{Buckets, MatrixEntry, Repeated, SortedRun, to_csr};
use super::{CsrMatrix, CsrView};
use crate::parallel::{self, SparePool};
use crate::{Error, Scalar, memory};
use std::ops::Range;

/// Entries that a thread sorts at a time, within its cache.
const RUN: usize = 1 << 16;

impl<T: Scalar> CsrMatrix<T> {
    /// Returns the transposed matrix; its columns are sorted in every row. Aborts the process if
    /// there is not enough memory.
    pub fn transpose(&self) -> Self {
        self.view().transpose()
    }
}

impl<T: Scalar> CsrView<'_, T> {
    /// Returns the transposed matrix; its columns are sorted in every row, equal columns in the
    /// order of this matrix. Temporarily needs 8 bytes and a value per entry. Aborts the process if
    /// there is not enough memory.
    #[doc(hidden)]
    pub fn transpose(self) -> CsrMatrix<T> {
        self.try_transpose().unwrap_or_else(|error| memory::exhausted(error))
    }

    /// As [`transpose`](Self::transpose).
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    #[doc(hidden)]
    pub fn try_transpose(self) -> Result<CsrMatrix<T>, Error> {
        T::transpose(self)
    }

    pub(crate) fn transpose_impl(self) -> Result<CsrMatrix<T>, Error> {
        memory::check_room(self.nnz().saturating_mul(size_of::<MatrixEntry<T>>()))?;
        let buckets = Buckets::new(self.ncols());
        let run = |sequence: &mut Vec<MatrixEntry<T>>, entries: Range<usize>| {
            let mut row = self.row_ptr().partition_point(|&p| p <= entries.start) - 1;
            sequence.clear();
            memory::reserve(sequence, entries.len())?;
            sequence.extend(entries.map(|k| {
                while self.row_ptr()[row + 1] <= k {
                    row += 1;
                }
                MatrixEntry { row: self.col_idx()[k], col: row as u32, value: self.values()[k] }
            }));
            SortedRun::new(buckets, sequence)
        };
        let spare = SparePool::new(Vec::new);
        let runs = parallel::map_ranges(self.nnz(), RUN, |entries| {
            spare.with(|sequence| run(sequence, entries))
        });
        let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
        to_csr(self.ncols(), self.nrows(), buckets, runs, Repeated::Separate)
    }

    /// True if the matrix equals the given transpose of it, bit for bit; the order of a row's
    /// entries does not matter unless their columns are equal.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn equals_transpose(self, transposed: &CsrMatrix<T>) -> Result<bool, Error> {
        if self.nrows() != self.ncols() || self.row_ptr() != transposed.row_ptr() {
            return Ok(false);
        }
        let sorted = self.columns().are_sorted();
        // Transposing twice sorts the columns, and keeps the order of equal ones.
        let copy = (!sorted).then(|| transposed.view().try_transpose()).transpose()?;
        let a = copy.as_ref().map_or(self, CsrMatrix::view);
        let same_bits = |(one, other): (&T, &T)| one.bits() == other.bits();
        Ok(parallel::all(self.nnz(), RUN, |range| {
            let values = a.values()[range.clone()].iter().zip(&transposed.values()[range.clone()]);
            a.col_idx()[range.clone()] == transposed.col_idx()[range] && { values }.all(same_bits)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::gallery;
    use crate::testing::chapter;
    use proptest::prelude::*;

    /// Reference: transposed entry by entry.
    fn slowly(a: CsrView<'_, f64>) -> CsrMatrix<f64> {
        let mut rows = vec![Vec::new(); a.ncols()];
        for row in 0..a.nrows() {
            let (cols, values) = a.row(row);
            cols.iter()
                .zip(values)
                .for_each(|(&col, &value)| rows[col as usize].push((row as u32, value)));
        }
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        });
        let row_ptr = std::iter::once(0).chain(ends).collect();
        let (col_idx, values) = rows.into_iter().flatten().unzip();
        CsrMatrix::try_new(a.ncols(), a.nrows(), row_ptr, col_idx, values).unwrap()
    }

    #[test]
    fn the_chapters_matrix() {
        let t = chapter::matrix::<f64>().transpose();
        assert_eq!(t.row_ptr(), [0, 2, 3, 5, 7]);
        assert_eq!(t.col_idx(), [0, 3, 2, 0, 2, 2, 3]);
        assert_eq!(t.values(), [3.0, 1.0, 2.0, 1.0, 4.0, 1.0, 1.0]);
    }

    #[test]
    fn several_runs_and_empty_rows() {
        for spec in ["webbase,rows=40k", "lp,rows=3k", "banded,rows=20k"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            assert!(a.nnz() > RUN, "{spec}");
            assert_eq!(a.transpose(), slowly(a.view()), "{spec}");
        }
        for (m, n) in [(0, 0), (0, 5), (5, 0), (3, 2)] {
            let a = CsrMatrix::<f64>::zeros(m, n).unwrap();
            assert_eq!(a.transpose(), CsrMatrix::zeros(n, m).unwrap());
        }
    }

    #[test]
    fn symmetric_whatever_the_order_of_the_entries() {
        let of = |row_ptr: &[usize], col_idx: &[u32], values: &[f64]| {
            let n = row_ptr.len() - 1;
            let a = CsrMatrix::try_new(n, n, row_ptr.to_vec(), col_idx.to_vec(), values.to_vec())
                .unwrap();
            a.view().equals_transpose(&a.transpose()).unwrap()
        };
        assert!(of(&[0, 2, 3], &[0, 1, 0], &[1.0, 5.0, 5.0]));
        assert!(of(&[0, 2, 3], &[1, 0, 0], &[5.0, 1.0, 5.0]), "unsorted");
        assert!(!of(&[0, 2, 3], &[0, 1, 0], &[1.0, 5.0, 5.5]));
        assert!(!of(&[0, 2, 3], &[0, 1, 1], &[1.0, 5.0, 5.0]));
        assert!(!of(&[0, 2, 3], &[0, 1, 0], &[1.0, 0.0, -0.0]), "other bits");
        let wide = CsrMatrix::try_new(1, 2, vec![0, 1], vec![0], vec![1.0]).unwrap();
        assert!(!wide.view().equals_transpose(&wide.transpose()).unwrap());
        let mut a = "poisson2d,n=300".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        a.values_mut().fill(2.0);
        assert!(a.nnz() > RUN && a.view().equals_transpose(&a.transpose()).unwrap());
        a.values_mut()[1] = 3.0;
        assert!(!a.view().equals_transpose(&a.transpose()).unwrap());
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            m in 1usize..20, n in 1usize..20,
            rows in prop::collection::vec(prop::collection::vec((0usize..20, -4i8..5), 0..30), 20),
        ) {
            let rows = &rows[..m];
            let ends = rows.iter().scan(0, |end, row| { *end += row.len(); Some(*end) });
            let row_ptr = std::iter::once(0).chain(ends).collect();
            let entries = rows.iter().flatten();
            let (col_idx, values) =
                entries.map(|&(col, v)| ((col % n) as u32, f64::from(v))).unzip();
            let a = CsrMatrix::try_new(m, n, row_ptr, col_idx, values).unwrap();
            prop_assert_eq!(a.transpose(), slowly(a.view()));
        }
    }
}
