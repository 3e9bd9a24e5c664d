//! Application of the result of a timing run to a decision.

use crate::analysis::Analysis;
use crate::device::DeviceSpec;
use crate::formats::Plan;
use crate::order;
use crate::tuning::decision::{Basis, Candidate, Decision, Verdict};
use crate::tuning::explain::reason;
use crate::tuning::predictor::Predictor;
use crate::tuning::select::predict;

impl Decision {
    fn predict(&self, plan: &Plan, analysis: &Analysis, device: &DeviceSpec) -> Candidate {
        let predictor = Predictor { profile: &self.profile, device, scale: self.scale };
        predict(plan.clone(), &self.request.reliable(analysis), &predictor, &self.request)
    }

    /// Reason why a plan may not be chosen, whatever its time; `None` if it may.
    pub(crate) fn objection(
        &self,
        plan: &Plan,
        analysis: &Analysis,
        device: &DeviceSpec,
    ) -> Option<String> {
        let candidate = self.predict(plan, analysis, device);
        match candidate.verdict {
            Verdict::TooLarge { .. }
            | Verdict::OnRequest
            | Verdict::OutOfBounds { .. }
            | Verdict::NotDeterministic => Some(reason(&candidate)),
            _ => None,
        }
    }

    /// Makes the winner of the timing run the chosen plan. The candidates are sorted: first the
    /// winner, then the other timed plans by their times, then the rest.
    pub(crate) fn settle(&mut self, basis: Basis, analysis: &Analysis, device: &DeviceSpec) {
        self.basis = basis;
        let Some(timing_run) = self.timing_run().cloned() else { return };
        for timed_plan in &timing_run.timed_plans {
            // A plan of a stored timing run need not be a candidate of the present profile.
            if !self.candidates.iter().any(|c| c.plan == timed_plan.plan) {
                self.candidates.push(self.predict(&timed_plan.plan, analysis, device));
            }
        }
        for candidate in &mut self.candidates {
            if candidate.plan == timing_run.winner {
                candidate.verdict = Verdict::Chosen;
            } else if let Some(timed_plan) = timing_run.timed_plan(&candidate.plan) {
                candidate.verdict = Verdict::Timed(timed_plan.outcome.clone());
            }
        }
        self.plan = timing_run.winner.clone();
        order::ascending(&mut self.candidates, &|candidate| match &candidate.plan {
            plan if *plan == self.plan => f64::NEG_INFINITY,
            plan => timing_run.rank(plan),
        });
    }
}
