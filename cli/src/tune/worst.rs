//! The worst choices of a profile, with their causes.

use super::super::console::{Left, Right, duration, table};
use sparseop_tune::offline::Measured;
use sparseop_tune::refit::{JudgedChoice, Predicted};

/// The choices, worst first. Equal ones are in the order of the measurements.
pub(super) fn by_regret(choices: &[JudgedChoice]) -> Vec<&JudgedChoice> {
    let mut choices: Vec<&JudgedChoice> = choices.iter().collect();
    choices.sort_by(|a, b| b.regret.total_cmp(&a.regret));
    choices
}

/// Table of the worst choices with their causes, under a heading; empty without regret.
pub(super) fn worst(
    heading: &str,
    measured: &[Measured],
    choices: &[JudgedChoice],
    count: usize,
) -> String {
    let row = |choice: &&JudgedChoice| {
        let m = &measured[choice.measured];
        let time = |p: &Predicted| format!("{} {}", p.plan, duration(p.product * 1e-9));
        vec![
            format!("{} {}", m.matrix, m.scalar),
            format!("{:.3}", choice.regret),
            time(&choice.chosen),
            time(&choice.fastest),
            why(choice),
        ]
    };
    let choices = by_regret(choices);
    let worst: Vec<_> = choices.iter().filter(|c| c.regret > 1.0).take(count).map(row).collect();
    if worst.is_empty() {
        return String::new();
    }
    let columns =
        [(heading, Left), ("regret", Right), ("chosen", Left), ("fastest", Left), ("cause", Left)];
    table(&columns, worst) + "\n"
}

/// Cause of a wrong choice: the prediction with the larger error.
pub(super) fn why(choice: &JudgedChoice) -> String {
    let ratio = |p: &Predicted| p.prediction.map(|prediction| prediction.product() / p.product);
    match (ratio(&choice.chosen), ratio(&choice.fastest)) {
        (_, None) => "the profile has no measurements like the fastest plan".to_owned(),
        (Some(chosen), Some(fastest)) if chosen.ln().abs() >= fastest.ln().abs() => {
            mispredicted("chosen", &choice.chosen)
        }
        (_, Some(_)) => mispredicted("fastest", &choice.fastest),
    }
}

/// Predicted and measured time of a plan, in words.
fn mispredicted(which: &str, plan: &Predicted) -> String {
    let predicted = plan.prediction.map_or(0.0, |prediction| prediction.product());
    let [predicted, measured] = [predicted, plan.product].map(|ns| duration(ns * 1e-9));
    format!("the {which} plan was predicted at {predicted} and measured at {measured}")
}
