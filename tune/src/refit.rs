//! Profiles from measurements: fitted, and validated on held-out classes of matrices.

use crate::caches::caches;
use crate::correction::{Residual, curves, deviation};
use crate::fit::{Observation, fit_sharing};
use crate::offline::{Measured, PlanRun};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sparseop::ScalarKind;
use sparseop::device::{Ceilings, DeviceSpec, prepare_threads};
use sparseop::formats::{Plan, Target};
use sparseop::tuning::correction::{Correction, correction_features};
use sparseop::tuning::cost::{self, CacheReach, Term, WorkTerms};
use sparseop::tuning::prediction::Prediction;
use sparseop::tuning::profile::{Profile, SCHEMA};
use sparseop::tuning::record::{Record, Regret, Validation};
use sparseop::tuning::{Predictor, select};
use std::collections::{BTreeMap, BTreeSet};

/// Class of matrices that vary work terms systematically and do not represent applications.
/// They are used for fitting and not for validation.
pub const SWEEP: &str = "sweep";

/// Class of matrices of which every seed is a structure of its own.
const RANDOM: &str = "random";

/// Number of parts in which random structures are held out.
const RANDOM_PARTS: u32 = 8;

/// Least number of entries of a matrix for validation. The time of products of smaller matrices is
/// mostly start-up overhead.
pub const JUDGED_ENTRIES: u64 = 100_000;

/// Number of runs of a kernel below which the fallback kernel is a better source of coefficients.
const MIN: usize = 4;

/// Origin of measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of the kernels.
    pub kernels: String,
    /// The device.
    pub device: DeviceSpec,
    /// Ceilings of the device.
    pub ceilings: Ceilings,
    /// Date, `YYYY-MM-DD`.
    pub date: String,
    /// The command.
    pub command: String,
}

impl Provenance {
    /// A profile without coefficients.
    fn profile(&self) -> Profile {
        let Self { kernels, device, ceilings, date, command } = self.clone();
        Profile {
            schema: SCHEMA,
            kernels,
            cache_reach: CacheReach::usual(&device),
            cache_bytes: caches(&device)[0],
            device,
            date,
            command,
            ceilings,
            validation: Validation::default(),
            coefficients: BTreeMap::new(),
            correction: None,
            records: Vec::new(),
        }
    }

    /// Description of an inadmissible value, if any: provenance may come from a file.
    pub fn defect(&self) -> Option<String> {
        self.profile().defect()
    }
}

/// A profile, with the choices of its validation.
#[derive(Debug, Clone)]
pub struct Refit {
    /// The profile; its records contain its choices.
    pub profile: Profile,
    /// Choice for every validation matrix by a fit without its class, or by the profile itself if
    /// there is only one class. In the order of the measurements.
    pub choices: Vec<JudgedChoice>,
}

/// A choice of the profile, compared with the fastest plan.
#[derive(Debug, Clone)]
pub struct JudgedChoice {
    /// Index of the matrix in the measurements.
    pub measured: usize,
    /// Time of the chosen plan over that of the fastest.
    pub regret: f64,
    /// The chosen plan.
    pub chosen: Predicted,
    /// The fastest plan.
    pub fastest: Predicted,
    /// Predicted nanoseconds of a product for every run of the matrix, in their order; `None` if
    /// the kernel has no coefficients.
    pub predictions: Vec<Option<f64>>,
}

/// Measured and predicted time of a plan.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The plan.
    pub plan: Plan,
    /// Measured nanoseconds of a product.
    pub product: f64,
    /// Work terms of the product.
    pub work_terms: WorkTerms,
    /// Prediction; `None` if the kernel has no coefficients.
    pub prediction: Option<Prediction>,
}

/// Fits a profile to measurements and validates it: each class of matrices by a fit to the other
/// classes, and each part of the random structures by a fit to all others.
///
/// The profile includes a correction if that lowers the held-out regret.
pub fn profile(measured: &[Measured], provenance: &Provenance) -> Refit {
    prepare_threads();
    let judged = judged(measured);
    let candidates = [false, true].map(|corrected| {
        let profile = with_best_cache(measured, &judged, provenance, corrected);
        let held_out = held_out(measured, &judged, &profile, corrected);
        let choices = held_out.clone().unwrap_or_else(|| choices(measured, &judged, &profile));
        (profile, choices, held_out.is_some())
    });
    let mean = |choices: &[JudgedChoice]| regret(choices.iter()).geometric_mean;
    let [without, with] = candidates;
    let (mut profile, choices, is_held_out) =
        if mean(&with.1) < mean(&without.1) { with } else { without };
    if is_held_out {
        held_out_spreads(&mut profile, measured, &choices);
    }
    profile.validation = validation(measured, &judged, &profile, is_held_out.then_some(&choices));
    profile.records = records(measured, &profile, is_held_out.then_some(&choices));
    Refit { profile, choices }
}

/// The plan that `profile` chooses among the measured ones, as [`select::select`] does, with enough
/// products to make preparation negligible.
pub fn choice<'a>(measured: &'a Measured, profile: &Profile) -> Option<&'a Plan> {
    chosen(measured, profile).map(|run| &run.plan)
}

fn chosen<'a>(measured: &'a Measured, profile: &Profile) -> Option<&'a PlanRun> {
    let predictor = Predictor::for_own_device(profile);
    let on = Target::of(&profile.device);
    let eligible = measured.runs.iter().filter(|run| run.plan.is_eligible(on));
    let predicted = eligible.filter_map(|run| {
        let prediction =
            predictor.predict(&run.plan, &run.work, &measured.features, measured.scalar).1?;
        let (product, bytes) = (prediction.expected(), run.work.matrix_bytes);
        Some((select::Rank { product, prepare: 0.0, bytes }, run))
    });
    let (ranks, runs): (Vec<_>, Vec<_>) = predicted.unzip();
    select::choose(&ranks, 1).map(|place| runs[place])
}

/// A profile like `whole`, which was fitted to all of `measured`, fitted without the matrices of a
/// class.
pub fn without(measured: &[Measured], class: &str, whole: &Profile) -> Profile {
    let others: Vec<&Measured> = measured.iter().filter(|m| m.class != class).collect();
    fitted(&others, whole, whole.correction.is_some())
}

impl Measured {
    /// True if the matrix is used for validation: it is not of the class [`SWEEP`], and has at
    /// least [`JUDGED_ENTRIES`] entries.
    pub fn is_judged(&self) -> bool {
        self.class != SWEEP && self.features.nnz >= JUDGED_ENTRIES
    }

    /// The matrices that are held out together: a class, or of the random structures, which have
    /// nothing in common but their generator, one in [`RANDOM_PARTS`].
    fn group(&self) -> (&str, u32) {
        let name = self.matrix.bytes().map(u32::from).sum::<u32>();
        (&self.class, if self.class == RANDOM { name % RANDOM_PARTS } else { 0 })
    }
}

/// Indices of the validation matrices; all if none qualifies.
pub(crate) fn judged(measured: &[Measured]) -> Vec<usize> {
    let judged: Vec<usize> = (0..measured.len()).filter(|&i| measured[i].is_judged()).collect();
    if judged.is_empty() { (0..measured.len()).collect() } else { judged }
}

fn all(measured: &[Measured]) -> Vec<&Measured> {
    measured.iter().collect()
}

/// The profile with the best candidate for the cache size.
fn with_best_cache(
    measured: &[Measured],
    judged: &[usize],
    provenance: &Provenance,
    corrected: bool,
) -> Profile {
    /// Relative difference of regrets that is none: sets of hundreds of matrices differ by more. Of
    /// equally good sizes the middle one is chosen.
    const EQUAL: f64 = 0.005;
    let empty = provenance.profile();
    let caches = caches(&empty.device);
    let largest = caches.last().copied().unwrap_or(empty.cache_bytes);
    let is_large = |m: &Measured| {
        let least = m.runs.iter().map(|run| run.work.bytes()).min();
        least.is_some_and(|bytes| bytes as f64 > largest)
    };
    let large: Vec<usize> = judged.iter().copied().filter(|&i| is_large(&measured[i])).collect();
    let judges = if large.is_empty() || empty.device.gpu.is_none() { judged } else { &large };
    let tried = caches.par_iter().map(|&cache_bytes| {
        let base = Profile { cache_bytes, ..empty.clone() };
        let profile = fitted(&all(measured), &base, corrected);
        let choices = held_out(measured, judges, &profile, corrected)
            .unwrap_or_else(|| choices(measured, judges, &profile));
        (regret(choices.iter()).geometric_mean, profile)
    });
    // In the order of the sizes, independent of the order of threads.
    let tried: Vec<_> = tried.collect();
    let least = tried.iter().map(|(regret, _)| *regret).fold(f64::INFINITY, f64::min);
    let near = tried.into_iter().filter(|(regret, _)| *regret <= least * (1.0 + EQUAL));
    let mut near: Vec<Profile> = near.map(|(_, profile)| profile).collect();
    if near.is_empty() { empty } else { near.swap_remove((near.len() - 1) / 2) }
}

/// Choice for every validation matrix by a fit to the other groups; `None` if there is only one
/// group.
fn held_out(
    measured: &[Measured],
    judged: &[usize],
    plain: &Profile,
    corrected: bool,
) -> Option<Vec<JudgedChoice>> {
    let groups: BTreeSet<_> = judged.iter().map(|&i| measured[i].group()).collect();
    if groups.len() < 2 {
        return None;
    }
    let of_group = |group: &(&str, u32)| {
        let own: Vec<usize> =
            judged.iter().copied().filter(|&i| measured[i].group() == *group).collect();
        let others: Vec<&Measured> = measured.iter().filter(|m| m.group() != *group).collect();
        choices(measured, &own, &fitted(&others, plain, corrected))
    };
    let mut choices: Vec<JudgedChoice> =
        groups.into_iter().collect::<Vec<_>>().par_iter().flat_map_iter(of_group).collect();
    choices.sort_by_key(|choice| choice.measured);
    Some(choices)
}

/// Choices of a profile.
pub(crate) fn choices(
    measured: &[Measured],
    judged: &[usize],
    profile: &Profile,
) -> Vec<JudgedChoice> {
    let on = Target::of(&profile.device);
    let predictor = Predictor::for_own_device(profile);
    let of = |&i: &usize| {
        let m = &measured[i];
        let (chosen, fastest) = (chosen(m, profile)?, m.fastest(on)?);
        let predict =
            |run: &PlanRun| predictor.predict(&run.plan, &run.work, &m.features, m.scalar);
        let predicted = |run: &PlanRun| {
            let (work_terms, prediction) = predict(run);
            Predicted { plan: run.plan.clone(), product: run.product, work_terms, prediction }
        };
        Some(JudgedChoice {
            measured: i,
            regret: chosen.product / fastest.product,
            chosen: predicted(chosen),
            fastest: predicted(fastest),
            predictions: m.runs.iter().map(|run| Some(predict(run).1?.product())).collect(),
        })
    };
    judged.iter().filter_map(of).collect()
}

pub(crate) fn regret<'a>(choices: impl Iterator<Item = &'a JudgedChoice>) -> Regret {
    Regret::of(&choices.map(|choice| choice.regret).collect::<Vec<_>>())
}

fn validation(
    measured: &[Measured],
    judged: &[usize],
    profile: &Profile,
    held_out: Option<&Vec<JudgedChoice>>,
) -> Validation {
    let mut classes: BTreeMap<&str, Vec<&JudgedChoice>> = BTreeMap::new();
    for choice in held_out.into_iter().flatten() {
        classes.entry(&measured[choice.measured].class).or_default().push(choice);
    }
    let of_class = |(class, choices): (&str, Vec<&JudgedChoice>)| {
        (class.to_owned(), regret(choices.into_iter()))
    };
    Validation {
        in_sample: regret(choices(measured, judged, profile).iter()),
        held_out: held_out.map(|choices| regret(choices.iter())),
        held_out_classes: classes.into_iter().map(of_class).collect(),
        calibrated: None,
    }
}

fn records(
    measured: &[Measured],
    profile: &Profile,
    held_out: Option<&Vec<JudgedChoice>>,
) -> Vec<Record> {
    let of = |(i, m): (usize, &Measured)| {
        let held_out = held_out.and_then(|choices| choices.iter().find(|c| c.measured == i));
        m.record(choice(m, profile), held_out.map(|c| &c.chosen.plan))
    };
    measured.iter().enumerate().map(of).collect()
}

/// A profile like `base` with coefficients, and if `corrected` a correction, fitted to
/// measurements.
pub(crate) fn fitted(measured: &[&Measured], base: &Profile, corrected: bool) -> Profile {
    let mut profile = Profile { coefficients: BTreeMap::new(), correction: None, ..base.clone() };
    let mut groups = by_kernel(measured, Target::of(&base.device));
    let known: BTreeSet<(ScalarKind, &str)> =
        groups.iter().filter(|(_, runs)| runs.len() >= MIN).map(|(&key, _)| key).collect();
    // A few runs give little information about matrices unlike theirs. A kernel that differs only
    // in the number of bytes gives more.
    groups.retain(|&(scalar, kernel), runs| {
        runs.len() >= MIN
            || !Plan::fallback_cost_keys(kernel)
                .iter()
                .any(|name| known.contains(&(scalar, name.as_str())))
    });
    let mut families: BTreeMap<_, Vec<(&str, Vec<Observation>)>> = BTreeMap::new();
    let observed: Observed = groups
        .iter()
        .map(|(&key, runs)| (key, runs.iter().map(|run| run.observation(base)).collect()))
        .collect();
    for (&(scalar, kernel), own) in &observed {
        // Kernels that multiplied long rows form one family: the same code adds the sums of these
        // rows. Every other kernel is a family of its own.
        let has_long_rows = groups[&(scalar, kernel)].iter().any(|run| run.run.work.long_rows > 0);
        let family = (!has_long_rows).then_some(kernel);
        let observations = own.iter().copied().chain(pooled(&observed, scalar, kernel)).collect();
        families.entry((scalar, family)).or_default().push((kernel, observations));
    }
    for ((scalar, _), family) in &families {
        let observations: Vec<&[Observation]> =
            family.iter().map(|(_, all)| all.as_slice()).collect();
        let kernels = family.iter().map(|(kernel, _)| (*kernel).to_owned());
        let fitted = kernels.zip(fit_sharing(&observations, Term::LongRowLatency));
        profile.coefficients.entry(*scalar).or_default().extend(fitted);
    }
    if corrected {
        profile.correction = Some(correction(&groups, &profile));
    }
    profile
}

/// Observations of every kernel, by scalar type.
type Observed = BTreeMap<(ScalarKind, &'static str), Vec<Observation>>;

/// Pooled observations of the other kernels of a format, for partial pooling. With a kernel that
/// was run on few matrices, or on few kinds of matrices, the costs of a slot and of a row cannot be
/// distinguished.
fn pooled(observed: &Observed, scalar: ScalarKind, kernel: &str) -> Vec<Observation> {
    /// Weight of all pooled observations together, in observations of the kernel itself. The
    /// held-out regret on an H200 was 1.030 and at the 95th percentile 1.222 without pooling; 1.027
    /// and 1.17 with 3 to 5; 1.031 and 1.238 with 12. On two cores of Zen 4 it was 1.058 without,
    /// 1.052 with 3 and 1.054 with 6.
    const SHARE: f64 = 3.0;
    fn format(kernel: &str) -> Option<&str> {
        kernel.split('.').next()
    }
    let is_pooled = |of: ScalarKind, other: &str| {
        of == scalar && other != kernel && format(other) == format(kernel)
    };
    let pooled = observed.iter().filter(|((of, other), _)| is_pooled(*of, other));
    let pooled: Vec<&Observation> = pooled.flat_map(|(_, observations)| observations).collect();
    let share = (SHARE / pooled.len() as f64).min(1.0).sqrt();
    // Packing times differ between kernels and are not pooled.
    let weighted = |o: &Observation| Observation { weight: o.weight * share, prepare: 0.0, ..*o };
    pooled.into_iter().map(weighted).collect()
}

/// A run and its matrix.
#[derive(Clone, Copy)]
struct ObservedRun<'a> {
    of: &'a Measured,
    run: &'a PlanRun,
    /// Time of the fastest plan on that matrix.
    least: f64,
}

/// Runs of every kernel, by scalar type.
fn by_kernel<'a>(
    measured: &[&'a Measured],
    on: Target,
) -> BTreeMap<(ScalarKind, &'static str), Vec<ObservedRun<'a>>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for of in measured {
        let least = of.fastest(on).map_or(0.0, |run| run.product);
        for run in &of.runs {
            let group = groups.entry((of.scalar, run.plan.cost_key_of(on, &run.work))).or_default();
            group.push(ObservedRun { of, run, least });
        }
    }
    groups
}

impl ObservedRun<'_> {
    fn observation(&self, profile: &Profile) -> Observation {
        /// Exponent of the decrease of the weight of an error with the distance from the fastest
        /// plan. Errors far from it hardly affect the choice, but a kernel that is seldom near it
        /// has no others. The held-out mean regret on an H200 was 1.026 or 1.027 from 0.3 to 0.8,
        /// the 95th percentile 1.18 with 0.3 and 1.21 above; 1 chose worse.
        const FALL: f64 = 0.3;
        let Self { of, run, least } = self;
        let work = &run.work;
        let (cache, reach) = (profile.cache_bytes, &profile.cache_reach);
        Observation {
            work_terms: cost::work_terms(work, &of.features, cache, reach, &profile.device),
            packed: cost::packed(work),
            product: run.product,
            prepare: run.prepare,
            weight: (least / run.product).powf(FALL),
        }
    }
}

/// Fits the ratio of measured to predicted times as a function of features.
fn correction(
    groups: &BTreeMap<(ScalarKind, &'static str), Vec<ObservedRun<'_>>>,
    profile: &Profile,
) -> Correction {
    /// Least number of runs of a kernel for a fit of the features.
    const MIN_FOR_FEATURES: usize = 12;
    /// Penalty in units of a run that is the fastest of its matrix. On two cores of Zen 4, 30 to
    /// 200 chose equally well with hundreds of runs.
    const PENALTY: f64 = 30.0;
    /// Limit of the logarithm: a factor of e or 1/e. Larger errors cannot be corrected.
    const LIMIT: f32 = 1.0;
    let predictor = Predictor::for_own_device(profile);
    let mut kernels: BTreeMap<ScalarKind, BTreeMap<_, _>> = BTreeMap::new();
    for (&(scalar, kernel), runs) in
        groups.iter().filter(|(_, runs)| runs.len() >= MIN_FOR_FEATURES)
    {
        let residual = |ObservedRun { of, run, least }: &ObservedRun<'_>| {
            let sum = predictor.predict(&run.plan, &run.work, &of.features, scalar).1?.sum();
            let log = (run.product / sum).ln();
            let features = correction_features(&run.work, &of.features, profile.cache_bytes);
            log.is_finite().then(|| Residual { features, log, weight: least / run.product })
        };
        let residuals: Vec<Residual> = runs.iter().filter_map(residual).collect();
        kernels.entry(scalar).or_default().insert(kernel.to_owned(), curves(&residuals, PENALTY));
    }
    Correction { limit: LIMIT, kernels }
}

/// Replaces the uncertainties of the fit by those of predictions for matrices that were held out.
fn held_out_spreads(profile: &mut Profile, measured: &[Measured], choices: &[JudgedChoice]) {
    /// Number of predictions below which the uncertainty of the fit is kept.
    const MIN_ERRORS: usize = 12;
    let on = Target::of(&profile.device);
    let Some(correction) = &mut profile.correction else { return };
    let mut errors: BTreeMap<(ScalarKind, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for choice in choices {
        let m = &measured[choice.measured];
        for (run, prediction) in m.runs.iter().zip(&choice.predictions) {
            let error = prediction.map(|predicted| (run.product / predicted).ln());
            let weight = choice.fastest.product / run.product;
            let of_kernel =
                errors.entry((m.scalar, run.plan.cost_key_of(on, &run.work))).or_default();
            of_kernel.extend(error.filter(|error| error.is_finite()).map(|error| (error, weight)));
        }
    }
    for ((scalar, kernel), errors) in errors {
        let learned = correction.kernels.get_mut(&scalar).and_then(|of| of.get_mut(kernel));
        let Some(learned) = learned.filter(|_| errors.len() >= MIN_ERRORS) else { continue };
        learned.spread = deviation(errors.into_iter()).unwrap_or(learned.spread);
    }
}

#[cfg(test)]
mod tests;
