//! Report about matrices that were not fitted to: regret by set, learning curve, worst choices.

use super::super::console::{Left, Right, regret_cells, table};
use super::worst::worst;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::record::Regret;
use sparseop_tune::measurements::StoredMeasurements;
use sparseop_tune::offline::Measured;
use sparseop_tune::unfitted::{LearningStep, UnfittedSet};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Number of matrices of each set that are named.
const WORST: usize = 10;

/// Regret on a set, by scalar type.
#[derive(Serialize)]
pub(super) struct RegretOfSet<'a> {
    records: &'a str,
    regret: BTreeMap<ScalarKind, Regret>,
}

impl<'a> From<&'a UnfittedSet> for RegretOfSet<'a> {
    fn from(set: &'a UnfittedSet) -> Self {
        let of = |scalar: ScalarKind| Some((scalar, set.regret(scalar)?));
        Self { records: &set.name, regret: ScalarKind::ALL.into_iter().filter_map(of).collect() }
    }
}

/// Choices of a profile for the matrices of each file.
///
/// # Errors
///
/// An error if a file has no measurements of other matrices than those of the fit, or if they are
/// of another device or of other kernels.
pub(super) fn sets(
    files: &[PathBuf],
    kept: Vec<StoredMeasurements>,
    measured: &[Measured],
    profile: &Profile,
) -> Result<Vec<UnfittedSet>> {
    let set = |(file, kept): (&PathBuf, StoredMeasurements)| {
        let (name, origin) = (file.display().to_string(), &kept.header.provenance);
        if !origin.device.is_same(&profile.device) {
            bail!("the measurements in {name} are of another device than those of the profile");
        }
        if origin.kernels != profile.kernels {
            bail!("the measurements in {name} are of kernels of another version; measure again");
        }
        if kept.measured.is_empty() {
            bail!("there are no measurements in {name}");
        }
        UnfittedSet::new(name.clone(), kept.measured, measured, profile).with_context(|| {
            format!("every matrix in {name} was fitted to; validate with measurements of others")
        })
    };
    files.iter().zip(kept).map(set).collect()
}

/// Regret on each set, learning curve and worst choices.
pub(super) fn text(sets: &[UnfittedSet], learning: &[LearningStep]) -> String {
    let of = |set: &UnfittedSet| {
        let row = |scalar: ScalarKind| {
            let cells = regret_cells(&set.regret(scalar)?);
            Some([set.name.clone(), scalar.to_string()].into_iter().chain(cells).collect())
        };
        ScalarKind::ALL.into_iter().filter_map(row).collect::<Vec<_>>()
    };
    let columns = [
        ("not fitted to", Left),
        ("type", Left),
        ("matrices", Right),
        ("mean regret", Right),
        ("95 %", Right),
        ("worst", Right),
    ];
    let mut out = table(&columns, sets.iter().flat_map(of)) + "\n";
    let mut columns = vec![("structures of the fit", Right)];
    columns.extend(sets.iter().map(|set| (set.name.as_str(), Right)));
    let row = |step: &LearningStep| {
        let regrets = step.regret.iter().map(|regret| format!("{:.3}", regret.geometric_mean));
        std::iter::once(step.structures.to_string()).chain(regrets).collect()
    };
    out += &table(&columns, learning.iter().map(row));
    for set in sets {
        out += "\n";
        out += &worst(&format!("worst of {}", set.name), &set.measured, &set.choices, WORST);
    }
    out
}
