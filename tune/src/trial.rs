//! Offline tuning at work: every plan of a matrix packed once and raced, once or several times, and what the races decide for.

use crate::offline::{Measured, Run};
use crate::repeat::Decisions;
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::device::Device;
use sparseop::formats::{FormatKind, Plan, Target, Traffic, Weights};
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::tuning::calibrate::{Incumbent, Judge};
use sparseop::tuning::decision::{Decision, Entrant, Outcome, Race, Request};
use sparseop::tuning::facts::Facts;
use sparseop::tuning::stopwatch::{Clock, Contestant, Policy, Samples, WallClock, race_until};
use sparseop::tuning::{PackedPlan, PlanBench};
use sparseop::{Error, Scalar};

/// What was measured on one matrix.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The times of every race; all of them have the same plans in the same order, but for those that failed on the way.
    pub races: Vec<Measured>,
    /// The rounds of every run of every race.
    rounds: Vec<Vec<Samples>>,
    on: Target,
    seconds: f64,
    held_bytes: u64,
    heats: usize,
}

/// The matrix, the class it belongs to, and how it is measured.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The matrix as it is recorded.
    pub matrix: &'a str,
    /// Its class, as it is recorded.
    pub class: &'a str,
    /// Where it is measured.
    pub device: &'a Device,
    /// How plans are raced.
    pub policy: Policy,
    /// How often, each time anew.
    pub races: usize,
    /// Plans that are measured even where they are not candidates.
    pub also: &'a [Plan],
}

/// What is known of a matrix before it is raced.
#[derive(Debug, Clone)]
pub struct Known {
    /// What is chosen by predictions.
    pub predicted: Decision,
    /// What an earlier race has decided for, if that is remembered.
    pub remembered: Option<Plan>,
}

impl Trial {
    /// Packs every candidate and races them on a device, in groups that together stay within eight times the memory limit of one, and on
    /// a GPU within half of its memory. A matrix is packed once, however often it is raced. Who is clearly slower than another runs no more
    /// than the fewest rounds, so that the time is spent on those that are near the fastest.
    ///
    /// # Errors
    ///
    /// What the device gives. A plan that cannot be packed or run is recorded as failed.
    pub fn of<T: Scalar>(
        a: CsrView<'_, T>,
        analysis: &Analysis,
        subject: Subject<'_>,
    ) -> Result<Self, Error> {
        /// Packed matrices held at once, in memory limits of one.
        const TOGETHER: u64 = 8;
        let (clock, device) = (WallClock::start(), subject.device);
        let on = Target::of(&device.spec());
        let available = device.memory()?;
        let limit = Request::new(analysis, T::KIND, available).memory_limit;
        let together = match device {
            Device::Cpu => limit.saturating_mul(TOGETHER),
            _ => limit.saturating_mul(TOGETHER).min(available / 2),
        };
        let mut plans = Plan::candidates(analysis, &Weights::default(), on);
        for plan in subject.also {
            if !plans.contains(plan) {
                plans.push(plan.clone());
            }
        }
        let plans: Vec<(Plan, Traffic)> = plans
            .into_iter()
            .map(|plan| (plan.clone(), plan.traffic(analysis, T::KIND)))
            .filter(|(_, traffic)| traffic.matrix_bytes <= limit)
            .collect();
        let bench = PlanBench::new(a, device)?;
        let empty = Measured {
            matrix: subject.matrix.to_owned(),
            class: subject.class.to_owned(),
            fingerprint: Fingerprint::of(a),
            scalar: T::KIND,
            facts: Facts::from(analysis),
            runs: Vec::new(),
            failed: Vec::new(),
        };
        let races = vec![empty; subject.races.max(1)];
        let rounds = vec![Vec::new(); races.len()];
        let mut trial = Self { races, rounds, on, seconds: 0.0, held_bytes: 0, heats: 0 };
        let mut rest = plans.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, traffic): &&(Plan, Traffic)| {
                bytes += traffic.matrix_bytes;
                bytes <= together
            };
            let (group, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            trial.group(&bench, group, subject.policy);
        }
        trial.seconds = clock.seconds();
        Ok(trial)
    }

    /// Packs some plans and races them.
    fn group<T: Scalar>(&mut self, bench: &PlanBench<'_, T>, plans: &[(Plan, Traffic)], policy: Policy) {
        let mut packed: Vec<(&(Plan, Traffic), PackedPlan<T>)> = Vec::new();
        for entry in plans {
            match bench.pack(&entry.0) {
                Ok(matrix) => packed.push((entry, matrix)),
                Err(error) => self.races.iter_mut().for_each(|race| race.fail(&entry.0, &error)),
            }
        }
        self.heats += 1;
        self.held_bytes = self.held_bytes.max(packed.iter().map(|(entry, _)| entry.1.matrix_bytes).sum());
        let eligible: Vec<bool> = packed.iter().map(|(entry, _)| entry.0.is_eligible(self.on)).collect();
        for (measured, rounds) in self.races.iter_mut().zip(&mut self.rounds) {
            let mut turns: Vec<_> =
                packed.iter().map(|(_, matrix)| |repeats| bench.products(matrix, repeats)).collect();
            let mut contestants: Vec<&mut Contestant<'_>> = turns.iter_mut().map(|t| t as _).collect();
            // By their products alone: for how many of them a plan is prepared is asked later.
            let mut judge = Judge::new(vec![0.0; packed.len()]);
            let clock = WallClock::start();
            let results = race_until(&mut contestants, policy, &clock, &mut |results, going| {
                narrow(&mut judge, &eligible, results, going)
            });
            for (((plan, traffic), matrix), samples) in packed.iter().zip(results) {
                match samples {
                    Ok(samples) => {
                        measured.runs.push(Run {
                            plan: plan.clone(),
                            traffic: *traffic,
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

    /// What the races decide for, by the rule of [`calibrate`](sparseop::tuning::calibrate) and with a share of the preparation in every product; none
    /// when no plan can be chosen.
    pub fn decisions(&self, known: &Known) -> Option<Decisions> {
        let (mut fresh, mut successive) = (Vec::new(), Vec::new());
        let mut remembered = known.remembered.clone();
        for race in 0..self.races.len() {
            let contest = self.contest(race, known.predicted.request.expected_calls);
            let decide = |remembered: Option<&Plan>| {
                let winner = contest.winner(&known.predicted, remembered)?;
                Some(contest.runs[winner].plan.clone())
            };
            fresh.push(decide(None)?);
            let decided = decide(remembered.as_ref())?;
            successive.push(decided.clone());
            remembered = Some(decided);
        }
        Some(Decisions { fresh, successive })
    }

    /// The last race as a decision store keeps it, which decides for `winner`; none when that took no part.
    pub fn race(&self, known: &Known, winner: &Plan) -> Option<Race> {
        let contest = self.contest(self.races.len() - 1, known.predicted.request.expected_calls);
        let winner = contest.runs.iter().position(|run| run.plan == *winner)?;
        let entrant = |(i, run): (usize, &&Run)| {
            let outcome = contest.judge.outcome(&contest.results, i, winner);
            let mut entrant = Entrant {
                plan: run.plan.clone(),
                prepare: Some(run.prepare * 1e-9),
                median: None,
                spread: None,
                rounds: 0,
                outcome,
            };
            if let Ok(samples) = &contest.results[i] {
                entrant.ran(samples);
            }
            entrant
        };
        let mut entrants: Vec<Entrant> = contest.runs.iter().enumerate().map(entrant).collect();
        let is_open = |entrant: &Entrant| entrant.outcome == Outcome::Undecided;
        let decided = !entrants.iter().any(is_open);
        // A stable sort: first the one that was predicted, if it took part.
        entrants.sort_by_key(|entrant| entrant.plan != known.predicted.plan);
        Some(Race {
            winner: contest.runs[winner].plan.clone(),
            cold: false,
            heats: self.heats,
            seconds: self.seconds,
            packing: entrants.iter().filter_map(|entrant| entrant.prepare).sum(),
            held_bytes: self.held_bytes,
            entrants,
            decided,
        })
    }

    /// One of the races, between the plans that may be chosen, for so many products.
    fn contest(&self, race: usize, calls: u64) -> Contest<'_> {
        let runs = self.races[race].runs.iter().zip(&self.rounds[race]);
        let (runs, results): (Vec<_>, Vec<_>) = runs
            .filter(|(run, _)| run.plan.is_eligible(self.on))
            .map(|(run, samples)| (run, Ok(samples.clone())))
            .unzip();
        let judge = Judge::new(runs.iter().map(|run| run.prepare * 1e-9 / calls.max(1) as f64).collect());
        Contest { runs, results, judge }
    }
}

/// A race that is over.
struct Contest<'a> {
    runs: Vec<&'a Run>,
    results: Vec<Result<Samples, Error>>,
    judge: Judge,
}

impl Contest<'_> {
    /// Who has won it.
    fn winner(&self, predicted: &Decision, remembered: Option<&Plan>) -> Option<usize> {
        let place = |plan: &Plan| self.runs.iter().position(|run| run.plan == *plan);
        let incumbent = match remembered.and_then(place) {
            Some(place) => Incumbent::Remembered(place),
            // One that is nowhere has failed.
            None => Incumbent::Predicted(place(&predicted.plan).unwrap_or(self.runs.len())),
        };
        let order = |i: usize| {
            let candidate = predicted.candidates.iter().find(|c| c.plan == self.runs[i].plan);
            let prediction = candidate.and_then(|c| c.prediction);
            prediction.map_or(f64::INFINITY, |p| p.amortised(predicted.request.expected_calls))
        };
        self.judge.winner(&self.results, incumbent, order)
    }
}

/// Takes those off a race whose further rounds would say nothing: the clearly slower, and those that are only there to be fitted to.
fn narrow(judge: &mut Judge, eligible: &[bool], results: &[Result<Samples, Error>], going: &mut [bool]) {
    /// Rounds of a plan that is only there to be fitted to: of those that wait for the host a round takes longest of all.
    const TO_FIT: usize = 3;
    for ((going, result), eligible) in going.iter_mut().zip(results).zip(eligible) {
        let is_done = result.as_ref().map_or(true, |samples| samples.len() >= TO_FIT);
        *going &= *eligible || !is_done;
    }
    judge.send_home(results, going);
    if going.iter().filter(|going| **going).count() < 2 {
        going.fill(false);
    }
}

impl Measured {
    fn fail(&mut self, plan: &Plan, error: &Error) {
        self.failed.push((plan.to_string(), error.to_string()));
    }
}

/// Loads the kernels of every format on a device: what is packed first would else take the time for it.
///
/// # Errors
///
/// What the device gives.
pub fn load_kernels<T: Scalar>(device: &Device) -> Result<(), Error> {
    let a = CsrMatrix::try_new(4, 4, vec![0, 2, 2, 5, 7], vec![0, 2, 1, 2, 3, 0, 3], vec![T::ONE; 7])?;
    let bench = PlanBench::new(a.view(), device)?;
    for text in FormatKind::ALL.iter().flat_map(|kind| kind.examples()) {
        bench.pack(&text.parse()?)?;
    }
    Ok(())
}
