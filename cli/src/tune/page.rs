//! A tuning run as a page: the judged choices, the worst first.

use super::super::report;
use super::report::TuningReport;
use super::worst::by_regret;
use sparseop::analysis::RowStats;
use sparseop::tuning::features::MatrixFeatures;
use sparseop_tune::refit::JudgedChoice;

impl TuningReport<'_> {
    /// The page's data of every judged matrix. With held-out classes, by the fit without the
    /// matrix's own class.
    pub(super) fn matrices(&self) -> impl Iterator<Item = report::Matrix> {
        by_regret(&self.refit.choices).into_iter().map(|choice| self.matrix(choice))
    }

    fn matrix(&self, choice: &JudgedChoice) -> report::Matrix {
        let (measured, profile) = (&self.measured[choice.measured], &self.refit.profile);
        let runs = measured.runs.iter().zip(&choice.predictions).map(|(run, predicted)| {
            report::PlottedRun {
                name: run.plan.to_string(),
                format: Some(run.plan.format()),
                chosen: run.plan == choice.chosen.plan,
                measured: Some(run.product * 1e-9),
                predicted: predicted.map(|ns| ns * 1e-9),
                bytes: Some(run.work.bytes()),
                remark: None,
            }
        });
        report::Matrix {
            name: measured.matrix.clone(),
            class: measured.class.clone(),
            scalar: measured.scalar,
            device: profile.device.name.clone(),
            measurement: Vec::new(),
            rows: rows(&measured.features),
            thresholds: None,
            pattern: None,
            busy: None,
            bandwidth: profile.ceilings.copy_bandwidth,
            runs: runs.collect(),
            decision: self.explain(choice),
        }
    }
}

/// The statistics that measurements keep. There is no histogram among them.
fn rows(features: &MatrixFeatures) -> RowStats {
    RowStats {
        nrows: features.nrows,
        ncols: features.ncols,
        nnz: features.nnz,
        empty_rows: features.empty_rows,
        max: features.max,
        mean: features.mean,
        cv: features.cv,
        gini: features.gini,
        changes: features.changes,
        ..RowStats::default()
    }
}
