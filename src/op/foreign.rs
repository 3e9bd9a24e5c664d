//! Operators of matrices that are in the memory of a device already.

use super::build::BuildSource;
use super::{SparseOp, SparseOpBuilder, Tuning};
use crate::analysis::Analysis;
use crate::device::{CsrSource, Device, ForeignCsr, Stream};
use crate::formats::{self, ResidentMatrix};
use crate::trace::span;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar};

impl SparseOpBuilder {
    /// As [`build`](Self::build), for a matrix whose arrays are in the memory of a device. Waits
    /// for everything enqueued on `stream`; the operator is for the same device. See
    /// [`ForeignCsr::from_raw`] for an example.
    ///
    /// A GPU checks, analyses and packs the arrays where they are; a copy of a sample goes to the
    /// host. The whole matrix is copied to the host if it is small, if it is updatable or
    /// transposed, if its values are to be rounded, and if only the host packs the plan: HYB,
    /// COO, tiles and DIA. [`preparation`](SparseOp::preparation) counts the checks as analysis.
    /// The operator does not keep the arrays: they may be freed or changed after the call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the arrays are not those of a matrix; [`Error::ValueRange`] as
    /// for [`build`](Self::build); [`Error::WrongDevice`] if `stream` belongs to another device, or
    /// another one was [set](Self::device); errors of the GPU, because a fallback on the CPU would
    /// be on the wrong device; otherwise as [`decide`](Self::decide).
    pub fn build_from_device<T: Scalar>(
        &self,
        stream: &Stream,
        a: &ForeignCsr<T>,
    ) -> Result<SparseOp<T>, Error> {
        T::build_from_device(self, stream, a)
    }

    pub(crate) fn build_from_device_impl<T: Scalar>(
        &self,
        stream: &Stream,
        a: &ForeignCsr<T>,
    ) -> Result<SparseOp<T>, Error> {
        let device = a.device();
        if let Some(asked) = self.device.as_ref().filter(|asked| *asked != device) {
            let (expected, found) = (asked.to_string(), device.to_string());
            return Err(Error::WrongDevice { what: "matrix", expected, found });
        }
        let _span = span!(DEBUG, "build", device = tracing::field::display(device));
        let on_device = self.clone().device(device.clone());
        let (analyzed, seconds) = timed(|| {
            a.wait_for(stream)?;
            Ok::<_, Error>(self.analyzed_on_gpu(a))
        });
        if let Some((source, analysis)) = analyzed? {
            let source = BuildSource::Gpu(source);
            let mut op = on_device.build_in_memory(device, source, &analysis)?;
            op.preparation.analyze = seconds;
            return Ok(op);
        }
        let (copied, copy) = timed(|| {
            let _span = span!(DEBUG, "download");
            a.to_csr(stream)
        });
        let copied = copied?;
        let rounded = self.rounded(copied.view())?;
        Analysis::check_memory(rounded.view())?;
        let (analysis, analyze) = timed(|| Analysis::of(rounded.view()));
        let source = BuildSource::Host(rounded.view(), None);
        let mut op = on_device.build_in_memory(device, source, &analysis)?;
        op.preparation.analyze = copy + analyze;
        Ok(op)
    }

    /// Checks and analyses a matrix in GPU memory where it is. `None` if the host has to do that:
    /// for a plan that only the host packs, for rounded values, for small matrices, which the host
    /// packs, too, for arrays that are not those of a matrix, and where the GPU fails.
    fn analyzed_on_gpu<T: Scalar>(&self, a: &ForeignCsr<T>) -> Option<(CsrSource<T>, Analysis)> {
        let packs_on_device = match &self.tuning {
            Tuning::Fixed(plan) => plan.properties().packs_on_device,
            _ => true,
        };
        let (Device::Cuda(gpu), (nrows, _)) = (a.device(), a.shape()) else { return None };
        let is_large = ResidentMatrix::<T>::is_large(nrows, a.nnz());
        if !packs_on_device || self.value_precision.is_some() || !is_large {
            return None;
        }
        gpu.with_kernels(formats::analysis_kernels::<T>(), || {
            // SAFETY: `a` outlives all uses.
            let source = unsafe { CsrSource::around(a) }.ok()??;
            let analysis = formats::analyze_on_gpu(&source, None).ok()?;
            Some((source, analysis))
        })
    }
}
