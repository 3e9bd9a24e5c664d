//! Arrays of compressed matrices of other libraries.

use crate::matrix::{CsrCow, check, check_dimensions};
use crate::{Error, Scalar, memory};
use std::borrow::Cow;

/// A matrix of another library, compressed by row or by column.
pub(super) struct Compressed {
    /// Name in error messages.
    pub(super) format: &'static str,
    /// Number of rows and columns.
    pub(super) shape: (usize, usize),
    /// Beginning of each row or column, and the end of the last one.
    pub(super) ptr: Vec<usize>,
    pub(super) by_rows: bool,
}

impl Compressed {
    /// Builds and checks the CSR matrix with the given indices and values of its entries.
    pub(super) fn into_csr<'a, T: Scalar>(
        self,
        indices: impl Iterator<Item = usize>,
        values: Cow<'a, [T]>,
    ) -> Result<CsrCow<'a, T>, Error> {
        let Self { format, shape: (nrows, ncols), ptr, by_rows } = self;
        check_dimensions(format, nrows, ncols)?;
        // An index that does not fit becomes one that is out of range, which the check below finds.
        let mut numbers = memory::reserved(values.len())?;
        numbers.extend(indices.map(|i| u32::try_from(i).unwrap_or(u32::MAX)));
        let indices: Vec<u32> = numbers;
        let (outer, inner) = if by_rows { (nrows, ncols) } else { (ncols, nrows) };
        check(outer, inner, &ptr, &indices, values.len())?;
        let (row_ptr, col_idx) = (Cow::Owned(ptr), Cow::Owned(indices));
        let compressed = CsrCow { nrows: outer, ncols: inner, row_ptr, col_idx, values };
        Ok(if by_rows { compressed } else { compressed.view().try_transpose()?.into() })
    }
}
