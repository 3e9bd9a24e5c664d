//! Application of the result of a timing run to a decision.

use crate::analysis::Analysis;
use crate::device::DeviceSpec;
use crate::formats::Plan;
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
        let Some(race) = self.race().cloned() else { return };
        for timed_plan in &race.timed_plans {
            // A plan of a stored timing run need not be a candidate of the present profile.
            if !self.candidates.iter().any(|c| c.plan == timed_plan.plan) {
                self.candidates.push(self.predict(&timed_plan.plan, analysis, device));
            }
        }
        for candidate in &mut self.candidates {
            if candidate.plan == race.winner {
                candidate.verdict = Verdict::Chosen;
            } else if let Some(timed_plan) = race.timed_plan(&candidate.plan) {
                candidate.verdict = Verdict::Raced(timed_plan.outcome.clone());
            }
        }
        self.plan = race.winner.clone();
        let (plan, rank) = (&self.plan, |c: &Candidate| race.rank(&c.plan));
        self.candidates.sort_by(|a, b| {
            (a.plan != *plan).cmp(&(b.plan != *plan)).then(rank(a).total_cmp(&rank(b)))
        });
    }
}
