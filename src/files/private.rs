//! Private folders: files that the library names itself, which only their owner can have written.
//!
//! A folder for everyone, such as `/tmp`, or a loose umask must not let another user choose the
//! machine code or the plans of a process. On Unix a file is therefore read only if it and the
//! folders that the library creates for it belong to the effective user and no other user may write
//! to them, if none of them is a symbolic link, and if the file is a regular one of limited size.
//! These properties are those of the opened file and folders, in which files are also written and
//! removed, so that they cannot be exchanged in between.

use super::{Folder, temporary};
use crate::Error;
use crate::error::printable;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
#[cfg(unix)]
pub(super) use unix::check;

/// Warnings about files that are not trusted.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Most warnings of a process.
const MAX_WARNINGS: usize = 64;

/// Files that the library ignored in this process because they are not trusted, one line each with
/// the reason and a remedy. The list has at most 64 lines.
pub fn file_warnings() -> Vec<String> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Writes the warnings that were not written before to standard error, a line each: for callers in
/// other languages, which have no `tracing`.
pub fn print_file_warnings() {
    write_new_warnings(&mut io::stderr());
}

pub(super) fn write_new_warnings(out: &mut dyn Write) {
    static WRITTEN: Mutex<usize> = Mutex::new(0);
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let warnings = file_warnings();
    for warning in &warnings[*written..] {
        // A closed standard error has no reader.
        let _ = writeln!(out, "sparseop: {warning}");
    }
    *written = warnings.len();
}

/// Adds a warning, and reports it to `tracing`, unless it was given before or the list is full.
fn warn(warning: &str) {
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if warnings.len() < MAX_WARNINGS && !warnings.iter().any(|known| known == warning) {
        warnings.push(warning.to_owned());
        drop(warnings);
        tracing::warn!("{warning}");
    }
}

/// A folder of files that only their owner may write. It need not exist.
#[derive(Debug, Clone)]
pub(crate) struct PrivateFolder {
    /// Folder of the user's choice.
    base: PathBuf,
    /// Names of the folders below it, each in the one before, separated by slashes.
    below: &'static str,
    path: PathBuf,
    /// Environment variable that names another folder.
    variable: &'static str,
}

/// Reason why a folder is not used, with its path.
enum Unusable {
    Uncreated(PathBuf, io::Error),
    Unopened(PathBuf, io::Error),
}

impl PrivateFolder {
    /// The folder `below` a folder of the user, which `variable` can change.
    pub(crate) fn new(base: &Path, below: &'static str, variable: &'static str) -> Self {
        Self { base: base.to_owned(), below, path: base.join(below), variable }
    }

    /// Path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The reason, in one line, if the file cannot be read or is not trusted. It is also a warning
    /// of [`file_warnings`].
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, String> {
        let folder = match self.open(false) {
            Ok(Some(folder)) => folder,
            Ok(None) => return Ok(None),
            Err(Unusable::Uncreated(path, error) | Unusable::Unopened(path, error)) => {
                return Err(self.refusal(&path, &error));
            }
        };
        match read_in(&folder, name.as_ref(), limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.refusal(&self.path.join(name), &error)),
        }
    }

    /// Writes a file in place of an earlier one, whatever that is, and creates the folder.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written, or if the folder is not trusted.
    pub(crate) fn write(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        let folder = match self.open(true) {
            Ok(Some(folder)) => folder,
            Ok(None) => {
                return Err(Error::io("create", &self.path, io::ErrorKind::NotFound.into()));
            }
            Err(Unusable::Uncreated(path, error)) => return Err(Error::io("create", path, error)),
            Err(Unusable::Unopened(path, error)) => {
                self.refusal(&path, &error);
                return Err(Error::io("write to", path, error));
            }
        };
        super::replace(&Arc::new(folder), name.as_ref(), fill)
    }

    /// Removes a file. Errors are ignored, and nothing is removed if the folder is not trusted.
    #[cfg(feature = "cuda")]
    pub(crate) fn remove(&self, name: &str) {
        if let Ok(Some(folder)) = self.open(false) {
            let _ = folder.remove(name.as_ref());
        }
    }

    /// The regular files of the folder except temporary ones, oldest first. Files whose time is yet
    /// to come are the oldest: the clock was set. None if the folder is not trusted.
    pub(crate) fn oldest_first(&self) -> Vec<FolderFile> {
        let Ok(Some(folder)) = self.open(false) else { return Vec::new() };
        let folder = Arc::new(folder);
        let files = folder.entries().filter_map(|entry| {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(temporary::PREFIX.as_bytes()) {
                return None;
            }
            let data = entry.metadata().ok().filter(Metadata::is_file)?;
            Some(FolderFile {
                folder: folder.clone(),
                name,
                #[cfg(feature = "cuda")]
                bytes: data.len(),
                modified: data.modified().ok()?,
            })
        });
        let (mut files, now) = (files.collect::<Vec<_>>(), SystemTime::now());
        files.sort_by_key(|file| (file.modified <= now, file.modified));
        files
    }

    /// Opens the folder, and creates it if `make`; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// A reason if it is not trusted, or cannot be opened or created.
    fn open(&self, make: bool) -> Result<Option<Folder>, Unusable> {
        if make {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            let made = builder.create(&self.base);
            made.map_err(|error| Unusable::Uncreated(self.path.clone(), error))?;
        }
        let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let mut folder = match Folder::open(&self.base) {
            Ok(folder) => folder,
            // The path may also be below a file.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::NotADirectory => {
                return Ok(None);
            }
            Err(error) => return Err(Unusable::Unopened(self.base.clone(), error)),
        };
        for name in self.below.split('/') {
            let path = folder.path().join(name);
            let mut opened = folder.below(name);
            if make && opened.as_ref().is_err_and(is_absent) {
                let made = folder.make_below(name);
                made.map_err(|error| Unusable::Uncreated(path.clone(), error))?;
                opened = folder.below(name);
            }
            folder = match opened.and_then(trusted) {
                Ok(folder) => folder,
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) => {
                    let error = no_folder(&path).unwrap_or(error);
                    return Err(Unusable::Unopened(path, error));
                }
            };
        }
        Ok(Some(folder))
    }

    /// Reason why a file or the folder is not used. Gives the warning, too.
    fn refusal(&self, path: &Path, error: &io::Error) -> String {
        let (path, variable) = (path.display(), self.variable);
        let reason = match error.get_ref() {
            Some(reason) => {
                // The first remedy follows a semicolon, if there is one of the user's own.
                let reason = reason.to_string();
                let joint = if reason.contains(';') { ", or" } else { ";" };
                format!("{path} is not trusted: {reason}{joint}")
            }
            None => format!("cannot read {path}: {error};"),
        };
        let warning = format!("{reason} name another folder by {variable}");
        let warning = printable(&warning).into_owned();
        warn(&warning);
        warning
    }
}

/// A regular file of a private folder.
pub(crate) struct FolderFile {
    folder: Arc<Folder>,
    pub(crate) name: OsString,
    #[cfg(feature = "cuda")]
    pub(crate) bytes: u64,
    modified: SystemTime,
}

impl FolderFile {
    /// Removes the file. Errors are ignored: another process may have removed it.
    pub(crate) fn remove(&self) {
        let _ = self.folder.remove(&self.name);
    }

    /// True if the file can be read and begins with these bytes.
    pub(crate) fn begins_with(&self, start: &[u8]) -> bool {
        let mut found = Vec::new();
        let opened = self.folder.open_regular(&self.name);
        let read = opened.and_then(|file| file.take(start.len() as u64).read_to_end(&mut found));
        read.is_ok() && found == start
    }
}

/// An error with a reason of this module and a remedy, if there is one besides another folder.
fn untrusted(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Reason why a path is no folder; `None` if it is one.
fn no_folder(path: &Path) -> Option<io::Error> {
    let found = fs::symlink_metadata(path).ok().filter(|found| !found.is_dir())?;
    let what = if found.is_symlink() { "a symbolic link" } else { "not a folder" };
    Some(untrusted(format!("it is {what}; remove it")))
}

/// Reads a file of a folder, up to a limit.
fn read_in(folder: &Folder, name: &OsStr, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open_trusted(folder, name)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(untrusted(format!("it has more than {limit} bytes; remove it")));
    }
    Ok(bytes)
}

#[cfg(not(unix))]
use portable::{open_trusted, trusted};
#[cfg(unix)]
use unix::{open_trusted, trusted};

/// Folders and files on Unix.
#[cfg(unix)]
mod unix {
    use super::super::folder::user;
    use super::{Folder, OsStr, io, untrusted};
    use std::fs::{File, Metadata};
    use std::os::unix::fs::MetadataExt;

    /// The folder, if it is trusted.
    pub(super) fn trusted(folder: Folder) -> io::Result<Folder> {
        check(&folder.file().metadata()?)?;
        Ok(folder)
    }

    /// Opens a file of a folder for reading, if it is trusted.
    pub(super) fn open_trusted(folder: &Folder, name: &OsStr) -> io::Result<File> {
        let file = folder.read(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => untrusted("it is a symbolic link; remove it".to_owned()),
            Some(libc::ENXIO) => no_file(),
            _ => error,
        })?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(no_file());
        }
        check(&found)?;
        Ok(file)
    }

    fn no_file() -> io::Error {
        untrusted("it is not a regular file; remove it".to_owned())
    }

    /// Checks that a file belongs to the user of this process, and that no other user may write to
    /// it.
    pub(in super::super) fn check(found: &Metadata) -> io::Result<()> {
        check_owner(found)?;
        if found.mode() & 0o022 != 0 {
            let reason = "its group or others may write to it; remove that right by chmod go-w";
            return Err(untrusted(reason.to_owned()));
        }
        Ok(())
    }

    /// Checks that a file belongs to the user of this process.
    fn check_owner(found: &Metadata) -> io::Result<()> {
        let (owner, user) = (found.uid(), user());
        if owner == user {
            return Ok(());
        }
        Err(untrusted(format!("it belongs to user {owner}, and this process to user {user}")))
    }
}

/// Folders and files of systems whose permissions are not looked at.
#[cfg(not(unix))]
mod portable {
    use super::{Folder, OsStr, io, untrusted};
    use std::fs::File;

    /// The folder.
    pub(super) fn trusted(folder: Folder) -> io::Result<Folder> {
        Ok(folder)
    }

    /// Opens a regular file of a folder for reading.
    pub(super) fn open_trusted(folder: &Folder, name: &OsStr) -> io::Result<File> {
        folder.read(name).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                untrusted("it is not a regular file; remove it".to_owned())
            }
            _ => error,
        })
    }
}
