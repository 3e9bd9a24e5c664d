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
use super::decision::{Candidate, Decision, Outcome, Race, TimedPlan, Verdict};
use super::plan_timer::{PlanTimer, Ready};
use super::profile::Fit;
use super::stopwatch::{Clock, Policy, Samples, TimedBatch, race_until};
use crate::Error;
use crate::device::{Device, DeviceSpec};
use crate::formats::Target;
pub use judge::HOLD;
use judge::MIN_ROUNDS;
#[doc(hidden)]
pub use judge::{Incumbent, Judge};
use std::collections::VecDeque;

/// Largest number of plans on the shortlist.
pub const MAX_CANDIDATES: usize = 10;

/// Number of plans on the shortlist that are taken by predicted time alone, whatever their kernels.
/// Their parameters are close to each other, and predictions do not distinguish them.
const LEADERS: usize = 3;

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
    /// without calibration.
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
        self.median = (!samples.is_empty()).then(|| samples.median());
        self.spread = self.median.map(|median| samples.deviation() / median);
        self.rounds = samples.len();
    }
}

/// The shortlist: first the chosen plan and the next of the [`LEADERS`], then plans predicted to
/// take at most [`NEAR`] times as long. The best plan of every kernel comes before the second of
/// any kernel: a wrong coefficient must not exclude all plans of a kernel.
///
/// Measured for 188 pairs of matrix and precision on an H200, with predictions by fits without the
/// class of the matrix: the fastest plan of the shortlist took 1.0003 times as long as the fastest
/// of all in the geometric mean and 1.024 at worst. With eight plans within a factor of two and no
/// leaders it was 1.0015 and 1.157.
pub(crate) fn field<'a>(decision: &'a Decision, device: &DeviceSpec) -> Vec<&'a Candidate> {
    let calls = decision.request.expected_calls;
    let time = |c: &Candidate| c.prediction.map_or(f64::INFINITY, |p| p.amortised(calls));
    let Some(chosen) = decision.chosen() else { return Vec::new() };
    let near = |c: &&Candidate| {
        matches!(c.verdict, Verdict::Tied | Verdict::Slower { .. })
            && time(c) <= NEAR * time(chosen)
    };
    let kernel = |c: &Candidate| c.plan.kernel(Target::of(device));
    let mut kernels = Vec::new();
    let (mut firsts, mut others) = (Vec::new(), Vec::new());
    for candidate in std::iter::once(chosen).chain(decision.candidates.iter().filter(near)) {
        let is_first = !kernels.contains(&kernel(candidate));
        if is_first {
            kernels.push(kernel(candidate));
        }
        let place = if is_first || firsts.len() < LEADERS { &mut firsts } else { &mut others };
        place.push(candidate);
    }
    firsts.into_iter().chain(others).take(MAX_CANDIDATES).collect()
}

/// Expected saving of a timing run of `field` over the expected products, and its least cost, both
/// in seconds.
///
/// The timing run may save the regret of choices by the profile on the matrices it was fitted to:
/// the mean regret on the device of the profile, the 95th percentile on other devices.
pub(crate) fn stakes(decision: &Decision, field: &[&Candidate], policy: Policy) -> (f64, f64) {
    let seconds = |ns: f64| ns * 1e-9;
    let product = |c: &Candidate| c.prediction.map_or(0.0, |p| seconds(p.product()));
    let judged = decision.profile.validation.judged();
    let regret = match decision.fit {
        Fit::Exact => judged.geometric_mean,
        _ => judged.p95,
    };
    let calls = decision.request.expected_calls as f64;
    let gain = calls * field.first().map_or(0.0, |c| product(c)) * (regret - 1.0).clamp(0.0, 1.0);
    let packing = field.iter().skip(1).filter_map(|c| c.prediction).map(|p| seconds(p.prepare));
    let round: f64 = field.iter().map(|c| policy.round_seconds(product(c))).sum();
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

/// Times the plans of `field` and returns the winner, packed, with the result of the timing run.
/// The first plan wins unless another is faster at the required confidence.
///
/// # Errors
///
/// If no plan of the shortlist can be packed and multiplied: the first error.
pub(crate) fn calibrate<A: PlanTimer>(
    timer: &A,
    clock: &dyn Clock,
    field: &[&Candidate],
    limits: Limits,
    policy: Policy,
    cold: bool,
) -> Result<(Ready<A::Packed>, Race), Error> {
    let timed_plan = |c: &&Candidate| TimedPlan {
        plan: c.plan.clone(),
        prepare: None,
        median: None,
        spread: None,
        rounds: 0,
        outcome: Outcome::Undecided,
    };
    let race = Race {
        winner: field[0].plan.clone(),
        cold,
        timed_plans: field.iter().map(timed_plan).collect(),
        heats: 0,
        seconds: 0.0,
        packing: 0.0,
        held_bytes: 0,
        decided: true,
    };
    let rest = (0..field.len()).collect();
    Meeting { timer, clock, field, limits, policy, deadline: f64::INFINITY, rest, race }.run()
}

/// A packed plan and its index in the shortlist.
type Runner<A> = (usize, Ready<<A as PlanTimer>::Packed>);

/// State of a timing run.
struct Meeting<'a, A: PlanTimer> {
    timer: &'a A,
    clock: &'a dyn Clock,
    field: &'a [&'a Candidate],
    limits: Limits,
    policy: Policy,
    /// Time limit, on the clock.
    deadline: f64,
    /// Plans that are not packed yet.
    rest: VecDeque<usize>,
    race: Race,
}

impl<A: PlanTimer> Meeting<'_, A> {
    fn run(mut self) -> Result<(Ready<A::Packed>, Race), Error> {
        let mut leader = self.first()?;
        self.deadline = self.clock.seconds() + self.limits.seconds.max(0.0);
        while !self.rest.is_empty() {
            let mut heat = vec![leader];
            self.gather(&mut heat);
            leader = self.heat(heat)?;
        }
        let (place, ready) = leader;
        self.race.timed_plans[place].outcome = Outcome::Won;
        self.race.winner = self.field[place].plan.clone();
        let own = ready.pack + ready.upload;
        let prepared: f64 =
            self.race.timed_plans.iter().filter_map(|timed_plan| timed_plan.prepare).sum();
        self.race.packing = (prepared - own).max(0.0);
        self.race.seconds = (self.clock.seconds() - own).max(0.0);
        Ok((ready, self.race))
    }

    /// Packs the first plan that can be packed.
    fn first(&mut self) -> Result<Runner<A>, Error> {
        let mut failure = None;
        while let Some(place) = self.rest.pop_front() {
            match self.timer.pack(&self.field[place].plan) {
                Ok(ready) => return Ok(self.packed(place, ready)),
                Err(error) => {
                    self.race.timed_plans[place].outcome =
                        Outcome::Failed { reason: error.to_string() };
                    failure.get_or_insert(error);
                }
            }
        }
        Err(failure.expect("a field is never empty"))
    }

    fn packed(&mut self, place: usize, ready: Ready<A::Packed>) -> Runner<A> {
        self.race.timed_plans[place].prepare = Some(ready.pack + ready.upload);
        (place, ready)
    }

    fn bytes(&self, heat: &[Runner<A>]) -> u64 {
        heat.iter().map(|(place, _)| self.field[*place].traffic.matrix_bytes).sum()
    }

    /// Packs further candidates beside the current winner, within the memory limit and half of the
    /// remaining time.
    fn gather(&mut self, heat: &mut Vec<Runner<A>>) {
        let now = self.clock.seconds();
        let until = now + (self.deadline - now) / 2.0;
        while let Some(&place) = self.rest.front() {
            let candidate = self.field[place];
            let (needed, held) = (candidate.traffic.matrix_bytes, self.bytes(heat));
            let left = self.limits.memory.saturating_sub(held);
            let takes = candidate.prediction.map_or(0.0, |p| p.prepare * 1e-9);
            let refusal = if needed > left {
                Some(Outcome::NoRoom { needed, left })
            } else if self.clock.seconds() + takes > until {
                Some(Outcome::NoTime)
            } else {
                None
            };
            match refusal {
                // The next group may have more memory or time.
                Some(_) if heat.len() > 1 => break,
                Some(outcome) => self.race.timed_plans[place].outcome = outcome,
                None => match self.timer.pack(&candidate.plan) {
                    Ok(ready) => heat.push(self.packed(place, ready)),
                    Err(error) => {
                        self.race.timed_plans[place].outcome =
                            Outcome::Failed { reason: error.to_string() };
                    }
                },
            }
            self.rest.pop_front();
        }
        self.race.held_bytes = self.race.held_bytes.max(self.bytes(heat));
    }

    /// Times a group of packed plans and returns the winner; the others are dropped.
    fn heat(&mut self, mut heat: Vec<Runner<A>>) -> Result<Runner<A>, Error> {
        let challengers = heat.len() - 1;
        if challengers == 0 {
            return Ok(heat.remove(0));
        }
        let calls = self.limits.calls.max(1) as f64;
        let mut judge = Judge::new(heat.iter().map(|(_, r)| (r.pack + r.upload) / calls).collect());
        let now = self.clock.seconds();
        // Plans that are not packed yet get their share of the time.
        let part = challengers as f64 / (challengers + self.rest.len()) as f64;
        let policy = Policy { seconds: now + (self.deadline - now) * part, ..self.policy };
        let mut turns: Vec<_> =
            heat.iter().map(|(_, r)| |repeats| self.timer.products(&r.matrix, repeats)).collect();
        let mut batches: Vec<&mut TimedBatch<'_>> = turns.iter_mut().map(|t| t as _).collect();
        let mut results = race_until(&mut batches, policy, self.clock, &mut |results, going| {
            judge.rule(results, going)
        });
        drop(turns);
        self.race.heats += 1;
        self.race.decided &= judge.decided;
        let calls = self.limits.calls;
        let predicted = |i: usize| {
            let candidate = self.field[heat[i].0];
            candidate.prediction.map_or(f64::INFINITY, |p| p.amortised(calls))
        };
        let Some(winner) = judge.winner(&results, Incumbent::Predicted(0), predicted) else {
            return results.swap_remove(0).map(|_| heat.remove(0));
        };
        for (i, (place, _)) in heat.iter().enumerate() {
            let timed_plan = &mut self.race.timed_plans[*place];
            timed_plan.outcome = judge.outcome(&results, i, winner);
            if let Ok(samples) = &results[i] {
                timed_plan.ran(samples);
            }
        }
        Ok(heat.swap_remove(winner))
    }
}
