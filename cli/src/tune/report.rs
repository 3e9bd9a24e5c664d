//! Final report of a tuning run: regret by class, the worst matrices with the causes, and the whole
//! as JSON.

use super::super::console::{Left, Right, regret_cells, table};
use super::timing_runs::{self, WORST};
use super::unfitted;
use super::worst::{by_regret, why, worst};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::formats::FormatKind;
use sparseop::tuning::cost::Term;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::record::{Regret, Validation};
use sparseop_tune::calibrated::Calibrations;
use sparseop_tune::offline::Measured;
use sparseop_tune::refit::{JudgedChoice, Predicted, Refit};
use sparseop_tune::repeat::Repeatability;
use sparseop_tune::unfitted::{LearningStep, UnfittedSet};

/// One line of `--json`.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    device: &'a str,
    out: Option<String>,
    measured: usize,
    reused: usize,
    left_out: &'a [String],
    cache_bytes: f64,
    corrected: bool,
    validation: &'a Validation,
    worst: Vec<Worst<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unfitted: Vec<unfitted::RegretOfSet<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    learning_curve: &'a [LearningStep],
    #[serde(skip_serializing_if = "Option::is_none")]
    repeat: Option<&'a Repeatability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated: Option<&'a Calibrations>,
}

#[derive(Serialize)]
struct Worst<'a> {
    matrix: &'a str,
    class: &'a str,
    dtype: ScalarKind,
    regret: f64,
    chosen: PlanTimes,
    fastest: PlanTimes,
}

#[derive(Serialize)]
struct PlanTimes {
    plan: String,
    product_us: f64,
    predicted_us: Option<f64>,
}

impl From<&Predicted> for PlanTimes {
    fn from(p: &Predicted) -> Self {
        let predicted_us = p.prediction.map(|prediction| prediction.product() * 1e-3);
        Self { plan: p.plan.to_string(), product_us: p.product * 1e-3, predicted_us }
    }
}

/// Data of a tuning run.
pub(super) struct TuningReport<'a> {
    /// All measurements.
    pub(super) measured: &'a [Measured],
    /// Number of measurements from an earlier run.
    pub(super) reused: usize,
    /// Matrices that the time limit left out.
    pub(super) left_out: &'a [String],
    /// Result of the fit.
    pub(super) refit: &'a Refit,
    /// Path of the profile.
    pub(super) out: Option<String>,
    /// Choices on sets of matrices that were not fitted to.
    pub(super) unfitted: Vec<UnfittedSet>,
    /// Regret on these sets by the number of structures of the fit.
    pub(super) learning: Vec<LearningStep>,
    /// Repeatability of the decisions, if timing runs are repeated.
    pub(super) repeatability: Option<Repeatability>,
    /// Quality of calibration, if requested.
    pub(super) calibrations: Option<Calibrations>,
}

impl TuningReport<'_> {
    pub(super) fn json(&self) -> Json<'_> {
        let profile = &self.refit.profile;
        let worst = by_regret(&self.refit.choices).into_iter().take(WORST).map(|choice| {
            let m = &self.measured[choice.measured];
            Worst {
                matrix: &m.matrix,
                class: &m.class,
                dtype: m.scalar,
                regret: choice.regret,
                chosen: (&choice.chosen).into(),
                fastest: (&choice.fastest).into(),
            }
        });
        Json {
            device: &profile.device.name,
            out: self.out.clone(),
            measured: self.measured.len(),
            reused: self.reused,
            left_out: self.left_out,
            cache_bytes: profile.cache_bytes,
            corrected: profile.correction.is_some(),
            validation: &profile.validation,
            worst: worst.collect(),
            unfitted: self.unfitted.iter().map(unfitted::RegretOfSet::from).collect(),
            learning_curve: &self.learning,
            repeat: self.repeatability.as_ref(),
            calibrated: self.calibrations.as_ref(),
        }
    }

    /// Regret by class, the worst matrices, and the summary.
    pub(super) fn text(&self) -> String {
        let validation = &self.refit.profile.validation;
        let mut out = String::new();
        if !validation.held_out_classes.is_empty() {
            let columns = [
                ("class", Left),
                ("matrices", Right),
                ("mean regret", Right),
                ("95 %", Right),
                ("worst", Right),
            ];
            let row = |(name, regret): (&String, &Regret)| {
                std::iter::once(name.clone()).chain(regret_cells(regret)).collect()
            };
            out += &table(&columns, validation.held_out_classes.iter().map(row));
            out += "\n";
        }
        out += &worst("worst", self.measured, &self.refit.choices, WORST);
        let how = |name: &str, regret: &Regret| {
            let Regret { matrices, geometric_mean, p95, worst } = regret;
            format!(
                "{name} over {matrices} matrices: geometric mean {geometric_mean:.3}, 95th \
                 percentile {p95:.3}, worst {worst:.3}\n"
            )
        };
        out += "regret (time of the chosen plan over that of the fastest):\n";
        out += &how("in-sample regret", &validation.in_sample);
        if let Some(held_out) = &validation.held_out {
            out += &how("held-out regret by class", held_out);
        }
        for (_, text) in self.further() {
            out += "\n";
            out += &text;
        }
        out
    }

    /// Reports about matrices that were not fitted to and about timing runs, with their headings.
    pub(super) fn further(&self) -> impl Iterator<Item = (&'static str, String)> {
        let unfitted =
            (!self.unfitted.is_empty()).then(|| unfitted::text(&self.unfitted, &self.learning));
        let calibrations = self.calibrations.as_ref().map(timing_runs::calibrations);
        let repeatability = self.repeatability.as_ref().map(timing_runs::repeatability);
        let reports = [
            ("Regret on matrices that were not fitted to", unfitted),
            ("Regret of calibration", calibrations),
            ("Repeatability of decisions", repeatability),
        ];
        reports.into_iter().filter_map(|(heading, text)| Some((heading, text?)))
    }

    /// Compares predictions and times of the worst choices, term by term.
    pub(super) fn explain_worst(&self, count: usize) -> String {
        let mut out = String::new();
        for choice in by_regret(&self.refit.choices).into_iter().take(count) {
            out += &self.explain(choice);
            out += "\n";
        }
        out
    }

    /// Compares prediction and time of a choice, term by term.
    pub(super) fn explain(&self, choice: &JudgedChoice) -> String {
        let Measured { matrix, scalar, features, class, .. } = &self.measured[choice.measured];
        let regret = choice.regret;
        let what = format!(
            "{matrix} {scalar}, class {class}: {} x {}, {} entries, rows up to {}; regret \
             {regret:.3}: {}\n",
            features.nrows,
            features.ncols,
            features.nnz,
            features.max,
            why(choice)
        );
        what + &terms(choice)
    }
}

/// Terms of the chosen and of the fastest plan.
fn terms(choice: &JudgedChoice) -> String {
    let us = |ns: f64| format!("{:.2}", ns * 1e-3);
    let both = [&choice.chosen, &choice.fastest];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut add = |what: &str, cells: [String; 4]| {
        let [a, b, c, d] = cells;
        rows.push(vec![what.to_owned(), a, b, c, d]);
    };
    for (i, term) in Term::ALL.into_iter().enumerate() {
        let cells = both.map(|p| (p.work_terms[i], p.prediction.map_or(0.0, |p| p.terms[i])));
        if cells.iter().all(|(_, time)| *time == 0.0) {
            continue;
        }
        let [(a, ta), (b, tb)] = cells;
        // Explanations use one name for terms of one cause.
        let what = match term {
            Term::NearMisses => "gathering x past the nearest cache",
            Term::FarMisses => "gathering x past the middle caches",
            Term::MemoryLatency => "the longest row or slice of one thread, from memory",
            _ => term.describe(),
        };
        add(what, [format!("{a:.0}"), us(ta), format!("{b:.0}"), us(tb)]);
    }
    let none = String::new;
    let of = |what: fn(&Predicted) -> Option<String>| both.map(|p| what(p).unwrap_or_default());
    let [a, b] = of(|p| {
        p.prediction.filter(|p| p.imbalance > 0.0).map(|p| format!("{:.2}", p.imbalance * 1e-3))
    });
    if !(a.is_empty() && b.is_empty()) {
        add("load imbalance", [none(), a, none(), b]);
    }
    let [a, b] = of(|p| p.prediction.map(|p| format!("x {:.3}", p.correction)));
    add("correction", [none(), a, none(), b]);
    let [a, b] = of(|p| p.prediction.map(|p| format!("{:.2}", p.product() * 1e-3)));
    add("predicted", [none(), a, none(), b]);
    let [a, b] = of(|p| Some(format!("{:.2}", p.product * 1e-3)));
    add("measured", [none(), a, none(), b]);
    let names = both.map(|p| p.plan.to_string());
    let columns =
        [("µs", Left), ("work", Right), (&*names[0], Right), ("work", Right), (&*names[1], Right)];
    table(&columns, rows)
}

/// The formats with plans that a profile cannot predict, in words.
pub(super) fn unmeasured(profile: &Profile, scalar: ScalarKind) -> Option<String> {
    let missing = profile.missing_kernels(scalar);
    // The name of a kernel begins with that of its format.
    let of = |format: &str| {
        let here = |kernel: &str| kernel.split('.').next() == Some(format);
        if !missing.iter().any(|kernel| here(kernel)) {
            return None;
        }
        let measured = profile.coefficients.get(&scalar);
        let is_known = measured.is_some_and(|kernels| kernels.keys().any(|kernel| here(kernel)));
        Some(format!("{} plans of {format}", if is_known { "some" } else { "all" }))
    };
    let formats: Vec<String> = FormatKind::ALL.iter().filter_map(|kind| of(kind.name())).collect();
    (!formats.is_empty()).then(|| formats.join(", "))
}
