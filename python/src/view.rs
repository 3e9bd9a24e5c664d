//! Statistics and decisions as objects of Python.

use pyo3::prelude::*;
use serde::Serialize;
use sparseop::tuning::explain::reason;
use sparseop::{Decision, Preparation, RowStats, Scalar, SparseOp};

/// A decision, as a dictionary of Python.
#[derive(Serialize)]
struct DecisionView {
    plan: String,
    expected_calls: u64,
    memory_limit: u64,
    profile: String,
    preparation: PreparationView,
    candidates: Vec<CandidateView>,
}

#[derive(Serialize)]
struct PreparationView {
    analyze: f64,
    select: f64,
    check: f64,
    pack: f64,
    upload: f64,
}

#[derive(Serialize)]
struct CandidateView {
    plan: String,
    predicted: Option<f64>,
    measured: Option<f64>,
    matrix_bytes: u64,
    verdict: String,
}

/// Settings that build an operator with the same plan.
#[derive(Serialize)]
struct SettingsView {
    device: String,
    plan: String,
    expected_calls: u64,
    deterministic: bool,
    updatable: bool,
    value_precision: Option<&'static str>,
}

/// An object of Python from its JSON.
pub(crate) fn parsed<'py>(
    py: Python<'py>,
    json: Result<String, String>,
) -> PyResult<Bound<'py, PyAny>> {
    let json = json.map_err(pyo3::exceptions::PyRuntimeError::new_err)?;
    py.import("json")?.call_method1("loads", (json,))
}

/// Row-length statistics as JSON.
pub(crate) fn stats(stats: &RowStats) -> Result<String, String> {
    serde_json::to_string(stats).map_err(|error| error.to_string())
}

/// A decision as JSON; times are in seconds.
pub(crate) fn decision(decision: &Decision, preparation: &Preparation) -> Result<String, String> {
    let candidates = decision.candidates.iter().map(|candidate| CandidateView {
        plan: candidate.plan.to_string(),
        predicted: candidate.prediction.map(|prediction| prediction.product() * 1e-9),
        measured: decision
            .timing_run()
            .and_then(|timing_run| timing_run.timed_plan(&candidate.plan)?.product),
        matrix_bytes: candidate.work.matrix_bytes,
        verdict: reason(candidate),
    });
    let &Preparation { analyze, select, check, pack, upload, .. } = preparation;
    let view = DecisionView {
        plan: decision.plan.to_string(),
        expected_calls: decision.request.expected_calls,
        memory_limit: decision.request.memory_limit,
        profile: decision.origin.to_string(),
        preparation: PreparationView { analyze, select, check, pack, upload },
        candidates: candidates.collect(),
    };
    serde_json::to_string(&view).map_err(|error| error.to_string())
}

/// Settings of an operator as JSON.
pub(crate) fn settings<T: Scalar>(op: &SparseOp<T>) -> Result<String, String> {
    let request = &op.decision().request;
    let view = SettingsView {
        device: op.device().to_string(),
        plan: op.plan().to_string(),
        expected_calls: request.expected_calls,
        deterministic: request.deterministic,
        updatable: request.updatable,
        value_precision: request.value_precision.map(|precision| precision.name()),
    };
    serde_json::to_string(&view).map_err(|error| error.to_string())
}
