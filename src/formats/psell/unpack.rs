//! Unpacking of a packed SELL matrix to CSR.

use super::NarrowedPair;
use super::host::HostPsell;
use super::index::LANES;
use crate::formats::{Arrays, EncodedHost, ValueStorage};
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

    /// Values of the slices and of the long rows; `None` unless they are stored in the matrix's own
    /// type.
    pub(crate) fn plain_mut(&mut self) -> Option<[&mut [T]; 2]> {
        let long = match &mut self.long {
            Some(long) => long.values.plain_mut()?,
            None => &mut [],
        };
        Some([self.values.plain_mut()?, long])
    }

    /// Row of a lane that has entries.
    fn row(&self, s: usize, lane: usize) -> usize {
        let i = s * LANES + lane;
        self.perm.as_ref().map_or(i, |perm| perm[i] as usize)
    }
}

impl<T: Scalar> EncodedHost<T> for HostPsell<T> {
    fn storage(&self) -> ValueStorage {
        ValueStorage::of(self.values.narrow(), self.dictionary.len())
    }

    fn narrow_mut(&mut self) -> Option<NarrowedPair<&mut [u16], &mut [f32]>> {
        let long = self.long.as_mut().and_then(|long| long.values.narrow_mut());
        Some(self.values.narrow_mut()?.and(long, (&mut [], &mut [])))
    }

    fn codes_mut(&mut self) -> Option<Arrays<&mut [u8]>> {
        let long = self.long.as_mut().and_then(|long| long.values.codes_mut());
        Some([self.values.codes_mut()?, long.unwrap_or_default()])
    }

    fn set_dictionary(&mut self, dictionary: Vec<T>) {
        self.dictionary = dictionary;
    }

    fn slots(&self) -> Result<Option<Vec<u32>>, Error> {
        let own = self.values.per(self.values.bytes());
        let long = self.long.as_ref().map_or(0, |long| long.col_idx.len());
        if u32::try_from(own + long).is_err() {
            return Ok(None);
        }
        let row_ptr = self.row_offsets()?;
        let mut slots = try_zeroed(row_ptr[self.nrows])?;
        for s in 0..self.headers.len() {
            let slice = self.slice(s);
            slice.visit_values(self.group, |lane, entry, at| {
                slots[row_ptr[self.row(s, lane)] + entry] = (slice.first_value + at) as u32;
            });
        }
        for (row, entries) in self.long.iter().flat_map(|long| long.rows()) {
            for (place, at) in slots[row_ptr[row]..row_ptr[row + 1]].iter_mut().zip(entries) {
                *place = (own + at) as u32;
            }
        }
        Ok(Some(slots))
    }
}
