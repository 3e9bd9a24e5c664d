//! The results as a page.

use super::comparison::Comparison;
use super::report::{BenchReport, BenchRun};
use crate::matrix_arg::MatrixSource;
use crate::report::{self, Raster, Thresholds};
use anyhow::Result;
use sparseop::tuning::decision::Decision;
use sparseop::{Plan, Scalar, Tuning};

/// Data of a matrix for the page: the measured `results`, and the `decision`, explained in `words`.
///
/// # Errors
///
/// If the bandwidth of the GPU cannot be measured or the picture cannot be encoded.
pub(super) fn matrix<T: Scalar>(
    results: &BenchReport,
    comparison: &Comparison<'_, T>,
    decision: &Decision,
    words: String,
    source: &MatrixSource,
) -> Result<report::Matrix> {
    let rows = &comparison.analysis.rows;
    let costs = decision.profile.costs(T::KIND);
    let plans = decision.candidates.iter().map(|candidate| &candidate.plan);
    // Our own plans come first, in the order of the results.
    let ours = comparison.plans.iter().map(Some).chain(std::iter::repeat(None));
    let runs =
        results.runs.iter().zip(ours).map(|(result, plan)| run(result, plan, comparison, results));
    Ok(report::Matrix {
        name: results.matrix.clone(),
        class: source.class(),
        scalar: T::KIND,
        device: results.device.clone(),
        measurement: measurement(results),
        rows: rows.clone(),
        thresholds: Some(Thresholds::of(plans, &rows.histogram, Some(&costs), T::KIND)),
        pattern: Some(Raster::of(comparison.a.view())?),
        busy: None,
        bandwidth: report::copy_bandwidth(comparison.device)?,
        runs: runs.collect(),
        decision: words,
    })
}

/// State of the caches, and the version of cuSPARSE if it is a baseline.
fn measurement(results: &BenchReport) -> Vec<(&'static str, String)> {
    let cusparse = results.runs.iter().find_map(BenchRun::version);
    let cusparse = cusparse.map(|version| ("cuSPARSE", version.to_owned()));
    let launches = results.graphs.then(|| ("launches", "graphs".to_owned()));
    let cache = [("cache", results.cache.to_string())];
    cache.into_iter().chain(launches).chain(cusparse).collect()
}

fn run<T: Scalar>(
    result: &BenchRun,
    plan: Option<&Plan>,
    comparison: &Comparison<'_, T>,
    results: &BenchReport,
) -> report::PlottedRun {
    let (engine, name) = result.name();
    let measured = result.measured();
    report::PlottedRun {
        name: if plan.is_some() { name.to_owned() } else { format!("{engine} {name}") },
        format: plan.map(Plan::format),
        chosen: plan == Some(&results.auto_plan),
        measured: measured.map(|run| run.median_us * 1e-6),
        predicted: plan.and_then(|plan| predicted(plan, comparison)),
        bytes: measured.and_then(|run| run.details.as_ref()).map(|details| details.traffic_bytes),
        remark: result.error(),
    }
}

/// Predicted seconds of a product under a plan, candidate or not.
fn predicted<T: Scalar>(plan: &Plan, comparison: &Comparison<'_, T>) -> Option<f64> {
    let fixed = comparison.builder.clone().tuning(Tuning::Fixed(plan.clone()));
    // None if the plan cannot hold the matrix: the result of its run has the reason.
    let decision = fixed.decide(comparison.analysis, T::KIND).ok()?;
    Some(decision.chosen()?.prediction?.product() * 1e-9)
}
