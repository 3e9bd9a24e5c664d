//! Reports about timing runs: repeatability of their decisions, and quality of calibration.

use super::super::console::{Left, Right, duration, percent, regret_cells, table};
use sparseop::tuning::decision::TIE_BAND;
use sparseop::tuning::record::Regret;
use sparseop_tune::calibrated::{Calibrated, Calibrations, Timed};
use sparseop_tune::repeat::{Agreement, ChosenPlan, Disagreement, Repeatability};
use std::fmt::Write;

/// Number of matrices named in the summary.
pub(super) const WORST: usize = 5;

/// Number of named matrices on which fresh timing runs differ. Of successive ones all are named.
const FRESH: usize = 10;

/// Repeatability of the decisions, and the matrices on which they differ.
pub(super) fn repeatability(r: &Repeatability) -> String {
    let mut out = format!("{} timing runs of each of {} matrices\n", r.timing_runs, r.matrices);
    agreement(
        &mut out,
        r,
        "successive, each starting from the decision of the previous one",
        &r.successive,
    );
    agreement(&mut out, r, "fresh, each starting from the prediction", &r.fresh);
    out += &differing("differing, successive", &r.successive.differing, usize::MAX);
    out + &differing("differing, fresh", &r.fresh.differing, FRESH)
}

fn agreement(out: &mut String, r: &Repeatability, how: &str, a: &Agreement) {
    let share = |part: usize, whole: usize| {
        format!("{part} of {whole}, {}", percent(part as f64 / whole.max(1) as f64))
    };
    let _ = write!(out, "{how}: the same decision on {}", share(a.agreeing, r.matrices));
    if (1..r.matrices).contains(&r.judged) {
        let _ = write!(
            out,
            " (of those included in the regret: {})",
            share(a.agreeing_judged, r.judged)
        );
    }
    let Regret { geometric_mean, p95, worst, .. } = a.regret;
    let _ = writeln!(
        out,
        "; regret of a decision: geometric mean {geometric_mean:.3}, 95th percentile {p95:.3}, \
         worst {worst:.3}"
    );
    if !a.differing.is_empty() {
        let within = if a.within_tie_band { "within" } else { "outside" };
        let (excess, band) = (percent(a.largest_excess - 1.0), percent(TIE_BAND));
        let _ = writeln!(
            out,
            "  differing decisions take at most {excess} longer than the fastest: {within} the tie \
             band of {band}"
        );
    }
}

fn differing(heading: &str, differing: &[Disagreement], most: usize) -> String {
    if differing.is_empty() {
        return String::new();
    }
    let plan = |d: &ChosenPlan| format!("{} {} x, {:.3}", d.plan, d.timing_runs, d.excess);
    let row = |one: &Disagreement| {
        let plans: Vec<String> = one.decisions.iter().map(plan).collect();
        vec![format!("{} {}", one.matrix, one.scalar), plans.join("; ")]
    };
    let columns = [(heading, Left), ("decision, and its time over the fastest", Left)];
    table(&columns, differing.iter().take(most).map(row))
}

/// Quality of calibration: by class, the worst matrices, and in total.
pub(super) fn calibrations(c: &Calibrations) -> String {
    let columns = [
        ("calibrated", Left),
        ("matrices", Right),
        ("mean regret", Right),
        ("95 %", Right),
        ("worst", Right),
    ];
    let classes = c.classes.iter();
    let rows = classes
        .map(|(class, regret)| [class.clone()].into_iter().chain(regret_cells(regret)).collect());
    let mut out = table(&columns, rows) + "\n" + &worst(&c.worst);
    let by = if c.held_out {
        "profiles fitted without the matrix's class"
    } else {
        "the profile in use"
    };
    for (what, regret) in [("calibrated", &c.regret), ("not calibrated", &c.predicted)] {
        let Regret { matrices, geometric_mean, p95, worst } = regret;
        let _ = writeln!(
            out,
            "{what}, predicted by {by}, over {matrices} matrices: regret geometric mean \
             {geometric_mean:.4}, 95th percentile {p95:.3}, worst {worst:.3}"
        );
    }
    let _ = writeln!(out, "mean duration of a calibration: {}", duration(c.seconds));
    out
}

fn worst(worst: &[Calibrated]) -> String {
    let time = |timed: &Timed| format!("{} {}", timed.plan, duration(timed.product_us * 1e-6));
    let row = |one: &Calibrated| {
        vec![
            format!("{} {}", one.matrix, one.scalar),
            format!("{:.3}", one.regret),
            time(&one.chosen),
            time(&one.fastest),
            one.why.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = worst.iter().filter(|one| one.regret > 1.0).take(WORST).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        ("worst calibrated", Left),
        ("regret", Right),
        ("chosen", Left),
        ("fastest", Left),
        ("in the calibration", Left),
    ];
    table(&columns, rows) + "\n"
}
