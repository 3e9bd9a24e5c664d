//! The results: a table, or a line of JSON.

use super::task::LayoutArg;
use crate::console::{Left, Right, duration, table};
use serde::Serialize;
use sparseop::tuning::caches::CacheState;
use sparseop::tuning::explain::{Preparation, size};
use sparseop::{Plan, Precision, ScalarKind};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The results for one matrix.
#[derive(Debug, Serialize)]
pub(super) struct BenchReport {
    pub(super) matrix: String,
    pub(super) nrows: usize,
    pub(super) ncols: usize,
    pub(super) nnz: usize,
    pub(super) dtype: ScalarKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value_precision: Option<Precision>,
    pub(super) device: String,
    /// State of the last cache at the beginning of timed products.
    pub(super) cache: CacheState,
    /// True if batches of short products on a GPU are graphs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) graphs: bool,
    /// Number of vectors, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vectors: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layout: Option<LayoutArg>,
    /// True if the transposed matrix is multiplied with; rows and columns are those of the
    /// transpose.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) transposed: bool,
    pub(super) auto_plan: Plan,
    pub(super) predicted_plan: Plan,
    pub(super) calibrated_plan: Option<Plan>,
    pub(super) prepare_us: PrepareUs,
    pub(super) runs: Vec<BenchRun>,
    /// A sign that other work disturbed the measurements.
    pub(super) busy: Option<String>,
}

/// Microseconds of the preparation of `auto`'s operator.
#[derive(Debug, Serialize)]
pub(super) struct PrepareUs {
    analyze: f64,
    select: f64,
    check: f64,
    pack: f64,
    upload: f64,
}

impl PrepareUs {
    pub(super) fn of(p: &Preparation) -> Self {
        let [analyze, select, check, pack, upload] =
            [p.analyze, p.select, p.check, p.pack, p.upload].map(|s| s * 1e6);
        Self { analyze, select, check, pack, upload }
    }
}

/// Result of one plan or baseline.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum BenchRun {
    Measured(MeasuredRun),
    Failed(Failed),
}

/// Times of a candidate with a correct result.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MeasuredRun {
    pub(super) engine: &'static str,
    /// Version of the engine's library. None for an engine of this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) plan: String,
    pub(super) completed: bool,
    pub(super) median_us: f64,
    pub(super) min_us: f64,
    pub(super) rel_error: f64,
    /// Number of vectors multiplied.
    #[serde(skip)]
    pub(super) vectors: usize,
    #[serde(flatten)]
    pub(super) details: Option<Details>,
    /// The plan for several vectors, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spmm_plan: Option<String>,
}

/// Further numbers of our own plans.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Details {
    pub(super) matrix_bytes: u64,
    pub(super) traffic_bytes: u64,
    pub(super) gflops: f64,
    pub(super) gbps: f64,
    pub(super) deterministic: bool,
}

/// A candidate that was not timed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Failed {
    pub(super) engine: &'static str,
    /// As for [`MeasuredRun`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) plan: String,
    pub(super) completed: bool,
    pub(super) error: String,
    /// True if it would take too much memory.
    #[serde(skip)]
    pub(super) refused: bool,
}

impl BenchRun {
    /// Engine and plan.
    pub(super) fn name(&self) -> (&'static str, &str) {
        match self {
            Self::Measured(run) => (run.engine, &run.plan),
            Self::Failed(run) => (run.engine, &run.plan),
        }
    }

    /// Version of the engine's library. None for an engine of this program.
    pub(super) fn version(&self) -> Option<&str> {
        match self {
            Self::Measured(run) => run.version.as_deref(),
            Self::Failed(run) => run.version.as_deref(),
        }
    }

    /// The times, if any.
    pub(super) fn measured(&self) -> Option<&MeasuredRun> {
        match self {
            Self::Measured(run) => Some(run),
            Self::Failed(_) => None,
        }
    }

    /// The reason why it was not timed. None if it was.
    pub(super) fn error(&self) -> Option<String> {
        match self {
            Self::Measured(_) => None,
            // Such an error already names the plan.
            Self::Failed(run) if run.refused => Some(run.error.clone()),
            Self::Failed(run) => Some(format!("{} {}: {}", run.engine, run.plan, run.error)),
        }
    }

    /// True if it was left out because it would take too much memory.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Failed(run) if run.refused)
    }
}

impl BenchReport {
    fn measured(&self) -> impl Iterator<Item = &MeasuredRun> {
        self.runs.iter().filter_map(BenchRun::measured)
    }

    /// The baseline of the ratios: the fastest algorithm of the first baseline, or else plain CSR.
    fn reference(&self) -> Option<&MeasuredRun> {
        let plain = |run: &&MeasuredRun| run.engine == "sparseop" && run.plan == "csr(scalar)";
        match self.measured().find(|run| run.engine != "sparseop") {
            Some(first) => {
                let ways = self.measured().filter(|run| run.engine == first.engine);
                ways.min_by(|a, b| a.median_us.total_cmp(&b.median_us))
            }
            None => self.measured().find(plain),
        }
    }

    fn is_auto(&self, run: &MeasuredRun) -> bool {
        run.engine == "sparseop" && run.plan == self.auto_plan.to_string()
    }

    fn is_calibrated(&self, run: &MeasuredRun) -> bool {
        let plan = self.calibrated_plan.as_ref().map(Plan::to_string);
        run.engine == "sparseop" && plan.as_ref() == Some(&run.plan)
    }

    /// The plan of `auto`, its time and its gain.
    fn answer(&self) -> Result<String, fmt::Error> {
        let transposed = if self.transposed { ", transposed" } else { "" };
        let mut out = format!("{}{transposed}: auto takes {}", self.matrix, self.auto_plan);
        let ours = || self.measured().filter(|run| run.engine == "sparseop");
        let Some(auto) = ours().find(|run| self.is_auto(run)) else {
            writeln!(out)?;
            return Ok(out);
        };
        write!(out, ", {} per product", duration(auto.median_us / 1e6))?;
        let comparable = |other: &&MeasuredRun| other.vectors == auto.vectors;
        let ratio = |other: &MeasuredRun| other.median_us / auto.median_us;
        if let Some(reference) = self.reference().filter(comparable) {
            write!(out, ", {:.2} times as fast as {}", ratio(reference), short_name(reference))?;
        }
        let fastest = ours().filter(comparable);
        let fastest = fastest.min_by(|a, b| a.median_us.total_cmp(&b.median_us));
        if let Some(fastest) = fastest.filter(|fastest| ratio(fastest) < 1.0) {
            write!(out, "; {} takes {:.2} of that time", fastest.plan, ratio(fastest))?;
        }
        writeln!(out)?;
        Ok(out)
    }

    /// The answer and the results as a table, fastest first; with all columns if `verbose`.
    pub(super) fn table(&self, verbose: bool) -> Result<String, fmt::Error> {
        let mut out = self.answer()?;
        let p = &self.prepare_us;
        writeln!(
            out,
            "matrix   {} x {}, {} entries in {}, cache {}{}, on {}{}",
            self.nrows,
            self.ncols,
            self.nnz,
            self.dtype,
            self.cache,
            if self.graphs { ", in graphs" } else { "" },
            self.device,
            self.vectors.map_or_else(String::new, |count| format!(", {count} vectors at once"))
        )?;
        let [all, analyze, select, pack] =
            [p.analyze + p.select + p.pack + p.upload, p.analyze, p.select, p.pack]
                .map(|us| duration(us / 1e6));
        writeln!(
            out,
            "prepared in {all}: {analyze} to analyse, {select} to choose, {pack} to pack\n"
        )?;
        let reference = self.reference();
        let ratio =
            reference.map_or_else(String::new, |run| format!("speed-up over {}", short_name(run)));
        // Columns with true are details.
        let all = [
            (false, ("plan", Left)),
            (false, ("median", Right)),
            (true, ("least", Right)),
            (true, ("Gflop/s", Right)),
            (false, ("GB/s", Right)),
            (false, ("matrix", Right)),
            (true, ("error", Right)),
            (false, (&*ratio, Right)),
            (false, ("", Left)),
        ];
        let is_shown = |detail: bool| verbose || !detail;
        let columns: Vec<_> =
            all.iter().filter(|(detail, _)| is_shown(*detail)).map(|(_, column)| *column).collect();
        let mut runs: Vec<&MeasuredRun> = self.measured().collect();
        runs.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
        let row = |run: &MeasuredRun| {
            let name = match run.engine {
                "sparseop" => run.plan.clone(),
                engine => format!("{engine} {}", run.plan),
            };
            let [median, least] = [run.median_us, run.min_us].map(|us| duration(us / 1e6));
            let gflops = 2.0 * (self.nnz * run.vectors) as f64 / run.median_us / 1e3;
            let details = run.details.as_ref();
            let gbps = details.map_or_else(String::new, |d| format!("{:.2}", d.gbps));
            let bytes = details.map_or_else(String::new, |d| size(d.matrix_bytes));
            let comparable = reference.filter(|reference| reference.vectors == run.vectors);
            let speed_up = comparable
                .map_or_else(String::new, |r| format!("{:.2}", r.median_us / run.median_us));
            let mark = match (self.is_auto(run), self.is_calibrated(run)) {
                (true, true) => "<- auto, calibrated",
                (true, false) => "<- auto",
                (false, true) => "<- calibrated",
                (false, false) => "",
            };
            let error = format!("{:.1e}", run.rel_error);
            let gflops = format!("{gflops:.2}");
            let by = run.spmm_plan.as_ref().map(|plan| format!("multiplied by {plan}"));
            let marks = [(!mark.is_empty()).then(|| mark.to_owned()), by];
            let mark = marks.into_iter().flatten().collect::<Vec<_>>().join(", ");
            let cells = [name, median, least, gflops, gbps, bytes, error, speed_up, mark];
            let cells = cells.into_iter().zip(all);
            cells.filter(|(_, (detail, _))| is_shown(*detail)).map(|(cell, _)| cell).collect()
        };
        out += &table(&columns, runs.into_iter().map(row));
        for error in self.runs.iter().filter_map(BenchRun::error) {
            writeln!(out, "not timed: {error}")?;
        }
        writeln!(out)?;
        Ok(out)
    }
}

/// Short name of a run.
fn short_name(run: &MeasuredRun) -> &str {
    if run.engine == "sparseop" { "plain CSR" } else { run.engine }
}

/// Geometric means over the matrices.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Number of matrices with a baseline.
    matrices: usize,
    /// Name of the baseline; that of the first matrix if they differ.
    reference: String,
    /// Sum of the logarithms of the speed-ups and their number, by plan.
    plans: BTreeMap<String, (f64, usize)>,
}

/// Name of the plan chosen for each matrix.
const AUTO: &str = "auto";

/// Name of the winner of the calibration for each matrix.
const CALIBRATED: &str = "calibrated";

/// Name of the fastest plan that was timed.
const FASTEST: &str = "fastest plan";

impl Summary {
    /// Adds the results for one matrix.
    pub(super) fn add(&mut self, report: &BenchReport) {
        let Some(reference) = report.reference() else { return };
        if self.matrices == 0 {
            self.reference = short_name(reference).to_owned();
        }
        self.matrices += 1;
        // A product with one vector is not comparable with SpMM.
        let comparable =
            |run: &&MeasuredRun| run.engine == "sparseop" && run.vectors == reference.vectors;
        let ours = || report.measured().filter(comparable);
        let named = ours().map(|run| (run.plan.clone(), run));
        let auto = ours().find(|run| report.is_auto(run)).map(|run| (AUTO.to_owned(), run));
        let calibrated =
            ours().find(|run| report.is_calibrated(run)).map(|run| (CALIBRATED.to_owned(), run));
        let fastest = ours().min_by(|a, b| a.median_us.total_cmp(&b.median_us));
        let fastest = fastest.map(|run| (FASTEST.to_owned(), run));
        for (name, run) in named.chain(auto).chain(calibrated).chain(fastest) {
            let sum = self.plans.entry(name).or_default();
            sum.0 += (reference.median_us / run.median_us).ln();
            sum.1 += 1;
        }
    }

    /// Returns a line with the geometric means of the plans timed on every matrix. Empty for a
    /// single matrix.
    pub(super) fn text(&self) -> String {
        if self.matrices < 2 {
            return String::new();
        }
        let everywhere = self.plans.iter().filter(|(_, sum)| sum.1 == self.matrices);
        let mut means: Vec<(&str, f64)> =
            everywhere.map(|(name, sum)| (name.as_str(), (sum.0 / sum.1 as f64).exp())).collect();
        means.sort_by(|a, b| b.1.total_cmp(&a.1));
        let means: Vec<String> =
            means.iter().map(|(name, mean)| format!("{name} {mean:.2}")).collect();
        let (matrices, reference) = (self.matrices, &self.reference);
        format!(
            "speed-up over {reference}, geometric mean over {matrices} matrices: {}\n",
            means.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(auto_plan: &str, times: &[(&'static str, &str, f64)]) -> BenchReport {
        let runs = times.iter().map(|&(engine, plan, median_us)| {
            let plan = plan.to_owned();
            BenchRun::Measured(MeasuredRun {
                engine,
                version: None,
                plan,
                completed: true,
                median_us,
                min_us: 1.0,
                rel_error: 0.0,
                vectors: 1,
                details: None,
                spmm_plan: None,
            })
        });
        BenchReport {
            matrix: "a".to_owned(),
            nrows: 1,
            ncols: 1,
            nnz: 1,
            dtype: ScalarKind::F64,
            value_precision: None,
            device: String::new(),
            cache: CacheState::Warm,
            graphs: false,
            vectors: None,
            layout: None,
            transposed: false,
            auto_plan: auto_plan.parse().unwrap(),
            predicted_plan: auto_plan.parse().unwrap(),
            calibrated_plan: (auto_plan == "coo").then(|| "ell".parse().unwrap()),
            prepare_us: PrepareUs { analyze: 0.0, select: 0.0, check: 0.0, pack: 0.0, upload: 0.0 },
            runs: runs.collect(),
            busy: None,
        }
    }

    #[test]
    fn the_reference_is_the_fastest_of_the_first_baseline() {
        let times = [
            ("sparseop", "ell", 1.0),
            ("cusparse", "csr_alg1", 4.0),
            ("cusparse", "sell", 2.0),
            ("sprs", "csr", 1.5),
        ];
        let report = report("ell", &times);
        assert_eq!(report.reference().map(|run| run.plan.as_str()), Some("sell"));
        let table = report.table(false).unwrap();
        assert!(
            table.contains("speed-up over cusparse") && table.contains("cusparse csr_alg1"),
            "{table}"
        );
    }

    #[test]
    fn one_vector_is_not_compared_with_several() {
        let mut summary = Summary::default();
        let mut report =
            report("ell", &[("sparseop", "ell", 4.0), ("sparseop", "csr(scalar)", 8.0)]);
        report.runs.iter_mut().for_each(|run| match run {
            BenchRun::Measured(run) => run.vectors = 8,
            BenchRun::Failed(_) => {}
        });
        let one = MeasuredRun {
            plan: "one vector".to_owned(),
            median_us: 1.0,
            vectors: 1,
            ..report.measured().next().unwrap().clone()
        };
        report.runs.push(BenchRun::Measured(one));
        (0..2).for_each(|_| summary.add(&report));
        let means = "plain CSR, geometric mean over 2 matrices: auto 2.00, ell 2.00, fastest plan \
                     2.00, csr(scalar) 1.00";
        assert!(summary.text().contains(means), "{}", summary.text());
        let table = report.table(false).unwrap();
        let line = table.lines().find(|line| line.starts_with("one vector")).unwrap();
        assert!(!line.contains("8.00"), "{table}");
    }

    #[test]
    fn means_are_geometric_and_auto_is_whatever_it_chose() {
        let mut summary = Summary::default();
        let times = [("sparseop", "ell", 1.0), ("sparseop", "coo", 4.0), ("sprs", "csr", 8.0)];
        summary.add(&report("ell", &times));
        assert_eq!(summary.text(), "");
        summary.add(&report("coo", &times));
        let table = report("coo", &times).table(false).unwrap();
        assert!(table.contains("<- auto\n") && table.contains("<- calibrated\n"), "{table}");
        assert_eq!(
            summary.text(),
            "speed-up over sprs, geometric mean over 2 matrices: ell 8.00, fastest plan 8.00, auto \
             4.00, coo 2.00\n"
        );
    }
}
