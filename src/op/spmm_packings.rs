//! Packings that SpMM uses: the operator's own arrays, or a second packing.

use super::lazy::get_or_make;
use super::staging::StagingBuffers;
use super::{SparseOp, SparseOpBuilder, Tuning};
use crate::analysis::Analysis;
use crate::device::{Device, Gpu};
use crate::formats::{self, Layout, Plan, ResidentMatrix, Scaler, SpmmShape, Target};
use crate::tuning::explain::AuxiliaryPacking;
use crate::tuning::plan_timer::Ready;
use crate::tuning::stopwatch::timed;
use crate::{Error, ErrorKind, Scalar, ScalarKind};
use once_cell::sync::OnceCell;
use std::mem::discriminant;
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
pub(super) struct SpmmPacking<T: Scalar> {
    /// Second packing of the matrix. None if SpMM can use the plan's own arrays.
    second: Option<SecondPacking<T>>,
    pub(super) data: formats::SpmmData<T>,
    /// Staging buffers of products with vectors in host memory on a GPU, all for the same number of
    /// vectors.
    pub(super) staging: Mutex<Vec<StagingBuffers<T>>>,
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

    /// True if the matrix itself serves any number of vectors.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Drops second packings.
    pub(super) fn forget_copies(&mut self) {
        self.second = OnceCell::new();
        *self.refused.get_mut() = false;
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
    pub(super) fn matrix<'a>(&'a self, own: &'a ResidentMatrix<T>) -> &'a ResidentMatrix<T> {
        self.second.as_ref().map_or(own, |second| &second.matrix)
    }
}

impl<T: Scalar> SparseOp<T> {
    /// Data of SpMMs of a shape, created at the first use.
    pub(super) fn spmm_packing(&self, shape: SpmmShape) -> Result<&SpmmPacking<T>, Error> {
        let SpmmPackings { own, second, refused } = &self.spmm_packings;
        // A GPU copies rows of vectors without a unit, as it does column-major vectors.
        let is_copied = self.device != Device::Cpu && !shape.has_unit::<T>();
        let layout = if is_copied { Layout::ColumnMajor } else { shape.layout };
        if shape.count > self.spmm_limit(layout) {
            let made = get_or_make(second, &self.lazy_packing, || self.second_packing());
            match made {
                Err(error) if self.can_multiply_without_copy(&error, shape) => {
                    refused.store(true, Ordering::Relaxed);
                }
                made => return made,
            }
        }
        get_or_make(own, &self.lazy_packing, || {
            let data = self.spmm_data(&self.matrix, self.plan(), 0)?;
            Ok(SpmmPacking::new(None, data))
        })
    }

    /// Multiplies any number of vectors with the plan's own arrays, if they serve.
    #[cfg(test)]
    pub(crate) fn without_second_packing(self) -> Self {
        self.spmm_packings.refused.store(true, Ordering::Relaxed);
        self
    }

    /// True if this error prevents a second packing on a GPU but not an SpMM with the plan's own
    /// arrays.
    fn can_multiply_without_copy(&self, error: &Error, shape: SpmmShape) -> bool {
        let prevents = match error {
            Error::PlanLimit { .. }
            | Error::KernelCompile { .. }
            | Error::UpdatedByGraph { .. } => true,
            error => error.kind() == ErrorKind::OutOfMemory,
        };
        let serves = shape.count <= self.matrix.spmm_limit(shape.layout);
        prevents && serves && self.device != Device::Cpu
    }

    /// Data of SpMMs with a packing that can multiply several vectors, within what is left of the
    /// memory limit beside `bytes` bytes: for fast products of any number, or else of few.
    fn spmm_data(
        &self,
        matrix: &ResidentMatrix<T>,
        plan: &Plan,
        bytes: u64,
    ) -> Result<formats::SpmmData<T>, Error> {
        let limit = self.auxiliary_builder().memory_limit;
        let limit = limit.map_or(u64::MAX, |limit| limit.saturating_sub(bytes));
        let data_of = |has_tables| {
            let data = formats::SpmmData::of(matrix, self.ncols, has_tables)?;
            Ok(data.expect("a packing with a limit above 0 has kernels for SpMM"))
        };
        let data = match data_of(true) {
            Ok(data) if data.bytes() <= limit => return Ok(data),
            Ok(_) | Err(Error::GpuMemory { .. }) => data_of(false)?,
            Err(error) => return Err(error),
        };
        let needed = data.bytes();
        if needed > limit {
            return Err(Error::MemoryLimit { plan: plan.to_string(), needed, limit });
        }
        Ok(data)
    }

    /// Packs the matrix a second time, with the best plan for SpMM, on the operator's device.
    fn second_packing(&self) -> Result<SpmmPacking<T>, Error> {
        self.check_copies("SpMMs")?;
        let (second, seconds) = timed(|| self.packed_for_spmm());
        let (plan, matrix) = second?;
        let data = self.spmm_data(&matrix, &plan, matrix.bytes())?;
        Ok(SpmmPacking::new(Some(SecondPacking { plan, matrix, seconds }), data))
    }

    fn packed_for_spmm(&self) -> Result<(Plan, ResidentMatrix<T>), Error> {
        let a = self.to_csr()?;
        Analysis::check_memory(a.view())?;
        let analysis = Analysis::of(a.view());
        let builder = self.auxiliary_builder().tuning(Tuning::Predict).remember(false);
        let plan = builder.plan_for_spmm(&analysis, &self.device, T::KIND, self.plan());
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
    pub(super) fn staging_buffers(
        &self,
        gpu: Gpu,
        x: usize,
        y: usize,
    ) -> Result<StagingBuffers<T>, Error> {
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
    pub(super) fn scaler(&self, elements: usize) -> Arc<Scaler<T>> {
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
    /// formats that support SpMM, on a GPU other than that of the operator's `own` plan, for more
    /// vectors than `own` multiplies.
    fn plan_for_spmm(
        &self,
        analysis: &Analysis,
        device: &Device,
        scalar: ScalarKind,
        own: &Plan,
    ) -> Plan {
        let on = if *device == Device::Cpu { Target::Cpu } else { Target::Gpu };
        let units = own.own_spmm_units(analysis, on).map_or(1, |units| units + 1);
        let like = |fastest| Plan::for_spmm(analysis, on, units, fastest);
        // On the CPU all plans of CSR have the same arrays.
        if on == Target::Cpu {
            return like(None);
        }
        let Ok(decision) = self.decide(analysis, scalar) else { return like(None) };
        let fitting = decision.candidates.iter().filter(|candidate| {
            let fits = candidate.work.matrix_bytes <= decision.request.memory_limit;
            let is_other = discriminant(&candidate.plan) != discriminant(own);
            fits && is_other && candidate.plan.has_spmm(analysis, on, units)
        });
        // CSR has SpMM where it is faster than packed SELL, whatever is faster for one vector.
        let rank = |plan: &Plan| u8::from(!matches!(plan, Plan::Csr(_)));
        let predicted = fitting.filter_map(|c| c.prediction.map(|p| (p.product(), &c.plan)));
        let fastest = predicted.min_by(|a, b| rank(a.1).cmp(&rank(b.1)).then(a.0.total_cmp(&b.0)));
        like(fastest.map(|(_, plan)| plan))
    }
}
