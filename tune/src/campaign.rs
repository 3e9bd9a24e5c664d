//! A measuring campaign: timing runs of each matrix, the decisions derived from them, and the
//! choices of calibration.

use crate::calibrated::Calibrated;
use crate::calibrating::{self, Calibrating};
use crate::offline::Measured;
use crate::repeat::Repeat;
use crate::trial::{PriorDecisions, Subject, Trial};
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::decision::{Candidate, Decision, Verdict};
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
    /// Predicted time over that of the fastest plan from which on three of four plans are left out;
    /// `None` to measure all.
    pub leave_out: Option<f64>,
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
        Self { device, policy, timing_runs: 1, store: None, leave_out: None, calibrating: None }
    }

    /// Times every plan of a matrix but those left out, recorded under the given name and class.
    /// The last decision is kept in the store.
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
        let before = before.map_err(|error| note("stored", error.into())).ok();
        let predicted = before.as_ref().map(|(prior, _)| &prior.predicted);
        let also: Vec<Plan> = predicted.iter().map(|decision| decision.plan.clone()).collect();
        let slow = predicted.zip(self.leave_out);
        let slow = slow.map(|(decision, ratio)| slow_by_prediction(decision, ratio, a.nnz()));
        let left_out = slow.unwrap_or_default();
        let (device, policy, timing_runs) = (self.device, self.policy, self.timing_runs);
        let (also, left_out) = (also.as_slice(), left_out.as_slice());
        let subject = Subject { matrix, class, device, policy, timing_runs, also, left_out };
        let mut trial = Trial::of(a.view(), &analysis, subject)?;
        let repeat = before.and_then(|(prior, key)| {
            let (repeat, kept) = self.decided(&trial, &prior, key)?;
            if let Err(error) = kept {
                note("stored", error.into());
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
    ) -> Result<(PriorDecisions, DecisionKey), Error> {
        let spec = self.device.spec();
        let predicted =
            SparseOpBuilder::new().device(self.device.clone()).decide(analysis, scalar)?;
        let key = DecisionKey::new(structure, analysis, &spec, &predicted.request, None, false);
        // A damaged or outdated entry counts as none, and is replaced.
        let entry = self.store.as_ref().and_then(|store| store.find(&key, &spec).ok());
        let stored = entry.map(|entry| entry.timing_run.winner);
        Ok((PriorDecisions { predicted, stored }, key))
    }

    /// Agreement of the timing runs of a matrix, and the result of storing the last decision under
    /// the key of the default request. `None` if no plan can be chosen.
    fn decided(
        &self,
        trial: &Trial,
        prior: &PriorDecisions,
        key: DecisionKey,
    ) -> Option<(Option<Repeat>, Result<(), Error>)> {
        let (spec, calls) = (self.device.spec(), prior.predicted.request.expected_calls);
        let decisions = trial.decisions(prior)?;
        let timing_run =
            decisions.successive.last().and_then(|winner| trial.timing_run(prior, winner));
        let kept = match (&self.store, timing_run) {
            (Some(store), Some(timing_run)) => {
                store.keep(&StoredDecision::now(key, &spec, timing_run))
            }
            _ => Ok(()),
        };
        Some((Repeat::of(&trial.timing_runs, &decisions, calls, &spec), kept))
    }
}

/// The plans that are predicted to take more than `ratio` times as long as the fastest, but for one
/// in [`MEASURED`], which depends on the matrix: the fit has times of slow plans too.
fn slow_by_prediction(decision: &Decision, ratio: f64, matrix: usize) -> Vec<Plan> {
    let timed = || decision.candidates.iter().filter_map(|c| Some((c, c.prediction?.product())));
    let may_run = |(c, _): &(&Candidate, f64)| {
        !matches!(c.verdict, Verdict::TooLarge { .. } | Verdict::OnRequest)
    };
    let fastest = timed().filter(may_run).map(|(_, time)| time).fold(f64::INFINITY, f64::min);
    let slow = timed().filter(|(_, time)| *time > ratio * fastest).enumerate();
    slow.filter(|(i, _)| !(i + matrix).is_multiple_of(MEASURED))
        .map(|(_, (candidate, _))| candidate.plan.clone())
        .collect()
}

/// Number of slow plans of which one is measured.
const MEASURED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::gallery::Spec;

    #[test]
    fn of_slow_plans_one_in_four_is_measured() {
        const RATIO: f64 = 2.0;
        let spec: Spec = "webbase,rows=20k".parse().unwrap();
        let a = spec.generate::<f64>().unwrap();
        let builder = SparseOpBuilder::new().device(Device::Cpu);
        let decision = builder.decide(&Analysis::of(a.view()), ScalarKind::F64).unwrap();
        let candidates = decision.candidates.iter();
        let times: Vec<(Plan, f64)> =
            candidates.filter_map(|c| Some((c.plan.clone(), c.prediction?.product()))).collect();
        let least = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        let left_out: Vec<Plan> =
            (0..MEASURED).flat_map(|matrix| slow_by_prediction(&decision, RATIO, matrix)).collect();
        assert!(!left_out.is_empty());
        for (plan, time) in times {
            let expected = if time > RATIO * least { MEASURED - 1 } else { 0 };
            assert_eq!(left_out.iter().filter(|p| **p == plan).count(), expected, "{plan}");
        }
    }

    #[test]
    fn plans_that_are_left_out_are_not_measured() {
        let spec: Spec = "webbase,rows=2k".parse().unwrap();
        let a = spec.generate::<f64>().unwrap();
        let policy = Policy { seconds: 0.01, ..Policy::default() };
        let plans = |leave_out| {
            let campaign = Campaign { policy, leave_out, ..Campaign::new(&Device::Cpu) };
            campaign.measure(&a, "webbase", "webbase").unwrap().measured.runs.len()
        };
        assert!(plans(Some(1.0)) < plans(None) / 2);
    }
}
