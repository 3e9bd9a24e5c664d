//! On-disk cache of compiled kernels: each kernel is compiled once per machine instead of once per
//! process.
//!
//! The cache is optional: a missing, damaged or unreadable entry is compiled again, and if the
//! folder is not writable nothing is stored. Entries are written atomically, so any number of
//! processes of a user may share a folder. Entries that another user may have written are not
//! loaded.

use crate::Error;
use crate::files::{PrivateFolder, absolute};
use etcetera::BaseStrategy;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Environment variable with the folder of all caches; `off` disables them.
const VARIABLE: &str = "SPARSEOP_CACHE";

/// Folder of compiled kernels in the cache folder. The number changes with the format of the
/// entries.
const FOLDER: &str = "sparseop/kernels-v2";

/// First bytes of every entry.
const MAGIC: [u8; 8] = *b"sparseop";

/// Bytes before the code: [`MAGIC`], the length of the code, and the checksum of the entry's name
/// and the code.
const HEADER: usize = 24;

/// Largest size of an entry, in bytes: many times that of the code of a module.
const MAX_BYTES: u64 = 64 << 20;

/// Capacity of the cache in bytes: several versions of all kernels, 20 MB for an architecture.
const CAPACITY: u64 = 256 << 20;

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PrivateFolder,
    capacity: u64,
}

impl Cache {
    /// The user's cache; `None` if caching is disabled or no cache folder is known.
    pub(super) fn of_user() -> Option<Self> {
        match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == OsStr::new("off") => None,
            Some(folder) => Some(Self::below(Path::new(&folder))),
            None => {
                let folder = etcetera::choose_base_strategy().ok()?.cache_dir();
                absolute(folder).map(|folder| Self::below(&folder))
            }
        }
    }

    /// The cache in a folder of caches, which need not exist.
    pub fn below(folder: &Path) -> Self {
        Self { folder: PrivateFolder::new(folder, FOLDER, VARIABLE), capacity: CAPACITY }
    }

    /// Folder of the entries, which need not exist.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Path of an entry.
    pub fn path(&self, entry: &str) -> PathBuf {
        self.folder.path().join(entry)
    }

    /// Returns the code stored under a name, if the entry exists, is intact and trusted.
    pub fn load(&self, entry: &str) -> Option<Vec<u8>> {
        unwrapped(entry, self.folder.read(entry, MAX_BYTES).ok()??)
    }

    /// Stores code under a name, and removes the oldest entries if the cache exceeds its capacity.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the entry cannot be written.
    pub fn store(&self, entry: &str, code: &[u8]) -> Result<(), Error> {
        self.folder.write(entry, |out| {
            out.write_all(&header(entry, code))?;
            out.write_all(code)
        })?;
        self.trim();
        Ok(())
    }

    /// Removes an entry that the driver refuses, if it can be removed: the code is compiled anew.
    pub(super) fn remove(&self, entry: &str) {
        self.folder.remove(entry);
    }

    /// Removes the oldest entries until the rest is within the capacity. Other files stay. Errors
    /// are ignored: another process may have removed the file.
    fn trim(&self) {
        let mut files = self.folder.oldest_first();
        files.retain(|file| {
            file.name.to_str().is_some_and(is_entry_name) && file.begins_with(&MAGIC)
        });
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if bytes <= self.capacity {
                break;
            }
            file.remove();
            bytes -= file.bytes;
        }
    }
}

/// True for names that end like those of entries: a hyphen and 32 hexadecimal digits.
pub(super) fn is_entry_name(name: &str) -> bool {
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let digits = name.rsplit_once('-').map(|(_, digits)| digits);
    digits.is_some_and(|digits| digits.len() == 32 && digits.bytes().all(is_hex))
}

/// The header of an entry, by its name: the code of another entry is not valid under it.
fn header(entry: &str, code: &[u8]) -> [u8; HEADER] {
    let mut checksum = Xxh3::new();
    for part in [entry.as_bytes(), code] {
        checksum.update(&(part.len() as u64).to_le_bytes());
        checksum.update(part);
    }
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&(code.len() as u64).to_le_bytes());
    header[16..].copy_from_slice(&checksum.digest().to_le_bytes());
    header
}

/// Returns the code of an entry; `None` if the entry is not intact.
fn unwrapped(entry: &str, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (found, code) = bytes.split_at_checked(HEADER)?;
    if *found != header(entry, code) {
        return None;
    }
    bytes.drain(..HEADER);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, SystemTime};

    const CODE: &[u8] = b"machine code";

    /// Environment variable: the folder of a process that shares it.
    const SHARED: &str = "SPARSEOP_TEST_SHARED";

    /// The name of an entry.
    fn named(start: &str) -> String {
        format!("{start}-sm_90-{:032x}", 1)
    }

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
        assert!(cache.path("a").ends_with("sparseop/kernels-v2/a"));
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
            cache.store(&named(name), CODE).unwrap();
            let past = SystemTime::now() - Duration::from_secs(age);
            fs::File::open(cache.path(&named(name))).unwrap().set_modified(past).unwrap();
        }
        cache.store(&named("new"), CODE).unwrap();
        assert_eq!(
            ["a", "b", "c", "new"].map(|name| cache.load(&named(name)).is_some()),
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
        assert!(message.contains("kernels-v2") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn an_entry_is_bound_to_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        cache.store("a", CODE).unwrap();
        fs::copy(cache.path("a"), cache.path("b")).unwrap();
        assert_eq!((cache.load("a").as_deref(), cache.load("b")), (Some(CODE), None));
    }

    #[test]
    fn only_entries_count_and_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let entry = (HEADER + CODE.len()) as u64;
        let cache = Cache { capacity: 2 * entry, ..cache(&folder) };
        cache.store(&named("a"), CODE).unwrap();
        // A file with the name of an entry, and one with its first bytes.
        let others = [named("notes"), "sparseop.txt".to_owned()].map(|name| cache.path(&name));
        for (other, text) in others.iter().zip([[b'x'; 8], MAGIC]) {
            fs::write(other, text.repeat(512)).unwrap();
            let past = SystemTime::now() - Duration::from_secs(60);
            fs::File::open(other).unwrap().set_modified(past).unwrap();
        }
        cache.store(&named("b"), CODE).unwrap();
        assert_eq!(["a", "b"].map(|name| cache.load(&named(name)).is_some()), [true, true]);
        assert!(others.iter().all(|other| other.exists()));
    }

    #[cfg(unix)]
    #[test]
    fn entries_of_others_and_what_is_no_file_are_misses() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        cache.store("a", CODE).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let entry = cache.path("a");
        let own = entry.parent().unwrap();
        assert_eq!((mode(own), mode(&entry)), (0o700, 0o600));
        for open in [0o620, 0o602, 0o666] {
            set(&entry, open);
            assert_eq!(cache.load("a"), None, "{open:o}");
        }
        set(&entry, 0o644);
        assert_eq!(cache.load("a").as_deref(), Some(CODE), "others may read it");
        set(own, 0o777);
        assert_eq!(cache.load("a"), None);
        assert!(cache.store("b", CODE).is_err());
        set(own, 0o700);

        // A link to an endless device, and a pipe without a writer.
        symlink("/dev/zero", cache.path("link")).unwrap();
        let fifo = cache.path("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for name in ["link", "fifo"] {
            assert_eq!(cache.load(name), None);
            cache.store(name, CODE).unwrap();
            assert_eq!(cache.load(name).as_deref(), Some(CODE));
            assert!(fs::symlink_metadata(cache.path(name)).unwrap().is_file());
        }
        // Folders stay.
        fs::create_dir_all(cache.path("folder/below")).unwrap();
        assert_eq!(cache.load("folder"), None);
        assert!(cache.store("folder", CODE).is_err() && cache.path("folder/below").is_dir());
        let warnings = crate::file_warnings();
        for part in ["kernels-v2/a is not trusted: its group", "link is not trusted", VARIABLE] {
            assert!(warnings.iter().any(|warning| warning.contains(part)), "{warnings:?}");
        }
    }

    #[test]
    fn many_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for n in [1, 2] {
                let folder = folder.path();
                scope.spawn(move || share(folder, n));
            }
        });
        // While the folder is deleted an entry is whole or a miss.
        let cache = cache(&folder);
        std::thread::scope(|scope| {
            let deleting = scope.spawn(|| {
                (0..200).for_each(|_| drop(fs::remove_dir_all(cache.folder())));
            });
            while !deleting.is_finished() {
                let _ = cache.store("a", CODE);
                assert!(cache.load("a").is_none_or(|found| found == CODE));
            }
        });
        cache.store("a", CODE).unwrap();
        assert_eq!(cache.load("a").as_deref(), Some(CODE));
    }

    /// Stores and loads an entry that others store, too.
    fn share(folder: &Path, n: u8) {
        let cache = Cache { capacity: 1 << 20, ..Cache::below(folder) };
        for _ in 0..50 {
            cache.store("shared", &[n; 50_000]).unwrap();
            let found = cache.load("shared").expect("always there, always whole");
            assert!(found.len() == 50_000 && found.iter().all(|byte| *byte == found[0]));
        }
    }

    /// Starts a process that shares a folder.
    fn sharer(folder: &tempfile::TempDir) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["device::cuda::cache::tests::many_processes_share_a_folder", "--exact"])
            .env(SHARED, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn many_processes_share_a_folder() {
        if let Some(folder) = std::env::var_os(SHARED) {
            return share(Path::new(&folder), std::process::id() as u8);
        }
        let folder = tempfile::tempdir().unwrap();
        let children: Vec<_> = (0..20).map(|_| sharer(&folder)).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let entries = fs::read_dir(cache(&folder).folder()).unwrap();
        assert_eq!(entries.count(), 1, "nothing is left behind");
    }

    #[cfg(unix)]
    #[test]
    fn a_kill_at_any_moment_leaves_a_whole_entry() {
        use std::os::unix::process::ExitStatusExt;
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let names = || fs::read_dir(cache.folder()).into_iter().flatten().flatten();
        let temporary = || {
            let names = names().map(|file| file.file_name());
            names.filter(|name| name.to_string_lossy().starts_with(".sparseop-")).count()
        };
        let mut killed = 0;
        for _ in 0..20 {
            let (before, mut child) = (temporary(), sharer(&folder));
            while child.try_wait().unwrap().is_none() && temporary() == before {}
            child.kill().unwrap();
            killed += usize::from(child.wait().unwrap().signal() == Some(9));
            let found = cache.load("shared");
            let is_whole = |code: &Vec<u8>| code.iter().all(|byte| *byte == code[0]);
            assert_eq!(found.is_some(), cache.path("shared").exists());
            assert!(found.is_none_or(|code| code.len() == 50_000 && is_whole(&code)));
        }
        assert!(killed > 0 && temporary() > 0, "{killed} killed, {} while writing", temporary());
        cache.store("shared", CODE).unwrap();
        assert_eq!(cache.load("shared").as_deref(), Some(CODE));
        assert_eq!(names().count(), temporary() + 1);
    }
}
