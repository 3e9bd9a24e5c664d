//! New values on the same pattern.

use super::{SparseOp, SparseOpBuilder};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{ResidentMatrix, Updater};
use crate::matrix::{CsrView, ToCsr, rounded};
use crate::trace::{Entered, span};
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::borrow::Cow;
use tracing::field::display;

/// Reason why values in GPU memory cannot replace values that were rounded.
const ROUNDED_ON_HOST: &str = "its values are rounded, and the range of values in GPU memory is \
                               not checked; `update_values` takes them from the host";

impl<T: Scalar> SparseOp<T> {
    /// Replaces the values of all entries; the pattern is fixed, and nothing is analysed, chosen or
    /// packed again. There is one value for every entry, in the order of [`to_csr`](Self::to_csr),
    /// which is the order in which they were given.
    ///
    /// Every value is written to its slot, which on a GPU costs one to two and a half SpMVs, and
    /// the copy from the host much more: values in GPU memory
    /// ([`update_values_device`](Self::update_values_device)) avoid it. Waits for everything
    /// enqueued there.
    ///
    /// The first update locates the slots: it packs the pattern again and keeps 4 bytes for every
    /// entry (4.5 on a GPU, and as many for padding between entries), except in `csr` and `coo`,
    /// whose values are in the order of the entries. With [`SparseOpBuilder::updatable`] this
    /// happens when the operator is built.
    ///
    /// Additional packings, for [transposed products](Self::apply_transpose) and
    /// [SpMM](Self::apply_multi), are dropped and packed again when they are needed; graphs
    /// captured earlier continue to multiply with the old ones.
    ///
    /// The reported properties of the values ([`structure`](Self::structure),
    /// [`decision`](Self::decision)) do not change.
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
    /// [`Error::ValuesLength`] if there is not one value for every entry; [`Error::NotUpdatable`]
    /// if the plan stores codes of values, or one value for all, unless it is packed SELL and the
    /// number of new distinct values does not exceed that of its codes: 256, or one;
    /// [`Error::ValueRange`] if values are [rounded](SparseOpBuilder::value_precision) and one is
    /// beyond that precision; [`Error::ValueInexact`] if they are not rounded, but stored in fewer
    /// bytes that do not hold one. The operator is then unchanged. On a GPU, [`Error::Gpu`] and
    /// [`Error::GpuMemory`].
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

    /// Replaces the values by those of a matrix of the same pattern, explicit zeros and the order
    /// of the entries included; otherwise as [`update_values`](Self::update_values).
    ///
    /// # Errors
    ///
    /// [`Error::OtherPattern`] if the pattern differs, [`Error::InvalidMatrix`] if the matrix
    /// cannot be read as CSR; otherwise as [`update_values`](Self::update_values).
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

    /// Replaces the values by values that live on the operator's device. On a GPU the update is
    /// only enqueued on `stream`, before later operations there, and can be captured in a graph
    /// ([`Stream::capture`]). Products on other streams are not ordered with it, nor are those with
    /// vectors in host memory, which have a stream of their own: wait for this stream before them.
    /// Graphs with products of this operator multiply with the new values, but SpMMs that use a
    /// second packing with those of their capture: with CSR and packed SELL
    /// [`updatable`](SparseOpBuilder::updatable) operators make none. After a capture of an update,
    /// products that need a copy of the matrix, the transposed ones and most SpMMs, are refused:
    /// launches of the graph would not update it.
    ///
    /// Neither waits nor allocates, except at the first update of an operator that was not built
    /// with [`updatable`](SparseOpBuilder::updatable), and where it drops a transposed matrix or a
    /// second packing: memory is freed after the work with it. Otherwise as
    /// [`update_values`](Self::update_values).
    ///
    /// # Errors
    ///
    /// As [`update_values`](Self::update_values); [`Error::WrongDevice`] if the values or the
    /// stream belong to another device; [`Error::NotUpdatable`] on a GPU if values are rounded, or
    /// are stored in fewer bytes or as codes: if the new values allow that is unknown there without
    /// waiting.
    pub fn update_values_device(
        &mut self,
        stream: &Stream,
        values: &DeviceVec<T>,
    ) -> Result<(), Error> {
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
            // Refused by the updater below.
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

    /// Drops packings made from the previous values; they are packed again when they are needed.
    pub(super) fn forget_copies(&mut self) {
        self.transposed = OnceCell::new();
        self.spmm_packings.forget_copies();
    }

    /// Returns an error if copies of the matrix may be out of date.
    pub(super) fn check_copies(&self, product: &'static str) -> Result<(), Error> {
        if self.updated_by_graphs { Err(Error::UpdatedByGraph { product }) } else { Ok(()) }
    }

    /// Returns the updater of the values, created at the first use, and the matrix that holds them.
    fn prepare_updates(&mut self) -> Result<(&Updater, &mut ResidentMatrix<T>), Error> {
        if self.updater.is_none() {
            let a = self.matrix.unpack()?;
            self.updater = Some(Updater::new(
                &self.decision.plan,
                &mut self.matrix,
                a.view(),
                self.inserted > 0,
            )?);
        }
        Ok((self.updater.as_ref().expect("made above"), &mut self.matrix))
    }
}

impl SparseOpBuilder {
    /// True if values are rounded.
    pub(super) fn rounds<T: Scalar>(&self) -> bool {
        self.value_precision.is_some_and(|precision| precision.is_narrower_than(T::KIND))
    }

    /// Returns the values rounded, if rounding is set.
    ///
    /// # Errors
    ///
    /// [`Error::ValueRange`].
    pub(super) fn rounded_values<'a, T: Scalar>(
        &self,
        values: &'a [T],
    ) -> Result<Cow<'a, [T]>, Error> {
        let Some(precision) = self.value_precision else { return Ok(Cow::Borrowed(values)) };
        let beyond = |entry: usize| Error::ValueRange {
            entry,
            place: None,
            value: values[entry].to_f64(),
            precision,
        };
        rounded(values, precision).map_err(beyond)
    }
}
