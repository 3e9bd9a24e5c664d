//! The interior or the boundary rows of a part, with an operator of their own.

use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Error, Multivector, Scalar, SparseOp, listed, reserved, try_zeroed};
use std::borrow::Cow;
use std::ops::Range;

/// Some rows of a matrix as CSR. Arrays that are not changed are borrowed.
#[derive(Debug)]
pub(crate) struct RowSelection<'a, T: Scalar> {
    ncols: usize,
    row_ptr: Vec<usize>,
    columns: Cow<'a, [u32]>,
    values: Cow<'a, [T]>,
}

impl<'a, T: Scalar> RowSelection<'a, T> {
    /// The given rows of a matrix, with `ncols` columns. `renumber` gives the new number of a
    /// column; without it, columns keep their numbers.
    pub(crate) fn new<F: Fn(u32) -> u32>(
        a: CsrView<'a, T>,
        rows: &[u32],
        ncols: usize,
        renumber: Option<F>,
    ) -> Result<Self, Error> {
        let mut row_ptr = reserved(rows.len() + 1)?;
        row_ptr.push(0);
        row_ptr.extend(rows.iter().scan(0, |end, &row| {
            *end += a.row_len(row as usize);
            Some(*end)
        }));
        let is_range = rows.is_sorted_by(|one, next| one + 1 == *next);
        let (columns, values) = match rows.first().filter(|_| is_range) {
            Some(&first) => {
                let start = a.row_ptr()[first as usize];
                let entries = start..start + row_ptr[rows.len()];
                (Cow::Borrowed(&a.col_idx()[entries.clone()]), Cow::Borrowed(&a.values()[entries]))
            }
            None => {
                let count = row_ptr[rows.len()];
                let (mut columns, mut values) = (try_zeroed(count)?, try_zeroed(count)?);
                for (&row, &start) in rows.iter().zip(&row_ptr) {
                    let (own, numbers) = a.row(row as usize);
                    columns[start..start + own.len()].copy_from_slice(own);
                    values[start..start + own.len()].copy_from_slice(numbers);
                }
                (Cow::Owned(columns), Cow::Owned(values))
            }
        };
        let columns = match renumber {
            None => columns,
            Some(renumber) => {
                let mut columns = owned(columns)?;
                columns.iter_mut().for_each(|column| *column = renumber(*column));
                Cow::Owned(columns)
            }
        };
        Ok(Self { ncols, row_ptr, columns, values })
    }

    /// The given rows with the columns of the matrix.
    pub(crate) fn unchanged(a: CsrView<'a, T>, rows: &[u32]) -> Result<Self, Error> {
        Self::new(a, rows, a.ncols(), None::<fn(u32) -> u32>)
    }

    /// Checks and returns a view.
    pub(crate) fn view(&self) -> Result<CsrView<'_, T>, Error> {
        let Self { ncols, row_ptr, columns, values } = self;
        CsrView::try_new(row_ptr.len() - 1, *ncols, row_ptr, columns, values)
    }

    /// Checks them, and copies what is borrowed.
    pub(crate) fn into_owned(self) -> Result<CsrMatrix<T>, Error> {
        let Self { ncols, row_ptr, columns, values } = self;
        let (columns, values) = (owned(columns)?, owned(values)?);
        CsrMatrix::try_new(row_ptr.len() - 1, ncols, row_ptr, columns, values)
    }
}

/// The interior or the boundary rows of a part.
#[derive(Debug)]
pub(crate) struct RowSet<T: Scalar> {
    pub(crate) op: SparseOp<T>,
    /// Numbers of the rows in the part, ascending.
    pub(crate) rows: Vec<u32>,
}

impl<T: Scalar> RowSet<T> {
    /// The rows, if they are consecutive.
    pub(crate) fn consecutive(&self) -> Option<Range<usize>> {
        let first = self.rows.first().map_or(0, |&first| first as usize);
        let end = self.rows.last().map_or(0, |&last| last as usize + 1);
        (end - first == self.rows.len()).then_some(first..end)
    }

    /// Multiplies `count` vectors in row-major order, and writes the products of these rows to
    /// their places in `y`.
    pub(crate) fn multiply(
        &self,
        count: usize,
        x: &[T],
        y: &mut [T],
        scratch: &mut Vec<T>,
    ) -> Result<(), Error> {
        if let Some(rows) = self.consecutive() {
            let y = &mut y[rows.start * count..rows.end * count];
            return match rows.is_empty() {
                true => Ok(()),
                false => self.op.apply_multi(row_major(x, count), row_major(y, count)),
            };
        }
        scratch.resize(self.rows.len() * count, T::ZERO);
        self.op.apply_multi(row_major(x, count), row_major(&mut scratch[..], count))?;
        for (&row, products) in self.rows.iter().zip(scratch.chunks_exact(count)) {
            y[row as usize * count..][..count].copy_from_slice(products);
        }
        Ok(())
    }

    /// Replaces the values of these rows, given the `values` of the whole part.
    pub(crate) fn update(&mut self, row_ptr: &[usize], values: &[T]) -> Result<(), Error> {
        let entries =
            |&row: &u32| -> Range<usize> { row_ptr[row as usize]..row_ptr[row as usize + 1] };
        let own: Vec<T> = self.rows.iter().flat_map(|row| &values[entries(row)]).copied().collect();
        self.op.update_values(&own)
    }

    /// Predicted time of a product, in seconds. `None` if the profile does not predict it.
    pub(crate) fn predicted(&self) -> Option<f64> {
        let prediction = self.op.decision().chosen()?.prediction.as_ref()?;
        Some(if self.rows.is_empty() { 0.0 } else { prediction.product() * 1e-9 })
    }
}

/// The elements, copied if they are borrowed.
fn owned<E: Copy>(elements: Cow<'_, [E]>) -> Result<Vec<E>, Error> {
    match elements {
        Cow::Owned(elements) => Ok(elements),
        Cow::Borrowed(elements) => listed(elements.iter().copied()),
    }
}

fn row_major<V>(data: V, count: usize) -> Multivector<V> {
    Multivector::row_major(data, count)
}
