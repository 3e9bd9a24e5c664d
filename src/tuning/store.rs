//! Decision store: results of calibrations on disk, so that the same matrix is not timed again.
//!
//! Each decision is one small RON file, whose last line is a comment with the checksum of the rest.
//! The store only saves time. An entry that is damaged, of another version of the kernels, for
//! another key or possibly written by another user is a miss, with its reason. If the folder is
//! not writable, decisions are not stored. Entries are written atomically, so that any number of
//! processes of a user can share a folder.

use super::decision::{Request, TimingOutcome, TimingRun};
use super::ron_text;
use super::stopwatch::unix_seconds;
use crate::analysis::{Analysis, Distinct, Fingerprint};
use crate::device::DeviceSpec;
use crate::error::printable;
use crate::files::{PrivateFolder, absolute};
use crate::{Error, Precision, ScalarKind};
use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Environment variable that names the parent folder of the store; `off` disables it.
pub const STORE_VARIABLE: &str = "SPARSEOP_STORE";

/// Folder of decisions, below the parent folder of the store.
const FOLDER: &str = "sparseop/decisions";

/// Version of the layout of [`StoredDecision`]; an entry of another version is a miss.
const SCHEMA: u32 = 5;

/// First bytes of every entry, which distinguish it from other files of the folder.
const START: &[u8] = b"(\n    schema: ";

/// Largest number of entries; beyond it the oldest are removed.
const CAPACITY: usize = 4096;

/// Largest size of an entry, in bytes: several times that of the largest timing run with the
/// longest reasons.
const MAX_BYTES: u64 = 64 << 10;

/// Key of a stored decision: the inputs that it depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionKey {
    /// Fingerprint of the structure of the matrix.
    pub structure: Fingerprint,
    /// Scalar type of the matrix.
    pub scalar: ScalarKind,
    /// Kind of its values: some plans store few distinct values as codes.
    pub values: ValueClass,
    /// Name of the device.
    pub device: String,
    /// Instructions for which its kernels are compiled.
    pub instructions: String,
    /// Number of its threads or multiprocessors.
    pub threads: usize,
    /// Decimal order of magnitude of the expected number of products.
    pub calls: u32,
    /// Memory limit of the packed matrix, in bytes, if requested.
    pub memory_limit: Option<u64>,
    /// True if bits have to be reproducible.
    pub deterministic: bool,
    /// True if caches are cold.
    pub cold: bool,
}

/// Kinds of values that plans distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueClass {
    /// All values are 1.
    Ones,
    /// Few distinct values.
    Few,
    /// More distinct values than are counted, all of them representable in a type of fewer bytes.
    Narrow(Precision),
    /// More distinct values than are counted.
    Many,
}

impl DecisionKey {
    /// The key of a matrix, a device and a request; `memory_limit` only if it was requested.
    pub fn new(
        structure: Fingerprint,
        analysis: &Analysis,
        device: &DeviceSpec,
        request: &Request,
        memory_limit: Option<u64>,
        cold: bool,
    ) -> Self {
        let analysis = request.reliable(analysis);
        let values = match analysis.structure.distinct_values {
            _ if analysis.structure.all_ones => ValueClass::Ones,
            Distinct::Exactly(_) => ValueClass::Few,
            Distinct::Many => {
                analysis.structure.exact_in.narrowest().map_or(ValueClass::Many, ValueClass::Narrow)
            }
        };
        Self {
            structure,
            scalar: request.scalar,
            values,
            device: device.name.clone(),
            instructions: device.instructions.clone(),
            threads: device.threads,
            calls: request.expected_calls.max(1).ilog10(),
            memory_limit,
            deterministic: request.deterministic,
            cold,
        }
    }

    /// File name: the structure, and a hash of the other fields.
    fn file(&self) -> String {
        format!("{}-{:016x}.ron", self.structure, xxh3_64(format!("{self:?}").as_bytes()))
    }
}

/// A stored decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredDecision {
    schema: u32,
    key: DecisionKey,
    /// Version of the timed kernels.
    kernels: String,
    /// CUDA version of the GPU's driver, if any.
    driver: Option<String>,
    /// Time of the timing run, in seconds since 1970.
    pub when: u64,
    /// Result of the timing run.
    pub timing_run: TimingRun,
}

impl StoredDecision {
    /// An entry for the result of a timing run on a device.
    pub fn new(key: DecisionKey, device: &DeviceSpec, when: u64, timing_run: TimingRun) -> Self {
        let kernels = device.kernels().to_owned();
        Self { schema: SCHEMA, key, kernels, driver: driver(device), when, timing_run }
    }

    /// An entry for a timing run that ended now.
    pub fn now(key: DecisionKey, device: &DeviceSpec, timing_run: TimingRun) -> Self {
        Self::new(key, device, unix_seconds(), timing_run)
    }

    /// Reason why the entry cannot be used for `key` on a device; `None` if it can.
    fn objection(&self, key: &DecisionKey, device: &DeviceSpec) -> Option<Miss> {
        let stale = |what: &str| Some(Miss::Stale(format!("it was made with {what}")));
        if self.key != *key {
            return Some(Miss::Foreign);
        }
        if self.kernels != device.kernels() {
            return stale("kernels of another version");
        }
        if self.driver != driver(device) {
            return stale("another driver");
        }
        if self.timing_run.timed_plan(&self.timing_run.winner).is_none()
            || self.timing_run.cold != key.cold
        {
            return Some(Miss::Damaged("its parts do not fit together".to_owned()));
        }
        defect(&self.timing_run).map(Miss::Damaged)
    }
}

fn driver(device: &DeviceSpec) -> Option<String> {
    device.gpu.as_ref().map(|gpu| gpu.driver.clone())
}

/// Reason for a miss.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Miss {
    /// No entry.
    Unknown,
    /// The entry is out of date.
    Stale(String),
    /// The entry cannot be read as a decision.
    Damaged(String),
    /// The file cannot be read, or another user may have written it.
    Untrusted(String),
    /// The entry is for another matrix, device or request, despite its file name.
    Foreign,
    /// The plan of the entry is not admissible now.
    Inadmissible(String),
}

impl Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no stored decision"),
            Self::Stale(reason) => write!(f, "the stored decision is out of date: {reason}"),
            // The reason may quote the entry.
            Self::Damaged(reason) => {
                write!(f, "the stored decision is damaged: {}", printable(reason))
            }
            Self::Untrusted(reason) => write!(f, "the stored decision is not used: {reason}"),
            Self::Foreign => f.write_str("the stored decision is for another matrix or request"),
            Self::Inadmissible(reason) => write!(f, "the stored decision cannot be used: {reason}"),
        }
    }
}

/// A folder of stored decisions.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PrivateFolder,
    capacity: usize,
}

impl Store {
    /// The user's store: below the folder named by [`STORE_VARIABLE`], otherwise below the
    /// platform's data folder. `None` if it is disabled or there is no such folder.
    pub fn of_user() -> Option<Self> {
        match std::env::var_os(STORE_VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == OsStr::new("off") => None,
            Some(folder) => Some(Self::below(Path::new(&folder))),
            None => {
                let folder = etcetera::choose_base_strategy().ok()?.data_dir();
                absolute(folder).map(|folder| Self::below(&folder))
            }
        }
    }

    /// The store below a folder, which need not exist yet.
    pub fn below(folder: &Path) -> Self {
        Self { folder: PrivateFolder::new(folder, FOLDER, STORE_VARIABLE), capacity: CAPACITY }
    }

    /// Folder of the entries.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Finds the entry for a key on a device.
    ///
    /// # Errors
    ///
    /// The reason for a miss.
    pub fn find(&self, key: &DecisionKey, device: &DeviceSpec) -> Result<StoredDecision, Miss> {
        let damaged = |error: &dyn Display| Miss::Damaged(error.to_string());
        let bytes = self.folder.read(&key.file(), MAX_BYTES).map_err(Miss::Untrusted)?;
        let bytes = bytes.ok_or(Miss::Unknown)?;
        let text = str::from_utf8(&bytes).map_err(|error| damaged(&error))?;
        let schema = ron_text::schema_of(text).map_err(|error| damaged(&error))?;
        if schema != SCHEMA {
            return Err(Miss::Stale(format!("its schema is {schema}, not {SCHEMA}")));
        }
        if !is_sealed(text) {
            return Err(damaged(&"its checksum is not that of its text"));
        }
        let entry: StoredDecision = ron::from_str(text).map_err(|error| damaged(&error))?;
        entry.objection(key, device).map_or(Ok(entry), Err)
    }

    /// Stores a decision in place of an earlier one, and removes the oldest entries beyond the
    /// capacity.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder or a file cannot be written.
    pub fn keep(&self, entry: &StoredDecision) -> Result<(), Error> {
        let name = entry.key.file();
        let invalid = |e| {
            Error::io("write", self.folder().join(&name), std::io::Error::other::<ron::Error>(e))
        };
        let text = ron_text::pretty(entry, ron::ser::PrettyConfig::new().new_line("\n"))
            .map_err(invalid)?;
        self.folder.write(&name, |file| file.write_all(sealed(&text).as_bytes()))?;
        self.trim();
        Ok(())
    }

    /// Removes the oldest entries beyond the capacity. Other files stay.
    fn trim(&self) {
        let mut files = self.folder.oldest_first();
        files.retain(|file| file.name.to_str().is_some_and(is_entry_name));
        // That opens every file, and is done only if there may be too many entries.
        if files.len() > self.capacity {
            files.retain(|file| file.begins_with(START));
        }
        for file in &files[..files.len().saturating_sub(self.capacity)] {
            file.remove();
        }
    }
}

/// Text before the checksum of an entry.
const SEAL: &str = "\n// ";

/// The text of an entry with its checksum in a last line.
pub fn sealed(text: &str) -> String {
    format!("{text}{SEAL}{:016x}\n", xxh3_64(text.as_bytes()))
}

/// True if the last line is the checksum of the others.
fn is_sealed(text: &str) -> bool {
    text.rsplit_once(SEAL).is_some_and(|(unsealed, _)| sealed(unsealed) == text)
}

/// True for names as [`DecisionKey::file`] makes them.
fn is_entry_name(name: &str) -> bool {
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let parts = name.strip_suffix(".ron").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(structure, rest)| is_hex(structure, 32) && is_hex(rest, 16))
}

/// Reason why the numbers of a timing run are none that a timing run has; `None` if they are.
fn defect(timing_run: &TimingRun) -> Option<String> {
    let is_valid = |number: f64| number.is_finite() && number >= 0.0;
    let seconds = [("seconds", timing_run.seconds), ("packing", timing_run.packing)];
    if let Some((name, number)) = seconds.into_iter().find(|(_, number)| !is_valid(*number)) {
        return Some(format!("{name} is {number}"));
    }
    timing_run.timed_plans.iter().find_map(|timed| {
        let ratio = match timed.outcome {
            TimingOutcome::Tied { ratio } | TimingOutcome::Slower { ratio, .. } => Some(ratio),
            _ => None,
        };
        let numbers = [
            ("prepare", timed.prepare),
            ("product", timed.product),
            ("spread", timed.spread),
            ("ratio", ratio),
        ];
        numbers.into_iter().find_map(|(name, number)| {
            let number = number.filter(|number| !is_valid(*number))?;
            Some(format!("{name} of {} is {number}", timed.plan))
        })
    })
}

#[cfg(test)]
mod tests;
