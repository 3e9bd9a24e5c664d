//! Records of a profile: regrets and the measured runs behind them.

use crate::ScalarKind;
use crate::analysis::{Fingerprint, RowStats};
use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics};
use std::collections::BTreeMap;

/// Percentile of [`Regret::p95`].
const PERCENTILE: usize = 95;

/// Regret of choices. The regret of a choice is the time of its product over that of the fastest
/// measured plan; 1 is optimal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Regret {
    /// Number of matrices, counted once per scalar type.
    pub matrices: usize,
    /// Geometric mean.
    pub geometric_mean: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest regret.
    pub worst: f64,
}

impl Regret {
    /// Summarises regrets; all values are 1 if there are none.
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

    /// True if every number is finite and at least 1, within rounding.
    pub(super) fn is_valid(&self) -> bool {
        /// Tolerance for rounding.
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

/// Validation of a profile: regret of its choices.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Validation {
    /// Regret on the matrices that the coefficients were fitted to.
    pub in_sample: Regret,
    /// Held-out regret: choices for each class of matrices by coefficients fitted to the other
    /// classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Regret>,
    /// Held-out regret of each class, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_out_classes: BTreeMap<String, Regret>,
    /// Regret of calibrated choices. Their predictions come from the profile in use, or, if the
    /// command says so, from profiles fitted without the class of the matrix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Regret>,
}

impl Validation {
    /// Regret for judging the profile: the held-out regret, if known.
    pub fn judged(&self) -> &Regret {
        self.held_out.as_ref().unwrap_or(&self.in_sample)
    }

    pub(super) fn is_valid(&self) -> bool {
        let others =
            self.held_out.iter().chain(self.held_out_classes.values()).chain(&self.calibrated);
        std::iter::once(&self.in_sample).chain(others).all(Regret::is_valid)
    }
}

/// All plans measured on one matrix in one scalar type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the matrix: a file's name or a gallery specification.
    pub matrix: String,
    /// Class of the matrix, held out as a whole.
    pub class: String,
    /// Fingerprint of the structure.
    pub fingerprint: Fingerprint,
    /// Scalar type.
    pub scalar: ScalarKind,
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of stored entries.
    pub nnz: u64,
    /// Statistics of the row lengths.
    pub stats: RecordedStats,
    /// Spelling of the plan that the profile chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// Spelling of the plan chosen by coefficients fitted without the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<String>,
    /// All measured plans.
    pub runs: Vec<RecordedRun>,
}

/// Row-length statistics of a record.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RecordedStats {
    /// Mean number of entries per row.
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

/// Run of one plan on one matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedRun {
    /// Spelling of the plan. Text, so that a profile remains readable when the spelling of plans
    /// changes.
    pub plan: String,
    /// Microseconds of a product; 0 if it failed.
    #[serde(default)]
    pub product_us: f64,
    /// Microseconds of packing; 0 if it failed.
    #[serde(default)]
    pub prepare_us: f64,
    /// Least number of bytes that a product reads and writes; 0 if unknown.
    #[serde(default)]
    pub traffic_bytes: u64,
    /// Reason of a failure, in one line, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl RecordedRun {
    /// Microseconds of a product; `None` if it failed.
    pub fn time(&self) -> Option<f64> {
        (self.failed.is_none() && self.product_us > 0.0).then_some(self.product_us)
    }
}

impl Record {
    /// Fastest run, if one succeeded; the first of equal ones.
    pub fn fastest(&self) -> Option<&RecordedRun> {
        let timed = self.runs.iter().filter_map(|run| Some((run.time()?, run)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, run)| run)
    }

    /// Run of a plan, by its spelling, if it was measured.
    pub fn run(&self, plan: &str) -> Option<&RecordedRun> {
        self.runs.iter().find(|run| run.plan == plan)
    }

    /// Time of a plan's product over that of the fastest, if both were measured.
    pub fn regret(&self, plan: &str) -> Option<f64> {
        Some(self.run(plan)?.time()? / self.fastest()?.time()?)
    }

    /// Description of an inadmissible number, if any.
    pub(super) fn defect(&self) -> Option<String> {
        let stats = [self.stats.mean, self.stats.cv];
        let times = self.runs.iter().flat_map(|run| [run.product_us, run.prepare_us]);
        let wrong =
            stats.into_iter().chain(times).any(|number| !number.is_finite() || number < 0.0);
        wrong.then(|| {
            format!("the record of `{}` has a number that is not finite or negative", self.matrix)
        })
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
            runs: vec![
                run("ell", 0.0, Some("too large")),
                run("csr", 3.0, None),
                run("coo", 2.0, None),
            ],
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
