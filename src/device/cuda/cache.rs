//! On-disk cache of compiled kernels: each kernel is compiled once per machine instead of once per
//! process.
//!
//! The cache is optional: a missing, damaged or unreadable entry is compiled again, and if the
//! folder is not writable nothing is stored. Entries are written atomically, so any number of
//! processes may share a folder.

use crate::Error;
use crate::files::{oldest_first, write_atomically};
use etcetera::BaseStrategy;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Environment variable with the folder of all caches; `off` disables them.
const VARIABLE: &str = "SPARSEOP_CACHE";

/// Folder of compiled kernels in the cache folder. The number changes with the format of the
/// entries.
const FOLDER: &str = "sparseop/kernels-v1";

/// First bytes of every entry.
const MAGIC: [u8; 8] = *b"sparseop";

/// Bytes before the code: [`MAGIC`], the length of the code and its checksum.
const HEADER: usize = 24;

/// Capacity of the cache in bytes: a few hundred versions of a kernel file.
const CAPACITY: u64 = 64 << 20;

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: PathBuf,
    capacity: u64,
}

impl Cache {
    /// The user's cache; `None` if caching is disabled or no cache folder is known.
    pub(super) fn of_user() -> Option<Self> {
        match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == OsStr::new("off") => None,
            Some(folder) => Some(Self::below(Path::new(&folder))),
            None => Some(Self::below(&etcetera::choose_base_strategy().ok()?.cache_dir())),
        }
    }

    /// The cache in a folder of caches, which need not exist.
    pub(super) fn below(folder: &Path) -> Self {
        Self { folder: folder.join(FOLDER), capacity: CAPACITY }
    }

    /// Folder of the entries, which need not exist.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of an entry.
    pub(super) fn path(&self, entry: &str) -> PathBuf {
        self.folder.join(entry)
    }

    /// Returns the code stored under a name, if the entry exists and is intact.
    pub(super) fn load(&self, entry: &str) -> Option<Vec<u8>> {
        unwrapped(fs::read(self.path(entry)).ok()?)
    }

    /// Stores code under a name, and removes the oldest entries if the cache exceeds its capacity.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the entry cannot be written.
    pub(super) fn store(&self, entry: &str, code: &[u8]) -> Result<(), Error> {
        fs::create_dir_all(&self.folder).map_err(|e| Error::io("create", &self.folder, e))?;
        write_atomically(&self.path(entry), |out| {
            out.write_all(&header(code))?;
            out.write_all(code)
        })?;
        self.trim();
        Ok(())
    }

    /// Removes the oldest files until the rest is within the capacity. Errors are ignored: another
    /// process may have removed the file.
    fn trim(&self) {
        let files = oldest_first(&self.folder);
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if bytes <= self.capacity {
                break;
            }
            let _ = fs::remove_file(&file.path);
            bytes -= file.bytes;
        }
    }
}

fn header(code: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&(code.len() as u64).to_le_bytes());
    header[16..].copy_from_slice(&xxh3_64(code).to_le_bytes());
    header
}

/// Returns the code of an entry; `None` if the entry is not intact.
fn unwrapped(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (found, code) = bytes.split_at_checked(HEADER)?;
    if *found != header(code) {
        return None;
    }
    bytes.drain(..HEADER);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    const CODE: &[u8] = b"machine code";

    fn cache(folder: &tempfile::TempDir) -> Cache {
        Cache::below(folder.path())
    }

    #[test]
    fn stored_images_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        assert_eq!(cache.load("a"), None);
        cache.store("a", CODE).unwrap();
        cache.store("empty", &[]).unwrap();
        assert_eq!(cache.load("a").as_deref(), Some(CODE));
        assert_eq!(cache.load("empty").as_deref(), Some(&[][..]));
        assert_eq!(cache.load("b"), None);
        assert!(cache.path("a").ends_with("sparseop/kernels-v1/a"));
    }

    #[test]
    fn a_damaged_entry_is_a_miss_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        cache.store("a", CODE).unwrap();
        let whole = fs::read(cache.path("a")).unwrap();
        for cut in 0..whole.len() {
            fs::write(cache.path("a"), &whole[..cut]).unwrap();
            assert_eq!(cache.load("a"), None, "{cut} bytes");
        }
        for place in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[place] ^= 1;
            fs::write(cache.path("a"), wrong).unwrap();
            assert_eq!(cache.load("a"), None, "byte {place}");
        }
        fs::write(cache.path("a"), [&whole[..], b"!"].concat()).unwrap();
        assert_eq!(cache.load("a"), None);
        cache.store("a", CODE).unwrap();
        assert_eq!(cache.load("a").as_deref(), Some(CODE));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let entry = (HEADER + CODE.len()) as u64;
        let cache = Cache { capacity: 2 * entry, ..cache(&folder) };
        for (age, name) in [(30, "c"), (10, "a"), (20, "b")] {
            cache.store(name, CODE).unwrap();
            let past = SystemTime::now() - Duration::from_secs(age);
            fs::File::open(cache.path(name)).unwrap().set_modified(past).unwrap();
        }
        cache.store("new", CODE).unwrap();
        assert_eq!(
            ["a", "b", "c", "new"].map(|name| cache.load(name).is_some()),
            [true, false, false, true]
        );
    }

    #[test]
    fn a_folder_that_cannot_be_is_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::below(&file);
        assert_eq!(cache.load("a"), None);
        let message = cache.store("a", CODE).unwrap_err().to_string();
        assert!(message.contains("kernels-v1") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn many_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { capacity: 1 << 20, ..cache(&folder) };
        let code = |n: u8| vec![n; 50_000];
        std::thread::scope(|scope| {
            for n in [1, 2] {
                let cache = &cache;
                scope.spawn(move || {
                    for _ in 0..50 {
                        cache.store("shared", &code(n)).unwrap();
                        let found = cache.load("shared").expect("always there, always whole");
                        assert!(found == code(1) || found == code(2));
                    }
                });
            }
        });
    }
}
