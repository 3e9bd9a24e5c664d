//! Offline tuning: every plan measured on a collection of matrices, and a profile fitted to the times.

use super::arena::{Arena, DeviceArena, Ready};
use super::ceilings;
use super::cost::{self, Amounts, Prediction};
use super::fit::{Observation, fit};
use super::profile::{Profile, SCHEMA};
use super::record::{Regret, Validation};
use super::select::{self, Request};
use super::stopwatch::{Contestant, Policy, Samples, race};
use crate::analysis::Analysis;
use crate::device::Device;
use crate::formats::{FormatKind, Plan, Target, Traffic, Weights};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, ScalarKind};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes that are tried for the cache a product may live in, in bytes, rising. The one whose fit chooses best among the products that
/// are larger than all of them is taken: those within a few of these sizes vary more from one tuning to the next than the sizes differ,
/// and what they decide is paid for by the large ones.
const CACHES: [f64; 10] = [1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 96e6, 128e6, 192e6];

/// Those of [`CACHES`] that are tried for a device: the last three for GPUs alone, whose L2 and collections of matrices are larger.
fn caches(on: Target) -> &'static [f64] {
    match on {
        Target::Cpu => &CACHES[..CACHES.len() - 3],
        Target::Gpu => &CACHES,
    }
}

/// The measured times of every plan on one matrix.
#[derive(Debug, Clone)]
pub struct Measured {
    scalar: ScalarKind,
    plans: Vec<Run>,
}

/// One plan on one matrix.
#[derive(Debug, Clone)]
struct Run {
    plan: Plan,
    traffic: Traffic,
    /// With no cache at all: everything streams.
    amounts: Amounts,
    product: f64,
    prepare: f64,
}

impl Measured {
    /// Packs every candidate and races them on a device, in groups that together stay within eight times the memory limit of
    /// one, and on a GPU within half of its memory.
    ///
    /// # Errors
    ///
    /// What packing a plan gives, and what the device gives.
    pub fn of<T: Scalar>(a: &CsrMatrix<T>, device: &Device, policy: Policy) -> Result<Self, Error> {
        /// Packed matrices held at once, in memory limits of one.
        const TOGETHER: u64 = 8;
        let analysis = Analysis::of(a.view());
        let available = device.memory()?;
        let limit = Request::new(&analysis, T::KIND, available).memory_limit;
        let together = match device {
            Device::Cpu => limit.saturating_mul(TOGETHER),
            Device::Cuda(_) => limit.saturating_mul(TOGETHER).min(available / 2),
        };
        let mut plans = Plan::candidates(&analysis, &Weights::default(), Target::of(&device.spec()));
        plans.retain(|plan| plan.traffic(&analysis, T::KIND).matrix_bytes <= limit);
        let arena = DeviceArena::new(a, device, &crate::testing::x_vector::<T>(a.ncols()), false)?;
        let mut runs = Vec::new();
        let mut rest = plans.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |plan: &&Plan| {
                bytes += plan.traffic(&analysis, T::KIND).matrix_bytes;
                bytes <= together
            };
            let (group, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            runs.extend(race_all(&arena, group, &analysis, device, policy)?);
        }
        Ok(Self { scalar: T::KIND, plans: runs })
    }

    /// `(plan, seconds of a product, seconds of packing)` of every plan.
    pub fn times(&self) -> impl Iterator<Item = (&Plan, f64, f64)> {
        self.plans.iter().map(|r| (&r.plan, r.product * 1e-9, r.prepare * 1e-9))
    }

    /// The seconds that `profile` predicts for a product under every plan, in the order of [`Measured::times`]; none for a kernel that it
    /// has no coefficients of.
    pub fn predictions(&self, profile: &Profile) -> impl Iterator<Item = Option<f64>> {
        self.plans.iter().map(|run| Some(run.predicted(profile, self.scalar)? * 1e-9))
    }

    /// The plan that `profile` chooses among those that were measured, for as many products as make preparation negligible; as
    /// [`select::select`] does.
    pub fn choice(&self, profile: &Profile) -> Option<&Plan> {
        self.chosen(profile).map(|run| &run.plan)
    }

    /// The time of the plan that `profile` chooses, over that of the fastest.
    pub fn regret(&self, profile: &Profile) -> Option<f64> {
        let best = self.plans.iter().map(|run| run.product).min_by(f64::total_cmp)?;
        Some(self.chosen(profile)?.product / best)
    }

    /// Whether none of these caches, rising, holds what a product reads.
    fn is_large(&self, caches: &[f64]) -> bool {
        let least = self.plans.iter().map(|run| run.traffic.bytes()).min();
        least.zip(caches.last()).is_some_and(|(bytes, &last)| bytes as f64 > last)
    }

    fn chosen(&self, profile: &Profile) -> Option<&Run> {
        let on = Target::of(&profile.device);
        let eligible = self.plans.iter().filter(|run| run.plan.is_enqueued(on));
        let predicted = eligible.filter_map(|run| Some((run.predicted(profile, self.scalar)?, run)));
        let (times, runs): (Vec<_>, Vec<_>) =
            predicted.map(|(product, run)| ((product, run.traffic.matrix_bytes), run)).unzip();
        select::choose(&times).map(|choice| runs[choice.place])
    }
}

/// Packs and races some plans.
fn race_all<T: Scalar>(
    arena: &DeviceArena<'_, T>,
    plans: &[Plan],
    analysis: &Analysis,
    device: &Device,
    policy: Policy,
) -> Result<Vec<Run>, Error> {
    let packed = plans.iter().map(|plan| arena.pack(plan)).collect::<Result<Vec<_>, _>>()?;
    let mut turns: Vec<_> = packed.iter().map(|p| |repeats| arena.products(&p.matrix, repeats)).collect();
    let mut contestants: Vec<&mut Contestant<'_>> = turns.iter_mut().map(|t| t as _).collect();
    let samples = race(&mut contestants, policy);
    let run = |((plan, packed), samples): ((&Plan, &Ready<_>), Result<Samples, Error>)| {
        let traffic = plan.traffic(analysis, T::KIND);
        let amounts = cost::amounts(&traffic, analysis, 1.0, &device.spec());
        let product = samples?.median() * 1e9;
        let prepare = (packed.pack + packed.upload) * 1e9;
        Ok(Run { plan: plan.clone(), traffic, amounts, product, prepare })
    };
    plans.iter().zip(&packed).zip(samples).map(run).collect()
}

impl Run {
    /// The amounts for a device whose last cache holds `cache_bytes`.
    fn amounts(&self, cache_bytes: f64) -> Amounts {
        cost::with_cache(self.amounts, &self.traffic, cache_bytes)
    }

    /// The nanoseconds that `profile` predicts for a product on the device it was measured on.
    fn predicted(&self, profile: &Profile, scalar: ScalarKind) -> Option<f64> {
        let device = &profile.device;
        let c = profile.coefficients(scalar, self.plan.kernel(Target::of(device)))?;
        let amounts = self.amounts(profile.cache_bytes);
        Some(Prediction::new(c, &self.traffic, &amounts, device).product())
    }

    fn observation(&self, cache_bytes: f64) -> Observation {
        Observation {
            amounts: self.amounts(cache_bytes),
            packed: [(self.traffic.slots + self.traffic.tail) as f64, self.traffic.rows as f64],
            product: self.product,
            prepare: self.prepare,
        }
    }
}

/// Fits a profile of a device to what was measured on it.
///
/// `date` is the day (`YYYY-MM-DD`) and `command` what produced the measurements; both are only recorded.
pub fn profile(measured: &[Measured], device: &Device, date: &str, command: &str) -> Profile {
    let spec = device.spec();
    let on = Target::of(&spec);
    // A profile is of use without it.
    let ceilings = ceilings::measure(device).unwrap_or_default();
    let fitted = caches(on).iter().map(|&cache_bytes| {
        let mut profile = Profile {
            schema: SCHEMA,
            kernels: spec.kernels().to_owned(),
            device: spec.clone(),
            date: date.to_owned(),
            command: command.to_owned(),
            ceilings,
            cache_bytes,
            validation: Validation::default(),
            coefficients: BTreeMap::new(),
            records: Vec::new(),
        };
        for scalar in ScalarKind::ALL {
            let runs: Vec<&Run> =
                measured.iter().filter(|m| m.scalar == scalar).flat_map(|m| &m.plans).collect();
            let kernels: BTreeSet<&str> = runs.iter().map(|r| r.plan.kernel(on)).collect();
            for kernel in kernels {
                let of_kernel = runs.iter().filter(|r| r.plan.kernel(on) == kernel);
                let observations: Vec<_> = of_kernel.map(|r| r.observation(cache_bytes)).collect();
                profile.coefficients.entry(scalar).or_default().insert(kernel.to_owned(), fit(&observations));
            }
        }
        profile.validation = validation(measured, &profile);
        profile
    });
    let large: Vec<&Measured> = measured.iter().filter(|m| m.is_large(caches(on))).collect();
    let judges = if large.is_empty() { measured.iter().collect() } else { large };
    let regret = |profile: &Profile| Regret::of(&regrets(judges.iter().copied(), profile)).geometric_mean;
    let best = fitted.map(|profile| (regret(&profile), profile)).min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("there are sizes to try").1
}

/// The regret of every choice.
fn regrets<'a>(measured: impl Iterator<Item = &'a Measured>, profile: &Profile) -> Vec<f64> {
    measured.filter_map(|m| m.regret(profile)).collect()
}

/// How well a profile chooses on what was measured.
pub fn validation(measured: &[Measured], profile: &Profile) -> Validation {
    Validation { in_sample: Regret::of(&regrets(measured.iter(), profile)), ..Validation::default() }
}

/// Every kernel that a profile of a device should know.
pub fn kernels(device: &Device) -> BTreeSet<&'static str> {
    let on = Target::of(&device.spec());
    let examples = FormatKind::ALL.iter().flat_map(|k| k.examples());
    examples.filter_map(|text| text.parse::<Plan>().ok()).map(|plan| plan.kernel(on)).collect()
}
