//! Offline tuning: every plan measured on a matrix. What a profile makes of it is in [`refit`](super::refit).

use super::arena::{Arena, DeviceArena, Ready};
use super::facts::Facts;
use super::record::{Record, RecordedRun, RecordedStats};
use super::select::Request;
use super::stopwatch::{Contestant, Policy, race};
use crate::analysis::{Analysis, Fingerprint};
use crate::device::Device;
use crate::formats::{Plan, Target, Traffic, Weights};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, ScalarKind};
use serde::{Deserialize, Serialize};

/// The measured times of every plan on one matrix, with all that a fit needs: they can be kept, and fitted again without measuring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The matrix: a file's name or a gallery specification.
    pub matrix: String,
    /// The class of matrices it belongs to, which is held out as a whole.
    pub class: String,
    /// Its structure.
    pub fingerprint: Fingerprint,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// What predictions read of it.
    pub facts: Facts,
    /// Every plan that was measured, in the order of the candidates.
    pub runs: Vec<Run>,
    /// The plans that could not be measured, and why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(String, String)>,
}

/// One plan on one matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The plan.
    pub plan: Plan,
    /// What its product reads and does.
    pub traffic: Traffic,
    /// Nanoseconds of a product.
    pub product: f64,
    /// Nanoseconds of packing.
    pub prepare: f64,
}

impl Measured {
    /// Packs every candidate and races them on a device, in groups that together stay within eight times the memory limit of
    /// one, and on a GPU within half of its memory. `matrix` and `class` are only recorded.
    ///
    /// # Errors
    ///
    /// What the device gives. A plan that cannot be packed or run is recorded as failed.
    pub fn of<T: Scalar>(
        a: &CsrMatrix<T>,
        (matrix, class): (&str, &str),
        device: &Device,
        policy: Policy,
    ) -> Result<Self, Error> {
        /// Packed matrices held at once, in memory limits of one.
        const TOGETHER: u64 = 8;
        let analysis = Analysis::of(a.view());
        let available = device.memory()?;
        let limit = Request::new(&analysis, T::KIND, available).memory_limit;
        let together = match device {
            Device::Cpu => limit.saturating_mul(TOGETHER),
            Device::Cuda(_) => limit.saturating_mul(TOGETHER).min(available / 2),
        };
        let plans = Plan::candidates(&analysis, &Weights::default(), Target::of(&device.spec()));
        let plans: Vec<(Plan, Traffic)> = plans
            .into_iter()
            .map(|plan| (plan.clone(), plan.traffic(&analysis, T::KIND)))
            .filter(|(_, traffic)| traffic.matrix_bytes <= limit)
            .collect();
        let arena = DeviceArena::new(a, device, &crate::testing::x_vector::<T>(a.ncols()), false)?;
        let mut measured = Self {
            matrix: matrix.to_owned(),
            class: class.to_owned(),
            fingerprint: Fingerprint::of(a.view()),
            scalar: T::KIND,
            facts: Facts::from(&analysis),
            runs: Vec::new(),
            failed: Vec::new(),
        };
        let mut rest = plans.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, traffic): &&(Plan, Traffic)| {
                bytes += traffic.matrix_bytes;
                bytes <= together
            };
            let (group, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            measured.race(&arena, group, policy);
        }
        Ok(measured)
    }

    /// `(plan, seconds of a product, seconds of packing)` of every plan.
    pub fn times(&self) -> impl Iterator<Item = (&Plan, f64, f64)> {
        self.runs.iter().map(|r| (&r.plan, r.product * 1e-9, r.prepare * 1e-9))
    }

    /// The fastest of the plans that can be chosen for a kind of device; of equal ones the first.
    pub(super) fn fastest(&self, on: Target) -> Option<&Run> {
        let runs = self.runs.iter().filter(|run| run.plan.is_enqueued(on));
        runs.min_by(|a, b| a.product.total_cmp(&b.product))
    }

    /// As profiles keep it.
    pub(super) fn record(&self, chosen: Option<&Plan>, held_out: Option<&Plan>) -> Record {
        let facts = &self.facts;
        let run = |r: &Run| RecordedRun {
            plan: r.plan.to_string(),
            product_us: r.product * 1e-3,
            prepare_us: r.prepare * 1e-3,
            traffic_bytes: r.traffic.bytes(),
            failed: None,
        };
        let failed = |(plan, reason): &(String, String)| RecordedRun {
            plan: plan.clone(),
            product_us: 0.0,
            prepare_us: 0.0,
            traffic_bytes: 0,
            failed: Some(reason.clone()),
        };
        Record {
            matrix: self.matrix.clone(),
            class: self.class.clone(),
            fingerprint: self.fingerprint,
            scalar: self.scalar,
            nrows: facts.nrows,
            ncols: facts.ncols,
            nnz: facts.nnz,
            stats: RecordedStats {
                mean: facts.mean,
                max: facts.max,
                cv: facts.cv,
                empty_rows: facts.empty_rows,
            },
            chosen: chosen.map(Plan::to_string),
            held_out: held_out.map(Plan::to_string),
            runs: self.runs.iter().map(run).chain(self.failed.iter().map(failed)).collect(),
        }
    }

    /// What is wrong with the numbers, if anything is: they may come from a file.
    pub fn defect(&self) -> Option<String> {
        let facts = [self.facts.mean, self.facts.cv, self.facts.gini, self.facts.affine, self.facts.runs];
        let wrong = |run: &Run| {
            let times = [run.product, run.prepare];
            !(times.iter().all(|t| t.is_finite() && *t >= 0.0) && run.product > 0.0)
        };
        if facts.iter().any(|fact| !(fact.is_finite() && *fact >= 0.0)) {
            return Some(format!("a fact of `{}` is not finite or negative", self.matrix));
        }
        let run = self.runs.iter().find(|run| wrong(run))?;
        Some(format!("the time of {} on `{}` cannot be", run.plan, self.matrix))
    }
}

impl Measured {
    /// Packs and races some plans.
    fn race<T: Scalar>(&mut self, arena: &DeviceArena<'_, T>, plans: &[(Plan, Traffic)], policy: Policy) {
        let fail = |plan: &Plan, error: Error| (plan.to_string(), error.to_string());
        let mut packed: Vec<(&(Plan, Traffic), Ready<_>)> = Vec::new();
        for entry in plans {
            match arena.pack(&entry.0) {
                Ok(ready) => packed.push((entry, ready)),
                Err(error) => self.failed.push(fail(&entry.0, error)),
            }
        }
        let mut turns: Vec<_> =
            packed.iter().map(|(_, ready)| |repeats| arena.products(&ready.matrix, repeats)).collect();
        let mut contestants: Vec<&mut Contestant<'_>> = turns.iter_mut().map(|t| t as _).collect();
        let samples = race(&mut contestants, policy);
        for (((plan, traffic), ready), samples) in packed.iter().zip(samples) {
            match samples {
                Ok(samples) => self.runs.push(Run {
                    plan: plan.clone(),
                    traffic: *traffic,
                    product: samples.median() * 1e9,
                    prepare: (ready.pack + ready.upload) * 1e9,
                }),
                Err(error) => self.failed.push(fail(plan, error)),
            }
        }
    }
}
