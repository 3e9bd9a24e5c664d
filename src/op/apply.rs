//! SpMV, plain and with axpby epilogue.

use super::SparseOp;
use super::staging::StagingBuffers;
use crate::device::{DeviceVec, Factor, Gpu, Ptr, Queue, Scaling, Stream};
use crate::formats::ResidentMatrix;
use crate::trace::{Entered, span};
use crate::{Error, Scalar};
use std::sync::PoisonError;
use tracing::field::display;

impl<T: Scalar> SparseOp<T> {
    /// `y = A x`. `y` is overwritten without being read: its previous contents, NaN included, do
    /// not matter.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`. The bits of `y` are the same for every call,
    /// on any number of threads, unless the plan is not deterministic
    /// ([`Plan::is_deterministic`](crate::Plan::is_deterministic)).
    ///
    /// On the CPU, large SpMVs are distributed among the threads of rayon; inside a rayon pool that
    /// pool's are used. On a GPU `x` is copied to it and `y` from it, through page-locked memory,
    /// which takes longer than the SpMV: vectors that stay there ([`SparseOp::apply_device`]) avoid
    /// both copies. Allocates nothing, except on a GPU the staging buffers of every thread that
    /// calls this at the same time.
    ///
    /// The borrows ensure that `x` is not in `y`, here and in all other products:
    ///
    /// ```compile_fail,E0502
    /// # use sparseop::{Error, SparseOp};
    /// fn squared(op: &SparseOp<f64>, y: &mut [f64]) -> Result<(), Error> {
    ///     op.apply(&*y, y)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`] if a vector has the wrong length; `y` is then untouched. On a GPU,
    /// [`Error::Gpu`] and [`Error::GpuMemory`].
    pub fn apply(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        self.check_lengths(x.len(), y.len())?;
        let ResidentMatrix::Host(matrix) = &self.matrix else {
            return T::apply_staged(self, x, y);
        };
        let _span = self.product_span(1);
        matrix.spmv(x, y);
        Ok(())
    }

    /// As [`apply`](Self::apply), on a GPU.
    pub(crate) fn apply_staged_impl(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        let ResidentMatrix::Gpu(gpu, matrix) = &self.matrix else {
            unreachable!("the caller has a matrix on a GPU")
        };
        let _span = self.product_span(1);
        self.staged(*gpu, x, y, false, |queue, x, y| {
            // SAFETY: the vectors have the lengths of the matrix's sides and live until
            // `StagingBuffers::run` has waited.
            unsafe { matrix.spmv(queue, x, y) }
        })
    }

    /// `y = alpha A x + beta y`, as in BLAS. With `beta = 0` nothing of `y` is read and with
    /// `alpha = 0` nothing of `A` and `x`: their contents, NaN included, do not matter. A factor
    /// that is NaN makes all of `y` NaN.
    ///
    /// Otherwise as [`apply`](Self::apply). Unless a factor is 0, on the CPU the product is
    /// computed in a buffer and then added to `y`, which takes three more passes through a vector
    /// of `nrows` elements. The buffers are kept: one for every thread that calls this at the same
    /// time.
    ///
    /// ```
    /// # use sparseop::{SparseOp, matrix::Triplets};
    /// # let mut t = Triplets::new(2, 2)?;
    /// # t.push(0, 0, 2.0f64)?;
    /// let op = SparseOp::auto(&t)?;
    /// let mut residual = [5.0, 1.0];
    /// op.apply_with(-1.0, &[2.0, 0.0], 1.0, &mut residual)?;
    /// assert_eq!(residual, [1.0, 1.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn apply_with(&self, alpha: T, x: &[T], beta: T, y: &mut [T]) -> Result<(), Error> {
        T::apply_scaled(self, alpha, x, beta, y)
    }

    pub(crate) fn apply_with_impl(
        &self,
        alpha: T,
        x: &[T],
        beta: T,
        y: &mut [T],
    ) -> Result<(), Error> {
        self.check_lengths(x.len(), y.len())?;
        let _span = self.product_span(1);
        match &self.matrix {
            ResidentMatrix::Host(matrix) => self.scaler.multiply(&**matrix, alpha, x, beta, y),
            ResidentMatrix::Gpu(gpu, matrix) => {
                let by = Scaling { alpha: alpha.into(), beta: beta.into() };
                self.staged(*gpu, x, y, beta != T::ZERO, |queue, x, y| {
                    // SAFETY: as in `apply`.
                    unsafe { self.scaler.enqueue(*gpu, &**matrix, queue, x, y, by) }
                })
            }
        }
    }

    /// `y = A x` with vectors that live on the operator's device.
    ///
    /// On a GPU the SpMV is only enqueued on `stream`: it neither waits nor allocates, and can be
    /// captured in a graph ([`Stream::capture`]). The vectors may be dropped before it is done;
    /// reading them ([`DeviceVec::to_vec`]) waits for it. Products on different streams are not
    /// ordered. On the CPU it is executed directly.
    ///
    /// Exceptions: plans that add partial sums allocate working memory at the first SpMV on a
    /// stream; their [formats](crate::formats) say how much. A plan with `tail:host` waits, and
    /// cannot be captured.
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`] if a vector has the wrong length, [`Error::WrongDevice`] if a vector
    /// or the stream belongs to another device; `y` is then untouched. [`Error::Gpu`] if the GPU
    /// fails, now or in an operation enqueued earlier.
    pub fn apply_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        T::apply_device(self, stream, x, y)
    }

    pub(crate) fn apply_device_impl(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_lengths(x.len(), y.len())?;
        let _span = self.product_span(1);
        self.matrix.enqueue(stream, x, y)
    }

    /// `y = alpha A x + beta y` with vectors that live on the operator's device. The factors may be
    /// elements of such vectors too and are then read when the product is executed: a chain of
    /// operations need never return to the host. See [`Factor`] for an example.
    ///
    /// As [`apply_device`](Self::apply_device), with zeros and NaN as in
    /// [`apply_with`](Self::apply_with). The axpby epilogue of the kernel costs the reading of `y`.
    /// A plan without that epilogue, of a format that adds partial sums, computes the product in a
    /// buffer and then adds it, which costs two more passes through a vector of `nrows` elements,
    /// allocated at the first such product on a stream.
    ///
    /// The borrows ensure that `x` and the factors are not in `y`:
    ///
    /// ```compile_fail
    /// # use sparseop::{DeviceVec, Error, SparseOp, Stream};
    /// type Vector = DeviceVec<f64>;
    /// fn squared(op: &SparseOp<f64>, stream: &Stream, y: &mut Vector) -> Result<(), Error> {
    ///     op.apply_device_with(stream, 1.0, &*y, 1.0, y)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`apply_device`](Self::apply_device), for the vectors of the factors too:
    /// [`Error::VectorLength`] if a vector has no such element.
    pub fn apply_device_with<'a>(
        &self,
        stream: &Stream,
        alpha: impl Into<Factor<'a, T>>,
        x: &DeviceVec<T>,
        beta: impl Into<Factor<'a, T>>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        T::apply_device_scaled(self, stream, alpha.into(), x, beta.into(), y)
    }

    pub(crate) fn apply_device_with_impl(
        &self,
        stream: &Stream,
        alpha: Factor<'_, T>,
        x: &DeviceVec<T>,
        beta: Factor<'_, T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_lengths(x.len(), y.len())?;
        let by = Scaling { alpha, beta };
        self.check_factors(by)?;
        let _span = self.product_span(1);
        self.matrix.enqueue_scaled(&self.scaler, stream, x, y, by)
    }

    /// Runs a product on a GPU with vectors in host memory; `y` is copied to the GPU first if it is
    /// `read`.
    fn staged(
        &self,
        gpu: Gpu,
        x: &[T],
        y: &mut [T],
        read: bool,
        product: impl FnOnce(&Queue, Ptr<T>, Ptr<T>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let free = self.staging.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut staging =
            free.map_or_else(|| StagingBuffers::new(gpu, self.nrows, self.ncols), Ok)?;
        // After an error the staging buffers are not reused.
        staging.run(x, y, read, product)?;
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
        Ok(())
    }

    /// Tracing span of a product; on a GPU with vectors in its memory, of enqueuing it.
    #[inline]
    pub(super) fn product_span(&self, vectors: usize) -> Entered {
        span!(
            TRACE,
            "apply",
            plan = display(&self.decision.plan),
            device = display(&self.device),
            rows = self.nrows,
            cols = self.ncols,
            nnz = self.nnz(),
            bytes = self.matrix.bytes(),
            vectors = vectors
        )
    }

    fn check_lengths(&self, x: usize, y: usize) -> Result<(), Error> {
        for (vector, expected, found) in [("x", self.ncols, x), ("y", self.nrows, y)] {
            if expected != found {
                return Err(self.wrong_length(vector, expected, found));
            }
        }
        Ok(())
    }

    /// Checks that the vectors of factors have the referenced elements.
    pub(super) fn check_factors(&self, by: Scaling<'_, T>) -> Result<(), Error> {
        for (name, factor) in [("alpha", by.alpha), ("beta", by.beta)] {
            if let Factor::Element(vector, at) = factor
                && at >= vector.len()
            {
                return Err(self.wrong_length(name, at.saturating_add(1), vector.len()));
            }
        }
        Ok(())
    }

    fn wrong_length(&self, vector: &'static str, expected: usize, found: usize) -> Error {
        let (nrows, ncols) = (self.nrows, self.ncols);
        Error::VectorLength { vector, expected, found, nrows, ncols }
    }
}
