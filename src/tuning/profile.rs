//! Profiles: what was measured on a device, as RON.

use super::cost::Coefficients;
use crate::device::{Device, DeviceSpec};
use crate::formats::{Weights, coo, jds};
use crate::{Error, ScalarKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The version of the layout below; a profile of another version is refused.
pub const SCHEMA: u32 = 1;

/// The profiles that come with the library.
const CPU: &str = include_str!("../../models/cpu.ron");
const GPU: &str = include_str!("../../models/nvidia-h200.ron");

/// What was measured on one device: the coefficients from which the times of plans are predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of this layout.
    pub schema: u32,
    /// Version of the kernels that were measured.
    pub kernels: String,
    /// The device that was measured.
    pub device: DeviceSpec,
    /// The day of the measurement, `YYYY-MM-DD`.
    pub date: String,
    /// The command that made it.
    pub command: String,
    /// Bytes above which what a product reads does not stay in the caches until the next one.
    pub cache_bytes: f64,
    /// How well the predictions fit the measurements they were made from.
    pub validation: Validation,
    /// Coefficients of every kernel, by scalar.
    pub coefficients: BTreeMap<ScalarKind, BTreeMap<String, Coefficients>>,
}

/// How well the choice by prediction does on the matrices a profile was made from: regret is the time of the chosen plan over
/// that of the fastest one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Validation {
    /// Matrices, counted once for every scalar.
    pub matrices: usize,
    /// Geometric mean of the regret.
    pub mean_regret: f64,
    /// Its 95th percentile.
    pub p95_regret: f64,
    /// Its largest.
    pub worst_regret: f64,
}

/// How well a profile fits the device it is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fit {
    /// Measured on a device of this name, instructions and threads.
    Exact,
    /// Measured with the same instructions on another device or with other threads.
    SameInstructions,
    /// Measured on another kind of device.
    Other,
    /// Measured with kernels of another version.
    OldKernels,
}

impl Fit {
    /// The fit in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Exact => "measured on this device",
            Self::SameInstructions => "measured on another device with the same instructions",
            Self::Other => "measured on another kind of device",
            Self::OldKernels => {
                "measured with kernels of another version; make it again with `sparseop tune`"
            }
        }
    }
}

impl Profile {
    /// The profile that comes with the library for a device.
    pub fn builtin(device: &Device) -> Arc<Self> {
        static PROFILES: [OnceLock<Arc<Profile>>; 2] = [OnceLock::new(), OnceLock::new()];
        let (profile, name, text) = match device {
            Device::Cpu => (&PROFILES[0], "built-in cpu", CPU),
            Device::Cuda(_) => (&PROFILES[1], "built-in nvidia-h200", GPU),
        };
        // Our own files, read by a test: they cannot be damaged in a build that passed.
        let parse = || Arc::new(Self::parse(name, text).expect("the built-in profiles are valid"));
        profile.get_or_init(parse).clone()
    }

    /// Reads a profile from RON text; `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] when the text is not RON, of another schema, or holds coefficients that are not finite and at least 0.
    pub fn parse(origin: &str, text: &str) -> Result<Self, Error> {
        let fail = |message: String| Error::Profile { origin: origin.to_owned(), message };
        let profile: Self = ron::from_str(text).map_err(|e| fail(format!("not a profile: {e}")))?;
        if profile.schema != SCHEMA {
            return Err(fail(format!(
                "schema {} is not {SCHEMA}; make it again with `sparseop tune`",
                profile.schema
            )));
        }
        let kernels = profile.coefficients.values().flatten();
        if let Some((kernel, _)) = kernels.into_iter().find(|(_, c)| !c.is_valid()) {
            return Err(fail(format!("the coefficients of `{kernel}` must be finite and not negative")));
        }
        if !(profile.cache_bytes.is_finite() && profile.cache_bytes >= 1.0) {
            return Err(fail(format!("cache_bytes is {}; it must be at least 1", profile.cache_bytes)));
        }
        if profile.device.threads == 0 {
            return Err(fail("it was measured on 0 threads; there must be at least 1".to_owned()));
        }
        Ok(profile)
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when it cannot be read, else as [`Profile::parse`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Writes the profile as RON; the file appears whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let style = ron::ser::PrettyConfig::new().depth_limit(4).struct_names(false);
        let text = ron::ser::to_string_pretty(self, style).map_err(|e| Error::Profile {
            origin: path.display().to_string(),
            message: format!("cannot be written as RON: {e}"),
        })?;
        crate::files::write_atomically(path, |file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")
        })
    }

    /// How well the profile fits a device.
    pub fn fit(&self, device: &DeviceSpec) -> Fit {
        if self.kernels != device.kernels() {
            Fit::OldKernels
        } else if self.device.is_same(device) {
            Fit::Exact
        } else if self.device.instructions == device.instructions {
            Fit::SameInstructions
        } else {
            Fit::Other
        }
    }

    /// The coefficients of a kernel, if it was measured.
    pub fn coefficients(&self, scalar: ScalarKind, kernel: &str) -> Option<&Coefficients> {
        self.coefficients.get(&scalar)?.get(kernel)
    }

    /// What tails and sections cost in slots, from the coefficients of the kernels that have them.
    ///
    /// Of what a slot costs a fit may find some in the gather and some in the slot itself; how many slots are gathered depends on the
    /// matrix. For a GPU every one counts as gathered: rows so uneven that they have tails seldom hold columns that follow one another.
    /// For the CPU none does: that makes up for the rows of the COO part, which are not counted either (counting gathers took the
    /// gallery's `circuit` in f64 from width 6 to 5, a tenth slower on Zen 4).
    pub fn weights(&self, scalar: ScalarKind) -> Weights {
        let default = Weights::default();
        let gathers = self.device.gpu.is_some();
        let ratio = |kernel: &str, cost: fn(&Coefficients) -> f64, bytes: u64| {
            let c = self.coefficients(scalar, kernel)?;
            let slot = c.slot + c.byte * crate::formats::slot_bytes(scalar) as f64;
            let ratio = if gathers {
                (cost(c) + c.byte * bytes as f64) / (slot + c.gathered)
            } else {
                cost(c) / slot
            };
            (ratio.is_finite() && ratio > 0.0).then_some(ratio)
        };
        let section =
            ratio("jds.sections", |c| c.group, 0).map(|r| (r as u64).max(jds::DEFAULT_SECTION_SLOTS));
        Weights {
            // Below 1 nothing would ever stay in ELL, above 16 nothing would leave it: a fit that far off is noise.
            tail_slots: ratio("hyb", |c| c.tail, coo::entry_bytes(scalar))
                .map_or(default.tail_slots, |r| r.clamp(1.0, 16.0)),
            section_slots: section.unwrap_or(default.section_slots),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{FormatKind, Target};

    #[test]
    fn the_built_in_profiles_know_every_kernel() {
        for (on, name, text) in [(Target::Cpu, "cpu", CPU), (Target::Gpu, "nvidia-h200", GPU)] {
            let profile = Profile::parse(name, text).unwrap();
            for text in FormatKind::ALL.iter().flat_map(|k| k.examples()) {
                let kernel = text.parse::<crate::formats::Plan>().unwrap().kernel(on);
                for scalar in ScalarKind::ALL {
                    let known = profile.coefficients(scalar, kernel).is_some();
                    assert!(known, "{kernel} in {scalar} is not in models/{name}.ron");
                }
            }
        }
    }

    #[test]
    fn damaged_profiles_are_refused_with_their_origin() {
        let good = CPU.to_owned();
        for (text, expected) in [
            (String::new(), "not a profile"),
            ("[1, 2".to_owned(), "not a profile"),
            (good.replacen("schema: 1", "schema: 99", 1), "schema 99 is not 1"),
            (good.replacen("cache_bytes: ", "cache_bytes: -", 1), "at least 1"),
            (good.replacen("threads: 2", "threads: 0", 1), "0 threads"),
            (good.replacen("slot: ", "slot: -1", 1), "finite and not negative"),
        ] {
            let message = Profile::parse("some.ron", &text).unwrap_err().to_string();
            assert!(message.starts_with("profile some.ron:") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn written_and_read_again() {
        let profile = Profile::builtin(&Device::Cpu);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.ron");
        profile.write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), *profile);
    }
}
