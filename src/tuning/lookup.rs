//! Lookup of the profile for predictions, and its fit, which is stated with every choice.
//!
//! Order of precedence: the profile requested in the program; the profiles named by [`VARIABLE`];
//! of those in the user's folder and the built-in ones, the best fit. User profiles are read once
//! in the lifetime of a process.
//!
//! A requested profile that cannot be read is an error. A user profile that cannot be read is
//! skipped with a warning: the content of a folder must not prevent a product.

use super::profile::{Fit, Profile};
use super::scale::Scale;
use crate::device::{Ceilings, Device, DeviceSpec};
use crate::error::printable;
use crate::files::absolute;
use crate::formats::{Plan, Target, csr};
use crate::{Error, ScalarKind};
use etcetera::BaseStrategy;
use serde::Serialize;
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Environment variable that names profiles, separated like the folders of `PATH`; `off` leaves
/// only the built-in ones.
pub const VARIABLE: &str = "SPARSEOP_PROFILE";

/// Folder of user profiles, below the platform's configuration folder.
const FOLDER: &str = "sparseop/profiles";

/// Extension of the files of user profiles.
const ENDING: &str = "ron";

/// Largest number of user profiles that are read from a folder, the first by name. More files are a
/// mistake, and would take long to read.
const MAX_FILES: usize = 64;

/// Source of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// Passed as a value by the program.
    Program,
    /// File named by the program.
    File(PathBuf),
    /// File named by [`VARIABLE`].
    Variable(PathBuf),
    /// File in the user's folder.
    Folder(PathBuf),
    /// Built-in profile of this name.
    BuiltIn(String),
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("given by the program"),
            Self::File(path) | Self::Folder(path) => {
                write!(f, "read from {}", printable(&path.display().to_string()))
            }
            Self::Variable(path) => {
                let path = path.display().to_string();
                write!(f, "read from {}, which {VARIABLE} names", printable(&path))
            }
            Self::BuiltIn(name) => write!(f, "built in as {name}"),
        }
    }
}

/// A requested profile: a value, or a file that is read once, when it is first needed.
#[derive(Debug, Clone)]
pub struct ProfileSource(ProfileSourceKind);

#[derive(Debug, Clone)]
enum ProfileSourceKind {
    Profile(Arc<Profile>),
    File(PathBuf, Arc<OnceLock<Arc<Profile>>>),
}

impl From<Arc<Profile>> for ProfileSource {
    fn from(profile: Arc<Profile>) -> Self {
        Self(ProfileSourceKind::Profile(profile))
    }
}

impl From<Profile> for ProfileSource {
    fn from(profile: Profile) -> Self {
        Arc::new(profile).into()
    }
}

impl From<PathBuf> for ProfileSource {
    fn from(path: PathBuf) -> Self {
        Self(ProfileSourceKind::File(path, Arc::default()))
    }
}

impl From<&Path> for ProfileSource {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<&str> for ProfileSource {
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

impl ProfileSource {
    /// Returns the profile.
    ///
    /// # Errors
    ///
    /// Those of [`Profile::read`].
    pub fn profile(&self) -> Result<Arc<Profile>, Error> {
        match &self.0 {
            ProfileSourceKind::Profile(profile) => Ok(profile.clone()),
            ProfileSourceKind::File(path, read) => match read.get() {
                Some(profile) => Ok(profile.clone()),
                None => Profile::read(path)
                    .map(|profile| read.get_or_init(|| Arc::new(profile)).clone()),
            },
        }
    }

    fn origin(&self) -> Origin {
        match &self.0 {
            ProfileSourceKind::Profile(_) => Origin::Program,
            ProfileSourceKind::File(path, _) => Origin::File(path.clone()),
        }
    }
}

/// The profile for predictions, with its source.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedProfile {
    /// The profile, as measured.
    pub profile: Arc<Profile>,
    /// Source of the profile.
    pub origin: Origin,
    /// Ceilings of the device, as far as they were measured for scaling the profile.
    pub ceilings: Ceilings,
    /// Defects of profiles with a higher precedence, one line each.
    pub warnings: Vec<String>,
}

impl From<Arc<Profile>> for ResolvedProfile {
    fn from(profile: Arc<Profile>) -> Self {
        Self {
            profile,
            origin: Origin::Program,
            ceilings: Ceilings::default(),
            warnings: Vec::new(),
        }
    }
}

impl ResolvedProfile {
    /// Scale factors of the profile's times on a device.
    pub fn scale(&self, device: &DeviceSpec) -> Scale {
        Scale::between((&self.profile.device, &self.profile.ceilings), (device, &self.ceilings))
    }

    /// Measures the ceilings needed to scale the profile to a device other than its own.
    fn scaled_to(mut self, device: &Device) -> Self {
        if let Device::Cuda(gpu) = device
            && !self.profile.device.is_same(&device.spec())
        {
            let mut known = |ceiling: Result<f64, Error>| match ceiling {
                Ok(ceiling) => Some(ceiling),
                Err(error) => {
                    self.warnings
                        .push(format!("times are scaled by multiprocessors alone: {error}"));
                    None
                }
            };
            let then = self.profile.ceilings;
            self.ceilings = Ceilings {
                copy_bandwidth: then.copy_bandwidth.and_then(|_| known(gpu.copy_bandwidth())),
                launch_us: then.launch_us.and_then(|_| known(gpu.launch_us())),
                upload_bandwidth: None,
            };
        }
        self
    }
}

/// Looks up the profile for a device and a scalar type: `given`, or the best available profile.
///
/// Times of another GPU are scaled by the ceilings of this one, which are measured once, in some
/// milliseconds.
///
/// # Errors
///
/// As [`ProfileSource::profile`]; none if `given` is `None`.
pub fn find(
    device: &Device,
    scalar: ScalarKind,
    given: Option<&ProfileSource>,
) -> Result<ResolvedProfile, Error> {
    static USERS: OnceLock<UserProfiles> = OnceLock::new();
    let found = match given {
        Some(given) => ResolvedProfile { origin: given.origin(), ..given.profile()?.into() },
        None => USERS.get_or_init(UserProfiles::of_user).best(&device.spec(), scalar),
    };
    Ok(found.scaled_to(device))
}

/// The folder of user profiles, which need not exist; `None` if the platform has no such folder.
pub fn user_folder() -> Option<PathBuf> {
    Some(absolute(etcetera::choose_base_strategy().ok()?.config_dir())?.join(FOLDER))
}

/// A profile and its source.
type SourcedProfile = (Origin, Arc<Profile>);

/// The user's profiles.
#[derive(Debug, Default)]
struct UserProfiles {
    /// Profiles named by [`VARIABLE`], followed by those in the folder, by name.
    profiles: Vec<SourcedProfile>,
    /// Reasons why profiles could not be read.
    warnings: Vec<String>,
}

impl UserProfiles {
    fn of_user() -> Self {
        Self::read(std::env::var_os(VARIABLE).as_deref(), user_folder().as_deref())
    }

    fn read(variable: Option<&OsStr>, folder: Option<&Path>) -> Self {
        let mut profiles = Self::default();
        if variable == Some(OsStr::new("off")) {
            return profiles;
        }
        for path in
            variable.iter().flat_map(std::env::split_paths).filter(|p| !p.as_os_str().is_empty())
        {
            profiles.add(&path, Origin::Variable);
        }
        for path in folder.map(|folder| profiles.files(folder)).unwrap_or_default() {
            profiles.add(&path, Origin::Folder);
        }
        profiles
    }

    /// Files of profiles in a folder, by name.
    fn files(&mut self, folder: &Path) -> Vec<PathBuf> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                self.warnings.push(Error::io("read", folder, error).to_string());
                return Vec::new();
            }
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.extension() == Some(OsStr::new(ENDING))).collect();
        paths.sort();
        if paths.len() > MAX_FILES {
            let (there, folder) = (paths.len(), folder.display().to_string());
            let folder = printable(&folder);
            self.warnings.push(format!(
                "{folder} has {there} profiles; only the first {MAX_FILES} are read"
            ));
            paths.truncate(MAX_FILES);
        }
        paths
    }

    /// Adds a profile without its records, which predictions do not use. Adds a warning if the file
    /// is not a profile.
    fn add(&mut self, path: &Path, origin: fn(PathBuf) -> Origin) {
        let not_a_file = || Error::Profile {
            origin: path.display().to_string(),
            message: "it is not a file".to_owned(),
        };
        // Regular files only: opening a pipe would block until it has a writer.
        let read = match std::fs::metadata(path) {
            Ok(found) if found.is_file() => Profile::read(path),
            Ok(_) => Err(not_a_file()),
            Err(error) => Err(Error::io("read", path, error)),
        };
        match read {
            Ok(profile) => {
                let profile = Arc::new(Profile { records: Vec::new(), ..profile });
                self.profiles.push((origin(path.to_owned()), profile));
            }
            Err(error) => self.warnings.push(error.to_string()),
        }
    }

    /// The best profile for a device: one that is named, otherwise the best of the user's folder
    /// and the built-in ones.
    fn best(&self, device: &DeviceSpec, scalar: ScalarKind) -> ResolvedProfile {
        let on = Target::of(device);
        let (name, profile) = Profile::builtin_for(device);
        let built_in = (Origin::BuiltIn(name.to_owned()), profile);
        let of_kind = self.profiles.iter().filter(|(_, profile)| Target::of(&profile.device) == on);
        let (usable, unusable): (Vec<&SourcedProfile>, Vec<_>) = of_kind
            .partition(|(_, profile)| profile.coefficients(scalar, plain_kernel(on)).is_some());
        // The first of the best: profiles of equal rank keep their order.
        let chosen =
            usable.iter().copied().chain([&built_in]).min_by_key(|profile| rank(profile, device));
        let (origin, profile) = chosen.unwrap_or(&built_in).clone();
        let mut warnings = self.warnings.clone();
        for (origin, _) in unusable {
            warnings.push(format!(
                "the profile {origin} is not used: it does not know plain CSR in {scalar}"
            ));
        }
        for (passed, old) in usable {
            if *passed != origin && old.device.is_same(device) && old.fit(device) == Fit::OldKernels
            {
                warnings.push(format!(
                    "the profile {passed} is not used: {}",
                    Fit::OldKernels.describe()
                ));
            }
        }
        ResolvedProfile { profile, origin, ceilings: Ceilings::default(), warnings }
    }
}

/// Kernel of the plan that every matrix has and that every memory limit admits. A profile without
/// it is unusable.
fn plain_kernel(on: Target) -> &'static str {
    Plan::Csr(csr::CsrPlan::Scalar).cost_key(on)
}

/// Sort key of profiles for a device, best first: named profiles, then the fit, profiles of old
/// kernels by the fit of their device, then the latest date.
fn rank<'a>(
    (origin, profile): &'a SourcedProfile,
    device: &DeviceSpec,
) -> (bool, Fit, Fit, Reverse<&'a str>) {
    let is_named = matches!(origin, Origin::Variable(_));
    (!is_named, profile.fit(device), profile.fit_of_device(device), Reverse(&profile.date))
}

#[cfg(test)]
mod tests;
