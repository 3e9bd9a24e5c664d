//! Timing runs of offline tuning: every plan of a matrix is packed once and timed once or several
//! times, and decisions are derived from the times.

use crate::offline::{Measured, PlanRun};
use crate::repeat::Decisions;
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::device::Device;
use sparseop::formats::{FormatKind, Plan, Target, Work};
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::tuning::calibrate::{Judge, TimingBaseline};
use sparseop::tuning::decision::{Decision, Request, TimedPlan, TimingOutcome, TimingRun};
use sparseop::tuning::features::MatrixFeatures;
use sparseop::tuning::stopwatch::{
    Clock, Policy, Samples, TimedBatch, WallClock, time_interleaved_until,
};
use sparseop::tuning::{PackedPlan, PlanBench};
use sparseop::{Error, Scalar};

/// Measurements of one matrix.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Times of every timing run. All have the same plans in the same order, except for plans that
    /// failed in between.
    pub timing_runs: Vec<Measured>,
    /// Samples of every plan in every timing run.
    rounds: Vec<Vec<Samples>>,
    on: Target,
    seconds: f64,
    held_bytes: u64,
    groups: usize,
}

/// A matrix, its class, and the settings of its measurement.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Name of the matrix, as recorded.
    pub matrix: &'a str,
    /// Class of the matrix, as recorded.
    pub class: &'a str,
    /// Device of the measurement.
    pub device: &'a Device,
    /// Policy of the timing runs.
    pub policy: Policy,
    /// Number of timing runs.
    pub timing_runs: usize,
    /// Additional plans that are measured even if they are not candidates.
    pub also: &'a [Plan],
    /// Candidates that are not measured.
    pub left_out: &'a [Plan],
}

/// Decisions about a matrix before its timing runs.
#[derive(Debug, Clone)]
pub struct PriorDecisions {
    /// Decision by predictions.
    pub predicted: Decision,
    /// Decision of an earlier timing run, if it is in the store.
    pub stored: Option<Plan>,
}

impl Trial {
    /// Packs every candidate and times them on a device, in groups. The packed matrices of a group
    /// together stay within eight times the memory limit of one, and on a GPU within half of its
    /// memory. A matrix is packed once for all timing runs. A plan that is clearly slower than
    /// another runs only the least number of rounds, so that the time is spent on the plans near
    /// the fastest.
    ///
    /// # Errors
    ///
    /// Errors of the device. A plan that cannot be packed or run is recorded as failed.
    pub fn of<T: Scalar>(
        a: CsrView<'_, T>,
        analysis: &Analysis,
        subject: Subject<'_>,
    ) -> Result<Self, Error> {
        /// Memory of the packed matrices of a group, in memory limits of one matrix.
        const GROUP_MEMORY: u64 = 8;
        let (clock, device) = (WallClock::start(), subject.device);
        let on = Target::of(&device.spec());
        let available = device.memory()?;
        let limit = Request::new(analysis, T::KIND, available).memory_limit;
        let group_memory = match device {
            Device::Cpu => limit.saturating_mul(GROUP_MEMORY),
            _ => limit.saturating_mul(GROUP_MEMORY).min(available / 2),
        };
        let mut plans = Plan::candidates(analysis, None, on);
        plans.retain(|plan| !subject.left_out.contains(plan));
        for plan in subject.also {
            if !plans.contains(plan) {
                plans.push(plan.clone());
            }
        }
        let plans: Vec<(Plan, Work)> = plans
            .into_iter()
            .map(|plan| (plan.clone(), plan.work(analysis, T::KIND)))
            .filter(|(_, work)| work.matrix_bytes <= limit)
            .collect();
        let bench = PlanBench::new(a, device)?;
        let empty = Measured {
            matrix: subject.matrix.to_owned(),
            class: subject.class.to_owned(),
            fingerprint: Fingerprint::of(a),
            scalar: T::KIND,
            features: MatrixFeatures::from(analysis),
            runs: Vec::new(),
            failed: Vec::new(),
        };
        let timing_runs = vec![empty; subject.timing_runs.max(1)];
        let rounds = vec![Vec::new(); timing_runs.len()];
        let mut trial = Self { timing_runs, rounds, on, seconds: 0.0, held_bytes: 0, groups: 0 };
        let mut rest = plans.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, work): &&(Plan, Work)| {
                bytes += work.matrix_bytes;
                bytes <= group_memory
            };
            let (group, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            trial.group(&bench, group, subject.policy);
        }
        trial.seconds = clock.seconds();
        Ok(trial)
    }

    /// Packs a group of plans and times them.
    fn group<T: Scalar>(
        &mut self,
        bench: &PlanBench<'_, T>,
        plans: &[(Plan, Work)],
        policy: Policy,
    ) {
        let mut packed: Vec<(&(Plan, Work), PackedPlan<T>)> = Vec::new();
        for entry in plans {
            match bench.pack(&entry.0) {
                Ok(matrix) => packed.push((entry, matrix)),
                Err(error) => self
                    .timing_runs
                    .iter_mut()
                    .for_each(|timing_run| timing_run.fail(&entry.0, &error)),
            }
        }
        self.groups += 1;
        self.held_bytes =
            self.held_bytes.max(packed.iter().map(|(entry, _)| entry.1.matrix_bytes).sum());
        let eligible: Vec<bool> =
            packed.iter().map(|(entry, _)| entry.0.is_eligible(self.on)).collect();
        for (measured, rounds) in self.timing_runs.iter_mut().zip(&mut self.rounds) {
            let mut products: Vec<_> = packed
                .iter()
                .map(|(_, matrix)| |repeats| bench.products(matrix, repeats))
                .collect();
            let mut batches: Vec<&mut TimedBatch<'_>> =
                products.iter_mut().map(|p| p as _).collect();
            // Plans are eliminated by their products alone; the number of products that amortise
            // the preparation enters later.
            let mut judge = Judge::new(vec![0.0; packed.len()]);
            let clock = WallClock::start();
            let results =
                time_interleaved_until(&mut batches, policy, &clock, &mut |results, going| {
                    narrow(&mut judge, &eligible, results, going)
                });
            for (((plan, work), matrix), samples) in packed.iter().zip(results) {
                match samples {
                    Ok(samples) => {
                        measured.runs.push(PlanRun {
                            plan: plan.clone(),
                            work: *work,
                            product: samples.median() * 1e9,
                            prepare: matrix.seconds() * 1e9,
                        });
                        rounds.push(samples);
                    }
                    Err(error) => measured.fail(plan, &error),
                }
            }
        }
    }

    /// Decisions of the timing runs, by the rule of [`calibrate`](sparseop::tuning::calibrate) and
    /// with a share of the preparation in every product. `None` if no plan can be chosen.
    pub fn decisions(&self, prior: &PriorDecisions) -> Option<Decisions> {
        let (mut fresh, mut successive) = (Vec::new(), Vec::new());
        let mut stored = prior.stored.clone();
        for timing_run in 0..self.timing_runs.len() {
            let timings = self.timings(timing_run, prior.predicted.request.expected_calls);
            let decide = |stored: Option<&Plan>| {
                let winner = timings.winner(&prior.predicted, stored)?;
                Some(timings.runs[winner].plan.clone())
            };
            fresh.push(decide(None)?);
            let decided = decide(stored.as_ref())?;
            successive.push(decided.clone());
            stored = Some(decided);
        }
        Some(Decisions { fresh, successive })
    }

    /// The last timing run as an entry of a decision store, with `winner` as its winner; `None` if
    /// that plan was not timed.
    pub fn timing_run(&self, prior: &PriorDecisions, winner: &Plan) -> Option<TimingRun> {
        let timings =
            self.timings(self.timing_runs.len() - 1, prior.predicted.request.expected_calls);
        let winner = timings.runs.iter().position(|run| run.plan == *winner)?;
        let timed_plan = |(i, run): (usize, &&PlanRun)| {
            let outcome = timings.judge.outcome(&timings.results, i, winner);
            let mut timed_plan = TimedPlan {
                plan: run.plan.clone(),
                prepare: Some(run.prepare * 1e-9),
                product: None,
                spread: None,
                rounds: 0,
                outcome,
            };
            if let Ok(samples) = &timings.results[i] {
                timed_plan.ran(samples);
            }
            timed_plan
        };
        let mut timed_plans: Vec<TimedPlan> =
            timings.runs.iter().enumerate().map(timed_plan).collect();
        let is_open = |timed_plan: &TimedPlan| timed_plan.outcome == TimingOutcome::Undecided;
        let decided = !timed_plans.iter().any(is_open);
        // A stable sort: first the predicted plan, if it was timed.
        timed_plans.sort_by_key(|timed_plan| timed_plan.plan != prior.predicted.plan);
        Some(TimingRun {
            winner: timings.runs[winner].plan.clone(),
            cold: false,
            groups: self.groups,
            seconds: self.seconds,
            packing: timed_plans.iter().filter_map(|timed_plan| timed_plan.prepare).sum(),
            held_bytes: self.held_bytes,
            timed_plans,
            decided,
        })
    }

    /// One of the timing runs, restricted to the plans that may be chosen, for `calls` products.
    fn timings(&self, timing_run: usize, calls: u64) -> Timings<'_> {
        let runs = self.timing_runs[timing_run].runs.iter().zip(&self.rounds[timing_run]);
        let (runs, results): (Vec<_>, Vec<_>) = runs
            .filter(|(run, _)| run.plan.is_eligible(self.on))
            .map(|(run, samples)| (run, Ok(samples.clone())))
            .unzip();
        let judge =
            Judge::new(runs.iter().map(|run| run.prepare * 1e-9 / calls.max(1) as f64).collect());
        Timings { runs, results, judge }
    }
}

/// A finished timing run.
struct Timings<'a> {
    runs: Vec<&'a PlanRun>,
    results: Vec<Result<Samples, Error>>,
    judge: Judge,
}

impl Timings<'_> {
    /// The winner.
    fn winner(&self, predicted: &Decision, stored: Option<&Plan>) -> Option<usize> {
        let place = |plan: &Plan| self.runs.iter().position(|run| run.plan == *plan);
        let baseline = match stored.and_then(place) {
            Some(place) => TimingBaseline::Stored(place),
            // A plan that is not found has failed.
            None => TimingBaseline::Predicted(place(&predicted.plan).unwrap_or(self.runs.len())),
        };
        let order = |i: usize| {
            let candidate = predicted.candidates.iter().find(|c| c.plan == self.runs[i].plan);
            let prediction = candidate.and_then(|c| c.prediction);
            prediction.map_or(f64::INFINITY, |p| p.amortised(predicted.request.expected_calls))
        };
        self.judge.winner(&self.results, baseline, order)
    }
}

/// Eliminates plans whose further rounds have no information: clearly slower ones, and those that
/// are measured for fitting only.
fn narrow(
    judge: &mut Judge,
    eligible: &[bool],
    results: &[Result<Samples, Error>],
    going: &mut [bool],
) {
    /// Rounds of a plan that is measured for fitting only. Plans that block the host have the
    /// longest rounds of all.
    const TO_FIT: usize = 3;
    for ((going, result), eligible) in going.iter_mut().zip(results).zip(eligible) {
        let is_done = result.as_ref().map_or(true, |samples| samples.len() >= TO_FIT);
        *going &= *eligible || !is_done;
    }
    judge.eliminate(results, going);
    if going.iter().filter(|going| **going).count() < 2 {
        going.fill(false);
    }
}

impl Measured {
    fn fail(&mut self, plan: &Plan, error: &Error) {
        self.failed.push((plan.to_string(), error.to_string()));
    }
}

/// Loads the kernels of every format on a device. Otherwise the load time would be part of the
/// first packing.
///
/// # Errors
///
/// Errors of the device.
pub fn load_kernels<T: Scalar>(device: &Device) -> Result<(), Error> {
    let a =
        CsrMatrix::try_new(4, 4, vec![0, 2, 2, 5, 7], vec![0, 2, 1, 2, 3, 0, 3], vec![T::ONE; 7])?;
    let bench = PlanBench::new(a.view(), device)?;
    for text in FormatKind::ALL.iter().flat_map(|kind| kind.examples()) {
        bench.pack(&text.parse()?)?;
    }
    Ok(())
}
