//! The findings as JSON.

use super::{Findings, padding_ratio};
use serde::Serialize;
use sparseop::analysis::{Fingerprint, Pattern, RowStats, Structure, Symmetry};
use sparseop::tuning::explain::reason;
use sparseop::tuning::lookup::Origin;
use sparseop::tuning::profile::Fit;
use sparseop::tuning::scale::Scale;
use sparseop::{Plan, Precision, ScalarKind};

/// One line of `--json`.
#[derive(Serialize)]
pub(super) struct AnalysisReport<'a> {
    matrix: &'a str,
    nrows: usize,
    ncols: usize,
    nnz: u64,
    dtype: ScalarKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_precision: Option<Precision>,
    device: &'a str,
    fingerprint: Fingerprint,
    rows: &'a RowStats,
    structure: &'a Structure,
    pattern: &'a Pattern,
    symmetry: Option<Symmetry>,
    formats: Vec<ListedFormat>,
    hyb_widths: Vec<HybWidth>,
    jds_sections: Vec<JdsSections>,
    plan: &'a Plan,
    expected_calls: u64,
    profile: UsedProfile<'a>,
    candidates: Vec<ListedCandidate<'a>>,
    analyze_us: f64,
    select_us: f64,
    /// Time of analysis and choice together, in products of the chosen plan.
    products: Option<f64>,
}

/// Source of the predicted times.
#[derive(Serialize)]
struct UsedProfile<'a> {
    device: String,
    date: &'a str,
    origin: &'a Origin,
    fit: Fit,
    scale: Scale,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct ListedFormat {
    plan: Plan,
    matrix_bytes: u64,
    padding_ratio: f64,
}

#[derive(Serialize)]
struct HybWidth {
    rule: String,
    width: u32,
    tail: u64,
    matrix_bytes: u64,
}

#[derive(Serialize)]
struct JdsSections {
    sectioning: String,
    sections: usize,
    slots: u64,
    padding_ratio: f64,
}

#[derive(Serialize)]
struct ListedCandidate<'a> {
    plan: &'a Plan,
    predicted_us: Option<f64>,
    measured_us: Option<f64>,
    matrix_bytes: u64,
    padding_ratio: f64,
    verdict: String,
}

pub(super) fn report(findings: &Findings) -> AnalysisReport<'_> {
    let rows = &findings.analysis.rows;
    let (nnz, decision) = (rows.nnz, &findings.decision);
    let formats = findings.formats().map(|(plan, work)| ListedFormat {
        plan,
        matrix_bytes: work.matrix_bytes,
        padding_ratio: work.padding_ratio(nnz),
    });
    let hyb_widths = findings.hyb_widths().map(|(rule, width, work)| HybWidth {
        rule,
        width,
        tail: work.outside,
        matrix_bytes: work.matrix_bytes,
    });
    let jds_sections = findings.sectionings().map(|(sectioning, sections, slots)| JdsSections {
        sectioning: sectioning.to_string(),
        sections,
        slots,
        padding_ratio: padding_ratio(slots, nnz),
    });
    let candidates = decision.candidates.iter().map(|candidate| ListedCandidate {
        plan: &candidate.plan,
        predicted_us: candidate.prediction.map(|p| p.product() / 1e3),
        measured_us: decision
            .timing_run()
            .and_then(|timing_run| timing_run.timed_plan(&candidate.plan)?.product)
            .map(|s| s * 1e6),
        matrix_bytes: candidate.work.matrix_bytes,
        padding_ratio: candidate.work.padding_ratio(nnz),
        verdict: reason(candidate),
    });
    AnalysisReport {
        matrix: &findings.matrix,
        nrows: rows.nrows,
        ncols: rows.ncols,
        nnz,
        dtype: findings.scalar,
        value_precision: decision.request.value_precision,
        device: &findings.device,
        fingerprint: findings.fingerprint,
        rows,
        structure: &findings.analysis.structure,
        pattern: &findings.pattern,
        symmetry: findings.symmetry,
        formats: formats.collect(),
        hyb_widths: hyb_widths.collect(),
        jds_sections: jds_sections.collect(),
        plan: &decision.plan,
        expected_calls: decision.request.expected_calls,
        profile: UsedProfile {
            device: decision.profile.device.to_string(),
            date: &decision.profile.date,
            origin: &decision.origin,
            fit: decision.fit,
            scale: decision.scale,
            warnings: &decision.warnings,
        },
        candidates: candidates.collect(),
        analyze_us: findings.times.analyze * 1e6,
        select_us: findings.times.select * 1e6,
        products: findings.products(),
    }
}
