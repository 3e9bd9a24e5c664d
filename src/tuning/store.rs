//! Decision store: results of calibrations on disk, so that the same matrix is not timed again.
//!
//! Each decision is one small RON file. The store only saves time. An entry that is damaged, of
//! another version of the kernels or for another key is a miss, with its reason. If the folder is
//! not writable, decisions are not stored. Entries are written atomically, so that any number of
//! processes can share a folder.

use super::decision::{Request, TimingRun};
use super::stopwatch::unix_seconds;
use crate::analysis::{Analysis, Distinct, Fingerprint};
use crate::device::DeviceSpec;
use crate::files::{oldest_first, write_atomically};
use crate::{Error, Precision, ScalarKind};
use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Environment variable that names the parent folder of the store; `off` disables it.
pub const STORE_VARIABLE: &str = "SPARSEOP_STORE";

/// Folder of decisions below it.
const FOLDER: &str = "sparseop/decisions";

/// Version of the layout of [`Entry`]; an entry of another version is a miss.
const SCHEMA: u32 = 3;

/// Largest number of entries; beyond it the oldest are removed.
const CAPACITY: usize = 4096;

/// Largest size of an entry, in bytes: several times that of the largest timing run with the
/// longest reasons.
const MAX_BYTES: u64 = 64 << 10;

/// Key of a stored decision: the inputs that it depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Fingerprint of the structure of the matrix.
    pub structure: Fingerprint,
    /// Scalar type of the matrix.
    pub scalar: ScalarKind,
    /// Kind of its values: some plans store few distinct values as codes.
    pub values: Values,
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
pub enum Values {
    /// All values are 1.
    Ones,
    /// Few distinct values.
    Few,
    /// More distinct values than are counted, all of them representable in a type of fewer bytes.
    Narrow(Precision),
    /// More distinct values than are counted.
    Many,
}

impl Key {
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
            _ if analysis.structure.all_ones => Values::Ones,
            Distinct::Exactly(_) => Values::Few,
            Distinct::Many => {
                analysis.structure.exact_in.narrowest().map_or(Values::Many, Values::Narrow)
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
pub struct Entry {
    schema: u32,
    key: Key,
    /// Version of the timed kernels.
    kernels: String,
    /// CUDA version of the GPU's driver, if any.
    driver: Option<String>,
    /// Time of the timing run, in seconds since 1970.
    pub when: u64,
    /// Result of the timing run.
    pub timing_run: TimingRun,
}

impl Entry {
    /// An entry for the result of a timing run on a device.
    pub fn new(key: Key, device: &DeviceSpec, when: u64, timing_run: TimingRun) -> Self {
        let kernels = device.kernels().to_owned();
        Self { schema: SCHEMA, key, kernels, driver: driver(device), when, timing_run }
    }

    /// An entry for a timing run that ended now.
    pub fn now(key: Key, device: &DeviceSpec, timing_run: TimingRun) -> Self {
        Self::new(key, device, unix_seconds(), timing_run)
    }

    /// Reason why the entry cannot be used for `key` on a device; `None` if it can.
    fn objection(&self, key: &Key, device: &DeviceSpec) -> Option<Miss> {
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
        None
    }
}

fn driver(device: &DeviceSpec) -> Option<String> {
    device.gpu.as_ref().map(|gpu| gpu.driver.clone())
}

/// Reason for a miss.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Miss {
    /// There is no entry.
    Unknown,
    /// The entry is out of date.
    Stale(String),
    /// The entry cannot be read.
    Damaged(String),
    /// The entry is for another matrix, device or request, despite its file name.
    Foreign,
    /// The plan of the entry is not admissible now.
    Inadmissible(String),
}

impl Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("nothing was remembered"),
            Self::Stale(reason) => write!(f, "what was remembered is out of date: {reason}"),
            Self::Damaged(reason) => write!(f, "what was remembered is damaged: {reason}"),
            Self::Foreign => f.write_str("what was remembered is of something else"),
            Self::Inadmissible(reason) => write!(f, "what was remembered cannot be used: {reason}"),
        }
    }
}

/// A folder of stored decisions.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    capacity: usize,
}

impl Store {
    /// The user's store: below the folder named by [`STORE_VARIABLE`], otherwise below the
    /// platform's data folder. `None` if it is disabled or there is no such folder.
    pub fn of_user() -> Option<Self> {
        match std::env::var_os(STORE_VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == OsStr::new("off") => None,
            Some(folder) => Some(Self::below(Path::new(&folder))),
            None => Some(Self::below(&etcetera::choose_base_strategy().ok()?.data_dir())),
        }
    }

    /// The store below a folder, which need not exist yet.
    pub fn below(folder: &Path) -> Self {
        Self { folder: folder.join(FOLDER), capacity: CAPACITY }
    }

    /// Folder of the entries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Finds the entry for a key on a device.
    ///
    /// # Errors
    ///
    /// The reason for a miss.
    pub fn find(&self, key: &Key, device: &DeviceSpec) -> Result<Entry, Miss> {
        let damaged = |error: &dyn Display| Miss::Damaged(error.to_string());
        let path = self.folder.join(key.file());
        let data = fs::metadata(&path).map_err(|_| Miss::Unknown)?;
        if !data.is_file() || data.len() > MAX_BYTES {
            return Err(damaged(&format!("it is no file of at most {MAX_BYTES} bytes")));
        }
        let mut text = String::new();
        let file = fs::File::open(&path).map_err(|error| damaged(&error))?;
        // The file may have grown since its length was read.
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| damaged(&error))?;
        let schema: Schema = ron::from_str(&text).map_err(|error| damaged(&error))?;
        if schema.schema != SCHEMA {
            return Err(Miss::Stale(format!(
                "its layout is version {}, not {SCHEMA}",
                schema.schema
            )));
        }
        let entry: Entry = ron::from_str(&text).map_err(|error| damaged(&error))?;
        entry.objection(key, device).map_or(Ok(entry), Err)
    }

    /// Stores a decision in place of an earlier one, and removes the oldest entries beyond the
    /// capacity.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder or a file cannot be written.
    pub fn keep(&self, entry: &Entry) -> Result<(), Error> {
        let path = self.folder.join(entry.key.file());
        fs::create_dir_all(&self.folder).map_err(|e| Error::io("create", &self.folder, e))?;
        let invalid = |e: ron::Error| Error::io("write", &path, std::io::Error::other(e));
        let text =
            ron::ser::to_string_pretty(entry, ron::ser::PrettyConfig::new()).map_err(invalid)?;
        write_atomically(&path, |file| file.write_all(text.as_bytes()))?;
        let files = oldest_first(&self.folder);
        for file in &files[..files.len().saturating_sub(self.capacity)] {
            // Other processes may remove the same files; a file that cannot be removed is already
            // gone.
            let _ = fs::remove_file(&file.path);
        }
        Ok(())
    }
}

/// Part of an entry common to all versions of the layout.
#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, GpuSpec};
    use crate::testing::chapter;
    use crate::tuning::decision::{Outcome, TimedPlan};
    use std::time::{Duration, SystemTime};

    fn key() -> Key {
        let a = chapter::matrix::<f32>();
        let analysis = Analysis::of(a.view());
        let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
        Key::new(Fingerprint::of(a.view()), &analysis, &Device::Cpu.spec(), &request, None, false)
    }

    /// A timing run of two plans, one of which failed.
    fn timing_run() -> TimingRun {
        let timed_plan = |plan: &str, median: Option<f64>, outcome| TimedPlan {
            plan: plan.parse().unwrap(),
            prepare: median,
            median,
            spread: median,
            rounds: 5,
            outcome,
        };
        let failed = Outcome::Failed { reason: "it was \"too\" slow".to_owned() };
        TimingRun {
            winner: "sell(c:32,sigma:512)".parse().unwrap(),
            cold: false,
            timed_plans: vec![
                timed_plan("csr", None, failed),
                timed_plan("sell(c:32,sigma:512)", Some(1e-5), Outcome::Won),
            ],
            groups: 1,
            seconds: 0.5,
            packing: 0.25,
            held_bytes: 200,
            decided: true,
        }
    }

    fn entry() -> Entry {
        Entry::new(key(), &Device::Cpu.spec(), 1_800_000_000, timing_run())
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::below(folder.path());
        (folder, store)
    }

    #[test]
    fn what_is_kept_is_found_again_and_nothing_else() {
        let (_folder, store) = store();
        let cpu = Device::Cpu.spec();
        assert_eq!(store.find(&key(), &cpu), Err(Miss::Unknown));
        store.keep(&entry()).unwrap();
        assert_eq!(store.find(&key(), &cpu), Ok(entry()));
        let others: [Key; 8] = [
            Key { structure: "00000000000000000000000000000abc".parse().unwrap(), ..key() },
            Key { scalar: ScalarKind::F64, ..key() },
            Key { values: Values::Ones, ..key() },
            Key { device: "another".to_owned(), ..key() },
            Key { calls: 0, ..key() },
            Key { memory_limit: Some(1 << 30), ..key() },
            Key { deterministic: true, ..key() },
            Key { cold: true, ..key() },
        ];
        for other in others {
            assert_eq!(store.find(&other, &cpu), Err(Miss::Unknown), "{other:?}");
        }
    }

    #[test]
    fn the_key_follows_from_the_matrix_and_what_is_asked() {
        let a = chapter::matrix::<f64>();
        let analysis = Analysis::of(a.view());
        let request = Request {
            expected_calls: 12_345,
            ..Request::new(&analysis, ScalarKind::F64, u64::MAX)
        };
        let key = Key::new(
            Fingerprint::of(a.view()),
            &analysis,
            &Device::Cpu.spec(),
            &request,
            Some(7),
            true,
        );
        assert_eq!(
            (key.calls, key.memory_limit, key.cold, key.values),
            (4, Some(7), true, Values::Few)
        );
    }

    #[test]
    fn what_is_out_of_date_or_of_something_else_is_a_miss_with_its_reason() {
        let (_folder, store) = store();
        let cpu = Device::Cpu.spec();
        let mut old = entry();
        old.kernels = "cpu-0".to_owned();
        store.keep(&old).unwrap();
        let miss = store.find(&key(), &cpu).unwrap_err().to_string();
        assert!(
            miss.contains("out of date") && miss.contains("kernels of another version"),
            "{miss}"
        );

        let text = |entry: &Entry| ron::to_string(entry).unwrap();
        let path = store.folder().join(key().file());
        fs::write(&path, text(&entry()).replacen("schema:2", "schema:99", 1)).unwrap();
        assert!(
            matches!(store.find(&key(), &cpu), Err(Miss::Stale(reason)) if reason.contains("99"))
        );
        let foreign = Entry { key: Key { threads: 1000, ..key() }, ..entry() };
        fs::write(&path, text(&foreign)).unwrap();
        assert_eq!(store.find(&key(), &cpu), Err(Miss::Foreign));

        let gpu =
            |driver: &str| GpuSpec { l2_bytes: 1, memory_bytes: 1, driver: driver.to_owned() };
        let on = |driver: &str| DeviceSpec { gpu: Some(gpu(driver)), ..Device::Cpu.spec() };
        store.keep(&Entry::new(key(), &on("12.9"), 0, timing_run())).unwrap();
        assert!(store.find(&key(), &on("12.9")).is_ok());
        let other = store.find(&key(), &on("13.0"));
        assert!(matches!(other, Err(Miss::Stale(reason)) if reason.contains("driver")));
    }

    #[test]
    fn damaged_entries_are_misses_and_are_replaced() {
        let (_folder, store) = store();
        let cpu = Device::Cpu.spec();
        store.keep(&entry()).unwrap();
        let path = store.folder().join(key().file());
        let whole = fs::read(&path).unwrap();
        let miss = || match store.find(&key(), &cpu) {
            Err(Miss::Damaged(reason)) => reason,
            found => panic!("{found:?}"),
        };
        // Only the closing parenthesis and the end of the line may be missing.
        for cut in (0..whole.len() - 2).step_by(7) {
            fs::write(&path, &whole[..cut]).unwrap();
            miss();
        }
        let text = String::from_utf8(whole).unwrap();
        let nested = format!("(schema: 3, key: {}", "(".repeat(30_000));
        for wrong in [
            text.replace("sell(c:32,sigma:512)", "cell(c:32)"),
            text.replacen("winner: \"sell(c:32,sigma:512)\"", "winner: \"ell\"", 1),
            text.replacen("cold: false", "cold: maybe", 1),
            nested,
            "x".repeat(MAX_BYTES as usize + 1),
        ] {
            assert_ne!(wrong, text);
            fs::write(&path, &wrong).unwrap();
            miss();
        }
        fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        miss();
        store.keep(&entry()).unwrap();
        assert!(store.find(&key(), &cpu).is_ok());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(miss().contains("no file"));
        assert!(store.keep(&entry()).is_err(), "a folder is not replaced");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let (_folder, store) = store();
        let store = Store { capacity: 2, ..store };
        let cpu = Device::Cpu.spec();
        let of = |calls| Key { calls, ..key() };
        for (age, calls) in [(30, 3), (10, 1), (20, 2)] {
            store.keep(&Entry { key: of(calls), ..entry() }).unwrap();
            let past = SystemTime::now() - Duration::from_secs(age);
            let file = fs::File::open(store.folder().join(of(calls).file())).unwrap();
            file.set_modified(past).unwrap();
        }
        store.keep(&Entry { key: of(9), ..entry() }).unwrap();
        assert_eq!(
            [1, 2, 3, 9].map(|calls| store.find(&of(calls), &cpu).is_ok()),
            [true, false, false, true]
        );
    }

    #[test]
    fn a_folder_that_cannot_be_is_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let store = Store::below(&file);
        assert_eq!(store.find(&key(), &Device::Cpu.spec()), Err(Miss::Unknown));
        let message = store.keep(&entry()).unwrap_err().to_string();
        assert!(message.contains("decisions") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn many_share_a_folder() {
        let (_folder, store) = store();
        store.keep(&entry()).unwrap();
        std::thread::scope(|scope| {
            for when in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for _ in 0..50 {
                        store.keep(&Entry { when, ..entry() }).unwrap();
                        let found = store
                            .find(&key(), &Device::Cpu.spec())
                            .expect("always there, always whole");
                        assert_eq!(found.timing_run, timing_run());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1, "nothing is left behind");
    }
}
