//! Profiles: measurements of a device, as RON.

use super::correction::Correction;
use super::cost::{CacheReach, Coefficients};
use super::record::{Record, Validation};
use super::ron_text;
use crate::device::{Ceilings, DeviceSpec};
use crate::error::printable;
use crate::files::open_regular;
use crate::formats::{KernelCosts, Plan, Target, Work};
use crate::{Error, ScalarKind};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Version of the layout of [`Profile`]. Other versions are rejected.
pub const SCHEMA: u32 = 5;

/// Largest size of a profile's file, in bytes: records of some ten thousand matrices.
pub const MAX_BYTES: u64 = 64 << 20;

/// Measurements of one device, with the coefficients for predicted times of plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of this layout.
    pub schema: u32,
    /// Version of the measured kernels.
    pub kernels: String,
    /// The measured device.
    pub device: DeviceSpec,
    /// Date of the measurement, `YYYY-MM-DD`.
    pub date: String,
    /// Command that made the profile.
    pub command: String,
    /// Ceilings of the device.
    pub ceilings: Ceilings,
    /// Effective cache size: data of a product beyond this number of bytes do not stay in the
    /// caches until the next product.
    pub cache_bytes: f64,
    /// Capacity of caches and branch predictors.
    pub cache_reach: CacheReach,
    /// Regret of choices by the profile.
    pub validation: Validation,
    /// Coefficients of every kernel, by scalar type.
    pub coefficients: BTreeMap<ScalarKind, BTreeMap<String, Coefficients>>,
    /// Corrections of predictions by coefficients, with their uncertainty; `None` if choices are
    /// better without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
    /// Measurements; the built-in profiles have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
}

/// Value of `instructions` in a profile for any device of its kind; see [`Profile::generic`].
pub(super) const ANY: &str = "any";

/// Largest number of characters of a name in a profile: that of the name of a folder, which is a
/// class of matrices.
const MAX_NAME: usize = 255;

/// True if a name can be quoted in a line.
pub fn is_plain(name: &str) -> bool {
    name.chars().count() <= MAX_NAME && matches!(printable(name), Cow::Borrowed(_))
}

fn too_large() -> String {
    format!("it has more than {MAX_BYTES} bytes, which no profile has")
}

/// Fit of a profile to the target device, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fit {
    /// Measured on a device of the same name, architecture and number of threads.
    Exact,
    /// Measured on another device with the same instructions, and scaled.
    SameArchitecture,
    /// Measured on another device of the same kind, a CPU or a GPU, and scaled.
    SameKind,
    /// Measured on a GPU and expressed for one multiprocessor, to be scaled to any.
    Generic,
    /// Measured with another version of the kernels.
    OldKernels,
    /// Measured on a device of another kind.
    OtherKind,
}

impl Fit {
    /// Description of the fit.
    #[doc(hidden)]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Exact => "measured on such a device",
            Self::SameArchitecture => {
                "measured on another device with the same instructions, scaled to this one"
            }
            Self::SameKind => {
                "measured on another device with other instructions, scaled to this one"
            }
            Self::Generic => "measured on another GPU with other instructions, scaled to this one",
            Self::OldKernels => {
                "measured with kernels of another version; make it again with `sparseop tune`"
            }
            Self::OtherKind => "measured on another kind of device",
        }
    }
}

impl Profile {
    /// Reads a profile from RON text; `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if the text is not RON, has an unknown schema, or has inadmissible
    /// numbers: a coefficient that is not finite or below 0, a ceiling that is not above 0, a
    /// regret below 1.
    #[doc(hidden)]
    pub fn parse(origin: &str, text: &str) -> Result<Self, Error> {
        let fail = |message: String| Error::Profile { origin: origin.to_owned(), message };
        let not_a_profile = |e: ron::error::SpannedError| fail(format!("not a profile: {e}"));
        let profile: Self = match ron::from_str(text) {
            Ok(profile) => profile,
            // A profile of another schema has other fields.
            Err(error) => match ron_text::schema_of(text).map_err(not_a_profile)? {
                SCHEMA => return Err(not_a_profile(error)),
                other => return Err(fail(Self::other_schema(other))),
            },
        };
        if profile.schema != SCHEMA {
            return Err(fail(Self::other_schema(profile.schema)));
        }
        profile.defect().map_or(Ok(profile), |defect| Err(fail(defect)))
    }

    fn other_schema(schema: u32) -> String {
        format!(
            "its schema is {schema}, this version reads {SCHEMA}; make it again with `sparseop \
             tune`"
        )
    }

    /// Description of an inadmissible value, if any.
    #[doc(hidden)]
    pub fn defect(&self) -> Option<String> {
        /// Upper limit of a cache size, in bytes.
        const MAX: f64 = 1e15;
        if !self.names().all(is_plain) {
            return Some(format!(
                "its names must be printable and have at most {MAX_NAME} characters, as those of \
                 devices do"
            ));
        }
        let mut kernels = self.coefficients.values().flatten();
        if let Some((kernel, _)) = kernels.find(|(_, c)| !c.is_valid()) {
            return Some(format!("the coefficients of `{kernel}` must be finite and not negative"));
        }
        if !(1.0..=MAX).contains(&self.cache_bytes) {
            return Some(format!("cache_bytes is {}; it must be at least 1", self.cache_bytes));
        }
        if !self.cache_reach.is_valid() {
            return Some("its reach must be finite and above 0".to_owned());
        }
        if self.correction.as_ref().is_some_and(|correction| !correction.is_valid()) {
            return Some(
                "its correction must have finite numbers, and curves over ascending values"
                    .to_owned(),
            );
        }
        if self.device.threads == 0 {
            return Some("it was measured on 0 threads; there must be at least 1".to_owned());
        }
        if !self.ceilings.is_valid() {
            return Some("its ceilings must be finite and above 0".to_owned());
        }
        if !self.validation.is_valid() {
            return Some("the regrets of its validation must be finite and at least 1".to_owned());
        }
        self.records.iter().find_map(Record::defect)
    }

    /// Texts that explanations quote.
    fn names(&self) -> impl Iterator<Item = &str> {
        let device = [&self.device.name, &self.device.instructions, &self.kernels, &self.date];
        let driver = self.device.gpu.iter().map(|gpu| &gpu.driver);
        let corrected =
            self.correction.iter().flat_map(|c| c.kernels.values()).flat_map(BTreeMap::keys);
        let kernels = self.coefficients.values().flat_map(BTreeMap::keys).chain(corrected);
        let classes = self.validation.held_out_classes.keys();
        device.into_iter().chain(driver).chain(kernels).chain(classes).map(String::as_str)
    }

    /// Reads a profile from a file of at most [`MAX_BYTES`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read, [`Error::Profile`] if it is too large or not UTF-8,
    /// otherwise as [`Profile::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::read_file(path.as_ref())
    }

    fn read_file(path: &Path) -> Result<Self, Error> {
        let fail = |message: String| Error::Profile { origin: path.display().to_string(), message };
        let io = |e| Error::io("read", path, e);
        let mut bytes = Vec::new();
        open_regular(path).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(fail(too_large()));
        }
        let text = String::from_utf8(bytes).map_err(|e| fail(format!("not a profile: {e}")))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Writes the profile as RON, atomically.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be written, [`Error::Profile`] if [`Profile::read`] would refuse
    /// it.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.write_file(path.as_ref())
    }

    fn write_file(&self, path: &Path) -> Result<(), Error> {
        let origin = path.display().to_string();
        let fail = |message: String| Error::Profile { origin: origin.clone(), message };
        let style = ron::ser::PrettyConfig::new().depth_limit(4).struct_names(false);
        let text = ron_text::pretty(self, style)
            .map_err(|e| fail(format!("cannot be written as RON: {e}")))?;
        if text.len() as u64 >= MAX_BYTES {
            return Err(fail(format!("it is not written: {}", too_large())));
        }
        if let Some(defect) = self.defect() {
            return Err(fail(format!("it is not written: {defect}")));
        }
        crate::files::write_atomically(path, |file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")
        })
    }

    /// Fit of the profile to a device.
    #[doc(hidden)]
    pub fn fit(&self, device: &DeviceSpec) -> Fit {
        match self.fit_of_device(device) {
            Fit::OtherKind => Fit::OtherKind,
            _ if self.kernels != device.kernels() => Fit::OldKernels,
            fit => fit,
        }
    }

    /// True if it is scaled to any GPU; see [`Profile::generic`].
    #[doc(hidden)]
    pub fn is_generic(&self) -> bool {
        self.device.instructions == ANY
    }

    /// Fit of the profile's device, independent of the version of its kernels.
    pub(super) fn fit_of_device(&self, device: &DeviceSpec) -> Fit {
        if self.device.gpu.is_some() != device.gpu.is_some() {
            Fit::OtherKind
        } else if self.device.is_same(device) {
            Fit::Exact
        } else if self.device.instructions == device.instructions {
            Fit::SameArchitecture
        } else if self.is_generic() {
            Fit::Generic
        } else {
            Fit::SameKind
        }
    }

    /// Coefficients of a kernel, if it was measured, or those of its first measured fallback
    /// kernel.
    #[doc(hidden)]
    pub fn coefficients(&self, scalar: ScalarKind, kernel: &str) -> Option<&Coefficients> {
        self.of_kernel(scalar, kernel).map(|(_, coefficients)| coefficients)
    }

    /// The kernel used in place of `kernel`, as in [`Profile::coefficients`], and its coefficients.
    pub(super) fn of_kernel(
        &self,
        scalar: ScalarKind,
        kernel: &str,
    ) -> Option<(&str, &Coefficients)> {
        let kernels = self.coefficients.get(&scalar)?;
        let of = |name: &str| kernels.get_key_value(name);
        let found = of(kernel)
            .or_else(|| Plan::fallback_cost_keys(kernel).iter().find_map(|name| of(name)));
        found.map(|(name, coefficients)| (name.as_str(), coefficients))
    }

    /// Costs of the measured kernels, from which formats derive their thresholds.
    #[doc(hidden)]
    pub fn costs(&self, scalar: ScalarKind) -> ProfileCosts<'_> {
        ProfileCosts { profile: self, scalar }
    }
}

/// Costs of the kernels of a profile, for values of one type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct ProfileCosts<'a> {
    profile: &'a Profile,
    scalar: ScalarKind,
}

impl KernelCosts for ProfileCosts<'_> {
    fn scalar(&self) -> ScalarKind {
        self.scalar
    }

    fn on(&self) -> Target {
        Target::of(&self.profile.device)
    }

    fn cost(&self, kernel: &str, work: &Work) -> Option<f64> {
        Some(self.profile.coefficients(self.scalar, kernel)?.cost(work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::formats::Plan;
    use crate::tuning::record::{RecordedRun, RecordedStats, Regret};

    #[test]
    fn damaged_profiles_are_refused_with_their_origin() {
        let good = include_str!("../../models/cpu.ron").to_owned();
        for (text, expected) in [
            (String::new(), "not a profile"),
            ("[1, 2".to_owned(), "not a profile"),
            (good.replacen("schema: 5", "schema: 99", 1), "its schema is 99, this version reads 5"),
            (good.replacen("cache_bytes: ", "cache_bytes: -", 1), "at least 1"),
            (good.replacen("near: ", "near: -", 1), "reach"),
            (good.replacen("threads: 2", "threads: 0", 1), "0 threads"),
            (good.replacen("slot: ", "slot: -1", 1), "finite and not negative"),
            (good.replacen("call: ", "call: NaN, x: ", 1), "finite and not negative"),
            (good.replacen("slot: ", "slot: 1e300, x: ", 1), "finite and not negative"),
            (good.replacen("date: \"", "date: \"\\u{1b}[2J", 1), "printable"),
            (good.replacen("worst: 1", "worst: 0", 1), "at least 1"),
            (good.replacen("ceilings: (", "ceilings: (launch_us: Some(0),", 1), "above 0"),
            (
                good.replacen("ceilings: (", &format!("x: {}", "(".repeat(1 << 20)), 1),
                "not a profile",
            ),
        ] {
            let message = Profile::parse("some.ron", &text).unwrap_err().to_string();
            assert!(
                message.starts_with("profile some.ron:") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn fits_are_distinguished() {
        let h200 = Profile::parse("h200", include_str!("../../models/nvidia-h200.ron")).unwrap();
        let here = DeviceSpec { ..h200.device.clone() };
        let current = Profile { kernels: here.kernels().to_owned(), ..h200.clone() };
        let change = |f: &dyn Fn(&mut DeviceSpec)| {
            let mut device = here.clone();
            f(&mut device);
            current.fit(&device)
        };
        assert_eq!(current.fit(&here), Fit::Exact);
        assert_eq!(change(&|d| d.threads = 114), Fit::SameArchitecture);
        assert_eq!(change(&|d| d.instructions = "sm_80".to_owned()), Fit::SameKind);
        assert_eq!(current.generic("").unwrap().fit(&here), Fit::Generic);
        assert_eq!(current.fit(&Device::Cpu.spec()), Fit::OtherKind);
        let old = Profile { kernels: "old".to_owned(), ..current.clone() };
        assert_eq!(old.fit(&here), Fit::OldKernels);
        assert!(Fit::Exact < Fit::Generic && Fit::Generic < Fit::OldKernels);
    }

    #[test]
    fn unmeasured_kernels_of_long_rows_fall_back_to_those_without() {
        let plan: Plan = "psell(sigma:512,split:64)".parse().unwrap();
        let (whole, split) = ("psell.sorted", plan.cost_key(Target::Gpu));
        assert_eq!(split, "psell.sorted.split");
        let of = |slot| Coefficients { slot, ..Coefficients::default() };
        let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
        let mut set = |kernels: &[(&str, f64)]| {
            let kernels = kernels.iter().map(|&(name, slot)| (name.to_owned(), of(slot))).collect();
            profile.coefficients = BTreeMap::from([(ScalarKind::F32, kernels)]);
            profile.of_kernel(ScalarKind::F32, split).map(|(name, c)| (name.to_owned(), c.slot))
        };
        assert_eq!(set(&[(whole, 1.0), (split, 2.0)]), Some((split.to_owned(), 2.0)));
        assert_eq!(set(&[(whole, 1.0)]), Some((whole.to_owned(), 1.0)));
        assert_eq!(set(&[("psell", 1.0)]), None);
        assert_eq!(set(&[]), None);
        assert_eq!(set(&[(split, 2.0)]), Some((split.to_owned(), 2.0)));
        // In the other direction there is no substitute.
        assert_eq!(profile.coefficients(ScalarKind::F32, whole), None);
    }

    #[test]
    fn values_of_fewer_bytes_are_predicted_by_the_kernel_for_values_as_they_are() {
        let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
        for (values, wide) in [("f16", "psell"), ("bf16,group:4", "psell.v4")] {
            let plan: Plan = format!("psell(sigma:1,values:{values})").parse().unwrap();
            let own = plan.cost_key(Target::Gpu);
            let split = plan
                .to_string()
                .replace(')', ",split:60)")
                .parse::<Plan>()
                .unwrap()
                .cost_key(Target::Gpu);
            let wide_split = format!("{wide}.split");
            assert_eq!(split, format!("{own}.split"));
            let mut found = |kernels: &[&str], kernel: &str| {
                let kernels = kernels
                    .iter()
                    .map(|&name| (name.to_owned(), Coefficients::default()))
                    .collect();
                profile.coefficients = BTreeMap::from([(ScalarKind::F32, kernels)]);
                profile.of_kernel(ScalarKind::F32, kernel).map(|(name, _)| name.to_owned())
            };
            assert_eq!(found(&[wide, own], own).as_deref(), Some(own));
            assert_eq!(found(&[wide, "sell"], own).as_deref(), Some(wide));
            assert_eq!(found(&[wide, &wide_split, own], split).as_deref(), Some(own));
            assert_eq!(found(&[wide, &wide_split], split).as_deref(), Some(&*wide_split));
            assert_eq!(found(&[wide], split).as_deref(), Some(wide));
            assert_eq!(found(&[own], wide), None);
        }
    }

    #[test]
    fn invalid_profiles_are_refused_before_they_are_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.ron");
        std::fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let message = Profile::read(&path).unwrap_err().to_string();
        assert!(
            message.contains("large.ron") && message.contains("more than 67108864 bytes"),
            "{message}"
        );
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(Profile::read(&path).unwrap_err().to_string().contains("utf-8"));
        assert!(Profile::read(folder.path()).is_err());
    }

    #[test]
    fn written_and_read_again() {
        let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
        profile.validation.held_out = Some(Regret::of(&[1.0, 1.25]));
        profile.validation.held_out_classes.insert("road".to_owned(), Regret::of(&[1.5]));
        profile.validation.calibrated = Some(Regret::of(&[1.01]));
        profile.records.push(Record {
            matrix: "road_usa.mtx".to_owned(),
            class: "road".to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            nrows: 3,
            ncols: 3,
            nnz: 4,
            stats: RecordedStats { mean: 4.0 / 3.0, max: 2, cv: 0.5, empty_rows: 0 },
            chosen: Some("csr(scalar)".to_owned()),
            held_out: None,
            runs: vec![RecordedRun {
                plan: "ell".to_owned(),
                product_us: 0.0,
                prepare_us: 0.0,
                traffic_bytes: 100,
                failed: Some("too large".to_owned()),
            }],
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.ron");
        profile.write(&path).unwrap();
        let mut refused = profile.clone();
        refused.device.threads = 0;
        let message = refused.write(&path).unwrap_err().to_string();
        assert!(message.contains("it is not written: it was measured on 0 threads"), "{message}");
        assert_eq!(Profile::read(&path).unwrap(), profile);
    }
}
