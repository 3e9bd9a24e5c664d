//! A measuring campaign: timing runs of each matrix, the decisions derived from them, and the
//! choices of calibration.

use crate::calibrated::Calibrated;
use crate::calibrating::{self, Calibrating};
use crate::offline::Measured;
use crate::repeat::Repeat;
use crate::trial::{Known, Subject, Trial};
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::decision::{Candidate, Decision};
use sparseop::tuning::profile::Fit;
use sparseop::tuning::stopwatch::Policy;
use sparseop::tuning::store::{DecisionKey, Store, StoredDecision};
use sparseop::{Device, Error, Plan, Scalar, ScalarKind, SparseOp, SparseOpBuilder};

/// The settings of a campaign on one device.
pub struct Campaign<'a> {
    /// The device.
    pub device: &'a Device,
    /// Policy of a timing run.
    pub policy: Policy,
    /// Number of timing runs of each matrix, which is packed once for all of them.
    pub timing_runs: usize,
    /// Store of decisions, read and written; `None` to ignore earlier decisions and store none.
    pub store: Option<Store>,
    /// Calibration of each matrix, if its regret is to be measured.
    pub calibrating: Option<Calibrating>,
}

/// Results of one matrix.
#[derive(Debug)]
pub struct CampaignResult {
    /// Times of the first timing run.
    pub measured: Measured,
    /// Agreement of the timing runs; `None` if no plan can be chosen.
    pub repeat: Option<Repeat>,
    /// Choice of calibration, if it was measured.
    pub calibrated: Option<Calibrated>,
    /// Reasons for missing results other than the times.
    pub problems: Vec<anyhow::Error>,
}

impl<'a> Campaign<'a> {
    /// One timing run of each matrix by the device's policy, without a store and without
    /// calibration.
    pub fn new(device: &'a Device) -> Self {
        let policy = Policy::of(device);
        Self { device, policy, timing_runs: 1, store: None, calibrating: None }
    }

    /// Times every plan of a matrix, recorded under the given name and class. The last decision is
    /// kept in the store.
    ///
    /// # Errors
    ///
    /// Errors of the device. A plan that cannot be packed or run is recorded as failed.
    pub fn measure<T: Scalar>(
        &self,
        a: &CsrMatrix<T>,
        matrix: &str,
        class: &str,
    ) -> Result<CampaignResult, Error> {
        Analysis::check_memory(a.view())?;
        let analysis = Analysis::of(a.view());
        let mut problems = Vec::new();
        let mut note = |what: &str, error: anyhow::Error| {
            problems.push(error.context(format!("{matrix} {} is not {what}", T::KIND)));
        };
        let calibrate = |by: &Calibrating| by.operator(self.device, a, &analysis, class);
        let op = self.calibrating.as_ref().map(calibrate);
        let op = op.and_then(|op| op.map_err(|error| note("calibrated", error.into())).ok());
        let before = self.before(Fingerprint::of(a.view()), &analysis, T::KIND);
        let before = before.map_err(|error| note("remembered", error.into())).ok();
        let predicted = before.as_ref().map(|(known, _)| &known.predicted);
        let also: Vec<Plan> = predicted.iter().map(|decision| decision.plan.clone()).collect();
        let left_out = predicted.map(|decision| hopeless(decision, a.nnz())).unwrap_or_default();
        let (device, policy, timing_runs) = (self.device, self.policy, self.timing_runs);
        let (also, left_out) = (also.as_slice(), left_out.as_slice());
        let subject = Subject { matrix, class, device, policy, timing_runs, also, left_out };
        let mut trial = Trial::of(a.view(), &analysis, subject)?;
        let repeat = before.and_then(|(known, key)| {
            let (repeat, kept) = self.decided(&trial, &known, key)?;
            if let Err(error) = kept {
                note("remembered", error.into());
            }
            repeat
        });
        let measured = trial.timing_runs.swap_remove(0);
        let judge = |op: &SparseOp<T>| calibrating::judge(op, a, &analysis, &measured, policy);
        let calibrated = op.as_ref().map(judge).and_then(|calibrated| {
            calibrated.map_err(|error| note("judged by its calibration", error)).ok().flatten()
        });
        Ok(CampaignResult { measured, repeat, calibrated, problems })
    }

    /// The decision for the default request, and the decision in the store under its key.
    fn before(
        &self,
        structure: Fingerprint,
        analysis: &Analysis,
        scalar: ScalarKind,
    ) -> Result<(Known, DecisionKey), Error> {
        let spec = self.device.spec();
        let predicted =
            SparseOpBuilder::new().device(self.device.clone()).decide(analysis, scalar)?;
        let key = DecisionKey::new(structure, analysis, &spec, &predicted.request, None, false);
        // A damaged or outdated entry counts as none, and is replaced.
        let entry = self.store.as_ref().and_then(|store| store.find(&key, &spec).ok());
        let remembered = entry.map(|entry| entry.timing_run.winner);
        Ok((Known { predicted, remembered }, key))
    }

    /// Agreement of the timing runs of a matrix, and the result of storing the last decision under
    /// the key of the default request. `None` if no plan can be chosen.
    fn decided(
        &self,
        trial: &Trial,
        known: &Known,
        key: DecisionKey,
    ) -> Option<(Option<Repeat>, Result<(), Error>)> {
        let (spec, calls) = (self.device.spec(), known.predicted.request.expected_calls);
        let decisions = trial.decisions(known)?;
        let timing_run =
            decisions.successive.last().and_then(|winner| trial.timing_run(known, winner));
        let kept = match (&self.store, timing_run) {
            (Some(store), Some(timing_run)) => {
                store.keep(&StoredDecision::now(key, &spec, timing_run))
            }
            _ => Ok(()),
        };
        Some((Repeat::of(&trial.timing_runs, &decisions, calls, &spec), kept))
    }
}

/// The plans that are not worth packing: those predicted, by a profile of this device, to take at
/// least [`HOPELESS`] times as long as the fastest. One of four of them is measured nevertheless,
/// which one depends on the matrix, so that the fit has times of slow plans too.
fn hopeless(decision: &Decision, nnz: usize) -> Vec<Plan> {
    /// Ratio of predicted times. A prediction is seldom wrong by more than a factor of two.
    const HOPELESS: f64 = 4.0;
    const MEASURED: usize = 4;
    if decision.fit != Fit::Exact {
        return Vec::new();
    }
    let time = |c: &Candidate| c.prediction.map(|prediction| prediction.product());
    let fastest = decision.candidates.iter().filter_map(time).fold(f64::INFINITY, f64::min);
    let slow =
        decision.candidates.iter().filter(|c| time(c).is_some_and(|t| t > HOPELESS * fastest));
    slow.enumerate()
        .filter(|(i, _)| !(i + nnz).is_multiple_of(MEASURED))
        .map(|(_, candidate)| candidate.plan.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::gallery::Spec;

    #[test]
    fn one_of_four_hopeless_plans_is_measured_on_the_device_of_the_profile() {
        let spec: Spec = "webbase,rows=20k".parse().unwrap();
        let a = spec.generate::<f64>().unwrap();
        let analysis = Analysis::of(a.view());
        let builder = SparseOpBuilder::new().device(Device::Cpu);
        let mut decision = builder.decide(&analysis, ScalarKind::F64).unwrap();
        decision.fit = Fit::SameKind;
        assert!(hopeless(&decision, a.nnz()).is_empty());
        decision.fit = Fit::Exact;
        let left_out = |entries| hopeless(&decision, entries);
        let times = |plan: &Plan| {
            let time = |plan: &Plan| {
                let found = decision.candidates.iter().find(|c| c.plan == *plan);
                found.and_then(|c| c.prediction).unwrap().product()
            };
            time(plan) / time(&decision.plan)
        };
        let all: Vec<Plan> = (0..4).flat_map(left_out).collect();
        assert!(!all.is_empty() && all.iter().all(|plan| times(plan) > 2.0), "{all:?}");
        // Over four matrices each of them is left out three times.
        for plan in &all {
            assert_eq!(all.iter().filter(|other| *other == plan).count(), 3, "{plan}");
        }
    }
}
