//! SpMM: products with several vectors.

use super::SparseOp;
use crate::device::{Device, DeviceVec, Factor, Scaling, Stream};
use crate::formats::{self, Layout, Multivector, SpmmShape};
use crate::{Error, Scalar};
use std::sync::PoisonError;

impl<T: Scalar> SparseOp<T> {
    /// `Y = A X` for several vectors (SpMM). With kernels of its own, one pass over the matrix
    /// multiplies at least 8 vectors if their alignment permits wide loads, in far less time than 8
    /// SpMVs.
    ///
    /// `x` has vectors of `ncols` elements, `y` as many of `nrows` in the same [`Layout`];
    /// [`Layout::RowMajor`] is the faster one. `y` is overwritten without being read. For more than
    /// one vector its bits are the same for every call with vectors of the same alignment, under
    /// every plan.
    ///
    /// On the CPU an SpMM uses the rows of CSR, or for 2 vectors in [`Layout::ColumnMajor`] the
    /// plan's own arrays, one vector after the other, if the mean row length is below 16 and at
    /// least half of the gathers are near the last use of their element. On a GPU packed SELL and
    /// CSR have kernels. Operators with one of them use their own arrays, but where the other one
    /// is faster only for up to 4 vectors in f32 and 2 in f64 with CSR, and two or eight times as
    /// many with packed SELL. The first SpMM that the plan's own arrays do not serve packs the
    /// matrix a second time, as packed SELL in large matrices whose rows have similar lengths and
    /// share columns, otherwise and for operators with packed SELL as `csr(balanced)`;
    /// [`explain`](Self::explain) reports it, and [`memory_bytes`](Self::memory_bytes) counts it.
    /// One vector is multiplied as by [`apply`](Self::apply).
    ///
    /// On a GPU `x` is copied to it and `y` from it: see
    /// [`apply_multi_device`](Self::apply_multi_device). Products with the transposed matrix are
    /// those of [`transposed`](Self::transposed).
    ///
    /// # Errors
    ///
    /// [`Error::MultivectorMismatch`] when numbers of vectors or layouts differ;
    /// [`Error::VectorsLength`] when `x` or `y` has the wrong length; `y` is then untouched.
    /// [`Error::MemoryLimit`] when the second packing does not fit what is left of the
    /// [limit](crate::SparseOpBuilder::memory_limit) and the own arrays have no kernels: then
    /// multiply one by one. [`Error::Gpu`] and [`Error::GpuMemory`].
    ///
    /// ```
    /// # use sparseop::{Multivector, SparseOp, matrix::Triplets};
    /// let mut t = Triplets::new(2, 2)?;
    /// t.push(0, 0, 2.0f64)?;
    /// t.push(1, 0, 1.0)?;
    /// let op = SparseOp::auto(&t)?;
    /// // (3, 4) and (10, 20).
    /// let x = [3.0, 10.0, 4.0, 20.0];
    /// let mut y = [0.0; 4];
    /// op.apply_multi(Multivector::row_major(&x, 2), Multivector::row_major(&mut y, 2))?;
    /// assert_eq!(y, [6.0, 20.0, 3.0, 10.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    pub fn apply_multi(
        &self,
        x: Multivector<impl AsRef<[T]>>,
        y: Multivector<impl AsMut<[T]>>,
    ) -> Result<(), Error> {
        self.apply_multi_with(T::ONE, x, T::ZERO, y)
    }

    /// `Y = alpha A X + beta Y` for several vectors. Zeros and NaN among the factors mean what they
    /// mean in [`apply_with`](Self::apply_with).
    ///
    /// Otherwise as [`apply_multi`](Self::apply_multi). Unless a factor is 0, or `alpha` is 1 and
    /// `beta` 0, the product is computed beside `Y` and then added. Working memory of as many
    /// elements is kept for the next such products, for the latest four numbers of vectors.
    ///
    /// # Errors
    ///
    /// As [`apply_multi`](Self::apply_multi).
    pub fn apply_multi_with(
        &self,
        alpha: T,
        x: Multivector<impl AsRef<[T]>>,
        beta: T,
        mut y: Multivector<impl AsMut<[T]>>,
    ) -> Result<(), Error> {
        let x = Multivector::new(x.data.as_ref(), x.count, x.layout);
        let y = Multivector::new(y.data.as_mut(), y.count, y.layout);
        T::apply_multi(self, alpha, x, beta, y)
    }

    pub(crate) fn apply_multi_impl(
        &self,
        alpha: T,
        x: Multivector<&[T]>,
        beta: T,
        y: Multivector<&mut [T]>,
    ) -> Result<(), Error> {
        let shape = self.shape_of(x.map(<[T]>::len), &y, y.data.len())?;
        let (x, y) = (x.data, y.data);
        // A matrix without rows has an SpMM with any number of vectors.
        if shape.count == 0 || y.is_empty() {
            return Ok(());
        }
        if shape.count == 1 {
            return match (alpha, beta) == (T::ONE, T::ZERO) {
                true => self.apply(x, y),
                false => self.apply_with(alpha, x, beta, y),
            };
        }
        let spmm_packing = self.spmm_packing(shape)?;
        let _span = self.product_span(shape.count);
        let matrix = spmm_packing.matrix(&self.matrix);
        let plain = (alpha, beta) == (T::ONE, T::ZERO);
        let scaler = (!plain).then(|| spmm_packing.scaler(y.len()));
        match &self.device {
            Device::Cpu => {
                let multiply =
                    |y: &mut [T]| matrix.multiply_multivector(&spmm_packing.data, shape, x, y);
                match scaler {
                    None => multiply(y),
                    Some(scaler) => scaler.scale(alpha, beta, y, multiply),
                }
            }
            Device::Cuda(gpu) => {
                let by = Scaling { alpha: alpha.into(), beta: beta.into() };
                let mut staging = spmm_packing.staging_buffers(*gpu, x.len(), y.len())?;
                staging.run(x, y, beta != T::ZERO, |queue, x, y| {
                    // SAFETY: the staging buffers have these lengths, and outlive the product.
                    unsafe {
                        let multiply =
                            |y| matrix.enqueue_spmm_at(&spmm_packing.data, queue, shape, x, y);
                        match &scaler {
                            None => multiply(y),
                            Some(scaler) => {
                                let fused = &|| Ok(false);
                                scaler.enqueue_scale(*gpu, queue, y, by, &multiply, fused)
                            }
                        }
                    }
                })?;
                spmm_packing.staging.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
                Ok(())
            }
        }
    }

    /// `Y = A X` for several vectors on the operator's device; otherwise as
    /// [`apply_multi`](Self::apply_multi), and enqueued as by [`apply_device`](Self::apply_device).
    ///
    /// The first such product that the plan's own arrays do not serve packs the matrix a second
    /// time, and waits for that; the first under CSR may wait for a table of chunks. Later ones
    /// neither wait nor allocate, except for working memory at the first product on a stream: words
    /// for rows that several blocks add up, and 64 bytes for every column where vectors have to be
    /// interleaved, which is in [`Layout::ColumnMajor`] and where a row of the vectors is no
    /// multiple of 8 bytes in f32 and of 16 in f64.
    ///
    /// # Errors
    ///
    /// As [`apply_multi`](Self::apply_multi), and [`Error::WrongDevice`] when a vector or the
    /// stream is another device's.
    pub fn apply_multi_device(
        &self,
        stream: &Stream,
        x: Multivector<&DeviceVec<T>>,
        y: Multivector<&mut DeviceVec<T>>,
    ) -> Result<(), Error> {
        self.apply_multi_device_with(stream, T::ONE, x, T::ZERO, y)
    }

    /// `Y = alpha A X + beta Y` for several vectors on the operator's device; otherwise as
    /// [`apply_multi_with`](Self::apply_multi_with) and
    /// [`apply_multi_device`](Self::apply_multi_device). The factors may be elements of vectors
    /// there, as of [`apply_device_with`](Self::apply_device_with).
    ///
    /// # Errors
    ///
    /// As [`apply_multi_device`](Self::apply_multi_device), and [`Error::VectorLength`] when the
    /// vector of a factor has no such element.
    pub fn apply_multi_device_with<'a>(
        &self,
        stream: &Stream,
        alpha: impl Into<Factor<'a, T>>,
        x: Multivector<&DeviceVec<T>>,
        beta: impl Into<Factor<'a, T>>,
        y: Multivector<&mut DeviceVec<T>>,
    ) -> Result<(), Error> {
        T::apply_multi_device(self, stream, alpha.into(), x, beta.into(), y)
    }

    pub(crate) fn apply_multi_device_impl(
        &self,
        stream: &Stream,
        alpha: Factor<'_, T>,
        x: Multivector<&DeviceVec<T>>,
        beta: Factor<'_, T>,
        y: Multivector<&mut DeviceVec<T>>,
    ) -> Result<(), Error> {
        let shape = self.shape_of(x.map(DeviceVec::len), &y, y.data.len())?;
        let (x, y, by) = (x.data, y.data, Scaling { alpha, beta });
        self.check_factors(by)?;
        self.matrix.check_factors(by)?;
        if shape.count == 0 || y.is_empty() {
            return Ok(());
        }
        if shape.count == 1 {
            return match (alpha.known(), beta.known()) == (Some(T::ONE), Some(T::ZERO)) {
                true => self.apply_device(stream, x, y),
                false => self.apply_device_with(stream, alpha, x, beta, y),
            };
        }
        let spmm_packing = self.spmm_packing(shape)?;
        let _span = self.product_span(shape.count);
        let plain = (alpha.known(), beta.known()) == (Some(T::ONE), Some(T::ZERO));
        let scaled = (!plain).then(|| (spmm_packing.scaler(y.len()), by));
        let scaled = scaled.as_ref().map(|(scaler, by)| (&**scaler, *by));
        spmm_packing.matrix(&self.matrix).enqueue_spmm(
            &spmm_packing.data,
            stream,
            shape,
            x,
            y,
            scaled,
        )
    }

    fn shape_of<V>(
        &self,
        x: Multivector<usize>,
        y: &Multivector<V>,
        y_len: usize,
    ) -> Result<SpmmShape, Error> {
        let (nrows, ncols, count, layout) = (self.nrows, self.ncols, x.count, x.layout);
        if (count, layout) != (y.count, y.layout) {
            let text = |count, layout| format!("{count} vectors in {layout:?} layout");
            let (x, y) = (text(count, layout), text(y.count, y.layout));
            return Err(Error::MultivectorMismatch { x, y });
        }
        for (vectors, len, found) in [("x", ncols, x.data), ("y", nrows, y_len)] {
            // A number of elements beyond `usize` is not a valid length.
            if count.checked_mul(len) != Some(found) {
                return Err(Error::VectorsLength { vectors, count, len, found, nrows, ncols });
            }
        }
        Ok(SpmmShape { count, nrows, ncols, layout })
    }

    /// Largest number of vectors of an SpMM that uses the plan's own arrays; 0 if none does.
    pub(crate) fn spmm_limit(&self, layout: Layout) -> usize {
        let mut limit = self.matrix.spmm_limit(layout);
        // A second packing would have to be made again at every update.
        if self.updater.is_none() && !self.spmm_packings.is_refused() {
            limit = limit.min(self.most_own_vectors);
        }
        match (&self.device, layout) {
            (Device::Cpu, _) if limit < usize::MAX && !self.spmvs_are_faster() => 0,
            // Few of them are multiplied at a time.
            (Device::Cuda(_), Layout::ColumnMajor) if limit >= formats::copied_vectors::<T>() => {
                usize::MAX
            }
            _ => limit,
        }
    }

    /// True if two SpMVs of the plan are faster than SpMM with CSR on the CPU: if rows are short,
    /// so that SpMM's cost per row dominates, and most gathers hit the caches. Otherwise SpMM is
    /// faster: it reads the indices, and misses the caches, once for both vectors.
    ///
    /// Measured on two cores of Zen 3 and Zen 4, the time of SpMM with CSR over that of two SpMVs:
    /// 0.9 to 7 where this is true, else 0.5 to 3.
    fn spmvs_are_faster(&self) -> bool {
        /// Mean row length from which on SpMM with CSR may be faster.
        const LONG: f64 = 16.0;
        /// Reuse distance, in entries, below which gathers hit the caches.
        const NEAR: f64 = 4096.0;
        self.rows.mean < LONG && self.structure.reuse.share_within(NEAR) >= 0.5
    }
}
