//! Conversion of matrices from and to other precisions.

use super::{CsrCow, CsrMatrix, CsrView, Index};
use crate::{Error, Precision, Scalar, parallel};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

impl<T: Scalar> CsrMatrix<T> {
    /// Takes the three arrays of CSR, with values of a type that converts to this one without loss,
    /// and checks them: `half::f16` and `half::bf16` for f32 and f64, f32 for f64.
    ///
    /// ```
    /// # use sparseop::{Precision, matrix::CsrMatrix};
    /// let values = [half::f16::from_f32(1.5), half::f16::from_f32(-2.0)];
    /// let a = CsrMatrix::<f32>::try_from_values(2, 2, vec![0, 1, 2], vec![1, 0], &values)?;
    /// assert_eq!(a.values(), [1.5, -2.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new).
    pub fn try_from_values<V: Copy + Into<T>, O: Index, C: Index>(
        nrows: usize,
        ncols: usize,
        row_ptr: Vec<O>,
        col_idx: Vec<C>,
        values: &[V],
    ) -> Result<Self, Error> {
        Self::try_new(
            nrows,
            ncols,
            row_ptr,
            col_idx,
            values.iter().map(|&value| value.into()).collect(),
        )
    }

    /// Converts the matrix to a wider type, for SpMVs in f64 with values that are f32.
    #[doc(hidden)]
    pub fn widen<W: Scalar + From<T>>(&self) -> CsrMatrix<W> {
        let values = self.values.iter().map(|&value| value.into()).collect();
        let (row_ptr, col_idx) = (self.row_ptr.clone(), self.col_idx.clone());
        CsrMatrix { nrows: self.nrows, ncols: self.ncols, row_ptr, col_idx, values }
    }

    /// Returns the matrix with every value rounded to a precision: see [`Precision::round`]. Values
    /// are borrowed if none changes, the pattern always.
    ///
    /// # Errors
    ///
    /// [`Error::ValueRange`], naming the first finite value that would become infinite.
    #[doc(hidden)]
    pub fn rounded_to(&self, precision: Precision) -> Result<CsrCow<'_, T>, Error> {
        T::round(self.view(), precision)
    }
}

impl<'a, T: Scalar> CsrView<'a, T> {
    pub(crate) fn rounded_to_impl(self, precision: Precision) -> Result<CsrCow<'a, T>, Error> {
        let values =
            rounded(self.values, precision).map_err(|entry| self.beyond(entry, precision))?;
        Ok(CsrCow { values, ..self.into() })
    }

    /// Error about an entry that cannot be rounded.
    fn beyond(self, entry: usize, precision: Precision) -> Error {
        // Last row that begins no later; empty rows begin with the next one.
        let row = self.row_ptr.partition_point(|&start| start <= entry) - 1;
        let place = Some((row, self.col_idx[entry] as usize));
        Error::ValueRange { entry, place, value: self.values[entry].to_f64(), precision }
    }
}

/// Rounds values to a precision; borrowed if none changes. The error is the number of the first
/// value that is out of range.
pub(crate) fn rounded<T: Scalar>(
    values: &[T],
    precision: Precision,
) -> Result<Cow<'_, [T]>, usize> {
    if !precision.is_narrower_than(T::KIND) || precision.holds_all(values) {
        return Ok(Cow::Borrowed(values));
    }
    let failed = AtomicBool::new(false);
    let rounded = parallel::map_each(values.len(), |i| {
        precision.round(values[i]).unwrap_or_else(|| {
            failed.store(true, Relaxed);
            T::ZERO
        })
    });
    if failed.into_inner() {
        let first = values.iter().position(|&value| precision.round(value).is_none());
        return Err(first.unwrap_or_default());
    }
    Ok(Cow::Owned(rounded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn matrix(values: Vec<f64>) -> CsrMatrix<f64> {
        CsrMatrix::try_new(3, 3, vec![0, 1, 1, 3], vec![2, 0, 1], values).unwrap()
    }

    #[test]
    fn values_of_narrower_types_are_unchanged() {
        let numbers = [1.5f32, -0.0, 65504.0];
        let narrow = numbers.map(f16::from_f32);
        let a = CsrMatrix::<f64>::try_from_values(3, 3, vec![0, 1, 1, 3], vec![2, 0, 1], &narrow)
            .unwrap();
        assert_eq!(a, matrix(vec![1.5, -0.0, 65504.0]));
        let narrow = [1.0f32, 2.0, -3.0].map(bf16::from_f32);
        let a = CsrMatrix::<f32>::try_from_values(3, 3, vec![0, 1, 1, 3], vec![2, 0, 1], &narrow)
            .unwrap();
        assert_eq!(a.widen::<f64>(), matrix(vec![1.0, 2.0, -3.0]));
        assert!(CsrMatrix::<f32>::try_from_values(3, 3, vec![0, 1], vec![0], &narrow).is_err());
        let a =
            CsrMatrix::<f64>::try_from_values(3, 3, vec![0, 1, 1, 3], vec![2, 0, 1], &[0.1f32; 3]);
        assert!(a.unwrap().values().iter().all(|&v| v == f64::from(0.1f32)));
    }

    #[test]
    fn rounding_borrows_names_and_keeps() {
        let exact = matrix(vec![1.5, -0.0, 65504.0]);
        assert!(matches!(exact.rounded_to(Precision::F16).unwrap().values, Cow::Borrowed(_)));
        let rounded = matrix(vec![0.1, f64::INFINITY, 1e-9]);
        let rounded = rounded.rounded_to(Precision::F16).unwrap();
        assert_eq!(rounded.view().values(), [0.0999755859375, f64::INFINITY, 0.0]);
        assert_eq!(rounded.view().col_idx(), exact.col_idx());
        let refused =
            matrix(vec![0.1, 7.0, -1e6]).rounded_to(Precision::F16).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the value of entry 2, at row 2 and column 1, is -1e6, beyond the largest finite \
             number of f16, 6.5504e4; scale the matrix, or choose bf16, which has the range of f32"
        );
        let refused = matrix(vec![1e300, 7.0, 1.0]).rounded_to(Precision::F32).unwrap_err();
        assert!(
            matches!(refused, Error::ValueRange { entry: 0, place: Some((0, 2)), .. }),
            "{refused}"
        );
        let single = CsrMatrix::try_new(1, 1, vec![0, 1], vec![0], vec![0.1f32]).unwrap();
        assert!(matches!(single.rounded_to(Precision::F32).unwrap().values, Cow::Borrowed(_)));
    }
}
