//! Products with several vectors at once.

use super::stage::Stage;
use super::{SparseOp, SparseOpBuilder, Tuning};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Gpu, Stream};
use crate::formats::{self, Layout, Placed, Plan, Shape, multiplies_several, several_plan};
use crate::tuning::arena::Ready;
use crate::tuning::explain::PackedBeside;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar, ScalarKind};
use std::sync::{Mutex, PoisonError};

/// What multiplies with several vectors.
#[derive(Debug)]
pub(super) struct Several<T: Scalar> {
    /// The matrix packed again, where the plan's own arrays are of no use for it.
    second: Option<Second<T>>,
    means: formats::Several<T>,
    /// What products with vectors in host memory go through on a GPU, all for the same number of vectors.
    stages: Mutex<Vec<Stage<T>>>,
}

/// A second packing.
#[derive(Debug)]
struct Second<T: Scalar> {
    plan: Plan,
    matrix: Placed<T>,
    seconds: f64,
}

impl<T: Scalar> Several<T> {
    /// Bytes of what was packed and made of the matrix for it.
    pub(super) fn bytes(&self) -> u64 {
        self.means.bytes() + self.second.as_ref().map_or(0, |second| second.matrix.bytes())
    }

    /// Whether it multiplies with the operator's own arrays.
    pub(super) fn is_shared(&self) -> bool {
        self.second.is_none()
    }

    /// What was packed for it, in words.
    pub(super) fn explain(&self) -> PackedBeside<'_> {
        match &self.second {
            None => PackedBeside::Shared,
            Some(Second { plan, matrix, seconds }) => {
                PackedBeside::Own { plan, bytes: matrix.bytes(), seconds: *seconds }
            }
        }
    }

    /// The matrix that is multiplied with.
    fn matrix<'a>(&'a self, own: &'a Placed<T>) -> &'a Placed<T> {
        self.second.as_ref().map_or(own, |second| &second.matrix)
    }
}

impl<T: Scalar> SparseOp<T> {
    /// `Y = A X` for `k` vectors at once: the matrix is read once for up to 16 of them or more, which takes far less time than `k`
    /// products. `x` holds `k · ncols` elements and `y` has `k · nrows`, in the given [`Layout`]; [`Layout::RowMajor`] is the faster one.
    /// `y` is overwritten without being read, and for more than one vector its bits are the same for every call, whatever the plan.
    ///
    /// On the CPU these products go through the rows of CSR, on a GPU through packed slices. An operator that holds the matrix in another
    /// way packs it a second time at the first such product; [`explain`](Self::explain) says so, and [`memory_bytes`](Self::memory_bytes)
    /// counts it. One vector is multiplied as by [`apply`](Self::apply).
    ///
    /// On a GPU `x` is copied to it and `y` from it: see [`apply_multi_device`](Self::apply_multi_device).
    ///
    /// # Errors
    ///
    /// [`Error::VectorsLength`] when `x` or `y` has the wrong length; `y` is then untouched. [`Error::MemoryLimit`] when the second packing
    /// does not fit what is left of the [limit](SparseOpBuilder::memory_limit): then multiply one by one. [`Error::Gpu`] and
    /// [`Error::GpuMemory`].
    ///
    /// ```
    /// # use sparseop::{Layout, SparseOp, matrix::Triplets};
    /// let mut t = Triplets::new(2, 2)?;
    /// t.push(0, 0, 2.0f64)?;
    /// t.push(1, 0, 1.0)?;
    /// let op = SparseOp::auto(&t)?;
    /// let mut y = [0.0; 4];
    /// // (3, 4) and (10, 20), side by side.
    /// op.apply_multi(2, &[3.0, 10.0, 4.0, 20.0], &mut y, Layout::RowMajor)?;
    /// assert_eq!(y, [6.0, 20.0, 3.0, 10.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    pub fn apply_multi(&self, k: usize, x: &[T], y: &mut [T], layout: Layout) -> Result<(), Error> {
        T::apply_multi(self, k, x, y, layout)
    }

    pub(crate) fn apply_multi_impl(
        &self,
        k: usize,
        x: &[T],
        y: &mut [T],
        layout: Layout,
    ) -> Result<(), Error> {
        let shape = self.shape_of(k, x.len(), y.len(), layout)?;
        // Without rows there may be any number of vectors, and nothing to be done.
        if k == 0 || y.is_empty() {
            return Ok(());
        }
        if k == 1 {
            return self.apply(x, y);
        }
        let several = self.several()?;
        let _span = self.product_span(k);
        let matrix = several.matrix(&self.matrix);
        match &self.device {
            Device::Cpu => {
                matrix.multiply_several(&several.means, shape, x, y);
                Ok(())
            }
            Device::Cuda(gpu) => {
                let mut stage = several.stage(*gpu, x.len(), y.len())?;
                stage.through(x, y, false, |queue, x, y| {
                    // SAFETY: the stage's memory has these lengths, and outlives the product.
                    unsafe { matrix.enqueue_several_at(&several.means, queue, shape, x, y) }
                })?;
                several.stages.lock().unwrap_or_else(PoisonError::into_inner).push(stage);
                Ok(())
            }
        }
    }

    /// `Y = A X` for `k` vectors at once that live on the operator's device; otherwise as [`apply_multi`](Self::apply_multi), and enqueued
    /// as by [`apply_device`](Self::apply_device).
    ///
    /// The first such product may pack the matrix a second time, and waits for that; later ones neither wait nor allocate, but for the
    /// working memory that vectors take on a stream of their own for the first time: 64 bytes for every column where they have to be
    /// brought side by side, which is with [`Layout::ColumnMajor`] and where `k` vectors are no multiple of 8 bytes in f32 and of 16 in f64.
    ///
    /// # Errors
    ///
    /// As [`apply_multi`](Self::apply_multi), and [`Error::WrongDevice`] when a vector or the stream is another device's.
    pub fn apply_multi_device(
        &self,
        stream: &Stream,
        k: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        layout: Layout,
    ) -> Result<(), Error> {
        T::apply_multi_device(self, stream, k, x, y, layout)
    }

    pub(crate) fn apply_multi_device_impl(
        &self,
        stream: &Stream,
        k: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        layout: Layout,
    ) -> Result<(), Error> {
        let shape = self.shape_of(k, x.len(), y.len(), layout)?;
        if k == 0 || y.is_empty() {
            return Ok(());
        }
        if k == 1 {
            return self.apply_device(stream, x, y);
        }
        let several = self.several()?;
        let _span = self.product_span(k);
        several.matrix(&self.matrix).enqueue_several(&several.means, stream, shape, x, y)
    }

    fn shape_of(&self, count: usize, x: usize, y: usize, layout: Layout) -> Result<Shape, Error> {
        let (nrows, ncols) = (self.nrows, self.ncols);
        for (vectors, len, found) in [("x", ncols, x), ("y", nrows, y)] {
            // More than there can be is the wrong length, too.
            if count.checked_mul(len) != Some(found) {
                return Err(Error::VectorsLength { vectors, count, len, found, nrows, ncols });
            }
        }
        Ok(Shape { count, nrows, ncols, layout })
    }

    /// What multiplies with several vectors, made when it is first needed.
    fn several(&self) -> Result<&Several<T>, Error> {
        self.several.get_or_make(|| {
            let stages = Mutex::default();
            if let Some(means) = formats::Several::of(&self.matrix, self.ncols)? {
                return Ok(Several { second: None, means, stages });
            }
            self.check_copies("with several vectors")?;
            let (second, seconds) = timed(|| self.second_packing());
            let (plan, matrix) = second?;
            let Some(means) = formats::Several::of(&matrix, self.ncols)? else {
                unreachable!("the plan is one that can multiply several vectors")
            };
            Ok(Several { second: Some(Second { plan, matrix, seconds }), means, stages })
        })
    }

    /// The matrix in the plan that is best for several vectors, on the operator's device.
    fn second_packing(&self) -> Result<(Plan, Placed<T>), Error> {
        let a = self.to_csr()?;
        let analysis = Analysis::of(a.view());
        let builder = self.settings_for_another().tuning(Tuning::Heuristic).remember(false);
        let plan = builder.plan_for_several(&analysis, &self.device, T::KIND);
        // What it takes is known here, and held to the limit, given plan or chosen.
        let plan = builder.tuning(Tuning::Fixed(plan)).decide(&analysis, T::KIND)?.plan;
        let ready = Ready::pack(&plan, &a, &self.device)?;
        Ok((plan, ready.matrix))
    }
}

impl<T: Scalar> Several<T> {
    /// What vectors of these lengths go through; those for other numbers of vectors are given up.
    fn stage(&self, gpu: Gpu, x: usize, y: usize) -> Result<Stage<T>, Error> {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.retain(|stage| stage.fits(x, y));
        match stages.pop() {
            Some(stage) => Ok(stage),
            None => {
                drop(stages);
                Stage::new(gpu, y, x)
            }
        }
    }
}

impl SparseOpBuilder {
    /// Of the plans that can multiply several vectors, the one that is predicted to be the fastest with one.
    fn plan_for_several(&self, analysis: &Analysis, device: &Device, scalar: ScalarKind) -> Plan {
        let any = || several_plan(analysis, device);
        // On the CPU all plans of CSR have the same arrays.
        if *device == Device::Cpu {
            return any();
        }
        let Ok(decision) = self.decide(analysis, scalar) else { return any() };
        let fitting = decision.candidates.iter().filter(|candidate| {
            let fits = candidate.traffic.matrix_bytes <= decision.request.memory_limit;
            fits && multiplies_several(&candidate.plan, device)
        });
        let predicted = fitting.filter_map(|c| c.prediction.map(|p| (p.product(), &c.plan)));
        predicted.min_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(any, |(_, plan)| plan.clone())
    }
}
