//! What a profile was made from, and how well it chooses: regrets and the records of measured runs.

use crate::ScalarKind;
use crate::analysis::{Fingerprint, RowStats};
use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics};
use std::collections::BTreeMap;

/// The percentile of [`Regret::p95`].
const PERCENTILE: usize = 95;

/// How much longer chosen plans take than the fastest ones. The regret of a choice is the time of its product over that of the
/// fastest plan that was measured: 1 is perfect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Regret {
    /// Matrices, counted once for every scalar.
    pub matrices: usize,
    /// Geometric mean.
    pub geometric_mean: f64,
    /// 95th percentile.
    pub p95: f64,
    /// The largest.
    pub worst: f64,
}

impl Regret {
    /// The summary of some regrets; 1 throughout for none.
    pub fn of(regrets: &[f64]) -> Self {
        if regrets.is_empty() {
            return Self { matrices: 0, geometric_mean: 1.0, p95: 1.0, worst: 1.0 };
        }
        let logs: f64 = regrets.iter().map(|r| r.ln()).sum();
        Self {
            matrices: regrets.len(),
            geometric_mean: (logs / regrets.len() as f64).exp(),
            p95: Data::new(regrets.to_vec()).percentile(PERCENTILE),
            worst: regrets.iter().copied().fold(1.0, f64::max),
        }
    }

    /// Whether every number is finite and at least 1, but for what rounding may take away.
    pub(super) fn is_valid(&self) -> bool {
        /// What rounding may take away.
        const SLACK: f64 = 1e-9;
        let numbers = [self.geometric_mean, self.p95, self.worst];
        numbers.iter().all(|r| r.is_finite() && *r >= 1.0 - SLACK)
    }
}

impl Default for Regret {
    fn default() -> Self {
        Self::of(&[])
    }
}

/// How well a profile chooses.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Validation {
    /// On the matrices its coefficients were fitted to.
    pub in_sample: Regret,
    /// On matrices that coefficients were not fitted to: each class of matrices chosen for by coefficients that were fitted to the
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Regret>,
    /// The same, for each class by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_out_classes: BTreeMap<String, Regret>,
    /// Of what calibration chose, by the predictions of the profile that was in use, or of profiles that were fitted without the matrix's
    /// class where the command says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Regret>,
}

impl Validation {
    /// The regret to judge by: the held-out one where it is known.
    pub fn judged(&self) -> &Regret {
        self.held_out.as_ref().unwrap_or(&self.in_sample)
    }

    pub(super) fn is_valid(&self) -> bool {
        let others = self.held_out.iter().chain(self.held_out_classes.values()).chain(&self.calibrated);
        std::iter::once(&self.in_sample).chain(others).all(Regret::is_valid)
    }
}

/// Every plan that was measured on one matrix in one scalar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The matrix, as it was named: a file's name or a gallery specification.
    pub matrix: String,
    /// The class of matrices it belongs to, which is held out as a whole.
    pub class: String,
    /// Its structure.
    pub fingerprint: Fingerprint,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of stored entries.
    pub nnz: u64,
    /// What its rows look like.
    pub stats: RecordedStats,
    /// The spelling of the plan that the profile chooses for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// The same, by coefficients that were fitted without its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<String>,
    /// Every plan that was measured.
    pub runs: Vec<RecordedRun>,
}

/// The statistics of a record's row lengths.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RecordedStats {
    /// Entries per row, on average.
    pub mean: f64,
    /// Length of the longest row.
    pub max: u32,
    /// Coefficient of variation of the row lengths.
    pub cv: f64,
    /// Rows without entries.
    pub empty_rows: u64,
}

impl From<&RowStats> for RecordedStats {
    fn from(rows: &RowStats) -> Self {
        Self { mean: rows.mean, max: rows.max, cv: rows.cv, empty_rows: rows.empty_rows }
    }
}

/// One plan on one matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedRun {
    /// The plan's spelling. Text, so that a profile outlives plans that are spelled otherwise later.
    pub plan: String,
    /// Microseconds of a product; 0 where it failed.
    #[serde(default)]
    pub product_us: f64,
    /// Microseconds of packing; 0 where it failed.
    #[serde(default)]
    pub prepare_us: f64,
    /// Bytes that one product reads and writes at least; 0 when not known.
    #[serde(default)]
    pub traffic_bytes: u64,
    /// Why it could not be measured, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl RecordedRun {
    /// Microseconds of a product; none when it failed.
    pub fn time(&self) -> Option<f64> {
        (self.failed.is_none() && self.product_us > 0.0).then_some(self.product_us)
    }
}

impl Record {
    /// The fastest run, if one succeeded; of equal ones the first.
    pub fn fastest(&self) -> Option<&RecordedRun> {
        let timed = self.runs.iter().filter_map(|run| Some((run.time()?, run)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, run)| run)
    }

    /// The run of a plan, by its spelling, if it was measured.
    pub fn run(&self, plan: &str) -> Option<&RecordedRun> {
        self.runs.iter().find(|run| run.plan == plan)
    }

    /// The time of a plan's product over that of the fastest, if both were measured.
    pub fn regret(&self, plan: &str) -> Option<f64> {
        Some(self.run(plan)?.time()? / self.fastest()?.time()?)
    }

    /// What is wrong with the numbers, if anything is.
    pub(super) fn defect(&self) -> Option<String> {
        let stats = [self.stats.mean, self.stats.cv];
        let times = self.runs.iter().flat_map(|run| [run.product_us, run.prepare_us]);
        let wrong = stats.into_iter().chain(times).any(|number| !number.is_finite() || number < 0.0);
        wrong.then(|| format!("the record of `{}` has a number that is not finite or negative", self.matrix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regrets_are_summed_up() {
        let regret = Regret::of(&[1.0, 2.0, 4.0]);
        assert!((regret.geometric_mean - 2.0).abs() < 1e-12);
        assert_eq!((regret.matrices, regret.worst), (3, 4.0));
        assert!(regret.p95 > 2.0 && regret.p95 <= 4.0);
        assert_eq!(Regret::of(&[]).geometric_mean, 1.0);
        assert!(regret.is_valid() && !Regret { worst: f64::NAN, ..regret }.is_valid());
    }

    #[test]
    fn the_fastest_run_is_one_that_succeeded() {
        let run = |plan: &str, product_us, failed: Option<&str>| RecordedRun {
            plan: plan.to_owned(),
            product_us,
            prepare_us: 1.0,
            traffic_bytes: 0,
            failed: failed.map(str::to_owned),
        };
        let mut record = Record {
            matrix: "a".to_owned(),
            class: "b".to_owned(),
            fingerprint: Fingerprint::default(),
            scalar: ScalarKind::F64,
            nrows: 1,
            ncols: 1,
            nnz: 1,
            stats: RecordedStats::default(),
            chosen: None,
            held_out: None,
            runs: vec![run("ell", 0.0, Some("too large")), run("csr", 3.0, None), run("coo", 2.0, None)],
        };
        assert_eq!(record.fastest().unwrap().plan, "coo");
        assert_eq!(
            ["csr", "coo", "ell", "jds"].map(|p| record.regret(p)),
            [Some(1.5), Some(1.0), None, None]
        );
        assert_eq!(record.defect(), None);
        record.runs[1].prepare_us = f64::INFINITY;
        assert!(record.defect().unwrap().contains("`a`"));
        record.runs.truncate(1);
        assert_eq!(record.fastest(), None);
    }
}
