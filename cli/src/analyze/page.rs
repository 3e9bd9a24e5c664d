//! The findings as a page.

use super::Findings;
use crate::choice::ChoiceArgs;
use crate::matrix_arg::MatrixSource;
use crate::report::{self, Raster, Thresholds};
use anyhow::Result;
use sparseop::Scalar;
use sparseop::matrix::CsrView;
use sparseop::tuning::decision::{Candidate, Verdict};
use sparseop::tuning::explain::{AuxiliaryPackings, Explanation, reason};

/// Returns the page's data of one matrix.
///
/// # Errors
///
/// If the bandwidth of the GPU cannot be measured or the picture cannot be encoded.
pub(super) fn matrix<T: Scalar>(
    findings: &Findings,
    source: &MatrixSource,
    a: CsrView<'_, T>,
    choice: &ChoiceArgs,
) -> Result<report::Matrix> {
    let (rows, decision) = (&findings.analysis.rows, &findings.decision);
    let costs = decision.profile.costs(T::KIND);
    let plans = decision.candidates.iter().map(|candidate| &candidate.plan);
    let explanation = Explanation {
        rows,
        decision,
        preparation: None,
        residency: None,
        auxiliary: AuxiliaryPackings::default(),
    };
    Ok(report::Matrix {
        name: findings.matrix.clone(),
        class: source.class(),
        scalar: T::KIND,
        device: findings.device.clone(),
        measurement: Vec::new(),
        rows: rows.clone(),
        thresholds: Some(Thresholds::of(plans, &rows.histogram, Some(&costs), T::KIND)),
        pattern: Some(Raster::of(a)?),
        busy: None,
        bandwidth: report::copy_bandwidth(&choice.device()?)?,
        runs: decision.candidates.iter().map(run).collect(),
        decision: explanation.to_string(),
    })
}

fn run(candidate: &Candidate) -> report::PlottedRun {
    let refused =
        !matches!(candidate.verdict, Verdict::Chosen | Verdict::Tied | Verdict::Slower { .. });
    report::PlottedRun {
        name: candidate.plan.to_string(),
        format: Some(candidate.plan.format()),
        chosen: candidate.verdict == Verdict::Chosen,
        measured: None,
        predicted: candidate.prediction.filter(|_| !refused).map(|p| p.product() * 1e-9),
        bytes: Some(candidate.work.bytes()),
        remark: refused.then(|| reason(candidate)),
    }
}
