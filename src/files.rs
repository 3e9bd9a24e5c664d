//! Atomic writes: files appear complete or not at all.

use crate::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Size of the write buffer, in bytes.
const BUFFER: usize = 1 << 18;

/// Prefix of the names of temporary files.
const PREFIX: &str = ".sparseop-";

/// The existing temporary files. The lock is held while one is created, renamed or removed, so the
/// list always matches the folders.
static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporaries() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of unfinished writes, and prevents all writes from finishing.
///
/// For a program that is about to exit because it was interrupted. Threads that write may continue
/// until it does. A file that is already complete stays.
pub fn abandon_writes() {
    let temporaries = temporaries();
    for path in temporaries.iter() {
        // Errors cannot be reported any more, and there is no alternative.
        let _ = std::fs::remove_file(path);
    }
    // Locked forever: no temporary file can be created or renamed any more.
    std::mem::forget(temporaries);
}

/// A file that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    /// Creates a file in a folder, with the default permissions, subject to the umask.
    fn new(folder: &Path) -> io::Result<(Self, File)> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = MADE.fetch_add(1, Relaxed);
            let path = folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                // Left by an earlier process with the same identifier.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|file| (Self(path), file)),
            }
        }
    }

    /// Renames the file to its final name.
    fn persist(self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, target)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that cannot be removed stays; the error cannot be reported here.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lets `fill` write a temporary file next to `path`, and renames it when it is complete.
///
/// A symbolic link is followed, so it remains a link. A target that is not a regular file, such as
/// a device or a pipe, is written directly.
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be created or written, or if `fill` fails; no file is left
/// behind then.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match std::fs::metadata(&target) {
        Ok(found) if !found.is_file() && !found.is_dir() => write_directly(path, fill),
        _ => write_beside(path, &target, fill),
    }
}

/// Writes to a target that cannot be replaced.
fn write_directly(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|e| Error::io("open", path, e))?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    fill(&mut out).and_then(|()| out.flush()).map_err(|e| Error::io("write", path, e))
}

/// Writes a temporary file in the folder of `target`, which `path` refers to, and renames it.
fn write_beside(
    path: &Path,
    target: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let folder =
        target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (temporary, file) = {
        let mut temporaries = temporaries();
        let made = Temporary::new(folder).map_err(|e| Error::io("create", path, e))?;
        temporaries.push(made.0.0.clone());
        made
    };
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let written = fill(&mut out).and_then(|()| out.flush());
    drop(out);
    let mut temporaries = temporaries();
    temporaries.retain(|known| *known != temporary.0);
    match written {
        Ok(()) => temporary.persist(target).map_err(|e| Error::io("create", path, e)),
        Err(error) => {
            // Removed while the lock is held.
            drop(temporary);
            Err(Error::io("write", path, error))
        }
    }
}

/// Text of a file in which the system describes itself; none if it cannot be read.
pub(crate) fn system_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A file of a folder.
pub(crate) struct FolderFile {
    pub(crate) path: PathBuf,
    #[cfg(feature = "cuda")]
    pub(crate) bytes: u64,
    modified: SystemTime,
}

/// Returns the accessible files of a folder, oldest first.
pub(crate) fn oldest_first(folder: &Path) -> Vec<FolderFile> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let kept = entries.flatten().filter_map(|entry| {
        let data = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(FolderFile {
            path: entry.path(),
            #[cfg(feature = "cuda")]
            bytes: data.len(),
            modified: data.modified().ok()?,
        })
    });
    let mut files: Vec<FolderFile> = kept.collect();
    files.sort_by_key(|file| file.modified);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_does_not_name_the_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing").join("out");
        let message = write_atomically(&path, |_| Ok(())).unwrap_err().to_string();
        assert!(message.contains("missing/out") && !message.contains(PREFIX), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");

        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || std::fs::read_to_string(fifo).unwrap()
        });
        write_atomically(&fifo, |out| out.write_all(b"through")).unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(!std::fs::metadata(&fifo).unwrap().is_file());
    }
}
