//! Temporary files: they become complete files, or are removed.

use super::Folder;
use crate::error::printable;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prefix of the names of temporary files; the process identifier and a number follow.
pub(super) const PREFIX: &str = ".sparseop-";

/// Temporary files, each by its folder and name.
type Names = Vec<(Arc<Folder>, String)>;

/// The existing temporary files. The lock is held while one is created, renamed or removed, so the
/// list always matches the folders.
static TEMPORARIES: Mutex<Names> = Mutex::new(Vec::new());

fn temporaries() -> MutexGuard<'static, Names> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of unfinished writes, and prevents all writes from finishing.
///
/// For a program that is about to exit because it was interrupted. Threads that write may continue
/// until it does. A file that is already complete stays.
pub fn abandon_writes() {
    let temporaries = temporaries();
    for (folder, name) in temporaries.iter() {
        // Errors cannot be reported any more, and there is no alternative.
        let _ = folder.remove(name.as_ref());
    }
    // Locked forever: no temporary file can be created or renamed any more.
    std::mem::forget(temporaries);
}

/// A file that is removed on drop.
pub(super) struct Temporary {
    folder: Arc<Folder>,
    /// Empty when the file is complete under its final name. Names of a process differ.
    name: String,
    file: File,
}

impl Temporary {
    /// Creates a file in a folder. On Unix it has the permission bits `mode`, subject to the umask.
    pub(super) fn create(folder: &Arc<Folder>, mode: u32) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut temporaries = temporaries();
        loop {
            let number = MADE.fetch_add(1, Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            match folder.create(&name, mode) {
                // Left by an earlier process with the same identifier.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    let file = made?;
                    if !is_locked_by_us(&file) {
                        // An error leaves an empty file, which is removed after an hour.
                        let _ = folder.remove(name.as_ref());
                        continue;
                    }
                    temporaries.push((folder.clone(), name.clone()));
                    return Ok(Self { folder: folder.clone(), name, file });
                }
            }
        }
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name.
    pub(super) fn rename(mut self, name: &OsStr) -> io::Result<()> {
        self.rename_locked(name, &mut temporaries())
    }

    /// Renames the file to its final name, unless there is a file of that name.
    pub(super) fn rename_new(self, name: &OsStr) -> io::Result<()> {
        let linked = self.folder.link(self.name.as_ref(), name);
        // The file system may have no hard links.
        let is_free = |folder: &Folder| {
            folder.read(name).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if linked.is_err() && is_free(&self.folder) { self.rename(name) } else { linked }
    }

    fn rename_locked(&mut self, name: &OsStr, temporaries: &mut Names) -> io::Result<()> {
        self.folder.rename(self.name.as_ref(), name)?;
        temporaries.retain(|(_, known)| *known != self.name);
        self.name.clear();
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
        let name = kept.file_name().unwrap_or_default();
        self.rename_locked(name, &mut temporaries)?;
        self.folder.sync();
        if let Err(error) = copy(&self.file, target) {
            let reason = format!("{error}; the complete content is in {}", kept.display());
            return Err(io::Error::new(error.kind(), printable(&reason).into_owned()));
        }
        // A file that cannot be removed stays: both are complete.
        let _ = self.folder.remove(name);
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
        if self.name.is_empty() {
            return;
        }
        let mut temporaries = temporaries();
        temporaries.retain(|(_, known)| *known != self.name);
        // A file that cannot be removed stays; the error cannot be reported here.
        let _ = self.folder.remove(self.name.as_ref());
    }
}

/// Locks a new file, which tells other processes that its writer is alive. False if another process
/// has locked it, to look at it. A file system without locks is no reason to take another file.
#[cfg(unix)]
fn is_locked_by_us(file: &File) -> bool {
    !matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))
}

/// True for every file: leftovers stay, and locks of Windows prevent reads through other handles.
#[cfg(not(unix))]
fn is_locked_by_us(_: &File) -> bool {
    true
}

/// Removes the temporary files of processes that ended without removing them.
#[cfg(unix)]
pub(super) fn remove_leftovers(folder: &Folder) {
    /// Largest number of entries of the folder that are read.
    const ENTRIES: usize = 1 << 14;
    for entry in folder.entries().take(ENTRIES) {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(process_of) else { continue };
        // The lock is held until the file is removed. Errors leave the file to a later write.
        if let Ok(Some(_locked)) = leftover(folder, &name, process) {
            let _ = folder.remove(&name);
        }
    }
}

/// Leaves leftovers where they are: whether their process still runs is unknown on this system.
#[cfg(not(unix))]
pub(super) fn remove_leftovers(_: &Folder) {}

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
/// since it is taken just after the file is created: only a file that is an hour old, or whose time
/// is an hour ahead because the clock was set, is a leftover.
/// On a file system without locks its process must have ended, too. The process identifier alone
/// decides nothing: it may be used again, or belong to another host or container.
#[cfg(unix)]
fn leftover(folder: &Folder, name: &OsStr, process: libc::pid_t) -> io::Result<Option<File>> {
    use std::fs::TryLockError;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};
    /// Smallest age of a leftover.
    const AGE: Duration = Duration::from_secs(3600);
    let file = folder.open_regular(name)?;
    let is_free = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => !is_running(process),
    };
    // Read with the lock: the file may have been removed or written before.
    let (found, named) = (file.metadata()?, folder.open_regular(name)?.metadata()?);
    let is_named = (found.dev(), found.ino()) == (named.dev(), named.ino());
    let is_own = found.uid() == super::folder::user();
    let (modified, now) = (found.modified()?, SystemTime::now());
    let is_old = now.duration_since(modified).unwrap_or_else(|ahead| ahead.duration()) > AGE;
    Ok((is_free && is_named && is_own && is_old).then_some(file))
}

/// True if a process exists, of any user.
#[cfg(unix)]
fn is_running(process: libc::pid_t) -> bool {
    // SAFETY: signal 0 is not delivered; the call only looks for the process.
    let found = unsafe { libc::kill(process, 0) };
    found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
