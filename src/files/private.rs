//! Private folders: files that the library names itself, which only their owner can have written.
//!
//! A folder for everyone, such as `/tmp`, or a loose umask must not let another user choose the
//! machine code or the plans of a process. On Unix a file is therefore read only if it and its
//! folder belong to the effective user and no other user may write to them, if neither is a
//! symbolic link, and if the file is a regular one of limited size. These properties are those of
//! the opened file, so that it cannot be exchanged in between.

use crate::Error;
use crate::error::printable;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Warnings about files that are not trusted.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Most warnings of a process.
const MOST_WARNINGS: usize = 64;

/// Files that the library ignored in this process because they are not trusted, one line each with
/// the reason and a remedy. The list has at most 64 lines.
pub fn file_warnings() -> Vec<String> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds a warning, and reports it to `tracing`, unless it was given before or the list is full.
fn warn(warning: &str) {
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if warnings.len() < MOST_WARNINGS && !warnings.iter().any(|known| known == warning) {
        warnings.push(warning.to_owned());
        drop(warnings);
        tracing::warn!("{warning}");
    }
}

/// A folder of files that only their owner may write. It need not exist.
#[derive(Debug, Clone)]
pub(crate) struct PrivateFolder {
    path: PathBuf,
    /// Environment variable that names another folder.
    variable: &'static str,
}

impl PrivateFolder {
    /// The folder at a path, which `variable` can change.
    pub(crate) fn new(path: PathBuf, variable: &'static str) -> Self {
        Self { path, variable }
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
        let folder = match self.open() {
            Ok(Some(folder)) => folder,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.refusal(&self.path, &error)),
        };
        match read_in(&folder, name, limit) {
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
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.path).map_err(|e| Error::io("create", &self.path, e))?;
        self.open().map_err(|error| {
            self.refusal(&self.path, &error);
            Error::io("write to", &self.path, error)
        })?;
        super::replace(&self.path.join(name), super::PRIVATE, fill)
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

/// An error with a reason of this module and a remedy, if there is one besides another folder.
fn untrusted(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Reads a file of a folder, up to a limit.
fn read_in(folder: &OpenFolder, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let file = folder.open(name)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(untrusted(format!("it has more than {limit} bytes; remove it")));
    }
    Ok(bytes)
}

/// An opened folder that is trusted.
struct OpenFolder {
    #[cfg(unix)]
    folder: fs::File,
    #[cfg(not(unix))]
    path: PathBuf,
}

#[cfg(not(unix))]
use portable::open_folder;
#[cfg(unix)]
use unix::open_folder;
#[cfg(unix)]
pub(super) use unix::user;

impl PrivateFolder {
    /// Opens the folder; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// An error with a reason if it is not trusted.
    fn open(&self) -> io::Result<Option<OpenFolder>> {
        // The path may also be below a file.
        let Ok(found) = fs::symlink_metadata(&self.path) else {
            return open_folder(&self.path).map(Some).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            });
        };
        if found.is_symlink() {
            return Err(untrusted("it is a symbolic link; remove it".to_owned()));
        }
        if !found.is_dir() {
            return Err(untrusted("it is not a folder; remove it".to_owned()));
        }
        open_folder(&self.path).map(Some)
    }
}

/// Folders and files on Unix.
#[cfg(unix)]
mod unix {
    use super::{OpenFolder, Path, io, untrusted};
    use std::ffi::CString;
    use std::fs::{File, Metadata};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    /// Opens a folder that is trusted.
    pub(super) fn open_folder(path: &Path) -> io::Result<OpenFolder> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let folder = File::options().read(true).custom_flags(flags).open(path)?;
        check(&folder.metadata()?)?;
        Ok(OpenFolder { folder })
    }

    impl OpenFolder {
        /// Opens a file of the folder for reading, if it is trusted.
        pub(super) fn open(&self, name: &str) -> io::Result<File> {
            let name = CString::new(name)?;
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
            // SAFETY: the descriptor is open, the name ends with a zero byte, and without O_CREAT
            // there is no further argument.
            let opened = unsafe { libc::openat(self.folder.as_raw_fd(), name.as_ptr(), flags) };
            if opened < 0 {
                let error = io::Error::last_os_error();
                return Err(match error.raw_os_error() {
                    Some(libc::ELOOP) => untrusted("it is a symbolic link; remove it".to_owned()),
                    Some(libc::ENXIO) => no_file(),
                    _ => error,
                });
            }
            // SAFETY: the descriptor was just opened, and has no other owner.
            let file = unsafe { File::from_raw_fd(opened) };
            let found = file.metadata()?;
            if !found.is_file() {
                return Err(no_file());
            }
            check(&found)?;
            Ok(file)
        }
    }

    fn no_file() -> io::Error {
        untrusted("it is not a regular file; remove it".to_owned())
    }

    /// Checks that a file belongs to the user of this process, and that no other user may write to
    /// it.
    fn check(found: &Metadata) -> io::Result<()> {
        let (owner, user) = (found.uid(), user());
        if owner != user {
            return Err(untrusted(format!(
                "it belongs to user {owner}, and this process to user {user}"
            )));
        }
        if found.mode() & 0o022 != 0 {
            let reason = "its group or others may write to it; remove that right by chmod go-w";
            return Err(untrusted(reason.to_owned()));
        }
        Ok(())
    }

    /// The effective user of the process.
    pub(in super::super) fn user() -> u32 {
        // SAFETY: the call has no argument and always succeeds.
        unsafe { libc::geteuid() }
    }
}

/// Folders and files of systems whose permissions are not looked at.
#[cfg(not(unix))]
mod portable {
    use super::{OpenFolder, Path, io, untrusted};
    use std::fs::File;

    /// Returns a folder that exists.
    pub(super) fn open_folder(path: &Path) -> io::Result<OpenFolder> {
        path.metadata().map(|_| OpenFolder { path: path.to_owned() })
    }

    impl OpenFolder {
        /// Opens a regular file of the folder for reading.
        pub(super) fn open(&self, name: &str) -> io::Result<File> {
            let path = self.path.join(name);
            if !path.symlink_metadata()?.is_file() {
                return Err(untrusted("it is not a regular file; remove it".to_owned()));
            }
            File::open(path)
        }
    }
}
