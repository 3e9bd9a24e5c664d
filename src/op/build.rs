//! Build of an operator: rounding, analysis, choice of the device, and what the operator owns.

use super::prepare::Prepared;
use super::transpose::Transposition;
use super::{SparseOp, SparseOpBuilder};
use crate::analysis::Analysis;
use crate::device::Device;
use crate::formats::{Scaler, Updater};
use crate::matrix::CsrView;
use crate::trace::span;
use crate::tuning::lookup::ProfileSource;
use crate::tuning::plan_timer::PackSource;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::borrow::Cow;
use std::sync::Mutex;

impl SparseOpBuilder {
    pub(crate) fn build_impl<T: Scalar>(&self, a: CsrView<'_, T>) -> Result<SparseOp<T>, Error> {
        let _span = span!(DEBUG, "build", rows = a.nrows(), cols = a.ncols(), nnz = a.nnz());
        let a = self.rounded(a)?;
        Analysis::check_memory(a.view())?;
        let ((analyzed, there), total) = timed(|| self.analyzed_and_copied(a.view()));
        let (analysis, analyze) = analyzed;
        let source = PackSource { a: a.view(), there: there.as_ref() };
        let mut op = self.build_rounded(source, &analysis)?;
        op.preparation.analyze = analyze;
        op.preparation.upload += total - analyze;
        Ok(op)
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
        self.build_rounded(rounded.view().into(), &analysis)
    }

    /// Decides and packs, on the CPU if [`Device::auto`] is a GPU that fails.
    fn build_rounded<T: Scalar>(
        &self,
        source: PackSource<'_, T>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        let a = source.a;
        let device = self.device.clone().unwrap_or_else(Device::auto);
        let reason = match self.build_on(device.clone(), source, analysis) {
            Err(error)
                if self.device.is_none() && device != Device::Cpu && self.is_due_to_gpu(&error) =>
            {
                error
            }
            built => return built,
        };
        // Profiles of GPUs do not apply to the CPU.
        let of_cpu = |given: &ProfileSource| {
            given.profile().is_ok_and(|profile| profile.device.gpu.is_none())
        };
        let profile = self.profile.clone().filter(of_cpu);
        let mut op = Self { profile, ..self.clone() }.build_on(Device::Cpu, a.into(), analysis)?;
        op.decision.fallback = Some(reason.to_string());
        Ok(op)
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
        let a = source.a;
        let requested = Transposition::requested(self, a)?;
        let settings = requested.reserve_memory(self);
        let Prepared { decision, mut matrix, preparation } =
            settings.prepare(&device, source, analysis)?;
        let updater = self.updatable.then(|| Updater::new(&decision.plan, &mut matrix, a, false));
        let op = SparseOp {
            nrows: a.nrows(),
            ncols: a.ncols(),
            device,
            matrix,
            scaler: Scaler::new(a.nrows()),
            updater: updater.transpose()?,
            updated_by_graphs: false,
            stages: Mutex::default(),
            rows: analysis.rows.clone(),
            inserted: 0,
            structure: analysis.structure.clone(),
            decision,
            preparation,
            settings: self.clone(),
            transposed: OnceCell::new(),
            spmm_packing: OnceCell::new(),
            lazy_packing: Mutex::default(),
        };
        requested.prepare(&op)?;
        Ok(op)
    }
}
