//! Operators that solvers multiply with.

use sparseop::device::fused::SharedSums;
use sparseop::{Device, DeviceVec, Error, Scalar, SparseOp, Stream};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Matrix of a linear system: a [`SparseOp`], or some rows of a larger matrix whose other rows
/// other threads or processes have. All of these then run the same solver on their own elements of
/// the vectors.
pub trait SystemOperator<T: Scalar>: Debug {
    /// Numbers of rows and columns of the whole matrix.
    fn shape(&self) -> (usize, usize);

    /// Rows of the whole matrix that this operator has: vectors are their elements.
    fn own_rows(&self) -> Range<usize> {
        0..self.shape().0
    }

    /// Device that runs the products.
    fn device(&self) -> &Device;

    /// Enqueues the product y = A x of [`own_rows`](Self::own_rows).
    ///
    /// # Errors
    ///
    /// Those of [`SparseOp::apply_device`].
    fn apply_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error>;

    /// Sums over the elements of all parts. `None` if this operator has all rows.
    fn shared_sums(&self) -> Option<Arc<dyn SharedSums>> {
        None
    }
}

impl<T: Scalar> SystemOperator<T> for SparseOp<T> {
    fn shape(&self) -> (usize, usize) {
        (self.nrows(), self.ncols())
    }

    fn device(&self) -> &Device {
        SparseOp::device(self)
    }

    fn apply_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        SparseOp::apply_device(self, stream, x, y)
    }
}
