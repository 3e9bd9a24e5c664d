//! The operator: one handle for all formats.

mod access;
mod apply;
mod build;
#[cfg(feature = "faer")]
mod faer;
mod foreign;
mod lazy;
mod prepare;
mod spmm;
mod spmm_packings;
mod staging;
mod transpose;
mod tuning;
mod update;

use crate::analysis::{Analysis, RowStats, Structure};
use crate::device::Device;
use crate::formats::{Plan, ResidentMatrix, Scaler, Updater};
use crate::matrix::{CsrMatrix, ToCsr};
use crate::tuning::calibrate::Calibration;
use crate::tuning::decision::Decision;
use crate::tuning::explain::{Explanation, Preparation};
use crate::tuning::lookup::ProfileSource;
use crate::{Error, Precision, Scalar, memory};
use once_cell::sync::OnceCell;
use spmm_packings::SpmmPackings;
use staging::StagingBuffers;
use std::sync::Mutex;
use transpose::Transposed;
pub use tuning::Tuning;

/// Sparse matrix operator: a packed matrix in a tuned format, for repeated products.
///
/// Owns its packed matrix, in the memory of its device, and can be used from many threads at the
/// same time. On the CPU an SpMV allocates nothing from its second call on a thread.
///
/// ```
/// # use sparseop::{SparseOp, matrix::Triplets};
/// let mut t = Triplets::new(2, 2)?;
/// t.push(0, 0, 2.0f64)?;
/// t.push(1, 0, 1.0)?;
/// let op = SparseOp::auto(&t)?;
/// let mut y = [0.0; 2];
/// op.apply(&[3.0, 4.0], &mut y)?;
/// assert_eq!(y, [6.0, 3.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseOp<T: Scalar> {
    nrows: usize,
    ncols: usize,
    device: Device,
    matrix: ResidentMatrix<T>,
    scaler: Scaler<T>,
    /// Created at the first update of values, or with an updatable operator.
    updater: Option<Updater>,
    /// True if there are graphs whose launches update values.
    updated_by_graphs: bool,
    /// Staging buffers of products with vectors in host memory on a GPU: as many as products ran at
    /// the same time.
    staging: Mutex<Vec<StagingBuffers<T>>>,
    rows: RowStats,
    /// Number of entries inserted after the build.
    inserted: u64,
    structure: Structure,
    decision: Decision,
    preparation: Preparation,
    /// Settings of the build, reused for everything that is built later.
    settings: SparseOpBuilder,
    transposed: OnceCell<Transposed<T>>,
    spmm_packings: SpmmPackings<T>,
    /// Largest number of vectors of an SpMM with the plan's own arrays, unless no second packing,
    /// which is faster for more, can be made.
    most_own_vectors: usize,
    lazy_packing: Mutex<()>,
}

impl<T: Scalar> SparseOp<T> {
    /// Builds the operator of a matrix, on the best device, with the plan that is predicted to be
    /// fastest and confirmed by a few products ([`Tuning::Check`]).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the matrix cannot be read as CSR.
    pub fn auto(a: &impl ToCsr<T>) -> Result<Self, Error> {
        SparseOpBuilder::new().build(a)
    }

    /// Returns a vector of `ncols` zeros for `x`, in memory that suits SpMVs: large vectors are in
    /// huge pages, which make gathers faster.
    pub fn zeros_x(&self) -> Vec<T> {
        memory::zeroed(self.ncols)
    }

    /// Returns a vector of `nrows` zeros for `y`; see [`zeros_x`](Self::zeros_x).
    pub fn zeros_y(&self) -> Vec<T> {
        memory::zeroed(self.nrows)
    }

    /// Number of rows.
    pub fn nrows(&self) -> usize {
        self.nrows
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.ncols
    }

    /// Number of stored entries, explicit zeros included.
    pub fn nnz(&self) -> u64 {
        self.rows.nnz + self.inserted
    }

    /// Device that runs the products.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Plan: the storage of the matrix and its kernels.
    pub fn plan(&self) -> &Plan {
        &self.decision.plan
    }

    /// Decision: every candidate plan, and the reason why it was taken or rejected.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Explanation of the choice in words: `println!("{}", op.explain())`.
    pub fn explain(&self) -> Explanation<'_> {
        let (preparation, auxiliary) = (Some(&self.preparation), self.auxiliary());
        let residency = self.matrix.residency();
        Explanation {
            rows: &self.rows,
            decision: &self.decision,
            preparation,
            residency,
            auxiliary,
        }
    }

    /// Row-length statistics of the matrix that the operator was built for.
    pub fn stats(&self) -> &RowStats {
        &self.rows
    }

    /// Column contiguity, values and reuse distances of the matrix.
    #[doc(hidden)]
    pub fn structure(&self) -> &Structure {
        &self.structure
    }

    /// Bytes of the packed matrix, in the memory of the device. Includes additional packings for
    /// [transposed products](Self::apply_transpose) and for [SpMM](Self::apply_multi), and the data
    /// of [updates](Self::update_values).
    pub fn memory_bytes(&self) -> u64 {
        let transposed = self.transposed.get().map_or(0, Transposed::bytes);
        let updates = self.updater.as_ref().map_or(0, Updater::bytes);
        self.matrix.bytes() + updates + transposed + self.spmm_packings.bytes()
    }

    /// Time of the preparation.
    pub fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// Converts the matrix back to CSR, with its entries in the order in which they were given. On
    /// a GPU it waits for everything that is enqueued there.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if it cannot be copied from the GPU.
    pub fn to_csr(&self) -> Result<CsrMatrix<T>, Error> {
        T::to_csr(self)
    }

    pub(crate) fn to_csr_impl(&self) -> Result<CsrMatrix<T>, Error> {
        // Twice the arrays of CSR: some formats collect the entries elsewhere first.
        let entries = (self.nnz() as usize).saturating_mul(size_of::<u32>() + size_of::<T>());
        let offsets = self.nrows.saturating_mul(size_of::<usize>());
        memory::check_room(entries.saturating_add(offsets).saturating_mul(2))?;
        self.matrix.unpack()
    }
}

/// Builder of an operator. Settings that are not set are detected or have a sensible default.
#[derive(Debug, Clone, Default)]
pub struct SparseOpBuilder {
    device: Option<Device>,
    expected_calls: Option<u64>,
    memory_limit: Option<u64>,
    profile: Option<ProfileSource>,
    tuning: Tuning,
    calibration: Calibration,
    remember: bool,
    deterministic: bool,
    updatable: bool,
    transpose: bool,
    value_precision: Option<Precision>,
}

impl SparseOpBuilder {
    /// Creates a builder with the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the device that runs the products. The default is [`Device::auto`], with the CPU as
    /// fallback if that is a GPU which does not have enough memory or fails during the build;
    /// [`SparseOp::explain`] reports the fallback.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the expected number of products, over which preparation is amortised. The default is
    /// 1000; with 1 the matrix is hardly prepared at all.
    #[must_use]
    pub fn expected_calls(mut self, calls: u64) -> Self {
        self.expected_calls = Some(calls);
        self
    }

    /// Sets the maximum number of bytes of the packed matrix. The default is 8 times plain CSR, and
    /// at least 64 MiB. The limit is never more than the device has left and the process may use.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Sets the profile for predictions: a [`Profile`](crate::Profile), or the path of one, which
    /// is read when it is needed. The default is the best match for the device: a profile of the
    /// user, then a built-in one.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<ProfileSource>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Sets the method that finds the plan.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Sets the options of [`Tuning::Calibrate`].
    #[must_use]
    pub fn calibration(mut self, calibration: Calibration) -> Self {
        self.calibration = calibration;
        self
    }

    /// Stores the winner of a [`Tuning::Calibrate`] on disk, and uses a stored decision for a
    /// matrix of this structure, this device and these settings instead of a prediction or another
    /// timing run. The default is false. Stored decisions take precedence with [`Tuning::Predict`]
    /// and [`Tuning::Check`] too, which store nothing themselves.
    #[must_use]
    pub fn remember(mut self, remember: bool) -> Self {
        self.remember = remember;
        self
    }

    /// Restricts the choice to plans whose products repeat their bits
    /// ([`Plan::is_deterministic`]). The default is false.
    ///
    /// Plans sum in different orders. On the CPU the choice is therefore made for the number of
    /// threads with which the profile was measured, and does not depend on the actual number. For
    /// bits that also repeat with other profiles, memory or settings, set the plan
    /// ([`Tuning::Fixed`]).
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// Prepares the operator for updates of its values ([`SparseOp::update_values`]). The default
    /// is false. The data of updates is then created with the operator, not at the first update,
    /// and no plan is chosen that saves bytes because values are few or the same.
    #[must_use]
    pub fn updatable(mut self, updatable: bool) -> Self {
        self.updatable = updatable;
        self
    }

    /// Rounds the values of the matrix to a precision before anything else, to the nearest number
    /// with ties to even ([`Precision::round`]). By default nothing is rounded, and values are
    /// never rounded to a precision with as many bytes. Products, with vectors and sums in the
    /// matrix's own type, are then those of the rounded matrix under every plan, and new values
    /// ([`SparseOp::update_values`]) are rounded in the same way.
    ///
    /// Plans with `values:bf16`, `values:f16` or `values:f32` store them so and read fewer bytes;
    /// [`SparseOp::explain`] reports if another one was chosen. Without rounding such plans are
    /// also candidates if the values are representable in such a type already.
    ///
    /// ```
    /// # use sparseop::{Precision, SparseOpBuilder, matrix::CsrMatrix};
    /// let a = CsrMatrix::try_new(1, 1, vec![0, 1], vec![0], vec![0.1f32])?;
    /// let op = SparseOpBuilder::new().value_precision(Precision::F16).build(&a)?;
    /// assert_eq!(op.to_csr()?.values(), [0.099975586]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    #[must_use]
    pub fn value_precision(mut self, precision: Precision) -> Self {
        self.value_precision = Some(precision);
        self
    }

    /// Decides on a plan for an analysed matrix by prediction, without packing or timing anything.
    ///
    /// # Errors
    ///
    /// [`Error::MemoryLimit`] if the given plan, and [`Error::NoPlanFits`] if every candidate
    /// takes more than the limit;
    /// [`Error::NotDeterministic`] if a deterministic plan is required and the given plan is not;
    /// [`Error::Gpu`] if the GPU does not report its free memory; [`Error::Io`] and
    /// [`Error::Profile`] if the profile that was set cannot be read.
    #[doc(hidden)]
    pub fn decide(
        &self,
        analysis: &Analysis,
        scalar: crate::ScalarKind,
    ) -> Result<Decision, Error> {
        self.decide_on(&self.device.clone().unwrap_or_else(Device::auto), analysis, scalar)
    }

    /// Analyses the matrix, decides, and packs.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the matrix cannot be read as CSR; [`Error::ValueRange`] if a
    /// value is beyond the [precision](Self::value_precision) that it is rounded to;
    /// [`Error::HostMemory`] if the memory does not suffice; otherwise as
    /// [`SparseOpBuilder::decide`].
    pub fn build<T: Scalar>(&self, a: &impl ToCsr<T>) -> Result<SparseOp<T>, Error> {
        T::build(self, a.to_csr()?.view())
    }

    /// Decides and packs, for a matrix that is analysed already. If a
    /// [precision](Self::value_precision) is set and changes values, the values are analysed again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the analysis is that of a matrix of another size; otherwise as
    /// [`SparseOpBuilder::build`].
    #[doc(hidden)]
    pub fn build_analyzed<T: Scalar>(
        &self,
        a: &impl ToCsr<T>,
        analysis: &Analysis,
    ) -> Result<SparseOp<T>, Error> {
        T::build_analyzed(self, a.to_csr()?.view(), analysis)
    }
}

#[cfg(test)]
mod tests;
