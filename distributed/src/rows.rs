//! The interior or the boundary rows of a part, with an operator of their own.

use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Error, Multivector, Scalar, SparseOp, reserved, try_zeroed};
use std::ops::Range;

/// The interior or the boundary rows of a part.
#[derive(Debug)]
pub(crate) struct RowSet<T: Scalar> {
    pub(crate) op: SparseOp<T>,
    /// Numbers of the rows in the part, ascending.
    pub(crate) rows: Vec<u32>,
}

impl<T: Scalar> RowSet<T> {
    /// Copies rows of a matrix; `renumber` gives the new number of a column.
    pub(crate) fn copy(
        a: CsrView<'_, T>,
        rows: &[u32],
        ncols: usize,
        renumber: impl Fn(u32) -> u32,
    ) -> Result<CsrMatrix<T>, Error> {
        let mut row_ptr = reserved(rows.len() + 1)?;
        row_ptr.push(0);
        row_ptr.extend(rows.iter().scan(0, |end, &row| {
            *end += a.row_len(row as usize);
            Some(*end)
        }));
        let count = row_ptr[rows.len()];
        let (mut columns, mut values) = (try_zeroed::<u32>(count)?, try_zeroed::<T>(count)?);
        for (&row, &start) in rows.iter().zip(&row_ptr) {
            let (own, numbers) = a.row(row as usize);
            let renumbered = own.iter().map(|&column| renumber(column));
            columns[start..].iter_mut().zip(renumbered).for_each(|(to, column)| *to = column);
            values[start..start + numbers.len()].copy_from_slice(numbers);
        }
        CsrMatrix::try_new(rows.len(), ncols, row_ptr, columns, values)
    }

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

fn row_major<V>(data: V, count: usize) -> Multivector<V> {
    Multivector::row_major(data, count)
}
