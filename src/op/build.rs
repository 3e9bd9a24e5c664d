//! Build of an operator: rounding, analysis, choice of the device, and what the operator owns.

use super::prepare::Prepared;
use super::spmm_packings::SpmmPackings;
use super::transpose::Transposition;
use super::{SparseOp, SparseOpBuilder, Tuning};
use crate::analysis::{Analysis, PARALLEL_MIN};
use crate::device::{CsrSource, Device, Gpu};
use crate::formats::{self, PackSource, Scaler, Target, Updater};
use crate::matrix::{CsrCow, CsrView};
use crate::trace::span;
use crate::tuning::lookup::ProfileSource;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Mutex;
use tracing::field::display;

/// Ratio of the available memory to the arrays of a matrix from which on the matrix is copied to
/// the GPU before its plan is chosen.
const COPY_SHARE: u64 = 4;

/// A result, and the seconds that it took.
type WithSeconds<R> = (R, f64);

/// A matrix to build an operator of.
pub(super) enum BuildSource<'a, T: Scalar> {
    /// In host memory, perhaps with a copy in the memory of the GPU.
    Host(CsrView<'a, T>, Option<CsrSource<T>>),
    /// In the memory of the GPU.
    Gpu(CsrSource<T>),
}

impl<'a, T: Scalar> BuildSource<'a, T> {
    fn to_pack(&self) -> PackSource<'_, T> {
        match self {
            Self::Host(a, on_gpu) => PackSource::new(*a, on_gpu.as_ref()),
            Self::Gpu(a) => a.into(),
        }
    }

    /// The matrix in host memory. Frees its copy on the GPU.
    fn into_host(self) -> Result<CsrCow<'a, T>, Error> {
        match self {
            Self::Host(a, _) => Ok(a.into()),
            Self::Gpu(a) => a.into_host().map(CsrCow::from),
        }
    }
}

impl SparseOpBuilder {
    pub(crate) fn build_impl<T: Scalar>(&self, a: CsrView<'_, T>) -> Result<SparseOp<T>, Error> {
        let _span = span!(DEBUG, "build", rows = a.nrows(), cols = a.ncols(), nnz = a.nnz());
        let a = self.rounded(a)?;
        Analysis::check_memory(a.view())?;
        let ((analyzed, on_gpu), total) = timed(|| self.analyzed_and_copied(a.view()));
        let (analysis, analyze) = analyzed;
        let mut op = self.build_rounded(a.view(), on_gpu, &analysis)?;
        op.preparation.analyze = analyze;
        op.preparation.upload += total - analyze;
        Ok(op)
    }

    /// Returns the matrix with rounded values, if rounding is set.
    ///
    /// # Errors
    ///
    /// [`Error::ValueRange`].
    pub(super) fn rounded<'a, T: Scalar>(&self, a: CsrView<'a, T>) -> Result<CsrCow<'a, T>, Error> {
        self.value_precision.map_or(Ok(a.into()), |precision| T::round(a, precision))
    }

    /// Copies a large matrix to the GPU that packs it, and analyses it there. Returns the analysis
    /// with its time in seconds. The host analyses the matrix if it is small, if there is no GPU,
    /// if the host packs the given plan, if little memory would be left, or if the GPU fails; and
    /// during the copy, if the kernels of the analysis have to be compiled first.
    fn analyzed_and_copied<T: Scalar>(
        &self,
        a: CsrView<'_, T>,
    ) -> (WithSeconds<Analysis>, Option<CsrSource<T>>) {
        let analyze = || timed(|| formats::analyze(a));
        let packs_on_device = match &self.tuning {
            Tuning::Fixed(plan) => plan.properties().packs_on_device,
            _ => true,
        };
        if a.nnz() < PARALLEL_MIN || !packs_on_device || self.device == Some(Device::Cpu) {
            return (analyze(), None);
        }
        let Device::Cuda(gpu) = self.device.clone().unwrap_or_else(Device::auto) else {
            return (analyze(), None);
        };
        let bytes = PackSource::from(a).csr_bytes();
        let has_room = || {
            let free = gpu.free_memory().unwrap_or(0);
            bytes as u64 <= free.min(self.memory_limit.unwrap_or(u64::MAX)) / COPY_SHARE
        };
        let upload = || span!(DEBUG, "upload", bytes = bytes, device = display(gpu));
        if gpu.needs_no_compiler(&formats::analysis_kernels::<T>()) {
            let copied = has_room().then(upload).and_then(|_span| Self::analyzed_there(a, gpu));
            let (on_gpu, analyzed) = copied.unzip();
            return (analyzed.flatten().unwrap_or_else(analyze), on_gpu);
        }
        let copy = || {
            let _span = has_room().then(upload)?;
            CsrSource::upload(a, gpu).ok()
        };
        std::thread::scope(|scope| {
            let copy = std::thread::Builder::new().spawn_scoped(scope, copy);
            let analyzed = analyze();
            (analyzed, copy.ok().and_then(|copy| copy.join().ok().flatten()))
        })
    }

    /// Copies a matrix to a GPU and analyses it there, as far as possible while its values are
    /// copied. Returns the copy, and the analysis with its own time in seconds. `None` if the copy
    /// fails: the error comes again when the matrix is packed.
    fn analyzed_there<T: Scalar>(
        a: CsrView<'_, T>,
        gpu: Gpu,
    ) -> Option<(CsrSource<T>, Option<WithSeconds<Analysis>>)> {
        let analyze = |there: &CsrSource<T>, has_values: &dyn Fn() -> bool| {
            let waited = Cell::new(0.0);
            let has_values = || {
                let (has_values, seconds) = timed(has_values);
                waited.set(seconds);
                has_values
            };
            let (analysis, seconds) = timed(|| formats::analyze_on_gpu(there, Some(&has_values)));
            Some((analysis.ok()?, seconds - waited.get()))
        };
        CsrSource::upload_during(a, gpu, analyze).ok()
    }

    pub(crate) fn build_analyzed_impl<T: Scalar>(
        &self,
        a: CsrView<'_, T>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        let rows = &analysis.rows;
        if (rows.nrows, rows.ncols, rows.nnz) != (a.nrows(), a.ncols(), a.nnz() as u64) {
            let message = format!(
                "it is {} x {} with {} entries, but the analysis is of one {} x {} with {}",
                a.nrows(),
                a.ncols(),
                a.nnz(),
                rows.nrows,
                rows.ncols,
                rows.nnz
            );
            return Err(Error::InvalidMatrix { format: "analysed", message });
        }
        let rounded = self.rounded(a)?;
        let analysis = match rounded.has_values_of(a) {
            true => Cow::Borrowed(analysis),
            false => Cow::Owned(analysis.with_values_of(rounded.view())),
        };
        self.build_rounded(rounded.view(), None, &analysis)
    }

    /// Decides and packs for the set device or [`Device::auto`], and on the CPU if the latter is a
    /// GPU that fails.
    fn build_rounded<T: Scalar>(
        &self,
        a: CsrView<'_, T>,
        on_gpu: Option<CsrSource<T>>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        let device = self.device.clone().unwrap_or_else(Device::auto);
        let built = self.build_in_memory(&device, BuildSource::Host(a, on_gpu), analysis);
        let reason = match built {
            Err(error)
                if self.device.is_none() && device != Device::Cpu && self.is_due_to_gpu(&error) =>
            {
                error
            }
            built => return built,
        };
        // Profiles of GPUs do not apply to the CPU.
        let of_cpu = |source: &ProfileSource| {
            source.profile().is_ok_and(|profile| profile.device.gpu.is_none())
        };
        let profile = self.profile.clone().filter(of_cpu);
        let mut op = Self { profile, ..self.clone() }.build_on(Device::Cpu, a.into(), analysis)?;
        op.decision.fallback = Some(format!("on the CPU: {reason}"));
        Ok(op)
    }

    /// Decides and packs for a device. After [`Error::GpuMemory`] it frees the copy of the matrix
    /// and tries again: a given plan one time if there was a copy, otherwise plans within all of
    /// the free memory, 7/8, 6/8, … 1/8 of it.
    pub(super) fn build_in_memory<T: Scalar>(
        &self,
        device: &Device,
        source: BuildSource<'_, T>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        let failure = match self.build_on(device.clone(), source.to_pack(), analysis) {
            Err(error @ Error::GpuMemory { .. }) => error,
            built => return built,
        };
        let is_fixed = matches!(self.tuning, Tuning::Fixed(_));
        if is_fixed && matches!(source, BuildSource::Host(_, None)) {
            return Err(failure);
        }
        let a = source.into_host()?;
        let a = a.view();
        if is_fixed {
            return self.build_on(device.clone(), a.into(), analysis);
        }
        let free = device.memory()?.min(self.memory_limit.unwrap_or(u64::MAX));
        for eighths in (1..=8).rev() {
            let limit = free / 8 * eighths;
            let within = Self { memory_limit: Some(limit), ..self.clone() };
            match within.build_on(device.clone(), a.into(), analysis) {
                Err(Error::GpuMemory { .. }) => {}
                Err(Error::MemoryLimit { .. } | Error::NoPlanFits { .. }) => break,
                Err(error) => return Err(error),
                Ok(mut op) => {
                    let reason = format!("within {} MiB of {device}: {failure}", limit >> 20);
                    op.decision.fallback = Some(reason);
                    return Ok(op);
                }
            }
        }
        Err(failure)
    }

    /// True if the CPU may succeed after this error on a GPU.
    pub(super) fn is_due_to_gpu(&self, error: &Error) -> bool {
        match error {
            Error::GpuMemory { .. } | Error::KernelCompile { .. } | Error::Gpu { .. } => true,
            Error::MemoryLimit { limit, .. } | Error::NoPlanFits { limit, .. } => {
                self.memory_limit.is_none_or(|set| *limit < set)
            }
            _ => false,
        }
    }

    /// Decides and packs for a device.
    pub(super) fn build_on<T: Scalar>(
        &self,
        device: Device,
        source: PackSource<'_, T>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        let on_host = || source.on_host();
        let transposition = self.transpose.then(|| Transposition::of(on_host()?)).transpose()?;
        let settings = match &transposition {
            Some(transposition) => Cow::Owned(transposition.reserve_memory(self)),
            None => Cow::Borrowed(self),
        };
        let Prepared { decision, mut matrix, preparation } =
            settings.prepare(&device, source, analysis)?;
        let plan = &decision.plan;
        let updater = self.updatable.then(|| Updater::new(plan, &mut matrix, on_host()?, false));
        let on = if device == Device::Cpu { Target::Cpu } else { Target::Gpu };
        let op = SparseOp {
            nrows: source.nrows(),
            ncols: source.ncols(),
            most_own_vectors: plan.most_own_vectors::<T>(analysis, on),
            device,
            matrix,
            scaler: Scaler::new(source.nrows()),
            updater: updater.transpose()?,
            updated_by_graphs: false,
            staging: Mutex::default(),
            rows: analysis.rows.clone(),
            inserted: 0,
            structure: analysis.structure.clone(),
            decision,
            preparation,
            settings: self.clone(),
            transposed: OnceCell::new(),
            spmm_packings: SpmmPackings::default(),
            lazy_packing: Mutex::default(),
        };
        if let Some(transposition) = transposition {
            transposition.prepare(&op)?;
        }
        Ok(op)
    }
}
