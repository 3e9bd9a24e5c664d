//! Calibration: the plans with the least predicted times are packed and timed on the matrix itself.
//!
//! The plan that would be chosen without calibration is always on the shortlist, and stays unless
//! another plan is faster at the required confidence. All plans that fit into memory together are
//! timed together. Otherwise they are timed in groups, each with the winner of the group before. Of
//! a pair that does not fit, that winner stays.

mod judge;
mod settle;
#[cfg(test)]
mod tests;

use super::caches::CacheState;
use super::decision::{Candidate, Decision, TimedPlan, TimingOutcome, TimingRun};
use super::plan_timer::{PlanTimer, Ready};
use super::profile::Fit;
use super::stopwatch::{Clock, Policy, Samples, TimedBatch, time_interleaved_until};
use crate::Error;
use crate::device::{Device, DeviceSpec};
use crate::formats::Target;
pub use judge::HYSTERESIS;
use judge::MIN_ROUNDS;
#[doc(hidden)]
pub use judge::{Judge, TimingBaseline};
use std::collections::VecDeque;

/// Largest number of plans on the shortlist.
pub const MAX_CANDIDATES: usize = 10;

/// Number of plans on the shortlist that are taken by predicted time alone, whatever their kernels.
/// Their parameters are close to each other, and predictions do not distinguish them.
const BY_TIME_ALONE: usize = 3;

/// Largest predicted time of a plan on the shortlist, over the least predicted time. In held-out
/// validation on an H200, no fastest plan was predicted that far off (the farthest 2.5 times).
pub const NEAR: f64 = 3.0;

/// Number of rounds after which a timing run ends undecided. Remaining differences are below the
/// noise.
const MAX_ROUNDS: usize = 100;

/// Settings of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Approximate time limit in seconds, not counting the packing of the plan that would be chosen
    /// without calibration, nor the compilation of kernels.
    pub seconds: f64,
    /// Memory limit of all packed matrices together, in bytes. By default twice the memory limit of
    /// one, and at most half of the memory of the device.
    pub memory: Option<u64>,
    /// True for products in [`CacheState::Cold`], as between other work; false for products in
    /// [`CacheState::Warm`], as in a loop of products.
    pub cold: bool,
    /// True to calibrate even if the expected number of products does not amortise it.
    pub always: bool,
}

impl Default for Calibration {
    /// Warm caches, within three seconds.
    fn default() -> Self {
        Self { seconds: 3.0, memory: None, cold: false, always: false }
    }
}

impl Calibration {
    /// Policy of the timing run on a device.
    pub(crate) fn policy(&self, device: &Device) -> Policy {
        let policy =
            Policy { warmup: 1, min_rounds: 1, max_rounds: MAX_ROUNDS, ..Policy::of(device) };
        policy.in_state(self.cache())
    }

    /// Cache state before a product.
    pub(crate) fn cache(&self) -> CacheState {
        if self.cold { CacheState::Cold } else { CacheState::Warm }
    }

    /// Memory limit of all packed matrices together, in bytes. `limit` is that of one matrix;
    /// `available` is the memory of the device.
    pub(crate) fn memory(&self, limit: u64, available: u64) -> u64 {
        self.memory.unwrap_or_else(|| limit.saturating_mul(2).min(available / 2))
    }
}

impl TimedPlan {
    /// Records the samples of the timing run.
    #[doc(hidden)]
    pub fn ran(&mut self, samples: &Samples) {
        self.product = (!samples.is_empty()).then(|| samples.median());
        let has_spread = samples.len() > 1;
        self.spread = has_spread.then(|| samples.deviation() / samples.median());
        self.rounds = samples.len();
    }
}

/// The shortlist: first the chosen plan and the next [`BY_TIME_ALONE`] by predicted time, then
/// plans predicted to take at most [`NEAR`] times as long. The best plan of every kernel comes
/// before the second of any kernel: a wrong coefficient must not exclude all plans of a kernel.
///
/// Measured for 188 pairs of matrix and precision on an H200, with predictions by fits without the
/// class of the matrix: the fastest plan of the shortlist took 1.0003 times as long as the fastest
/// of all in the geometric mean and 1.024 at worst. With eight plans within a factor of two and no
/// plans by time alone it was 1.0015 and 1.157.
pub(crate) fn shortlist<'a>(decision: &'a Decision, device: &DeviceSpec) -> Vec<&'a Candidate> {
    let calls = decision.request.expected_calls;
    let time = |c: &Candidate| c.prediction.map_or(f64::INFINITY, |p| p.amortised(calls));
    let Some(chosen) = decision.chosen() else { return Vec::new() };
    let near = |c: &&Candidate| c.verdict.may_be_timed() && time(c) <= NEAR * time(chosen);
    let kernel = |c: &Candidate| c.plan.cost_key_of(Target::of(device), &c.work);
    let mut kernels = Vec::new();
    let (mut firsts, mut others) = (Vec::new(), Vec::new());
    for candidate in std::iter::once(chosen).chain(decision.candidates.iter().filter(near)) {
        let is_first = !kernels.contains(&kernel(candidate));
        if is_first {
            kernels.push(kernel(candidate));
        }
        let place =
            if is_first || firsts.len() < BY_TIME_ALONE { &mut firsts } else { &mut others };
        place.push(candidate);
    }
    firsts.into_iter().chain(others).take(MAX_CANDIDATES).collect()
}

/// Expected saving of a timing run of `shortlist` over the expected products, and its least cost,
/// both in seconds.
///
/// The timing run may save the regret of choices by the profile on the matrices it was fitted to:
/// the mean regret on the device of the profile, the 95th percentile on other devices.
pub(crate) fn expected_gain_and_cost(
    decision: &Decision,
    shortlist: &[&Candidate],
    policy: Policy,
) -> (f64, f64) {
    let seconds = |ns: f64| ns * 1e-9;
    let product = |c: &Candidate| c.prediction.map_or(0.0, |p| seconds(p.product()));
    let judged = decision.profile.validation.judged();
    let regret = match decision.fit {
        Fit::Exact => judged.geometric_mean,
        _ => judged.p95,
    };
    let calls = decision.request.expected_calls as f64;
    let gain =
        calls * shortlist.first().map_or(0.0, |c| product(c)) * (regret - 1.0).clamp(0.0, 1.0);
    let packing = shortlist.iter().skip(1).filter_map(|c| c.prediction).map(|p| seconds(p.prepare));
    let round: f64 = shortlist.iter().map(|c| policy.round_seconds(product(c))).sum();
    (gain, packing.sum::<f64>() + round * (policy.warmup + MIN_ROUNDS) as f64)
}

/// Limits of a timing run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Seconds, not counting the packing of the first plan of the shortlist.
    pub(crate) seconds: f64,
    /// Bytes of all packed matrices together.
    pub(crate) memory: u64,
    /// Number of products that amortise the preparation.
    pub(crate) calls: u64,
}

/// Times the plans of `shortlist` and returns the winner, packed, with the result of the timing
/// run. The first plan wins unless another is faster at the required confidence.
///
/// # Errors
///
/// If no plan of the shortlist can be packed and multiplied: the first error.
pub(crate) fn calibrate<A: PlanTimer>(
    timer: &A,
    clock: &dyn Clock,
    shortlist: &[&Candidate],
    limits: Limits,
    policy: Policy,
    cold: bool,
) -> Result<(Ready<A::Packed>, TimingRun), Error> {
    let timed_plan = |c: &&Candidate| TimedPlan {
        plan: c.plan.clone(),
        prepare: None,
        product: None,
        spread: None,
        rounds: 0,
        outcome: TimingOutcome::Undecided,
    };
    let timing_run = TimingRun {
        winner: shortlist[0].plan.clone(),
        cold,
        timed_plans: shortlist.iter().map(timed_plan).collect(),
        groups: 0,
        seconds: 0.0,
        packing: 0.0,
        held_bytes: 0,
        decided: true,
    };
    let rest = (0..shortlist.len()).collect();
    Calibrator {
        timer,
        clock,
        shortlist,
        limits,
        policy,
        deadline: f64::INFINITY,
        rest,
        timing_run,
    }
    .run()
}

/// A packed plan and its index in the shortlist.
type PackedCandidate<A> = (usize, Ready<<A as PlanTimer>::Packed>);

/// State of a timing run.
struct Calibrator<'a, A: PlanTimer> {
    timer: &'a A,
    clock: &'a dyn Clock,
    shortlist: &'a [&'a Candidate],
    limits: Limits,
    policy: Policy,
    /// Time limit, on the clock.
    deadline: f64,
    /// Plans that are not packed yet.
    rest: VecDeque<usize>,
    timing_run: TimingRun,
}

impl<A: PlanTimer> Calibrator<'_, A> {
    fn run(mut self) -> Result<(Ready<A::Packed>, TimingRun), Error> {
        let mut baseline = self.first()?;
        self.deadline = self.clock.seconds() + self.limits.seconds.max(0.0);
        while !self.rest.is_empty() {
            let mut group = vec![baseline];
            self.gather(&mut group);
            baseline = self.time_group(group)?;
        }
        let (place, ready) = baseline;
        self.timing_run.timed_plans[place].outcome = TimingOutcome::Won;
        self.timing_run.winner = self.shortlist[place].plan.clone();
        let own = ready.pack + ready.upload;
        self.timing_run.packing = (self.timing_run.packing - own).max(0.0);
        self.timing_run.seconds = (self.clock.seconds() - own).max(0.0);
        Ok((ready, self.timing_run))
    }

    /// Packs the first plan that can be packed.
    fn first(&mut self) -> Result<PackedCandidate<A>, Error> {
        let mut failure = None;
        while let Some(place) = self.rest.pop_front() {
            match self.pack(place) {
                Ok(ready) => return Ok(self.packed(place, ready)),
                Err(error) => {
                    self.timing_run.timed_plans[place].outcome =
                        TimingOutcome::Failed { reason: error.to_string() };
                    failure.get_or_insert(error);
                }
            }
        }
        Err(failure.expect("the shortlist is never empty"))
    }

    /// Packs a plan of the shortlist. Plans share the copy of the matrix to a GPU, so that only the
    /// clock measures all of them together.
    fn pack(&mut self, place: usize) -> Result<Ready<A::Packed>, Error> {
        let start = self.clock.seconds();
        let ready = self.timer.pack(&self.shortlist[place].plan);
        self.timing_run.packing += self.clock.seconds() - start;
        ready
    }

    fn packed(&mut self, place: usize, ready: Ready<A::Packed>) -> PackedCandidate<A> {
        self.timing_run.timed_plans[place].prepare = Some(ready.pack + ready.upload);
        (place, ready)
    }

    fn bytes(&self, group: &[PackedCandidate<A>]) -> u64 {
        group.iter().map(|(place, _)| self.shortlist[*place].work.matrix_bytes).sum()
    }

    /// Packs further candidates beside the current winner, within the memory limit and half of the
    /// remaining time.
    fn gather(&mut self, group: &mut Vec<PackedCandidate<A>>) {
        let now = self.clock.seconds();
        let until = now + (self.deadline - now) / 2.0;
        while let Some(&place) = self.rest.front() {
            let candidate = self.shortlist[place];
            let (needed, held) = (candidate.work.matrix_bytes, self.bytes(group));
            let left = self.limits.memory.saturating_sub(held);
            let takes = candidate.prediction.map_or(0.0, |p| p.prepare * 1e-9);
            let refusal = if needed > left {
                Some(TimingOutcome::NoRoom { needed, left })
            } else if self.clock.seconds() + takes > until {
                Some(TimingOutcome::NoTime)
            } else {
                None
            };
            match refusal {
                // The next group may have more memory or time.
                Some(_) if group.len() > 1 => break,
                Some(outcome) => self.timing_run.timed_plans[place].outcome = outcome,
                None => match self.pack(place) {
                    Ok(ready) => group.push(self.packed(place, ready)),
                    Err(error) => {
                        self.timing_run.timed_plans[place].outcome =
                            TimingOutcome::Failed { reason: error.to_string() };
                    }
                },
            }
            self.rest.pop_front();
        }
        self.timing_run.held_bytes = self.timing_run.held_bytes.max(self.bytes(group));
    }

    /// Times a group of packed plans and returns the winner; the others are dropped.
    fn time_group(
        &mut self,
        mut group: Vec<PackedCandidate<A>>,
    ) -> Result<PackedCandidate<A>, Error> {
        let others = group.len() - 1;
        if others == 0 {
            return Ok(group.remove(0));
        }
        let calls = self.limits.calls.max(1) as f64;
        let mut judge =
            Judge::new(group.iter().map(|(_, r)| (r.pack + r.upload) / calls).collect());
        let now = self.clock.seconds();
        // Plans that are not packed yet get their share of the time.
        let part = others as f64 / (others + self.rest.len()) as f64;
        let policy = Policy { seconds: now + (self.deadline - now) * part, ..self.policy };
        let mut products: Vec<_> = group
            .iter()
            .map(|(_, r)| |repeats| self.timer.products(&r.matrix, 0, repeats))
            .collect();
        let mut batches: Vec<&mut TimedBatch<'_>> = products.iter_mut().map(|p| p as _).collect();
        let mut results =
            time_interleaved_until(&mut batches, policy, self.clock, &mut |results, going| {
                judge.rule(results, going)
            });
        drop(products);
        self.timing_run.groups += 1;
        self.timing_run.decided &= judge.decided;
        let calls = self.limits.calls;
        let predicted = |i: usize| {
            let candidate = self.shortlist[group[i].0];
            candidate.prediction.map_or(f64::INFINITY, |p| p.amortised(calls))
        };
        let Some(winner) = judge.winner(&results, TimingBaseline::Predicted(0), predicted) else {
            return results.swap_remove(0).map(|_| group.remove(0));
        };
        for (i, (place, _)) in group.iter().enumerate() {
            let timed_plan = &mut self.timing_run.timed_plans[*place];
            timed_plan.outcome = judge.outcome(&results, i, winner);
            if let Ok(samples) = &results[i] {
                timed_plan.ran(samples);
            }
        }
        Ok(group.swap_remove(winner))
    }
}
