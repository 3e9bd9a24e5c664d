//! Operators of matrices that are in the memory of a device already.

use super::{SparseOp, SparseOpBuilder};
use crate::analysis::Analysis;
use crate::device::{ForeignCsr, Stream};
use crate::formats::CsrSource;
use crate::trace::span;
use crate::tuning::stopwatch::timed;
use crate::{Error, Scalar};

impl SparseOpBuilder {
    /// As [`build`](Self::build), for a matrix whose arrays are in the memory of a device. Waits
    /// for everything enqueued on `stream`; the operator is for the same device. See
    /// [`ForeignCsr::from_raw`] for an example.
    ///
    /// The arrays are copied to the host a single time, for the analysis and the checks, and
    /// [`preparation`](SparseOp::preparation) counts that as analysis. CSR and packed SELL are then
    /// packed by the GPU from the original arrays; for other plans the host packs its copy. The
    /// operator does not keep the arrays: they may be freed or changed after the call.
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
        let (copied, copy) = timed(|| {
            let _span = span!(DEBUG, "download");
            let copied = a.to_csr(stream)?;
            // SAFETY: `a` outlives all uses.
            let there = unsafe { CsrSource::around(copied.view(), a)? };
            Ok::<_, Error>((copied, there))
        });
        let (copied, there) = copied?;
        let rounded = self.rounded(copied.view())?;
        // Rounded values differ from those in the device arrays.
        let there = there.filter(|_| rounded.has_values_of(copied.view()));
        Analysis::check_memory(rounded.view())?;
        let (analysis, analyze) = timed(|| Analysis::of(rounded.view()));
        let on_device = self.clone().device(device.clone());
        let mut op = on_device.build_in_memory(device, rounded.view(), there, &analysis)?;
        op.preparation.analyze = copy + analyze;
        Ok(op)
    }
}
