//! The plans to time, in their spelling on the command line.

use anyhow::{Result, anyhow};
use sparseop::{Error, Plan};
use std::str::FromStr;

/// A request for one plan or for several.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PlanRequest {
    /// The plan chosen for the matrix.
    Auto,
    /// The plan predicted to be fastest.
    Predicted,
    /// The winner of a calibration.
    Calibrated,
    /// Every candidate that may be chosen.
    All,
    /// Every candidate, also those that are excluded by their bounds or used only on request.
    Every,
    /// A plan by name.
    Plan(Plan),
}

/// Value of `--plans`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plans(Vec<PlanRequest>);

impl Plans {
    pub(super) fn iter(&self) -> impl Iterator<Item = &PlanRequest> {
        self.0.iter()
    }
}

impl FromStr for Plans {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        split(text).map(parse).collect::<Result<_>>().map(Self)
    }
}

/// The words that stand for plans.
const WORDS: [&str; 5] = ["auto", "predicted", "calibrated", "all", "every"];

fn parse(text: &str) -> Result<PlanRequest> {
    match text.trim() {
        "auto" => Ok(PlanRequest::Auto),
        "predicted" => Ok(PlanRequest::Predicted),
        "all" => Ok(PlanRequest::All),
        "every" => Ok(PlanRequest::Every),
        "calibrated" => Ok(PlanRequest::Calibrated),
        plan => Ok(PlanRequest::Plan(plan.parse().map_err(|error| with_hint(plan, error))?)),
    }
}

/// The error about a plan, with the word that it may be meant to be.
fn with_hint(text: &str, error: Error) -> anyhow::Error {
    let slips = |word: &&str| strsim::damerau_levenshtein(text, word);
    let near = WORDS.into_iter().filter(|word| slips(word) <= 1).min_by_key(slips);
    match near {
        Some(word) => anyhow!("`{text}` is not a plan; did you mean `{word}`?"),
        None => error.into(),
    }
}

/// Splits at the commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_parentheses_belong_to_the_plan() {
        let plans: Plans = "auto, sell(c:32,sigma:512),csr,calibrated".parse().unwrap();
        let plan = |text: &str| PlanRequest::Plan(text.parse().unwrap());
        assert_eq!(
            plans.0,
            [PlanRequest::Auto, plan("sell(c:32,sigma:512)"), plan("csr"), PlanRequest::Calibrated]
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("auto,sel(c:32)", "did you mean `sell`?"),
            ("auto,,csr", "`` is not a plan"),
            ("sell(c:32,csr", "closing parenthesis"),
            ("calibrate", "did you mean `calibrated`?"),
            ("al", "did you mean `all`?"),
            ("auto,evry", "did you mean `every`?"),
            ("ell,el", "did you mean `ell`?"),
        ] {
            let message = text.parse::<Plans>().unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
