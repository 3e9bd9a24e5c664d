//! Conversion of matrices of other libraries.

#[cfg(any(feature = "faer", feature = "nalgebra", feature = "sprs"))]
mod compressed;
#[cfg(feature = "faer")]
mod of_faer;
#[cfg(feature = "nalgebra")]
mod of_nalgebra;
#[cfg(feature = "sprs")]
mod of_sprs;

use super::{CsrCow, CsrMatrix, CsrView, Triplets};
use crate::{Error, Scalar};

/// A matrix that can be read as CSR: the input of [`SparseOp::auto`](crate::SparseOp::auto).
///
/// Implemented for [`CsrMatrix`], [`CsrView`], [`CsrCow`] and [`Triplets`]. With the default
/// feature `sprs` also for the matrices of `sprs`, owned or borrowed, compressed by row or by
/// column, of any index type; with the feature `nalgebra` for the `CsrMatrix`, `CscMatrix` and
/// `CooMatrix` of `nalgebra-sparse`; with the feature `faer` for its `SparseRowMat` and
/// `SparseColMat`, owned or borrowed, of any index type. Their indices are copied, their values
/// only if they are compressed by column; entries of a `CooMatrix` with the same place are summed.
pub trait ToCsr<T: Scalar> {
    /// Returns the matrix in CSR; borrowed if it is CSR already.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the matrix does not fit 32-bit column indices;
    /// [`Error::HostMemory`] if a converted matrix does not fit the memory.
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error>;
}

impl<T: Scalar> ToCsr<T> for CsrMatrix<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(self.view().into())
    }
}

impl<T: Scalar> ToCsr<T> for CsrView<'_, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok((*self).into())
    }
}

impl<T: Scalar> ToCsr<T> for CsrCow<'_, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(self.view().into())
    }
}

impl<T: Scalar> ToCsr<T> for Triplets<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(T::assemble(self)?.into())
    }
}
