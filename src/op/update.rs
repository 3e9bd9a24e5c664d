//! New values on the same pattern.

use super::multi::Several;
use super::{SparseOp, SparseOpBuilder};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{Placed, Updater};
use crate::matrix::{CsrCow, CsrView, ToCsr, rounded};
use crate::trace::{Entered, span};
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::borrow::Cow;
use tracing::field::display;

/// Why values that are on a GPU do not take the place of others that were rounded.
const ROUNDED_ON_HOST: &str = "its values are rounded, and whether those in the memory of the GPU can be is not known there; `update_values` takes \
                               them from the host";

impl<T: Scalar> SparseOp<T> {
    /// Replaces the values of all entries, which stay where they are: nothing is analysed, chosen or packed again. There is one value for every
    /// entry, in the order of [`to_csr`](Self::to_csr), which is the order in which they were given.
    ///
    /// Every value is written to its place, which on a GPU takes one to two and a half products, and the copy from the host much longer:
    /// values that are on the GPU ([`update_values_device`](Self::update_values_device)) spare it. Waits for everything enqueued there.
    ///
    /// The first update finds out where the places are: it packs the pattern once more and keeps 4 bytes for every entry (4.5 on a GPU, and as
    /// many for padding that stands between entries), except in `csr` and `coo`, whose values are in the order of the entries. [`SparseOpBuilder::updatable`] has that done while the operator is
    /// built.
    ///
    /// What was packed besides, for [transposed products](Self::apply_transpose) and [several vectors](Self::apply_multi), is given up and
    /// packed anew when it is needed; graphs that were captured before keep multiplying with the old.
    ///
    /// What is told of the values ([`structure`](Self::structure), [`decision`](Self::decision)) stays what it was.
    ///
    /// ```
    /// # use sparseop::{SparseOp, matrix::gallery};
    /// let mut a = "poisson2d,n=20".parse::<gallery::Spec>()?.generate::<f64>()?;
    /// let mut op = SparseOp::auto(&a)?;
    /// # let mut op = sparseop::SparseOpBuilder::new().updatable(true).build(&a)?;
    /// a.values_mut().iter_mut().enumerate().for_each(|(k, value)| *value += k as f64);
    /// op.update_values(a.values())?;
    /// assert_eq!(op.to_csr()?, a);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ValuesLength`] when there is not one value for every entry; [`Error::NotUpdatable`] where the plan keeps codes of values,
    /// or one for all, unless it is one of packed slices and the new ones are no more than these name: 256, or one; [`Error::ValueRange`] where values are [rounded](SparseOpBuilder::value_precision) and one is beyond that precision;
    /// [`Error::ValueInexact`] where they are not, but stored in fewer bytes that do not hold one; then nothing has changed. On a GPU,
    /// [`Error::Gpu`] and [`Error::GpuMemory`].
    pub fn update_values(&mut self, values: &[T]) -> Result<(), Error> {
        T::update_values(self, values)
    }

    pub(crate) fn update_values_impl(&mut self, values: &[T]) -> Result<(), Error> {
        let _span = self.update_span();
        let values = &*self.settings.rounded_values(values)?;
        let (updater, matrix) = self.prepare_updates()?;
        updater.update(matrix, values)?;
        self.forget_copies();
        Ok(())
    }

    /// Replaces the values by those of a matrix of the same pattern, explicit zeros and the order of the entries included; otherwise as
    /// [`update_values`](Self::update_values).
    ///
    /// # Errors
    ///
    /// [`Error::OtherPattern`] when the pattern is another one, [`Error::InvalidMatrix`] when the matrix cannot be read as CSR;
    /// otherwise as [`update_values`](Self::update_values).
    pub fn update_from(&mut self, a: &impl ToCsr<T>) -> Result<(), Error> {
        T::update_from(self, a.to_csr()?.view())
    }

    pub(crate) fn update_from_impl(&mut self, a: CsrView<'_, T>) -> Result<(), Error> {
        let _span = self.update_span();
        let a = self.settings.rounded(a)?;
        let a = a.view();
        let (updater, matrix) = self.prepare_updates()?;
        updater.check_pattern(a)?;
        updater.update(matrix, a.values())?;
        self.forget_copies();
        Ok(())
    }

    /// Replaces the values by some that live on the operator's device. On a GPU that is only enqueued on `stream`, before what is
    /// enqueued there next, and can be captured in a graph ([`Stream::capture`]); products on other streams are ordered by nothing, nor are
    /// those with vectors in host memory, which have a stream of their own: wait for this one before them. Graphs with products of this
    /// operator multiply with the new values. After a capture, products that need a copy of the matrix, the transposed ones and most with
    /// several vectors, are refused: launches of the graph would not update it.
    ///
    /// Neither waits nor allocates, but at the first update of an operator that was not built with
    /// [`updatable`](SparseOpBuilder::updatable). Otherwise as [`update_values`](Self::update_values).
    ///
    /// # Errors
    ///
    /// As [`update_values`](Self::update_values); [`Error::WrongDevice`] when the values or the stream are another device's;
    /// [`Error::NotUpdatable`] on a GPU where values are to be rounded, or are stored in fewer bytes or as codes: whether that can be is not known
    /// there without waiting.
    pub fn update_values_device(&mut self, stream: &Stream, values: &DeviceVec<T>) -> Result<(), Error> {
        T::update_values_device(self, stream, values)
    }

    pub(crate) fn update_values_device_impl(
        &mut self,
        stream: &Stream,
        values: &DeviceVec<T>,
    ) -> Result<(), Error> {
        let _span = self.update_span();
        let rounded = match (&self.device, values.device()) {
            _ if !self.settings.rounds::<T>() => None,
            (Device::Cpu, Device::Cpu) => {
                let rounded = self.settings.rounded_values(values.host())?;
                Some(DeviceVec::from_slice(&Device::Cpu, &rounded)?)
            }
            (Device::Cuda(_), Device::Cuda(_)) => {
                let plan = self.decision.plan.to_string();
                return Err(Error::NotUpdatable { plan, reason: ROUNDED_ON_HOST });
            }
            // Refused below.
            _ => None,
        };
        let values = rounded.as_ref().unwrap_or(values);
        let (updater, matrix) = self.prepare_updates()?;
        updater.enqueue(matrix, stream, values)?;
        self.forget_copies();
        if let Some(queue) = stream.queue() {
            self.updated_by_graphs |= queue.is_capturing()?;
        }
        Ok(())
    }

    fn update_span(&self) -> Entered {
        span!(TRACE, "update", plan = display(&self.decision.plan), nnz = self.nnz())
    }

    /// Gives up what was packed from the values of before; it is packed anew when it is needed.
    pub(super) fn forget_copies(&mut self) {
        self.transposed = OnceCell::new();
        if !self.several.get().is_some_and(Several::is_shared) {
            self.several = OnceCell::new();
        }
    }

    /// Whether copies of the matrix can be relied on.
    pub(super) fn check_copies(&self, product: &'static str) -> Result<(), Error> {
        if self.updated_by_graphs { Err(Error::UpdatedByGraph { product }) } else { Ok(()) }
    }

    /// What updates the values, and the matrix that they are in.
    fn prepare_updates(&mut self) -> Result<(&Updater, &mut Placed<T>), Error> {
        if self.updater.is_none() {
            let a = self.matrix.unpack()?;
            self.updater =
                Some(Updater::new(&self.decision.plan, &mut self.matrix, a.view(), self.inserted > 0)?);
        }
        Ok((self.updater.as_ref().expect("made above"), &mut self.matrix))
    }
}

impl SparseOpBuilder {
    /// Whether values are to be rounded.
    pub(super) fn rounds<T: Scalar>(&self) -> bool {
        self.value_precision.is_some_and(|precision| precision.is_narrower_than(T::KIND))
    }

    /// A matrix as it is to be: with rounded values.
    ///
    /// # Errors
    ///
    /// [`Error::ValueRange`].
    pub(super) fn rounded<'a, T: Scalar>(&self, a: CsrView<'a, T>) -> Result<CsrCow<'a, T>, Error> {
        self.value_precision.map_or(Ok(a.into()), |precision| T::round(a, precision))
    }

    /// Values as they are to be.
    ///
    /// # Errors
    ///
    /// [`Error::ValueRange`].
    pub(super) fn rounded_values<'a, T: Scalar>(&self, values: &'a [T]) -> Result<Cow<'a, [T]>, Error> {
        let Some(precision) = self.value_precision else { return Ok(Cow::Borrowed(values)) };
        let beyond =
            |entry: usize| Error::ValueRange { entry, place: None, value: values[entry].to_f64(), precision };
        rounded(values, precision).map_err(beyond)
    }
}
