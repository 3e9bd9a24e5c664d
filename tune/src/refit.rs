//! A profile from measurements: fitted, and judged on classes of matrices that it was not fitted to.

use crate::fit::{Observation, fit_sharing, ridge};
use crate::offline::{Measured, Run};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sparseop::ScalarKind;
use sparseop::device::{Ceilings, DeviceSpec};
use sparseop::formats::packed::{APART, stand_ins};
use sparseop::formats::{Plan, Target};
use sparseop::tuning::correction::{Correction, Feature, Features, features};
use sparseop::tuning::cost::{self, Amounts, Prediction, Reach, Term};
use sparseop::tuning::profile::{Profile, SCHEMA};
use sparseop::tuning::record::{Record, Regret, Validation};
use sparseop::tuning::{Predictor, select};
use std::collections::{BTreeMap, BTreeSet};

/// The class of matrices that are made to spread amounts, not to stand for what people have: fitted to, and not judged by.
pub const SWEEP: &str = "sweep";

/// Entries that a matrix has at least to be judged by: products of smaller ones take hardly longer than it takes to start them.
pub const JUDGED_ENTRIES: u64 = 100_000;

/// Sizes that are tried for the cache a product may live in, in bytes, rising. The one whose fits to the other classes choose best is taken; on a
/// GPU among the products that are larger than all of them: those within a few of these sizes vary more from one tuning to the next than the
/// sizes differ, and what they decide is paid for by the large ones. On an H200, whose L2 has 63 MB, fits to all classes chose large
/// products alike with anything from 64 MB on. For a CPU collections have few that large: by those alone 64 MB was taken on Zen 4 cores, where
/// fits chose with a mean regret of 1.075 held out, and with 8 MB of 1.06.
const CACHES: [f64; 10] = [1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 96e6, 128e6, 192e6];

/// Those of [`CACHES`] that are tried for a device: on a CPU all but the last three; on a GPU, whose L2 and collections of matrices are larger, those
/// no smaller than its L2. Fits for an H200 chose as well on their own matrices with 1 and 32 MB, and for stencils with few values, which were not
/// among them, took plans 1.4 and 1.3 times as long as others.
fn caches(device: &DeviceSpec) -> &'static [f64] {
    match &device.gpu {
        None => &CACHES[..CACHES.len() - 3],
        Some(gpu) => {
            let small = CACHES.partition_point(|&bytes| bytes < gpu.l2_bytes as f64);
            &CACHES[small.min(CACHES.len() - 1)..]
        }
    }
}

/// Runs of a kernel below which the one that stands for it says more.
const FEWEST: usize = 4;

/// Where measurements come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of the kernels.
    pub kernels: String,
    /// The device.
    pub device: DeviceSpec,
    /// What it reaches at best.
    pub ceilings: Ceilings,
    /// The day, `YYYY-MM-DD`.
    pub date: String,
    /// The command.
    pub command: String,
}

/// A profile and the choices it was judged by.
#[derive(Debug, Clone)]
pub struct Refit {
    /// The profile; its records say what was chosen.
    pub profile: Profile,
    /// The choice for every judged matrix by a fit without its class; where there is but one class, by the profile itself. In the order of
    /// the measurements.
    pub choices: Vec<Choice>,
}

/// A choice, and what was to be chosen.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The matrix: an index into the measurements.
    pub measured: usize,
    /// The time of the chosen plan over that of the fastest.
    pub regret: f64,
    /// The chosen plan.
    pub chosen: Predicted,
    /// The fastest plan.
    pub fastest: Predicted,
    /// Nanoseconds of a product that were predicted for every run of the matrix, in their order; none where nothing was known of its
    /// kernel.
    pub predictions: Vec<Option<f64>>,
}

/// A plan's measured time, and what was predicted.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The plan.
    pub plan: Plan,
    /// Nanoseconds of a product, measured.
    pub product: f64,
    /// What it does.
    pub amounts: Amounts,
    /// What was predicted; none when nothing was known of its kernel.
    pub prediction: Option<Prediction>,
}

/// Fits a profile to measurements, and judges it: each class of matrices by a fit to the others.
///
/// The correction is part of it where that lowers the held-out regret.
pub fn profile(measured: &[Measured], provenance: &Provenance) -> Refit {
    let judged = judged(measured);
    let plain = with_best_cache(measured, &judged, provenance);
    let candidates = [false, true].map(|corrected| {
        let profile = fitted(&all(measured), &plain, corrected);
        let held_out = held_out(measured, &judged, &plain, corrected);
        let choices = held_out.clone().unwrap_or_else(|| choices(measured, &judged, &profile));
        (profile, choices, held_out.is_some())
    });
    let mean = |choices: &[Choice]| regret(choices.iter()).geometric_mean;
    let [without, with] = candidates;
    let (mut profile, choices, is_held_out) = if mean(&with.1) < mean(&without.1) { with } else { without };
    profile.validation = validation(measured, &judged, &profile, is_held_out.then_some(&choices));
    profile.records = records(measured, &profile, is_held_out.then_some(&choices));
    Refit { profile, choices }
}

/// The plan that `profile` chooses among those that were measured, for as many products as make preparation negligible; as
/// [`select::select`] does.
pub fn choice<'a>(measured: &'a Measured, profile: &Profile) -> Option<&'a Plan> {
    chosen(measured, profile).map(|run| &run.plan)
}

fn chosen<'a>(measured: &'a Measured, profile: &Profile) -> Option<&'a Run> {
    let predictor = Predictor::at_home(profile);
    let on = Target::of(&profile.device);
    let eligible = measured.runs.iter().filter(|run| run.plan.is_eligible(on));
    let predicted = eligible.filter_map(|run| {
        let prediction = predictor.predict(&run.plan, &run.traffic, &measured.facts, measured.scalar).1?;
        Some(((prediction.product(), run.traffic.matrix_bytes), run))
    });
    let (times, runs): (Vec<_>, Vec<_>) = predicted.unzip();
    select::choose(&times).map(|choice| runs[choice.place])
}

/// A profile like `whole`, which was fitted to all of `measured`, fitted to those that are not of a class.
pub fn without(measured: &[Measured], class: &str, whole: &Profile) -> Profile {
    let others: Vec<&Measured> = measured.iter().filter(|m| m.class != class).collect();
    fitted(&others, whole, whole.correction.is_some())
}

impl Measured {
    /// Whether profiles are judged by it: it is not made to be fitted to, and has [`JUDGED_ENTRIES`].
    pub fn is_judged(&self) -> bool {
        self.class != SWEEP && self.facts.nnz >= JUDGED_ENTRIES
    }
}

/// The matrices to judge by; all where none qualifies.
fn judged(measured: &[Measured]) -> Vec<usize> {
    let judged: Vec<usize> = (0..measured.len()).filter(|&i| measured[i].is_judged()).collect();
    if judged.is_empty() { (0..measured.len()).collect() } else { judged }
}

fn all(measured: &[Measured]) -> Vec<&Measured> {
    measured.iter().collect()
}

/// The profile without correction, of the cache size that chooses best.
fn with_best_cache(measured: &[Measured], judged: &[usize], provenance: &Provenance) -> Profile {
    let Provenance { kernels, device, ceilings, date, command } = provenance.clone();
    let caches = caches(&device);
    let empty = Profile {
        schema: SCHEMA,
        kernels,
        reach: Reach::usual(&device),
        device,
        date,
        command,
        ceilings,
        cache_bytes: CACHES[0],
        validation: Validation::default(),
        coefficients: BTreeMap::new(),
        correction: None,
        records: Vec::new(),
    };
    let largest = caches.last().copied().unwrap_or(CACHES[0]);
    let is_large = |m: &Measured| {
        let least = m.runs.iter().map(|run| run.traffic.bytes()).min();
        least.is_some_and(|bytes| bytes as f64 > largest)
    };
    let large: Vec<usize> = judged.iter().copied().filter(|&i| is_large(&measured[i])).collect();
    let judges = if large.is_empty() || empty.device.gpu.is_none() { judged } else { &large };
    let tried = caches.par_iter().map(|&cache_bytes| {
        let profile = fitted(&all(measured), &Profile { cache_bytes, ..empty.clone() }, false);
        let choices = held_out(measured, judges, &profile, false)
            .unwrap_or_else(|| choices(measured, judges, &profile));
        (regret(choices.iter()).geometric_mean, profile)
    });
    // In the order of the sizes, so that of equals the smallest is taken whatever thread was first.
    let tried: Vec<_> = tried.collect();
    tried.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(empty, |best| best.1)
}

/// The choice for every judged matrix by a fit to the other classes; none where there is but one class.
fn held_out(
    measured: &[Measured],
    judged: &[usize],
    plain: &Profile,
    corrected: bool,
) -> Option<Vec<Choice>> {
    let classes: BTreeSet<&str> = judged.iter().map(|&i| &*measured[i].class).collect();
    if classes.len() < 2 {
        return None;
    }
    let of_class = |class: &&str| {
        let own: Vec<usize> = judged.iter().copied().filter(|&i| measured[i].class == *class).collect();
        let others: Vec<&Measured> = measured.iter().filter(|m| m.class != *class).collect();
        choices(measured, &own, &fitted(&others, plain, corrected))
    };
    let mut choices: Vec<Choice> =
        classes.into_iter().collect::<Vec<_>>().par_iter().flat_map_iter(of_class).collect();
    choices.sort_by_key(|choice| choice.measured);
    Some(choices)
}

/// The choices of a profile.
fn choices(measured: &[Measured], judged: &[usize], profile: &Profile) -> Vec<Choice> {
    let on = Target::of(&profile.device);
    let predictor = Predictor::at_home(profile);
    let of = |&i: &usize| {
        let m = &measured[i];
        let (chosen, fastest) = (chosen(m, profile)?, m.fastest(on)?);
        let predict = |run: &Run| predictor.predict(&run.plan, &run.traffic, &m.facts, m.scalar);
        let predicted = |run: &Run| {
            let (amounts, prediction) = predict(run);
            Predicted { plan: run.plan.clone(), product: run.product, amounts, prediction }
        };
        Some(Choice {
            measured: i,
            regret: chosen.product / fastest.product,
            chosen: predicted(chosen),
            fastest: predicted(fastest),
            predictions: m.runs.iter().map(|run| Some(predict(run).1?.product())).collect(),
        })
    };
    judged.iter().filter_map(of).collect()
}

fn regret<'a>(choices: impl Iterator<Item = &'a Choice>) -> Regret {
    Regret::of(&choices.map(|choice| choice.regret).collect::<Vec<_>>())
}

fn validation(
    measured: &[Measured],
    judged: &[usize],
    profile: &Profile,
    held_out: Option<&Vec<Choice>>,
) -> Validation {
    let mut classes: BTreeMap<&str, Vec<&Choice>> = BTreeMap::new();
    for choice in held_out.into_iter().flatten() {
        classes.entry(&measured[choice.measured].class).or_default().push(choice);
    }
    let of_class = |(class, choices): (&str, Vec<&Choice>)| (class.to_owned(), regret(choices.into_iter()));
    Validation {
        in_sample: regret(choices(measured, judged, profile).iter()),
        held_out: held_out.map(|choices| regret(choices.iter())),
        held_out_classes: classes.into_iter().map(of_class).collect(),
        calibrated: None,
    }
}

fn records(measured: &[Measured], profile: &Profile, held_out: Option<&Vec<Choice>>) -> Vec<Record> {
    let of = |(i, m): (usize, &Measured)| {
        let held_out = held_out.and_then(|choices| choices.iter().find(|c| c.measured == i));
        m.record(choice(m, profile), held_out.map(|c| &c.chosen.plan))
    };
    measured.iter().enumerate().map(of).collect()
}

/// A profile like `base` with coefficients, and a correction if wished, fitted to measurements.
fn fitted(measured: &[&Measured], base: &Profile, corrected: bool) -> Profile {
    let mut profile = Profile { coefficients: BTreeMap::new(), correction: None, ..base.clone() };
    let mut groups = by_kernel(measured, Target::of(&base.device));
    let known: BTreeSet<(ScalarKind, &str)> =
        groups.iter().filter(|(_, runs)| runs.len() >= FEWEST).map(|(&key, _)| key).collect();
    // Few runs have little to say of matrices that are unlike theirs: a kernel that differs in nothing but bytes says more.
    groups.retain(|&(scalar, kernel), runs| {
        runs.len() >= FEWEST || !stand_ins(kernel).any(|name| known.contains(&(scalar, &*name)))
    });
    let mut families: BTreeMap<_, Vec<(&str, Vec<Observation>)>> = BTreeMap::new();
    let observed: Observed = groups
        .iter()
        .map(|(&key, runs)| (key, runs.iter().map(|run| run.observation(base)).collect()))
        .collect();
    for (&(scalar, kernel), own) in &observed {
        // Those that keep rows apart add up their pieces in the same code; the others are families by themselves.
        let family = if kernel.ends_with(APART) { APART } else { kernel };
        let observations = own.iter().copied().chain(of_kin(&observed, scalar, kernel)).collect();
        families.entry((scalar, family)).or_default().push((kernel, observations));
    }
    for ((scalar, _), family) in &families {
        let observations: Vec<&[Observation]> = family.iter().map(|(_, all)| all.as_slice()).collect();
        let kernels = family.iter().map(|(kernel, _)| (*kernel).to_owned());
        let fitted = kernels.zip(fit_sharing(&observations, Term::Apart));
        profile.coefficients.entry(*scalar).or_default().extend(fitted);
    }
    if corrected {
        profile.correction = Some(correction(&groups, &profile));
    }
    profile
}

/// The measurements of every kernel, by scalar.
type Observed = BTreeMap<(ScalarKind, &'static str), Vec<Observation>>;

/// What the other kernels of a format took, to say a little of one of them: of a kernel that was run on few matrices, or on few kinds of them,
/// what a slot or a row takes cannot be told apart.
fn of_kin(observed: &Observed, scalar: ScalarKind, kernel: &str) -> Vec<Observation> {
    /// Measurements of its own that all of them together weigh as much as. Held out on an H200 the regret was 1.030, at the 95th percentile 1.222,
    /// without; 1.027 and 1.17 with 3 to 5; and 1.031 and 1.238 with 12. On two cores of Zen 4 1.058 without, 1.052 with 3 and 1.054 with 6.
    const SHARE: f64 = 3.0;
    fn format(kernel: &str) -> Option<&str> {
        kernel.split('.').next()
    }
    let is_kin =
        |of: ScalarKind, other: &str| of == scalar && other != kernel && format(other) == format(kernel);
    let kin = observed.iter().filter(|((of, other), _)| is_kin(*of, other));
    let kin: Vec<&Observation> = kin.flat_map(|(_, observations)| observations).collect();
    let share = (SHARE / kin.len() as f64).min(1.0).sqrt();
    // Packing differs from one to the other.
    let lent = |o: &Observation| Observation { weight: o.weight * share, prepare: 0.0, ..*o };
    kin.into_iter().map(lent).collect()
}

/// A run and the matrix it was on.
#[derive(Clone, Copy)]
struct Seen<'a> {
    of: &'a Measured,
    run: &'a Run,
    /// The time of the fastest plan on that matrix.
    least: f64,
}

/// The runs of every kernel, by scalar.
fn by_kernel<'a>(
    measured: &[&'a Measured],
    on: Target,
) -> BTreeMap<(ScalarKind, &'static str), Vec<Seen<'a>>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for of in measured {
        let least = of.fastest(on).map_or(0.0, |run| run.product);
        for run in &of.runs {
            let group = groups.entry((of.scalar, run.plan.kernel(on))).or_default();
            group.push(Seen { of, run, least });
        }
    }
    groups
}

impl Seen<'_> {
    fn observation(&self, profile: &Profile) -> Observation {
        /// How the weight of an error falls with the distance from the fastest plan: as this power. Errors far from it hardly matter to
        /// the choice, but a kernel that is seldom near it has no others. Held out on an H200 the mean regret was 1.026 or 1.027 from 0.3 to 0.8, the
        /// 95th percentile 1.18 with 0.3 and 1.21 beyond; 1 chose worse.
        const FALL: f64 = 0.3;
        let Self { of, run, least } = self;
        let traffic = &run.traffic;
        let (cache, reach) = (profile.cache_bytes, &profile.reach);
        Observation {
            amounts: cost::amounts(traffic, &of.facts, cache, reach, &profile.device),
            packed: cost::packed(traffic),
            product: run.product,
            prepare: run.prepare,
            weight: (least / run.product).powf(FALL),
        }
    }
}

/// What the times are over their predictions, as a function of features.
fn correction(groups: &BTreeMap<(ScalarKind, &'static str), Vec<Seen<'_>>>, profile: &Profile) -> Correction {
    /// Runs of a kernel below which nothing can be said of so many features.
    const FEWEST_FOR_FEATURES: usize = 12;
    /// In units of a run: hardly anything for kernels that were run hundreds of times (3 to 30 chose alike on an H200).
    const PENALTY: f64 = 10.0;
    /// A factor of e or 1/e: what is off by more is not to be mended.
    const LIMIT: f32 = 1.0;
    let predictor = Predictor::at_home(profile);
    let mut ranges = [(f32::INFINITY, f32::NEG_INFINITY); Feature::COUNT];
    let mut weights: BTreeMap<ScalarKind, BTreeMap<_, _>> = BTreeMap::new();
    for (&(scalar, kernel), runs) in groups.iter().filter(|(_, runs)| runs.len() >= FEWEST_FOR_FEATURES) {
        let logs: Vec<(Features, f64)> = runs
            .iter()
            .filter_map(|Seen { of, run, .. }| {
                let sum = predictor.predict(&run.plan, &run.traffic, &of.facts, scalar).1?.sum();
                let log = (run.product / sum).ln();
                log.is_finite().then(|| (features(&run.traffic, &of.facts, profile.cache_bytes), log))
            })
            .collect();
        for (features, _) in &logs {
            for (range, &value) in ranges.iter_mut().zip(features) {
                *range = (range.0.min(value as f32), range.1.max(value as f32));
            }
        }
        let (bias, of_features) = ridge(&logs, PENALTY);
        let of_features = of_features.iter().map(|&w| w as f32).collect();
        weights.entry(scalar).or_default().insert(kernel.to_owned(), (bias as f32, of_features));
    }
    if weights.is_empty() {
        ranges = [(0.0, 0.0); Feature::COUNT];
    }
    Correction { features: Feature::ALL.to_vec(), ranges: ranges.to_vec(), limit: LIMIT, weights }
}

#[cfg(test)]
mod tests;
