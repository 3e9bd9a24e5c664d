//! Data of offline tuning: times of every plan on a matrix. They are measured by
//! [`Trial`](crate::trial::Trial); [`refit`](crate::refit) fits profiles to them.

use serde::{Deserialize, Serialize};
use sparseop::ScalarKind;
use sparseop::analysis::Fingerprint;
use sparseop::formats::{Plan, Target, Work};
use sparseop::matrix::MAX_DIMENSION;
use sparseop::tuning::features::MatrixFeatures;
use sparseop::tuning::profile::is_plain;
use sparseop::tuning::record::{Record, RecordedRun, RecordedStats};

/// Measured times of every plan on one matrix, with all data for a fit: they can be stored, and
/// fitted again without new measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the matrix: a file's name or a gallery specification.
    pub matrix: String,
    /// Class of the matrix, held out as a whole.
    pub class: String,
    /// Fingerprint of the structure.
    pub fingerprint: Fingerprint,
    /// Scalar type.
    pub scalar: ScalarKind,
    /// Matrix features of the cost model.
    pub features: MatrixFeatures,
    /// Measured plans, in the order of the candidates.
    pub runs: Vec<PlanRun>,
    /// Plans that could not be measured, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(String, String)>,
}

/// Run of one plan on one matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRun {
    /// The plan.
    pub plan: Plan,
    /// Work of its product.
    pub work: Work,
    /// Nanoseconds of a product.
    pub product: f64,
    /// Nanoseconds of packing.
    pub prepare: f64,
}

impl Measured {
    /// `(plan, seconds of a product, seconds of packing)` of every plan.
    pub fn times(&self) -> impl Iterator<Item = (&Plan, f64, f64)> {
        self.runs.iter().map(|r| (&r.plan, r.product * 1e-9, r.prepare * 1e-9))
    }

    /// Fastest of the plans that can be chosen for a kind of device; the first of equal ones.
    pub(crate) fn fastest(&self, on: Target) -> Option<&PlanRun> {
        let runs = self.runs.iter().filter(|run| run.plan.is_eligible(on));
        runs.min_by(|a, b| a.product.total_cmp(&b.product))
    }

    /// Converts to a record of a profile.
    pub(crate) fn record(&self, chosen: Option<&Plan>, held_out: Option<&Plan>) -> Record {
        let features = &self.features;
        let run = |r: &PlanRun| RecordedRun {
            plan: r.plan.to_string(),
            product_us: r.product * 1e-3,
            prepare_us: r.prepare * 1e-3,
            traffic_bytes: r.work.bytes(),
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
            nrows: features.nrows,
            ncols: features.ncols,
            nnz: features.nnz,
            stats: RecordedStats {
                mean: features.mean,
                max: features.max,
                cv: features.cv,
                empty_rows: features.empty_rows,
            },
            chosen: chosen.map(Plan::to_string),
            held_out: held_out.map(Plan::to_string),
            runs: self.runs.iter().map(run).chain(self.failed.iter().map(failed)).collect(),
        }
    }

    /// Description of an inadmissible value, if any: measurements may come from a file.
    pub fn defect(&self) -> Option<String> {
        let Self { matrix, features, .. } = self;
        if ![matrix, &self.class].into_iter().all(|name| is_plain(name)) {
            return Some("its names are too long or not printable".to_owned());
        }
        let sizes = [("nrows", features.nrows), ("ncols", features.ncols)];
        if let Some((name, size)) = sizes.into_iter().find(|size| size.1 > MAX_DIMENSION) {
            return Some(format!("{name} of `{matrix}` is {size}, more than a matrix has"));
        }
        let shares = [
            ("mean", features.mean),
            ("cv", features.cv),
            ("gini", features.gini),
            ("shifted", features.shifted),
            ("contiguous", features.contiguous),
        ];
        let is_valid = |number: f64| number.is_finite() && number >= 0.0;
        if let Some((name, share)) = shares.into_iter().find(|share| !is_valid(share.1)) {
            return Some(format!("{name} of `{matrix}` is {share}, negative or not finite"));
        }
        let wrong =
            |run: &&PlanRun| !(is_valid(run.product) && is_valid(run.prepare) && run.product > 0.0);
        let run = self.runs.iter().find(wrong)?;
        Some(format!("the time of {} on `{matrix}` cannot be", run.plan))
    }
}
