//! Unpacking of a packed SELL matrix to CSR.

use super::host::HostPsell;
use super::index::LANES;
use crate::matrix::CsrMatrix;
use crate::memory::try_zeroed;
use crate::{Error, Scalar};

impl<T: Scalar> HostPsell<T> {
    /// Unpacks the matrix to CSR, with its entries in the original order.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn to_csr(&self) -> Result<CsrMatrix<T>, Error> {
        let slices = || (0..self.headers.len()).map(|s| (s, self.slice(s)));
        let long = || self.long.iter().flat_map(|long| long.rows().map(move |row| (long, row)));
        let row_ptr = self.row_offsets()?;
        let nnz = row_ptr[self.nrows];
        let (mut col_idx, mut values) = (try_zeroed(nnz)?, try_zeroed(nnz)?);
        for (s, slice) in slices() {
            let place = |lane: usize, entry: usize| row_ptr[self.row(s, lane)] + entry;
            slice.visit_values(self.group, |lane, entry, at| {
                values[place(lane, entry)] =
                    self.values.get(slice.first_value + at, &self.dictionary);
            });
            slice
                .visit_columns(self.group, |lane, entry, _, col| col_idx[place(lane, entry)] = col);
        }
        for (long, (row, entries)) in long() {
            let place = row_ptr[row]..row_ptr[row + 1];
            col_idx[place.clone()].copy_from_slice(&long.col_idx[entries.clone()]);
            for (value, at) in values[place].iter_mut().zip(entries) {
                *value = long.values.get(at, &self.dictionary);
            }
        }
        // SAFETY: offsets are ascending by construction, and packed matrices only hold columns of a
        // checked matrix.
        Ok(unsafe { CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, values) })
    }

    /// Row offsets of the CSR matrix.
    fn row_offsets(&self) -> Result<Vec<usize>, Error> {
        let mut row_ptr = try_zeroed(self.nrows + 1)?;
        for s in 0..self.headers.len() {
            // Lanes without a row have no entries.
            let lengths = self.slice(s).lengths();
            for (lane, len) in lengths.into_iter().enumerate().filter(|(_, len)| *len > 0) {
                row_ptr[self.row(s, lane) + 1] = len;
            }
        }
        let long = self.long.iter().flat_map(|long| long.rows());
        long.for_each(|(row, entries)| row_ptr[row + 1] = entries.len());
        for row in 0..self.nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        Ok(row_ptr)
    }

    /// Row of a lane that has entries.
    pub(super) fn row(&self, s: usize, lane: usize) -> usize {
        let i = s * LANES + lane;
        self.perm.as_ref().map_or(i, |perm| perm[i] as usize)
    }
}
