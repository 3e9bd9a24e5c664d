//! CSR arrays of any index type.

use super::{CsrMatrix, CsrView, check};
use crate::{Error, Scalar};
use bytemuck::{Pod, allocation::cast_vec, cast_slice};
use std::borrow::Cow;
use std::fmt::Display;

/// An integer type of row offsets and column indices: `u32`, `i32`, `u64`, `i64`, `usize`. Sealed.
pub trait Index: sealed::Convert {}

/// A checked matrix in compressed sparse rows (CSR) whose arrays are borrowed if possible.
///
/// The library works with offsets of 64 bits and columns of 32 bits. Arrays of integers of these
/// widths are borrowed, signed ones too; those of another width are converted.
///
/// ```
/// # use sparseop::{SparseOp, matrix::CsrCow};
/// // As SciPy has them: offsets and columns of 32 bits.
/// let (indptr, indices, data) = ([0i32, 2, 3], [0i32, 2, 1], [3.0f64, 1.0, 2.0]);
/// let a = CsrCow::try_new(2, 3, &indptr, &indices, &data)?;
/// let op = SparseOp::auto(&a)?;
/// let mut y = [0.0; 2];
/// op.apply(&[1.0, 10.0, 100.0], &mut y)?;
/// assert_eq!(y, [103.0, 20.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CsrCow<'a, T: Scalar> {
    pub(super) nrows: usize,
    pub(super) ncols: usize,
    pub(super) row_ptr: Cow<'a, [usize]>,
    pub(super) col_idx: Cow<'a, [u32]>,
    pub(super) values: Cow<'a, [T]>,
}

impl<'a, T: Scalar> CsrCow<'a, T> {
    /// Borrows and checks the three arrays of CSR: `nrows + 1` offsets, and a column and a value
    /// for every entry.
    ///
    /// # Errors
    ///
    /// As [`CsrMatrix::try_new`].
    pub fn try_new<O: Index, C: Index>(
        nrows: usize,
        ncols: usize,
        row_ptr: &'a [O],
        col_idx: &'a [C],
        values: &'a [T],
    ) -> Result<Self, Error> {
        let row_ptr = O::offsets(row_ptr)?;
        let col_idx = C::columns(col_idx, ncols)?;
        check(nrows, ncols, &row_ptr, &col_idx, values.len())?;
        Ok(Self { nrows, ncols, row_ptr, col_idx, values: Cow::Borrowed(values) })
    }

    /// Returns a view of the matrix.
    pub fn view(&self) -> CsrView<'_, T> {
        CsrView {
            nrows: self.nrows,
            ncols: self.ncols,
            row_ptr: &self.row_ptr,
            col_idx: &self.col_idx,
            values: &self.values,
        }
    }

    /// True if the values are those of another matrix, in the same memory.
    pub(crate) fn has_values_of(&self, other: CsrView<'_, T>) -> bool {
        std::ptr::eq(&*self.values, other.values)
    }

    /// Converts to a matrix that owns its arrays; borrowed arrays are copied.
    pub fn into_owned(self) -> CsrMatrix<T> {
        CsrMatrix {
            nrows: self.nrows,
            ncols: self.ncols,
            row_ptr: self.row_ptr.into_owned(),
            col_idx: self.col_idx.into_owned(),
            values: self.values.into_owned(),
        }
    }
}

impl<'a, T: Scalar> From<CsrView<'a, T>> for CsrCow<'a, T> {
    fn from(a: CsrView<'a, T>) -> Self {
        Self {
            nrows: a.nrows,
            ncols: a.ncols,
            row_ptr: Cow::Borrowed(a.row_ptr),
            col_idx: Cow::Borrowed(a.col_idx),
            values: Cow::Borrowed(a.values),
        }
    }
}

impl<T: Scalar> From<CsrMatrix<T>> for CsrCow<'_, T> {
    fn from(a: CsrMatrix<T>) -> Self {
        Self {
            nrows: a.nrows,
            ncols: a.ncols,
            row_ptr: Cow::Owned(a.row_ptr),
            col_idx: Cow::Owned(a.col_idx),
            values: Cow::Owned(a.values),
        }
    }
}

/// True if every index is representable as `O`.
fn all_fit<I: Copy, O: TryFrom<I>>(indices: &[I]) -> bool {
    // A fold vectorises, a search does not.
    indices.iter().fold(true, |fit, &index| fit & O::try_from(index).is_ok())
}

/// Converts indices to another type, borrowed if it has the same width. None if one does not fit.
fn convert<I: Pod, O: Pod + TryFrom<I>>(indices: &[I]) -> Option<Cow<'_, [O]>> {
    if size_of::<I>() == size_of::<O>() {
        return all_fit::<I, O>(indices).then(|| Cow::Borrowed(cast_slice(indices)));
    }
    let converted: Option<Vec<O>> = indices.iter().map(|&index| O::try_from(index).ok()).collect();
    converted.map(Cow::Owned)
}

/// Converts indices to another type, in the same memory if it has the same width. Returns the
/// indices unchanged if one does not fit.
fn convert_vec<I: Pod, O: Pod + TryFrom<I>>(indices: Vec<I>) -> Result<Vec<O>, Vec<I>> {
    if size_of::<I>() == size_of::<O>() && align_of::<I>() == align_of::<O>() {
        return if all_fit::<I, O>(&indices) { Ok(cast_vec(indices)) } else { Err(indices) };
    }
    convert(&indices).map(Cow::into_owned).ok_or(indices)
}

/// Error about the first index that is not representable as `O`.
fn refused<I: Copy + Display, O: TryFrom<I>>(array: &str, indices: &[I], rule: &str) -> Error {
    let at = indices.iter().position(|&index| O::try_from(index).is_err()).unwrap_or_default();
    let message = format!("{array}[{at}] is {}, but {rule}", indices[at]);
    Error::InvalidMatrix { format: "CSR", message }
}

/// Rule for offsets, in error messages.
const OFFSETS: &str = "offsets rise from 0 to the number of entries";

/// Rule for columns of a matrix, in error messages.
fn columns_rule(ncols: usize) -> String {
    format!("columns are counted from 0, and ncols is {ncols}")
}

mod sealed {
    use super::{Cow, Error, OFFSETS, columns_rule, convert, convert_vec, refused};

    /// Conversions of whole arrays.
    pub trait Convert: Copy {
        fn offsets(indices: &[Self]) -> Result<Cow<'_, [usize]>, Error>;
        fn columns(indices: &[Self], ncols: usize) -> Result<Cow<'_, [u32]>, Error>;
        fn into_offsets(indices: Vec<Self>) -> Result<Vec<usize>, Error>;
        fn into_columns(indices: Vec<Self>, ncols: usize) -> Result<Vec<u32>, Error>;
    }

    macro_rules! index {
        ($($type:ident)*) => {
            $(
                impl super::Index for $type {}
                impl Convert for $type {
                    fn offsets(indices: &[Self]) -> Result<Cow<'_, [usize]>, Error> {
                        convert(indices)
                            .ok_or_else(|| refused::<Self, usize>("row_ptr", indices, OFFSETS))
                    }
                    fn columns(indices: &[Self], ncols: usize) -> Result<Cow<'_, [u32]>, Error> {
                        convert(indices).ok_or_else(|| {
                            refused::<Self, u32>("col_idx", indices, &columns_rule(ncols))
                        })
                    }
                    fn into_offsets(indices: Vec<Self>) -> Result<Vec<usize>, Error> {
                        convert_vec(indices).map_err(|indices| {
                            refused::<Self, usize>("row_ptr", &indices, OFFSETS)
                        })
                    }
                    fn into_columns(indices: Vec<Self>, ncols: usize) -> Result<Vec<u32>, Error> {
                        convert_vec(indices).map_err(|indices| {
                            refused::<Self, u32>("col_idx", &indices, &columns_rule(ncols))
                        })
                    }
                }
            )*
        };
    }

    index!(u32 i32 u64 i64 usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_type<I: Index + TryFrom<u8> + std::fmt::Debug>() {
        let index = |i: u8| I::try_from(i).unwrap_or_else(|_| unreachable!());
        let (row_ptr, col_idx) = ([0, 2, 3].map(index), [2, 0, 1].map(index));
        let values = [1.0f32, 2.0, 3.0];
        let expected =
            CsrMatrix::try_new(2, 3, vec![0usize, 2, 3], vec![2u32, 0, 1], values.to_vec());
        let expected = expected.unwrap();
        let owned = CsrMatrix::try_new(2, 3, row_ptr.to_vec(), col_idx.to_vec(), values.to_vec());
        assert_eq!(owned.unwrap(), expected);
        let cow = CsrCow::try_new(2, 3, &row_ptr, &col_idx, &values).unwrap();
        assert_eq!(matches!(cow.row_ptr, Cow::Borrowed(_)), size_of::<I>() == size_of::<usize>());
        assert_eq!(matches!(cow.col_idx, Cow::Borrowed(_)), size_of::<I>() == size_of::<u32>());
        assert_eq!(cow.view().values().as_ptr(), values.as_ptr());
        assert_eq!(cow.into_owned(), expected);
        assert!(CsrCow::try_new(2, 2, &row_ptr, &col_idx, &values).is_err());
    }

    #[test]
    fn every_index_type_gives_the_same_matrix() {
        check_type::<u32>();
        check_type::<i32>();
        check_type::<u64>();
        check_type::<i64>();
        check_type::<usize>();
    }

    #[test]
    fn vectors_of_the_same_width_keep_their_memory() {
        let (row_ptr, col_idx) = (vec![0i64, 1, 2], vec![1i32, 0]);
        let addresses = (row_ptr.as_ptr().addr(), col_idx.as_ptr().addr());
        let a = CsrMatrix::try_new(2, 2, row_ptr, col_idx, vec![1.0f64, 2.0]).unwrap();
        assert_eq!((a.row_ptr().as_ptr().addr(), a.col_idx().as_ptr().addr()), addresses);
    }

    #[test]
    fn numbers_that_are_no_indices_are_named() {
        let message = |row_ptr: &[i64], col_idx: &[i64]| {
            let values = vec![1.0f32; col_idx.len()];
            let owned =
                CsrMatrix::try_new(1, 3, row_ptr.to_vec(), col_idx.to_vec(), values.clone());
            let borrowed =
                CsrCow::try_new(1, 3, row_ptr, col_idx, &values).unwrap_err().to_string();
            assert_eq!(owned.unwrap_err().to_string(), borrowed);
            borrowed
        };
        assert!(message(&[0, -1], &[]).contains("row_ptr[1] is -1, but offsets rise from 0"));
        let negative = message(&[0, 2], &[0, -7]);
        assert!(
            negative.contains("col_idx[1] is -7, but columns are counted from 0, and ncols is 3")
        );
        assert!(message(&[0, 1], &[1 << 32]).contains("col_idx[0] is 4294967296"));
        assert!(message(&[0, 1], &[3]).contains("col_idx[0] is 3 in row 0, but ncols is 3"));
        assert!(message(&[0, i64::MAX], &[0]).contains("row_ptr ends at 9223372036854775807"));
    }
}
