//! Regret of a profile on matrices that it was not fitted to, and how it falls with the number of
//! matrices of the fit.

use crate::offline::Measured;
use crate::refit::{JudgedChoice, choices, fitted, judged, regret};
use rayon::prelude::*;
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::analysis::Fingerprint;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::record::Regret;
use std::collections::BTreeSet;

/// Choices of a profile for a set of matrices that it was not fitted to.
#[derive(Debug)]
pub struct UnfittedSet {
    /// Name of the set.
    pub name: String,
    /// The measurements.
    pub measured: Vec<Measured>,
    /// The choices, in the order of the measurements.
    pub choices: Vec<JudgedChoice>,
}

/// Regret of fits to some of the structures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LearningStep {
    /// Number of structures of the fit.
    pub structures: usize,
    /// Regret on each set that was not fitted to.
    pub regret: Vec<Regret>,
}

impl UnfittedSet {
    /// Chooses by a profile. Structures that it was fitted to are left out; `None` if no other is
    /// there.
    pub fn new(
        name: String,
        mut measured: Vec<Measured>,
        fitted_to: &[Measured],
        profile: &Profile,
    ) -> Option<Self> {
        let known = structures(fitted_to);
        measured.retain(|m| !known.contains(&m.fingerprint));
        if measured.is_empty() {
            return None;
        }
        let choices = choices(&measured, &judged(&measured), profile);
        Some(Self { name, measured, choices })
    }

    /// Regret in a scalar type; `None` without matrices in it.
    pub fn regret(&self, scalar: ScalarKind) -> Option<Regret> {
        let of = |choice: &&JudgedChoice| self.measured[choice.measured].scalar == scalar;
        let regret = regret(self.choices.iter().filter(of));
        (regret.matrices > 0).then_some(regret)
    }
}

/// The structures of measurements. Their order is that of a hash, and so without a pattern.
fn structures(measured: &[Measured]) -> BTreeSet<Fingerprint> {
    measured.iter().map(|m| m.fingerprint).collect()
}

/// Regret of profiles like `whole`, fitted to a sixteenth, an eighth, a quarter and half of the
/// structures, and to all of them.
pub fn learning_curve(
    measured: &[Measured],
    whole: &Profile,
    sets: &[UnfittedSet],
) -> Vec<LearningStep> {
    /// Numbers of structures, as divisors of the number of all.
    const DIVISORS: [usize; 5] = [16, 8, 4, 2, 1];
    let all: Vec<Fingerprint> = structures(measured).into_iter().collect();
    let step = |divisor: &usize| {
        let part: BTreeSet<_> = all[..all.len() / divisor].iter().collect();
        let some: Vec<&Measured> =
            measured.iter().filter(|m| part.contains(&m.fingerprint)).collect();
        let profile = fitted(&some, whole, whole.correction.is_some());
        let of_set = |set: &UnfittedSet| {
            let judged: Vec<usize> = set.choices.iter().map(|choice| choice.measured).collect();
            regret(choices(&set.measured, &judged, &profile).iter())
        };
        LearningStep { structures: part.len(), regret: sets.iter().map(of_set).collect() }
    };
    let steps: Vec<_> = DIVISORS.par_iter().map(step).collect();
    steps.into_iter().filter(|step| step.structures > 0).collect()
}
