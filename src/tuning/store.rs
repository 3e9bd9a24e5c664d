//! The decision store: what races have found, on disk, so that the same matrix is not raced again.
//!
//! One small RON file holds one decision. The store only ever saves time: an entry that is damaged, of another version of the kernels or
//! of something else than it should be is a miss, with its reason, and where nothing can be written nothing is kept. Entries appear
//! whole, so that any number of processes may share a folder.

use super::decision::{Race, Request};
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

/// The environment variable that names the folder decisions are kept below, or forbids keeping any with `off`.
pub const STORE_VARIABLE: &str = "SPARSEOP_STORE";

/// Where decisions are within it.
const FOLDER: &str = "sparseop/decisions";

/// The version of the layout of [`Entry`]; an entry of another version is a miss.
const SCHEMA: u32 = 1;

/// Entries that are kept; beyond it the oldest go.
const CAPACITY: usize = 4096;

/// Bytes an entry may have: several times what a race of the most entrants with the longest reasons takes.
const MAX_BYTES: u64 = 64 << 10;

/// What a decision depends on and is found by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// The structure of the matrix.
    pub structure: Fingerprint,
    /// The scalar of the matrix.
    pub scalar: ScalarKind,
    /// What kind of values it holds: some plans store few distinct ones as codes.
    pub values: Values,
    /// The device's name.
    pub device: String,
    /// The instructions its kernels are compiled for.
    pub instructions: String,
    /// Its threads or multiprocessors.
    pub threads: usize,
    /// The decimal order of magnitude of the expected products.
    pub calls: u32,
    /// Bytes the packed matrix may take, if that was asked for.
    pub memory_limit: Option<u64>,
    /// Whether bits have to repeat.
    pub deterministic: bool,
    /// Whether caches are cold.
    pub cold: bool,
}

/// The kinds of values that plans distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// All of them 1.
    Ones,
    /// Few distinct ones.
    Few,
    /// More than are counted, and a type of fewer bytes holds all of them.
    Narrow(Precision),
    /// More than are counted.
    Many,
}

impl Key {
    /// The key of a matrix and what was asked for it; the memory limit only if it was.
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
            Distinct::Many => analysis.structure.exact_in.narrowest().map_or(Values::Many, Values::Narrow),
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

    /// The name of its file: the structure, and a hash of the rest.
    fn file(&self) -> String {
        format!("{}-{:016x}.ron", self.structure, xxh3_64(format!("{self:?}").as_bytes()))
    }
}

/// A decision as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    schema: u32,
    key: Key,
    /// Version of the kernels that were raced.
    kernels: String,
    /// The version of CUDA the GPU's driver is for.
    driver: Option<String>,
    /// When, in seconds since 1970.
    pub when: u64,
    /// What the race found.
    pub race: Race,
}

impl Entry {
    /// What a race on a device has found.
    pub fn new(key: Key, device: &DeviceSpec, when: u64, race: Race) -> Self {
        let kernels = device.kernels().to_owned();
        Self { schema: SCHEMA, key, kernels, driver: driver(device), when, race }
    }

    /// The same, found just now.
    pub fn now(key: Key, device: &DeviceSpec, race: Race) -> Self {
        Self::new(key, device, unix_seconds(), race)
    }

    /// Why it is of no use for what `key` stands for on a device; none when it is.
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
        if self.race.entrant(&self.race.winner).is_none() || self.race.cold != key.cold {
            return Some(Miss::Damaged("its parts do not fit together".to_owned()));
        }
        None
    }
}

fn driver(device: &DeviceSpec) -> Option<String> {
    device.gpu.as_ref().map(|gpu| gpu.driver.clone())
}

/// Why there is no decision to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Miss {
    /// Nothing is kept.
    Unknown,
    /// What is kept is out of date.
    Stale(String),
    /// What is kept cannot be read.
    Damaged(String),
    /// What is kept is of another matrix, device or request, whatever its name says.
    Foreign,
    /// The plan that is kept may not be chosen now.
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

/// A folder of decisions.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    capacity: usize,
}

impl Store {
    /// The user's: below the folder that [`STORE_VARIABLE`] names, else below the platform's folder for data; none where it is
    /// forbidden or there is no place for it.
    pub fn of_user() -> Option<Self> {
        match std::env::var_os(STORE_VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == OsStr::new("off") => None,
            Some(folder) => Some(Self::below(Path::new(&folder))),
            None => Some(Self::below(&etcetera::choose_base_strategy().ok()?.data_dir())),
        }
    }

    /// The one in a folder, which need not exist yet.
    pub fn below(folder: &Path) -> Self {
        Self { folder: folder.join(FOLDER), capacity: CAPACITY }
    }

    /// Where its entries are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is remembered for a key on a device.
    ///
    /// # Errors
    ///
    /// The reason why it is nothing.
    pub fn find(&self, key: &Key, device: &DeviceSpec) -> Result<Entry, Miss> {
        let damaged = |error: &dyn Display| Miss::Damaged(error.to_string());
        let path = self.folder.join(key.file());
        let data = fs::metadata(&path).map_err(|_| Miss::Unknown)?;
        if !data.is_file() || data.len() > MAX_BYTES {
            return Err(damaged(&format!("it is no file of at most {MAX_BYTES} bytes")));
        }
        let mut text = String::new();
        let file = fs::File::open(&path).map_err(|error| damaged(&error))?;
        // It may have grown since.
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| damaged(&error))?;
        let schema: Schema = ron::from_str(&text).map_err(|error| damaged(&error))?;
        if schema.schema != SCHEMA {
            return Err(Miss::Stale(format!("its layout is version {}, not {SCHEMA}", schema.schema)));
        }
        let entry: Entry = ron::from_str(&text).map_err(|error| damaged(&error))?;
        entry.objection(key, device).map_or(Ok(entry), Err)
    }

    /// Keeps a decision in place of the one before, and lets the oldest go where there are too many.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when nothing can be kept there.
    pub fn keep(&self, entry: &Entry) -> Result<(), Error> {
        let path = self.folder.join(entry.key.file());
        fs::create_dir_all(&self.folder).map_err(|e| Error::io("create", &self.folder, e))?;
        let invalid = |e: ron::Error| Error::io("write", &path, std::io::Error::other(e));
        let text = ron::ser::to_string_pretty(entry, ron::ser::PrettyConfig::new()).map_err(invalid)?;
        write_atomically(&path, |file| file.write_all(text.as_bytes()))?;
        let files = oldest_first(&self.folder);
        for file in &files[..files.len().saturating_sub(self.capacity)] {
            // Others may be doing the same: what cannot be removed is gone.
            let _ = fs::remove_file(&file.path);
        }
        Ok(())
    }
}

/// As much of an entry as every version of the layout has.
#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, GpuSpec};
    use crate::testing::chapter;
    use crate::tuning::decision::{Entrant, Outcome};
    use std::time::{Duration, SystemTime};

    fn key() -> Key {
        let a = chapter::matrix::<f32>();
        let analysis = Analysis::of(a.view());
        let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
        Key::new(Fingerprint::of(a.view()), &analysis, &Device::Cpu.spec(), &request, None, false)
    }

    /// A race of two plans, one of which failed.
    fn race() -> Race {
        let entrant = |plan: &str, median: Option<f64>, outcome| Entrant {
            plan: plan.parse().unwrap(),
            prepare: median,
            median,
            spread: median,
            rounds: 5,
            outcome,
        };
        let failed = Outcome::Failed { reason: "it was \"too\" slow".to_owned() };
        Race {
            winner: "sell(c:32,sigma:512)".parse().unwrap(),
            cold: false,
            entrants: vec![
                entrant("csr", None, failed),
                entrant("sell(c:32,sigma:512)", Some(1e-5), Outcome::Won),
            ],
            heats: 1,
            seconds: 0.5,
            packing: 0.25,
            held_bytes: 200,
            decided: true,
        }
    }

    fn entry() -> Entry {
        Entry::new(key(), &Device::Cpu.spec(), 1_800_000_000, race())
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
        let request =
            Request { expected_calls: 12_345, ..Request::new(&analysis, ScalarKind::F64, u64::MAX) };
        let key =
            Key::new(Fingerprint::of(a.view()), &analysis, &Device::Cpu.spec(), &request, Some(7), true);
        assert_eq!((key.calls, key.memory_limit, key.cold, key.values), (4, Some(7), true, Values::Few));
    }

    #[test]
    fn what_is_out_of_date_or_of_something_else_is_a_miss_with_its_reason() {
        let (_folder, store) = store();
        let cpu = Device::Cpu.spec();
        let mut old = entry();
        old.kernels = "cpu-0".to_owned();
        store.keep(&old).unwrap();
        let miss = store.find(&key(), &cpu).unwrap_err().to_string();
        assert!(miss.contains("out of date") && miss.contains("kernels of another version"), "{miss}");

        let text = |entry: &Entry| ron::to_string(entry).unwrap();
        let path = store.folder().join(key().file());
        fs::write(&path, text(&entry()).replacen("schema:1", "schema:99", 1)).unwrap();
        assert!(matches!(store.find(&key(), &cpu), Err(Miss::Stale(reason)) if reason.contains("99")));
        let foreign = Entry { key: Key { threads: 1000, ..key() }, ..entry() };
        fs::write(&path, text(&foreign)).unwrap();
        assert_eq!(store.find(&key(), &cpu), Err(Miss::Foreign));

        let gpu = |driver: &str| GpuSpec { l2_bytes: 1, memory_bytes: 1, driver: driver.to_owned() };
        let on = |driver: &str| DeviceSpec { gpu: Some(gpu(driver)), ..Device::Cpu.spec() };
        store.keep(&Entry::new(key(), &on("12.9"), 0, race())).unwrap();
        assert!(store.find(&key(), &on("12.9")).is_ok());
        assert!(
            matches!(store.find(&key(), &on("13.0")), Err(Miss::Stale(reason)) if reason.contains("driver"))
        );
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
        // All but the closing parenthesis and the line's end are needed.
        for cut in (0..whole.len() - 2).step_by(7) {
            fs::write(&path, &whole[..cut]).unwrap();
            miss();
        }
        let text = String::from_utf8(whole).unwrap();
        let nested = format!("(schema: 1, key: {}", "(".repeat(30_000));
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
                        let found =
                            store.find(&key(), &Device::Cpu.spec()).expect("always there, always whole");
                        assert_eq!(found.race, race());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1, "nothing is left behind");
    }
}
