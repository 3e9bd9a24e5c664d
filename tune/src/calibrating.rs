//! Calibration of each matrix of a campaign, as in an application, and its regret in another timing
//! run.

use crate::calibrated::{self, Calibrated};
use crate::measurements::MeasurementsHeader;
use crate::offline::Measured;
use crate::refit;
use anyhow::{Context, Result, bail};
use sparseop::analysis::Analysis;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::calibrate::Calibration;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::stopwatch::{Policy, Samples, TimedBatch, time_batch, time_interleaved};
use sparseop::{
    Device, DeviceVec, Error, Plan, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning, filled,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Expected number of products: large enough to make the preparation negligible.
const MANY: u64 = 1_000_000_000;

/// The source of calibration's predictions; by default the profile in use.
#[derive(Default)]
pub struct Calibrating {
    held_out: Option<HeldOut>,
}

/// Measurements, and profiles fitted to them without a class.
struct HeldOut {
    measured: Vec<Measured>,
    whole: Profile,
    fitted: RefCell<BTreeMap<String, Arc<Profile>>>,
}

impl Calibrating {
    /// Uses predictions by profiles fitted to stored measurements without the matrix's class.
    ///
    /// # Errors
    ///
    /// An error if the measurements are of another device.
    pub fn held_out(
        header: &MeasurementsHeader,
        measured: Vec<Measured>,
        device: &Device,
    ) -> Result<Self> {
        let (theirs, ours) = (&header.provenance.device.name, device.spec().name);
        if *theirs != ours {
            bail!("the measurements of --held-out are of {theirs}, and this device is {ours}");
        }
        let whole = refit::profile(&measured, &header.provenance).profile;
        Ok(Self { held_out: Some(HeldOut { measured, whole, fitted: RefCell::default() }) })
    }

    /// True if each class is predicted by a profile fitted without it.
    pub fn is_held_out(&self) -> bool {
        self.held_out.is_some()
    }

    /// The calibrated operator of a matrix of a class, without stored decisions, with warm caches.
    ///
    /// # Errors
    ///
    /// Those of [`SparseOpBuilder::build_analyzed`].
    pub fn operator<T: Scalar>(
        &self,
        device: &Device,
        a: &CsrMatrix<T>,
        analysis: &Analysis,
        class: &str,
    ) -> Result<SparseOp<T>, Error> {
        let calibration = Calibration { always: true, ..Calibration::default() };
        let mut builder = SparseOpBuilder::new()
            .device(device.clone())
            .tuning(Tuning::Calibrate)
            .calibration(calibration)
            .expected_calls(MANY);
        if let Some(held_out) = &self.held_out {
            builder = builder.profile(held_out.without(class));
        }
        builder.build_analyzed(a, analysis)
    }
}

/// Rates the choice of an operator in a timing run by `policy`, against the
/// [references](calibrated::references) from a timing run of every plan, packed again. `None`
/// without references.
///
/// # Errors
///
/// An error if the operator was not calibrated; errors of the device.
pub fn judge<T: Scalar>(
    op: &SparseOp<T>,
    a: &CsrMatrix<T>,
    analysis: &Analysis,
    measured: &Measured,
    policy: Policy,
) -> Result<Option<Calibrated>> {
    let device = op.device();
    let timing_run = op.decision().timing_run().context("the calibration has timed no plans")?;
    let pack = |plan: Plan| {
        SparseOpBuilder::new()
            .device(device.clone())
            .tuning(Tuning::Fixed(plan))
            .build_analyzed(a, analysis)
    };
    let references = calibrated::references(measured, &device.spec()).into_iter().map(pack);
    let references: Vec<SparseOp<T>> = references.collect::<Result<_, _>>()?;
    let stream = Stream::new(device)?;
    let x = DeviceVec::from_slice(device, &filled(a.ncols(), T::ONE)?)?;
    let y = RefCell::new(DeviceVec::zeros(device, a.nrows())?);
    let product = |op: &SparseOp<T>| op.apply_device(&stream, &x, &mut y.borrow_mut());
    let all: Vec<&SparseOp<T>> = std::iter::once(op).chain(&references).collect();
    let (stream, product) = (&stream, &product);
    let mut timed: Vec<_> =
        all.iter().map(|&op| move |repeats| time_batch(stream, repeats, || product(op))).collect();
    let mut batches: Vec<&mut TimedBatch<'_>> = timed.iter_mut().map(|batch| batch as _).collect();
    // Half of the rounds determine the fastest plan, the other half the regret.
    let policy = Policy { min_rounds: 2 * policy.min_rounds, ..policy };
    let mut samples: Vec<Samples> =
        time_interleaved(&mut batches, policy).into_iter().collect::<Result<_, _>>()?;
    let operator = samples.remove(0);
    let references: Vec<_> = references.iter().map(|op| op.plan().clone()).zip(samples).collect();
    Ok(Calibrated::of(timing_run, measured, &device.spec(), &operator, &references))
}

impl HeldOut {
    /// The profile fitted without a class, created on first use.
    fn without(&self, class: &str) -> Arc<Profile> {
        let fit = || Arc::new(refit::without(&self.measured, class, &self.whole));
        self.fitted.borrow_mut().entry(class.to_owned()).or_insert_with(fit).clone()
    }
}
