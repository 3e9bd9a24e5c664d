//! Opened folders: their files are reached by name, wherever a path leads meanwhile.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
#[cfg(unix)]
pub(super) use unix::user;

/// An opened folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    #[cfg(unix)]
    file: File,
}

impl Folder {
    /// Path by which the folder was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names and properties of the entries that the folder of this path has now.
    pub(super) fn entries(&self) -> impl Iterator<Item = fs::DirEntry> {
        fs::read_dir(&self.path).into_iter().flatten().flatten()
    }

    /// Opens a regular file of the folder for reading. A symbolic link is not followed.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be opened, or if it is not a regular file.
    pub(super) fn open_regular(&self, name: &OsStr) -> io::Result<File> {
        super::regular(self.read(name)?)
    }
}

/// Folders of Unix.
#[cfg(unix)]
mod unix {
    use super::{File, Folder, OpenOptions, OsStr, Path, io};
    use std::ffi::CString;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;

    /// The answer of a system call that returns a negative number for an error.
    fn answer(returned: libc::c_int) -> io::Result<libc::c_int> {
        if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
    }

    /// The effective user of the process.
    pub(in super::super) fn user() -> u32 {
        // SAFETY: the call has no argument and always succeeds.
        unsafe { libc::geteuid() }
    }

    fn terminated(name: &OsStr) -> io::Result<CString> {
        Ok(CString::new(name.as_bytes())?)
    }

    impl Folder {
        /// Opens a folder. Symbolic links are followed.
        pub(in super::super) fn open(path: &Path) -> io::Result<Self> {
            let mut options = OpenOptions::new();
            options.read(true);
            let opened = options.custom_flags(libc::O_DIRECTORY).open(path);
            // Files may be written to a folder that must not be listed.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            let opened = opened.or_else(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    options.custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(path)
                }
                _ => Err(error),
            });
            Ok(Self { path: path.to_owned(), file: opened? })
        }

        /// Opens a folder in this one. A symbolic link is not followed.
        pub(in super::super) fn below(&self, name: &str) -> io::Result<Self> {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let file = self.open_at(name.as_ref(), flags, 0)?;
            Ok(Self { path: self.path.join(name), file })
        }

        /// Creates a private folder in this one, unless there is one.
        pub(in super::super) fn make_below(&self, name: &str) -> io::Result<()> {
            let name = terminated(name.as_ref())?;
            // SAFETY: the descriptor is open, and the name ends with a zero byte.
            let made = unsafe { libc::mkdirat(self.file.as_raw_fd(), name.as_ptr(), 0o700) };
            answer(made).map(drop).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            })
        }

        /// The descriptor.
        pub(in super::super) fn file(&self) -> &File {
            &self.file
        }

        /// Opens a file for reading, without following a symbolic link and without waiting for the
        /// other end of a pipe.
        pub(in super::super) fn read(&self, name: &OsStr) -> io::Result<File> {
            self.open_at(name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)
        }

        /// Creates a file for reading and writing, with the permission bits `mode`, subject to the
        /// umask.
        pub(in super::super) fn create(&self, name: &str, mode: u32) -> io::Result<File> {
            self.open_at(name.as_ref(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, mode)
        }

        fn open_at(&self, name: &OsStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
            let (name, flags) = (terminated(name)?, flags | libc::O_CLOEXEC);
            // SAFETY: the descriptor is open, the name ends with a zero byte, and the type of the
            // mode is that of a variable argument.
            let opened = unsafe {
                libc::openat(self.file.as_raw_fd(), name.as_ptr(), flags, mode as libc::c_uint)
            };
            // SAFETY: the descriptor was just opened, and has no other owner.
            Ok(unsafe { File::from_raw_fd(answer(opened)?) })
        }

        /// Renames a file, in place of whatever has the name.
        pub(in super::super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
            let (from, to, folder) = (terminated(from)?, terminated(to)?, self.file.as_raw_fd());
            // SAFETY: the descriptor is open, and the names end with a zero byte.
            answer(unsafe { libc::renameat(folder, from.as_ptr(), folder, to.as_ptr()) }).map(drop)
        }

        /// Gives a file a second name, which no other file may have.
        pub(in super::super) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
            let (from, to, folder) = (terminated(from)?, terminated(to)?, self.file.as_raw_fd());
            // SAFETY: the descriptor is open, and the names end with a zero byte.
            answer(unsafe { libc::linkat(folder, from.as_ptr(), folder, to.as_ptr(), 0) }).map(drop)
        }

        /// Removes a file.
        pub(in super::super) fn remove(&self, name: &OsStr) -> io::Result<()> {
            let name = terminated(name)?;
            // SAFETY: the descriptor is open, and the name ends with a zero byte.
            answer(unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
        }

        /// Waits until the names of the folder are on the disk, if the file system can tell.
        pub(in super::super) fn sync(&self) {
            // The files are complete in any case.
            let _ = self.file.sync_all();
        }
    }
}

/// Folders of systems without descriptors of folders.
#[cfg(not(unix))]
mod portable {
    use super::{File, Folder, OpenOptions, OsStr, Path, fs, io};

    impl Folder {
        /// Opens a folder that exists.
        pub(in super::super) fn open(path: &Path) -> io::Result<Self> {
            match path.metadata()?.is_dir() {
                true => Ok(Self { path: path.to_owned() }),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }

        /// Opens a folder in this one. A symbolic link is not followed.
        pub(in super::super) fn below(&self, name: &str) -> io::Result<Self> {
            let path = self.path.join(name);
            match path.symlink_metadata()?.is_dir() {
                true => Ok(Self { path }),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }

        /// Creates a folder in this one, unless there is one.
        pub(in super::super) fn make_below(&self, name: &str) -> io::Result<()> {
            fs::create_dir_all(self.path.join(name))
        }

        /// Opens a file for reading, without following a symbolic link.
        pub(in super::super) fn read(&self, name: &OsStr) -> io::Result<File> {
            let path = self.path.join(name);
            match path.symlink_metadata()?.is_file() {
                true => File::open(path),
                false => Err(super::super::not_regular()),
            }
        }

        /// Creates a file for reading and writing.
        pub(in super::super) fn create(&self, name: &str, _: u32) -> io::Result<File> {
            let path = self.path.join(name);
            OpenOptions::new().read(true).write(true).create_new(true).open(path)
        }

        /// Renames a file, in place of whatever has the name.
        pub(in super::super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
            fs::rename(self.path.join(from), self.path.join(to))
        }

        /// Gives a file a second name, which no other file may have.
        pub(in super::super) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
            fs::hard_link(self.path.join(from), self.path.join(to))
        }

        /// Removes a file.
        pub(in super::super) fn remove(&self, name: &OsStr) -> io::Result<()> {
            fs::remove_file(self.path.join(name))
        }

        /// The names of the folder reach the disk without a request.
        pub(in super::super) fn sync(&self) {}
    }
}
