//! Sparse matrices in compressed sparse rows (CSR), the input of all formats.
//!
//! A [`CsrMatrix`] is checked only at its construction. Rows may hold their columns in any order,
//! and a column may occur more than once in a row: such entries add up in an SpMV.

mod arrays;
mod assemble;
mod columns;
mod convert;
pub mod gallery;
pub mod market;
mod precision;
mod transpose;
mod triplets;

pub use arrays::{CsrCow, Index};
pub(crate) use columns::CsrColumns;
pub use convert::ToCsr;
pub(crate) use precision::rounded;
pub use triplets::Triplets;

use crate::{Error, Scalar, memory, parallel};
use std::ops::Range;

/// Maximum number of rows and of columns: one less than `u32::MAX`, which marks padding in packed
/// formats.
pub const MAX_DIMENSION: usize = u32::MAX as usize - 1;

/// A sparse matrix in compressed sparse rows, owning its arrays.
///
/// Row `i` holds the entries `row_ptr[i] .. row_ptr[i + 1]` of `col_idx` and `values`.
///
/// ```
/// # use sparseop::matrix::CsrMatrix;
/// // 3 0 1
/// // 0 0 0
/// let a = CsrMatrix::try_new(2, 3, vec![0, 2, 2], vec![0, 2], vec![3.0, 1.0])?;
/// assert_eq!((a.nrows(), a.ncols(), a.nnz()), (2, 3, 2));
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CsrMatrix<T> {
    nrows: usize,
    ncols: usize,
    row_ptr: Vec<usize>,
    col_idx: Vec<u32>,
    values: Vec<T>,
}

/// A borrowed, already checked matrix in compressed sparse rows; see [`CsrMatrix`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CsrView<'a, T> {
    nrows: usize,
    ncols: usize,
    row_ptr: &'a [usize],
    col_idx: &'a [u32],
    values: &'a [T],
}

impl<T: Scalar> CsrMatrix<T> {
    /// Takes the three arrays of CSR and checks them: `nrows + 1` offsets, and a column and a value
    /// for every entry. Arrays of 64-bit offsets and of 32-bit columns are kept, others converted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`], naming the offending position, if a dimension exceeds
    /// [`MAX_DIMENSION`], `row_ptr` does not have `nrows + 1` offsets rising from 0 to the number
    /// of entries, `col_idx` and `values` differ in length, or a column is not below `ncols`.
    pub fn try_new<O: Index, C: Index>(
        nrows: usize,
        ncols: usize,
        row_ptr: Vec<O>,
        col_idx: Vec<C>,
        values: Vec<T>,
    ) -> Result<Self, Error> {
        let (row_ptr, col_idx) = (O::into_offsets(row_ptr)?, C::into_columns(col_idx, ncols)?);
        check(nrows, ncols, &row_ptr, &col_idx, values.len())?;
        Ok(Self { nrows, ncols, row_ptr, col_idx, values })
    }

    /// As [`try_new`](Self::try_new), on the threads of rayon, which are prepared.
    pub(crate) fn try_new_on_threads(
        nrows: usize,
        ncols: usize,
        row_ptr: Vec<usize>,
        col_idx: Vec<u32>,
        values: Vec<T>,
    ) -> Result<Self, Error> {
        check_with(in_tasks, nrows, ncols, &row_ptr, &col_idx, values.len())?;
        Ok(Self { nrows, ncols, row_ptr, col_idx, values })
    }

    /// Takes the three arrays of CSR without checking them.
    ///
    /// # Safety
    ///
    /// The arrays must satisfy everything that [`try_new`](Self::try_new) checks: the kernels read
    /// `x` and write `y` without further checks.
    #[doc(hidden)]
    pub unsafe fn new_unchecked(
        nrows: usize,
        ncols: usize,
        row_ptr: Vec<usize>,
        col_idx: Vec<u32>,
        values: Vec<T>,
    ) -> Self {
        debug_assert!(check(nrows, ncols, &row_ptr, &col_idx, values.len()).is_ok());
        Self { nrows, ncols, row_ptr, col_idx, values }
    }

    /// Creates a matrix without entries.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if a dimension exceeds [`MAX_DIMENSION`].
    #[doc(hidden)]
    pub fn zeros(nrows: usize, ncols: usize) -> Result<Self, Error> {
        check_dimensions("CSR", nrows, ncols)?;
        Ok(Self {
            nrows,
            ncols,
            row_ptr: vec![0; nrows + 1],
            col_idx: Vec::new(),
            values: Vec::new(),
        })
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

    /// Number of rows.
    pub fn nrows(&self) -> usize {
        self.nrows
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.ncols
    }

    /// Number of stored entries, explicit zeros included.
    pub fn nnz(&self) -> usize {
        self.col_idx.len()
    }

    /// Row offsets: the beginning of each row in the other two arrays, and the end of the last one;
    /// `nrows + 1` elements.
    pub fn row_ptr(&self) -> &[usize] {
        &self.row_ptr
    }

    /// Column of each entry, counted from 0.
    pub fn col_idx(&self) -> &[u32] {
        &self.col_idx
    }

    /// Value of each entry.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Mutable values; the pattern is fixed.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Returns the arrays `(row_ptr, col_idx, values)`.
    pub fn into_parts(self) -> (Vec<usize>, Vec<u32>, Vec<T>) {
        (self.row_ptr, self.col_idx, self.values)
    }
}

impl<'a, T: Scalar> CsrView<'a, T> {
    /// Borrows the three arrays of CSR and checks them.
    ///
    /// # Errors
    ///
    /// As [`CsrMatrix::try_new`].
    #[doc(hidden)]
    pub fn try_new(
        nrows: usize,
        ncols: usize,
        row_ptr: &'a [usize],
        col_idx: &'a [u32],
        values: &'a [T],
    ) -> Result<Self, Error> {
        check(nrows, ncols, row_ptr, col_idx, values.len())?;
        Ok(Self { nrows, ncols, row_ptr, col_idx, values })
    }

    /// Number of rows.
    pub fn nrows(self) -> usize {
        self.nrows
    }

    /// Number of columns.
    pub fn ncols(self) -> usize {
        self.ncols
    }

    /// Number of stored entries, explicit zeros included.
    pub fn nnz(self) -> usize {
        self.col_idx.len()
    }

    /// Row offsets: the beginning of each row, and the end of the last one; `nrows + 1` elements.
    pub fn row_ptr(self) -> &'a [usize] {
        self.row_ptr
    }

    /// Column of each entry, counted from 0.
    pub fn col_idx(self) -> &'a [u32] {
        self.col_idx
    }

    /// Value of each entry.
    pub fn values(self) -> &'a [T] {
        self.values
    }

    /// The entries of row `row`, as a range into [`col_idx`](Self::col_idx) and
    /// [`values`](Self::values).
    #[doc(hidden)]
    pub fn row_range(self, row: usize) -> Range<usize> {
        self.row_ptr[row]..self.row_ptr[row + 1]
    }

    /// Number of entries in row `row`.
    #[doc(hidden)]
    pub fn row_len(self, row: usize) -> usize {
        self.row_ptr[row + 1] - self.row_ptr[row]
    }

    /// Columns and values of row `row`.
    #[doc(hidden)]
    pub fn row(self, row: usize) -> (&'a [u32], &'a [T]) {
        let range = self.row_range(row);
        (&self.col_idx[range.clone()], &self.values[range])
    }

    /// Returns a copy that owns its arrays. Aborts the process if there is not enough memory.
    #[doc(hidden)]
    pub fn to_owned(self) -> CsrMatrix<T> {
        self.try_to_owned().unwrap_or_else(|error| memory::exhausted(error))
    }

    /// As [`to_owned`](Self::to_owned).
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    #[doc(hidden)]
    pub fn try_to_owned(self) -> Result<CsrMatrix<T>, Error> {
        Ok(CsrMatrix {
            nrows: self.nrows,
            ncols: self.ncols,
            row_ptr: memory::listed(self.row_ptr.iter().copied())?,
            col_idx: memory::listed(self.col_idx.iter().copied())?,
            values: memory::listed(self.values.iter().copied())?,
        })
    }
}

/// Returns an error if 32-bit indices cannot represent the dimensions.
pub(crate) fn check_dimensions(
    format: &'static str,
    nrows: usize,
    ncols: usize,
) -> Result<(), Error> {
    for (name, size) in [("nrows", nrows), ("ncols", ncols)] {
        if size > MAX_DIMENSION {
            let message =
                format!("{name} is {size}; at most {MAX_DIMENSION} fit the 32-bit indices");
            return Err(Error::InvalidMatrix { format, message });
        }
    }
    Ok(())
}

/// Check of all index ranges below a length, on one thread or on several.
type RangeCheck = fn(usize, &(dyn Fn(Range<usize>) -> bool + Sync)) -> bool;

/// Checks all properties of CSR arrays.
fn check(
    nrows: usize,
    ncols: usize,
    row_ptr: &[usize],
    col_idx: &[u32],
    nvals: usize,
) -> Result<(), Error> {
    check_with(|len, is_right| is_right(0..len), nrows, ncols, row_ptr, col_idx, nvals)
}

/// Checks all properties of CSR arrays.
fn check_with(
    check_ranges: RangeCheck,
    nrows: usize,
    ncols: usize,
    row_ptr: &[usize],
    col_idx: &[u32],
    nvals: usize,
) -> Result<(), Error> {
    check_dimensions("CSR", nrows, ncols)?;
    let fail = |message| Err(Error::InvalidMatrix { format: "CSR", message });
    if row_ptr.len() != nrows + 1 {
        return fail(format!(
            "row_ptr has {} offsets, {nrows} rows need {}",
            row_ptr.len(),
            nrows + 1
        ));
    }
    if col_idx.len() != nvals {
        return fail(format!("col_idx has {} entries, values has {nvals}", col_idx.len()));
    }
    if row_ptr[0] != 0 {
        return fail(format!("row_ptr[0] is {}, it must be 0", row_ptr[0]));
    }
    // Positions are only searched after an error.
    let are_lengths = check_ranges(nrows, &|rows| {
        let mut ends = row_ptr[rows.start..=rows.end].windows(2);
        ends.all(|ends| ends[0] <= ends[1] && ends[1] - ends[0] <= MAX_DIMENSION)
    });
    let falls = || row_ptr.windows(2).position(|ends| ends[1] < ends[0]);
    if let Some(i) = (!are_lengths).then(falls).flatten() {
        return fail(format!("row_ptr falls from {} to {} at row {i}", row_ptr[i], row_ptr[i + 1]));
    }
    if row_ptr[nrows] != nvals {
        return fail(format!("row_ptr ends at {}, but there are {nvals} entries", row_ptr[nrows]));
    }
    if !are_lengths {
        let long = row_ptr.windows(2).position(|ends| ends[1] - ends[0] > MAX_DIMENSION);
        return fail(format!(
            "row {} has more than {MAX_DIMENSION} entries",
            long.unwrap_or_default()
        ));
    }
    // A maximum vectorises, a search does not.
    let are_columns = |entries: Range<usize>| {
        col_idx[entries].iter().copied().max().is_none_or(|largest| (largest as usize) < ncols)
    };
    if !check_ranges(nvals, &are_columns) {
        let k = col_idx.iter().position(|&c| c as usize >= ncols).unwrap_or_default();
        let row = row_ptr.partition_point(|&p| p <= k) - 1;
        return fail(format!("col_idx[{k}] is {} in row {row}, but ncols is {ncols}", col_idx[k]));
    }
    Ok(())
}

/// Numbers that a thread checks at a time, few where every step is interpreted.
const TASK: usize = if cfg!(miri) { 1 << 6 } else { 1 << 16 };

/// True if all ranges of the numbers below `len` are right. Many are shared among threads.
fn in_tasks(len: usize, is_right: &(dyn Fn(Range<usize>) -> bool + Sync)) -> bool {
    /// Numbers from which on several threads are worth waking.
    const PARALLEL_MIN: usize = 8 * TASK;
    if len < PARALLEL_MIN { is_right(0..len) } else { parallel::all(len, TASK, is_right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(
        nrows: usize,
        ncols: usize,
        row_ptr: &[usize],
        col_idx: &[u32],
        nvals: usize,
    ) -> String {
        let values = vec![1.0f32; nvals];
        CsrMatrix::try_new(nrows, ncols, row_ptr.to_vec(), col_idx.to_vec(), values)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn threads_share_the_checks_of_many_entries() {
        let n = 12 * TASK;
        let (mut row_ptr, mut col_idx) = ((0..=n).collect::<Vec<usize>>(), vec![7; n]);
        col_idx[n - 9] = 8;
        let values = vec![1.0f32; n];
        let message = |row_ptr: &[usize], col_idx: &[u32]| {
            let arrays = (row_ptr.to_vec(), col_idx.to_vec(), values.clone());
            let made = CsrMatrix::try_new_on_threads(n, 8, arrays.0, arrays.1, arrays.2);
            made.unwrap_err().to_string()
        };
        let found = message(&row_ptr, &col_idx);
        assert!(found.contains(&format!("col_idx[{}] is 8 in row {}", n - 9, n - 9)), "{found}");
        let row = n - TASK - 9;
        row_ptr[row + 1] = 5;
        let found = message(&row_ptr, &col_idx);
        assert!(found.contains(&format!("to 5 at row {row}")), "{found}");
    }

    #[test]
    fn checks_name_the_error_and_its_position() {
        assert!(message(2, 2, &[0, 1], &[0], 1).contains("row_ptr has 2 offsets, 2 rows need 3"));
        assert!(message(1, 2, &[1, 1], &[0], 1).contains("row_ptr[0] is 1"));
        assert!(message(2, 2, &[0, 2, 1], &[0], 1).contains("falls from 2 to 1 at row 1"));
        assert!(message(2, 2, &[0, 1, 3], &[0, 1], 2).contains("ends at 3, but there are 2"));
        assert!(message(1, 2, &[0, 2], &[0, 1], 1).contains("col_idx has 2 entries, values has 1"));
        assert!(
            message(2, 2, &[0, 1, 2], &[0, 2], 2)
                .contains("col_idx[1] is 2 in row 1, but ncols is 2")
        );
        assert!(message(0, usize::MAX, &[0], &[], 0).contains("at most 4294967294"));
    }

    #[test]
    fn unsorted_and_repeated_columns_are_legal() {
        let a =
            CsrMatrix::try_new(1, 3, vec![0, 3], vec![2, 0, 2], vec![1.0f64, 2.0, 3.0]).unwrap();
        assert_eq!(a.view().row(0), (&[2, 0, 2][..], &[1.0, 2.0, 3.0][..]));
    }

    #[test]
    fn shapes_without_entries() {
        for (m, n) in [(0, 0), (0, 3), (3, 0)] {
            let a = CsrMatrix::<f32>::zeros(m, n).unwrap();
            assert_eq!((a.nrows(), a.ncols(), a.nnz()), (m, n, 0));
            assert_eq!(a.transpose(), CsrMatrix::zeros(n, m).unwrap());
        }
    }

    #[test]
    fn transposing_twice_sorts_and_keeps_every_entry() {
        let a =
            CsrMatrix::try_new(2, 3, vec![0, 2, 3], vec![2, 0, 1], vec![1.0f32, 2.0, 3.0]).unwrap();
        let t = a.transpose();
        assert_eq!(
            (t.row_ptr(), t.col_idx(), t.values()),
            (&[0, 1, 2, 3][..], &[0, 1, 0][..], &[2., 3., 1.][..])
        );
        assert_eq!(t.transpose().values(), &[2.0, 1.0, 3.0]);
    }
}
