//! Calibration of each matrix of a tuning run, as an application would have it: to be compared with the race of every plan.

use super::super::console::Console;
use super::collection::Classes;
use super::measurements;
use anyhow::{Context, Result, bail};
use sparseop::analysis::Analysis;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::calibrate::{Calibration, Race};
use sparseop::tuning::offline::Measured;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::refit;
use sparseop::{Device, Scalar, SparseOpBuilder, Tuning};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Products that are expected: so many that preparation is nothing to them.
const MANY: u64 = 1_000_000_000;

/// What calibration's predictions are from: the profile in use, where there are no measurements to hold classes out of.
#[derive(Default)]
pub(super) struct Calibrating {
    held_out: Option<HeldOut>,
}

/// Measurements, and profiles that are fitted to them without a class.
struct HeldOut {
    measured: Vec<Measured>,
    whole: Profile,
    fitted: RefCell<BTreeMap<String, Arc<Profile>>>,
}

impl Calibrating {
    /// With profiles that are fitted to kept measurements; with the one in use where there are no files.
    pub(super) fn by(
        files: &[PathBuf],
        classes: &Classes,
        device: &Device,
        console: &Console,
    ) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self::default());
        }
        let (header, mut measured) = measurements::read_all(files, console)?;
        let (theirs, ours) = (&header.provenance.device.name, device.spec().name);
        if *theirs != ours {
            bail!("the measurements to hold classes out of are of {theirs}, and this is {ours}");
        }
        classes.assign(&mut measured);
        let spinner = console.spinner("fitting".to_owned());
        let whole = refit::profile(&measured, &header.provenance).profile;
        spinner.finish_and_clear();
        Ok(Self { held_out: Some(HeldOut { measured, whole, fitted: RefCell::default() }) })
    }

    /// Whether each class is predicted without having been fitted to.
    pub(super) fn is_held_out(&self) -> bool {
        self.held_out.is_some()
    }

    /// The race that calibration runs for a matrix of a class: from nothing that is remembered, with warm caches.
    pub(super) fn race<T: Scalar>(
        &self,
        device: &Device,
        a: &CsrMatrix<T>,
        analysis: &Analysis,
        class: &str,
    ) -> Result<Race> {
        let calibration = Calibration { always: true, ..Calibration::default() };
        let mut builder = SparseOpBuilder::new()
            .device(device.clone())
            .tuning(Tuning::Calibrate)
            .calibration(calibration)
            .expected_calls(MANY);
        if let Some(held_out) = &self.held_out {
            builder = builder.profile(held_out.without(class));
        }
        let op = builder.build_analyzed(a, analysis)?;
        op.decision().race().cloned().context("the calibration has run no race")
    }
}

impl HeldOut {
    /// The profile without a class, fitted when it is first needed.
    fn without(&self, class: &str) -> Arc<Profile> {
        let fit = || Arc::new(refit::without(&self.measured, class, &self.whole));
        self.fitted.borrow_mut().entry(class.to_owned()).or_insert_with(fit).clone()
    }
}
