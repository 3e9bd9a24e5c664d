//! Offline tuning at work: every plan of a matrix packed once and raced, once or several times.

use super::arena::{Arena, DeviceArena, Ready};
use super::calibrate::{Entrant, Outcome, Race};
use super::facts::Facts;
use super::offline::{Measured, Run};
use super::select::{self, Request, TIE_BAND};
use super::stopwatch::{Clock, Contestant, Policy, Samples, WallClock, race};
use crate::analysis::{Analysis, Fingerprint};
use crate::device::{Device, DeviceSpec};
use crate::formats::{FormatKind, Placed, Plan, Target, Traffic, Weights};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// What was measured on one matrix.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The times of every race; all of them have the same plans in the same order, but for those that failed on the way.
    pub races: Vec<Measured>,
    /// Rounds and relative deviation of every run of the first race.
    quality: Vec<(usize, f64)>,
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
}

impl Trial {
    /// Packs every candidate and races them on a device, in groups that together stay within eight times the memory limit of one, and on
    /// a GPU within half of its memory. A matrix is packed once, however often it is raced.
    ///
    /// # Errors
    ///
    /// What the device gives. A plan that cannot be packed or run is recorded as failed.
    pub fn of<T: Scalar>(a: &CsrMatrix<T>, analysis: &Analysis, subject: Subject<'_>) -> Result<Self, Error> {
        /// Packed matrices held at once, in memory limits of one.
        const TOGETHER: u64 = 8;
        let (clock, device) = (WallClock::start(), subject.device);
        let available = device.memory()?;
        let limit = Request::new(analysis, T::KIND, available).memory_limit;
        let together = match device {
            Device::Cpu => limit.saturating_mul(TOGETHER),
            Device::Cuda(_) => limit.saturating_mul(TOGETHER).min(available / 2),
        };
        let plans = Plan::candidates(analysis, &Weights::default(), Target::of(&device.spec()));
        let plans: Vec<(Plan, Traffic)> = plans
            .into_iter()
            .map(|plan| (plan.clone(), plan.traffic(analysis, T::KIND)))
            .filter(|(_, traffic)| traffic.matrix_bytes <= limit)
            .collect();
        let arena = DeviceArena::new(a, device, &crate::testing::x_vector::<T>(a.ncols()), false)?;
        let empty = Measured {
            matrix: subject.matrix.to_owned(),
            class: subject.class.to_owned(),
            fingerprint: Fingerprint::of(a.view()),
            scalar: T::KIND,
            facts: Facts::from(analysis),
            runs: Vec::new(),
            failed: Vec::new(),
        };
        let races = vec![empty; subject.races.max(1)];
        let mut trial = Self { races, quality: Vec::new(), seconds: 0.0, held_bytes: 0, heats: 0 };
        let mut rest = plans.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, traffic): &&(Plan, Traffic)| {
                bytes += traffic.matrix_bytes;
                bytes <= together
            };
            let (group, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            trial.group(&arena, group, subject.policy);
        }
        trial.seconds = clock.seconds();
        Ok(trial)
    }

    /// Packs some plans and races them.
    fn group<T: Scalar>(&mut self, arena: &DeviceArena<'_, T>, plans: &[(Plan, Traffic)], policy: Policy) {
        let mut packed: Vec<(&(Plan, Traffic), Ready<_>)> = Vec::new();
        for entry in plans {
            match arena.pack(&entry.0) {
                Ok(ready) => packed.push((entry, ready)),
                Err(error) => self.races.iter_mut().for_each(|race| race.fail(&entry.0, &error)),
            }
        }
        self.heats += 1;
        self.held_bytes = self.held_bytes.max(packed.iter().map(|(entry, _)| entry.1.matrix_bytes).sum());
        for (i, measured) in self.races.iter_mut().enumerate() {
            let mut turns: Vec<_> =
                packed.iter().map(|(_, ready)| |repeats| arena.products(&ready.matrix, repeats)).collect();
            let mut contestants: Vec<&mut Contestant<'_>> = turns.iter_mut().map(|t| t as _).collect();
            let samples = race(&mut contestants, policy);
            for (((plan, traffic), ready), samples) in packed.iter().zip(samples) {
                match samples {
                    Ok(samples) => {
                        measured.runs.push(Run {
                            plan: plan.clone(),
                            traffic: *traffic,
                            product: samples.median() * 1e9,
                            prepare: (ready.pack + ready.upload) * 1e9,
                        });
                        self.quality.extend((i == 0).then(|| quality(&samples)));
                    }
                    Err(error) => measured.fail(plan, &error),
                }
            }
        }
    }

    /// The first race as a decision store keeps it, decided for so many products; none when no plan can be chosen. `predicted` is what
    /// would have been chosen without it.
    pub fn race(&self, predicted: &Plan, device: &DeviceSpec, calls: u64) -> Option<Race> {
        let measured = self.races.first()?;
        let cost = |run: &Run| run.product + run.prepare / calls.max(1) as f64;
        let winner = measured.decided(Target::of(device), cost)?;
        let entrant = |(run, &(rounds, spread)): (&Run, &(usize, f64))| {
            let ratio = cost(run) / cost(winner);
            let outcome = match ratio {
                _ if run.plan == winner.plan => Outcome::Won,
                _ if ratio <= 1.0 + TIE_BAND => Outcome::Tied { ratio },
                _ => Outcome::Slower { ratio, early: false },
            };
            let (prepare, median) = (Some(run.prepare * 1e-9), Some(run.product * 1e-9));
            Entrant { plan: run.plan.clone(), prepare, median, spread: Some(spread), rounds, outcome }
        };
        let mut entrants: Vec<Entrant> = measured.runs.iter().zip(&self.quality).map(entrant).collect();
        // A stable sort: first the one that was predicted, if it took part.
        entrants.sort_by_key(|entrant| entrant.plan != *predicted);
        let packing = measured.runs.iter().map(|run| run.prepare * 1e-9).sum();
        Some(Race {
            winner: winner.plan.clone(),
            cold: false,
            entrants,
            heats: self.heats,
            seconds: self.seconds,
            packing,
            held_bytes: self.held_bytes,
            decided: true,
        })
    }
}

/// Rounds, and the median absolute deviation over the median.
fn quality(samples: &Samples) -> (usize, f64) {
    (samples.len(), samples.deviation() / samples.median())
}

impl Measured {
    /// What is decided by measured times: of the plans that may be chosen and cost the least within [`TIE_BAND`] the one with the fewest
    /// bytes, and of those the first.
    pub(super) fn decided(&self, on: Target, cost: impl Fn(&Run) -> f64) -> Option<&Run> {
        let runs: Vec<&Run> = self.runs.iter().filter(|run| run.plan.is_eligible(on)).collect();
        let costs: Vec<(f64, u64)> = runs.iter().map(|run| (cost(run), run.traffic.matrix_bytes)).collect();
        select::choose(&costs).map(|choice| runs[choice.place])
    }

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
    let a = crate::testing::chapter::matrix::<T>();
    for text in FormatKind::ALL.iter().flat_map(|kind| kind.examples()) {
        Placed::on(device, text.parse::<Plan>()?.pack(a.view())?)?;
    }
    Ok(())
}
