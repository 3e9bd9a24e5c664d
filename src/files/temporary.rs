//! Temporary files: they become complete files, or are removed.

use crate::error::printable;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefix of the names of temporary files; the process identifier and a number follow.
pub(super) const PREFIX: &str = ".sparseop-";

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
        let _ = fs::remove_file(path);
    }
    // Locked forever: no temporary file can be created or renamed any more.
    std::mem::forget(temporaries);
}

/// A file that is removed on drop.
pub(super) struct Temporary {
    /// Empty when the file is complete under its final name.
    path: PathBuf,
    file: File,
}

impl Temporary {
    /// Creates a file in a folder. On Unix it has the permission bits `mode`, subject to the umask.
    pub(super) fn create(folder: &Path, mode: u32) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
        #[cfg(not(unix))]
        let _ = mode;
        let mut temporaries = temporaries();
        loop {
            let number = MADE.fetch_add(1, Relaxed);
            let path = folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match options.open(&path) {
                // Left by an earlier process with the same identifier.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    let file = made?;
                    if !is_locked_by_us(&file) {
                        // An error leaves an empty file, which is removed after an hour.
                        let _ = fs::remove_file(&path);
                        continue;
                    }
                    temporaries.push(path.clone());
                    return Ok(Self { path, file });
                }
            }
        }
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name.
    pub(super) fn rename(mut self, target: &Path) -> io::Result<()> {
        let mut temporaries = temporaries();
        fs::rename(&self.path, target)?;
        temporaries.retain(|known| *known != self.path);
        self.path.clear();
        Ok(())
    }

    /// Copies the content into the open file of `path`, in place of its own. Until the copy is on
    /// the disk, the complete content is also beside it, under [`unused_name`].
    ///
    /// # Errors
    ///
    /// An error that names the file with the complete content, if the copy has begun.
    pub(super) fn copy_into(mut self, target: &File, path: &Path) -> io::Result<()> {
        // An interrupt waits for the end of the copy.
        let mut temporaries = temporaries();
        let kept = unused_name(path);
        fs::rename(&self.path, &kept)?;
        temporaries.retain(|known| *known != self.path);
        self.path.clear();
        if let Err(error) = copy(&self.file, target) {
            let reason = format!("{error}; the complete content is in {}", kept.display());
            return Err(io::Error::new(error.kind(), printable(&reason).into_owned()));
        }
        // A file that cannot be removed stays: both are complete.
        let _ = fs::remove_file(kept);
        Ok(())
    }
}

/// Copies the content of a file into another one, in place of its own.
fn copy(mut from: &File, mut into: &File) -> io::Result<()> {
    from.rewind()?;
    let length = io::copy(&mut from, &mut into)?;
    into.set_len(length)?;
    super::sync(into)
}

/// Name beside a file that no other file has: `FILE.new`, or `FILE.new` with a number.
fn unused_name(path: &Path) -> PathBuf {
    let with = |suffix: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let mut name = with(".new".to_owned());
    let mut number = 1;
    while name.symlink_metadata().is_ok() {
        number += 1;
        name = with(format!(".new{number}"));
    }
    name
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let mut temporaries = temporaries();
        temporaries.retain(|known| *known != self.path);
        // A file that cannot be removed stays; the error cannot be reported here.
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks a new file, which tells other processes that its writer is alive. False if another process
/// has locked it, to look at it. A file system without locks is no reason to take another file.
#[cfg(unix)]
fn is_locked_by_us(file: &File) -> bool {
    !matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))
}

/// Leftovers stay, and the locks of Windows would prevent reads through another handle.
#[cfg(not(unix))]
fn is_locked_by_us(_: &File) -> bool {
    true
}

/// Removes the temporary files of processes that ended without removing them.
#[cfg(unix)]
pub(super) fn remove_leftovers(folder: &Path) {
    /// Largest number of entries of the folder that are read.
    const ENTRIES: usize = 1 << 14;
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.take(ENTRIES).flatten() {
        let Some(process) = entry.file_name().to_str().and_then(process_of) else { continue };
        // The lock is held until the file is removed. Errors leave the file to a later write.
        if let Ok(Some(_locked)) = leftover(&entry.path(), process) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Without process identifiers that can be asked for, leftovers stay.
#[cfg(not(unix))]
pub(super) fn remove_leftovers(_: &Path) {}

/// Process identifier in the name of a temporary file.
#[cfg(unix)]
fn process_of(name: &str) -> Option<libc::pid_t> {
    let (process, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let process = process.parse().ok().filter(|_| is_number(process) && is_number(number))?;
    (process > 0).then_some(process)
}

/// Opens and locks a temporary file that no process writes any more; `None` if one may write it.
///
/// A process that writes has locked the file. A lock that is free decides nothing for a new file,
/// since it is taken just after the file is created: only a file that is an hour old is a leftover.
/// On a file system without locks its process must have ended, too. The process identifier alone
/// decides nothing: it may be used again, or belong to another host or container.
#[cfg(unix)]
fn leftover(path: &Path, process: libc::pid_t) -> io::Result<Option<File>> {
    use std::fs::TryLockError;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;
    /// Smallest age of a leftover.
    const AGE: Duration = Duration::from_secs(3600);
    let file = super::open_regular(path, File::options().read(true))?;
    let is_free = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => !is_running(process),
    };
    // Read with the lock: the file may have been removed or written before.
    let (found, named) = (file.metadata()?, path.symlink_metadata()?);
    let is_named = (found.dev(), found.ino()) == (named.dev(), named.ino());
    let is_own = found.uid() == super::private::user();
    let is_old = found.modified()?.elapsed().is_ok_and(|age| age > AGE);
    Ok((is_free && is_named && is_own && is_old).then_some(file))
}

/// True if a process exists, of any user.
#[cfg(unix)]
fn is_running(process: libc::pid_t) -> bool {
    // SAFETY: signal 0 is not delivered; the call only looks for the process.
    let found = unsafe { libc::kill(process, 0) };
    found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
