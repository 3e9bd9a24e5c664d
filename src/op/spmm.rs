//! SpMM: products with several vectors.

use super::lazy::get_or_make;
use super::staging::StagingBuffers;
use super::{SparseOp, SparseOpBuilder, Tuning};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Factor, Gpu, Scaling, Stream};
use crate::formats::{self, Layout, Multivector, Plan, ResidentMatrix, Scaler, SpmmShape, Target};
use crate::tuning::explain::AuxiliaryPacking;
use crate::tuning::plan_timer::Ready;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar, ScalarKind};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Packings for SpMMs, each created at the first use.
#[derive(Debug, Default)]
pub(super) struct SpmmPackings<T: Scalar> {
    /// The matrix itself, for as many vectors as its [limit](SparseOp::spmm_limit).
    own: OnceCell<SpmmPacking<T>>,
    /// A second packing, for more vectors.
    second: OnceCell<SpmmPacking<T>>,
    /// True if there cannot be a second packing, and the matrix itself serves instead.
    refused: AtomicBool,
}

/// Data of SpMMs.
#[derive(Debug)]
struct SpmmPacking<T: Scalar> {
    /// Second packing of the matrix. None if SpMM can use the plan's own arrays.
    second: Option<SecondPacking<T>>,
    data: formats::SpmmData<T>,
    /// Staging buffers of products with vectors in host memory on a GPU, all for the same number of
    /// vectors.
    staging: Mutex<Vec<StagingBuffers<T>>>,
    /// Epilogues of the latest numbers of elements, the latest last.
    scalers: Mutex<Vec<Arc<Scaler<T>>>>,
}

/// A second packing.
#[derive(Debug)]
struct SecondPacking<T: Scalar> {
    plan: Plan,
    matrix: ResidentMatrix<T>,
    seconds: f64,
}

impl<T: Scalar> SpmmPackings<T> {
    /// Bytes of second packings and of other data derived from the matrix.
    pub(super) fn bytes(&self) -> u64 {
        let packings = [&self.own, &self.second].into_iter().filter_map(OnceCell::get);
        packings.map(SpmmPacking::bytes).sum()
    }

    /// Drops second packings.
    pub(super) fn forget_copies(&mut self) {
        self.second = OnceCell::new();
    }

    /// Descriptions of the packings that exist, each with the largest numbers of vectors that it is
    /// used for: those of the matrix itself are `limits`.
    pub(super) fn explain(
        &self,
        limits: [usize; 2],
    ) -> [Option<([usize; 2], AuxiliaryPacking<'_>)>; 2] {
        let (own, second) = (self.own.get(), self.second.get());
        let second = second.map(|second| ([usize::MAX; 2], second.explain()));
        [own.map(|own| (limits, own.explain())), second]
    }
}

impl<T: Scalar> SpmmPacking<T> {
    fn new(second: Option<SecondPacking<T>>, data: formats::SpmmData<T>) -> Self {
        Self { second, data, staging: Mutex::default(), scalers: Mutex::default() }
    }

    fn bytes(&self) -> u64 {
        self.data.bytes() + self.second.as_ref().map_or(0, |second| second.matrix.bytes())
    }

    fn explain(&self) -> AuxiliaryPacking<'_> {
        match &self.second {
            None => AuxiliaryPacking::Shared,
            Some(SecondPacking { plan, matrix, seconds }) => {
                AuxiliaryPacking::Own { plan, bytes: matrix.bytes(), seconds: *seconds }
            }
        }
    }

    /// The matrix that SpMM uses.
    fn matrix<'a>(&'a self, own: &'a ResidentMatrix<T>) -> &'a ResidentMatrix<T> {
        self.second.as_ref().map_or(own, |second| &second.matrix)
    }
}

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
    /// share columns, otherwise as `csr(balanced)`; [`explain`](Self::explain) reports it, and
    /// [`memory_bytes`](Self::memory_bytes) counts it. One vector is multiplied as by
    /// [`apply`](Self::apply).
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
    /// [limit](SparseOpBuilder::memory_limit) and the own arrays have no kernels: then multiply one
    /// by one. [`Error::Gpu`] and [`Error::GpuMemory`].
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
        if !self.spmm_packings.refused.load(Ordering::Relaxed) {
            limit = limit.min(self.most_own_vectors);
        }
        let by_spmvs = self.device == Device::Cpu && limit < usize::MAX;
        if by_spmvs && !self.spmvs_are_faster() { 0 } else { limit }
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

    /// Data of SpMMs of a shape, created at the first use.
    fn spmm_packing(&self, shape: SpmmShape) -> Result<&SpmmPacking<T>, Error> {
        let SpmmPackings { own, second, refused } = &self.spmm_packings;
        if shape.count > self.spmm_limit(shape.layout) {
            let made = get_or_make(second, &self.lazy_packing, || self.second_packing());
            match made {
                Err(error) if self.can_multiply_without_copy(&error, shape) => {
                    refused.store(true, Ordering::Relaxed);
                }
                made => return made,
            }
        }
        get_or_make(own, &self.lazy_packing, || {
            let limit = self.auxiliary_builder().memory_limit.unwrap_or(u64::MAX);
            let mut data = self.spmm_data(&self.matrix, usize::MAX)?;
            if data.bytes() > limit {
                data = self.spmm_data(&self.matrix, 1)?;
            }
            let needed = data.bytes();
            if needed > limit {
                return Err(Error::MemoryLimit { plan: self.plan().to_string(), needed, limit });
            }
            Ok(SpmmPacking::new(None, data))
        })
    }

    /// Multiplies any number of vectors with the plan's own arrays, if they serve.
    #[cfg(test)]
    pub(crate) fn without_second_packing(self) -> Self {
        self.spmm_packings.refused.store(true, Ordering::Relaxed);
        self
    }

    /// True if this error prevents a second packing but not an SpMM with the plan's own arrays.
    fn can_multiply_without_copy(&self, error: &Error, shape: SpmmShape) -> bool {
        let prevents = matches!(
            error,
            Error::MemoryLimit { .. }
                | Error::NoPlanFits { .. }
                | Error::GpuMemory { .. }
                | Error::UpdatedByGraph { .. }
        );
        prevents && shape.count <= self.matrix.spmm_limit(shape.layout)
    }

    /// Data of SpMMs of up to `most` vectors with a packing that can multiply several.
    fn spmm_data(
        &self,
        matrix: &ResidentMatrix<T>,
        most: usize,
    ) -> Result<formats::SpmmData<T>, Error> {
        let data = formats::SpmmData::of(matrix, self.ncols, most)?;
        Ok(data.expect("a packing with a limit above 0 has kernels for SpMM"))
    }

    /// Packs the matrix a second time, with the best plan for SpMM, on the operator's device.
    fn second_packing(&self) -> Result<SpmmPacking<T>, Error> {
        self.check_copies("SpMMs")?;
        let (second, seconds) = timed(|| self.packed_for_spmm());
        let (plan, matrix) = second?;
        let data = self.spmm_data(&matrix, usize::MAX)?;
        Ok(SpmmPacking::new(Some(SecondPacking { plan, matrix, seconds }), data))
    }

    fn packed_for_spmm(&self) -> Result<(Plan, ResidentMatrix<T>), Error> {
        let a = self.to_csr()?;
        Analysis::check_memory(a.view())?;
        let analysis = Analysis::of(a.view());
        let builder = self.auxiliary_builder().tuning(Tuning::Predict).remember(false);
        let plan = builder.plan_for_spmm(&analysis, &self.device, T::KIND);
        // Here the size of the packing is known, and checked against the limit for given and chosen
        // plans.
        let plan = builder.tuning(Tuning::Fixed(plan)).decide(&analysis, T::KIND)?.plan;
        let ready = Ready::pack(&plan, a.view(), &self.device)?;
        Ok((plan, ready.matrix))
    }
}

impl<T: Scalar> SpmmPacking<T> {
    /// Staging buffers for vectors of these lengths; those for other numbers of vectors are
    /// dropped.
    fn staging_buffers(&self, gpu: Gpu, x: usize, y: usize) -> Result<StagingBuffers<T>, Error> {
        let mut all = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|staging| staging.fits(x, y));
        match all.pop() {
            Some(staging) => Ok(staging),
            None => {
                drop(all);
                StagingBuffers::new(gpu, y, x)
            }
        }
    }

    /// Axpby epilogue of products with `elements` elements.
    fn scaler(&self, elements: usize) -> Arc<Scaler<T>> {
        /// Numbers of elements that are kept: freeing working memory waits for the GPU.
        const KEPT: usize = 4;
        let mut scalers = self.scalers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = scalers.iter().position(|scaler| scaler.rows() == elements);
        let scaler = match known {
            Some(place) => scalers.remove(place),
            None => Arc::new(Scaler::new(elements)),
        };
        scalers.push(scaler.clone());
        let dropped = (scalers.len() > KEPT).then(|| scalers.remove(0));
        drop(scalers);
        drop(dropped);
        scaler
    }
}

impl SparseOpBuilder {
    /// Plan for SpMM, like the plan that is predicted to be the fastest for SpMV among those of
    /// formats that support SpMM.
    fn plan_for_spmm(&self, analysis: &Analysis, device: &Device, scalar: ScalarKind) -> Plan {
        let on = if *device == Device::Cpu { Target::Cpu } else { Target::Gpu };
        let like = |fastest| Plan::for_spmm(analysis, on, fastest);
        // On the CPU all plans of CSR have the same arrays.
        if on == Target::Cpu {
            return like(None);
        }
        let Ok(decision) = self.decide(analysis, scalar) else { return like(None) };
        let fitting = decision.candidates.iter().filter(|candidate| {
            let fits = candidate.work.matrix_bytes <= decision.request.memory_limit;
            fits && candidate.plan.has_spmm(analysis, on)
        });
        // CSR has SpMM where it is faster than packed SELL, whatever is faster for one vector.
        let rank = |plan: &Plan| u8::from(!matches!(plan, Plan::Csr(_)));
        let predicted = fitting.filter_map(|c| c.prediction.map(|p| (p.product(), &c.plan)));
        let fastest = predicted.min_by(|a, b| rank(a.1).cmp(&rank(b.1)).then(a.0.total_cmp(&b.0)));
        like(fastest.map(|(_, plan)| plan))
    }
}
