//! Sparse matrices of nalgebra.

use super::ToCsr;
use super::compressed::Compressed;
use crate::matrix::{self, CsrCow, Triplets};
use crate::{Error, Scalar};
use nalgebra_sparse::{CooMatrix, CscMatrix, CsrMatrix};
use std::borrow::Cow;

/// Name of these matrices in error messages.
const FORMAT: &str = "nalgebra-sparse";

/// ```
/// # use sparseop::SparseOp;
/// use nalgebra_sparse::CsrMatrix;
///
/// let (offsets, columns) = (vec![0, 1, 2], vec![0, 1]);
/// let a = CsrMatrix::try_from_csr_data(2, 2, offsets, columns, vec![2.0f64, 3.0]).unwrap();
/// let op = SparseOp::auto(&a)?;
/// let mut y = [0.0; 2];
/// op.apply(&[1.0, 10.0], &mut y)?;
/// assert_eq!(y, [2.0, 30.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
impl<T: Scalar> ToCsr<T> for CsrMatrix<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        let (offsets, indices, values) = self.csr_data();
        let shape = (self.nrows(), self.ncols());
        let compressed = Compressed { format: FORMAT, shape, ptr: offsets.to_vec(), by_rows: true };
        compressed.into_csr(indices.iter().copied(), Cow::Borrowed(values))
    }
}

impl<T: Scalar> ToCsr<T> for CscMatrix<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        let (offsets, indices, values) = self.csc_data();
        let shape = (self.nrows(), self.ncols());
        let compressed =
            Compressed { format: FORMAT, shape, ptr: offsets.to_vec(), by_rows: false };
        compressed.into_csr(indices.iter().copied(), Cow::Borrowed(values))
    }
}

impl<T: Scalar> ToCsr<T> for CooMatrix<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        matrix::check_dimensions(FORMAT, self.nrows(), self.ncols())?;
        // The library keeps indices below the dimensions.
        let narrow = |indices: &[usize]| indices.iter().map(|&i| i as u32).collect();
        let (rows, cols) = (narrow(self.row_indices()), narrow(self.col_indices()));
        let triplets =
            Triplets::from_parts(self.nrows(), self.ncols(), rows, cols, self.values().to_vec())?;
        Ok(T::assemble(&triplets)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::MAX_DIMENSION;

    #[test]
    fn every_layout_gives_the_same_rows() {
        let mut coo = CooMatrix::new(2, 3);
        for (row, col, value) in [(1, 1, 2.5), (0, 2, 1.0), (1, 0, 2.0), (1, 1, 0.5)] {
            coo.push(row, col, value);
        }
        let expected =
            matrix::CsrMatrix::try_new(2, 3, vec![0, 1, 3], vec![2, 0, 1], vec![1.0f64, 2.0, 3.0])
                .unwrap();
        assert_eq!(ToCsr::to_csr(&coo).unwrap().into_owned(), expected);
        assert_eq!(ToCsr::to_csr(&CsrMatrix::from(&coo)).unwrap().into_owned(), expected);
        assert_eq!(ToCsr::to_csr(&CscMatrix::from(&coo)).unwrap().into_owned(), expected);
        let empty = CscMatrix::<f32>::zeros(3, 0);
        assert_eq!(
            ToCsr::to_csr(&empty).unwrap().into_owned(),
            matrix::CsrMatrix::zeros(3, 0).unwrap()
        );
    }

    #[test]
    fn plans_over_the_limit_are_refused_by_name() {
        let wide = CooMatrix::<f32>::new(1, MAX_DIMENSION + 1);
        let refused = ToCsr::to_csr(&wide).unwrap_err().to_string();
        assert!(
            refused.contains("nalgebra-sparse") && refused.contains("at most 4294967294"),
            "{refused}"
        );
        let wide = CsrMatrix::<f32>::zeros(1, MAX_DIMENSION + 1);
        assert!(ToCsr::to_csr(&wide).is_err());
    }
}
