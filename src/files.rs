//! Files: atomic writes, and private folders.
//!
//! A file appears complete or not at all, except an existing one that a new file cannot replace:
//! the complete content is copied into it, and remains in a second file until that is done. Files
//! that a user names may be reached through symbolic links, and keep their permissions when they
//! are replaced. Files that the library names itself are not reached so: see [`PrivateFolder`].

mod folder;
mod private;
mod temporary;
#[cfg(test)]
mod tests;

pub(crate) use private::PrivateFolder;
pub use private::{file_warnings, print_file_warnings};
pub use temporary::abandon_writes;

use crate::Error;
use folder::Folder;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use temporary::Temporary;

/// Size of the write buffer, in bytes.
const BUFFER: usize = 1 << 15;

/// Permission bits of new files of the user, subject to the umask.
const PUBLIC: u32 = 0o666;

/// Permission bits of private files, and of unfinished copies of existing files.
const PRIVATE: u32 = 0o600;

/// Lets `fill` write a temporary file next to `path`, and renames it when it is complete and on the
/// disk.
///
/// A symbolic link to an existing file is followed, so it remains a link; one to a missing file is
/// replaced. An existing file keeps its owner, group and permission bits; one that is read-only is
/// not replaced.
///
/// The complete content is copied into a file with several hard links, an access control list or
/// attributes of users, and into one whose owner, group and permission bits a new file cannot have;
/// a first interrupt does not end the copy. The complete content is beside the file under the name
/// `FILE.new` until the copy is on the disk, and remains there if the copy fails or the process is
/// killed. A target that is not a regular file, such as a device or a pipe, is written directly,
/// and so is an open file of the process, such as `/dev/stdout`.
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be created or written, or if `fill` fails; no file is left
/// behind then, except after a failed copy.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    if let Some(open) = open_file(path) {
        return write_directly(path, open, fill);
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&target) {
        Ok(found) if found.is_file() => overwrite(path, &target, &found, fill),
        Ok(found) if !found.is_dir() => {
            write_directly(path, File::options().write(true).open(path), fill)
        }
        _ => {
            let (folder, name) = located(&target).map_err(|e| Error::io("create", path, e))?;
            let written = write_temporary(path, &folder, PUBLIC, fill)?;
            written.rename(name).map_err(|e| Error::io("create", path, e))?;
            folder.sync();
            Ok(())
        }
    }
}

/// Folder and name of a file.
fn located(path: &Path) -> io::Result<(Arc<Folder>, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((Arc::new(Folder::open(folder.unwrap_or(Path::new(".")))?), name))
}

/// Lets `fill` write a private file that the library names itself, in place of whatever has the
/// name: a symbolic link is replaced and not followed.
///
/// # Errors
///
/// As [`write_atomically`].
fn replace(
    folder: &Arc<Folder>,
    name: &OsStr,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let path = folder.path().join(name);
    let written = write_temporary(&path, folder, PRIVATE, fill)?;
    written.rename(name).map_err(|e| Error::io("create", path, e))
}

/// Lets `fill` write a private file that does not exist, which has its name when it is complete and
/// on the disk. Returns false if there is a file of this name.
///
/// # Errors
///
/// As [`write_atomically`].
pub fn write_new(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<bool, Error> {
    let (folder, name) = located(path).map_err(|e| Error::io("create", path, e))?;
    let written = write_temporary(path, &folder, PRIVATE, fill)?;
    match written.rename_new(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        renamed => renamed.map_err(|e| Error::io("create", path, e))?,
    }
    folder.sync();
    Ok(true)
}

/// Replaces the content of an existing file.
fn overwrite(
    path: &Path,
    target: &Path,
    found: &Metadata,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    // A rename needs no permission to write the file, and the superuser needs none at all.
    let opened = if found.permissions().readonly() {
        let reason = "the file is read-only; change its permissions or write another file";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    } else {
        File::options().write(true).open(target)
    };
    let opened = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (old, existing) = opened.map_err(|e| Error::io("write", path, e))?;
    let (folder, name) = located(target).map_err(|e| Error::io("write", path, e))?;
    let written = write_temporary(path, &folder, PRIVATE, fill)?;
    let is_replaced = !is_linked(&old) && !has_attributes(&existing);
    let replaced = if is_replaced && takes_place_of(written.file(), &old) {
        drop(existing);
        written.rename(name)
    } else {
        written.copy_into(&existing, target)
    };
    replaced.map_err(|e| Error::io("write", path, e))?;
    folder.sync();
    Ok(())
}

/// True if a file has several hard links.
#[cfg(unix)]
fn is_linked(found: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(found) > 1
}

#[cfg(not(unix))]
fn is_linked(_: &Metadata) -> bool {
    false
}

/// True if a file has an access control list or attributes of users, which a new file would lack.
#[cfg(target_os = "linux")]
fn has_attributes(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    let mut names = [0u8; 1 << 12];
    let (buffer, bytes) = (names.as_mut_ptr().cast(), names.len());
    // SAFETY: the descriptor is open, and the buffer has as many bytes.
    let len = unsafe { libc::flistxattr(file.as_raw_fd(), buffer, bytes) };
    let Ok(len) = usize::try_from(len) else {
        // More names than the buffer holds; or the file system has no attributes.
        return std::io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE);
    };
    let names = &names[..len];
    let is_kept = |name: &[u8]| name.starts_with(b"user.") || name == b"system.posix_acl_access";
    names.split(|&byte| byte == 0).any(is_kept)
}

#[cfg(not(target_os = "linux"))]
fn has_attributes(_: &File) -> bool {
    false
}

/// Gives a new file the owner, the group and the permission bits of an old one; false if that is
/// not allowed. Only the superuser may give a file away.
#[cfg(unix)]
fn takes_place_of(file: &File, old: &Metadata) -> bool {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    /// The permission bits of a file mode, with the setuid, setgid and sticky bits.
    const BITS: u32 = 0o7777;
    let Ok(new) = file.metadata() else { return false };
    let has_owner = (new.uid(), new.gid()) == (old.uid(), old.gid())
        || fchown(file, Some(old.uid()), Some(old.gid())).is_ok();
    let bits = old.mode() & BITS;
    has_owner
        && (new.mode() & BITS == bits
            || file.set_permissions(fs::Permissions::from_mode(bits)).is_ok())
}

#[cfg(not(unix))]
fn takes_place_of(_: &File, _: &Metadata) -> bool {
    true
}

/// Writes to a target that cannot be replaced.
fn write_directly(
    path: &Path,
    opened: io::Result<File>,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let file = opened.map_err(|e| Error::io("open", path, e))?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    fill(&mut out).and_then(|()| out.flush()).map_err(|e| Error::io("write", path, e))
}

/// The open file of the process that a path such as `/dev/stdout` names, with its position; `None`
/// for other paths.
#[cfg(target_os = "linux")]
fn open_file(path: &Path) -> Option<io::Result<File>> {
    use std::os::fd::FromRawFd;
    /// Most symbolic links that the system follows.
    const LINKS: usize = 40;
    let open_files = fs::canonicalize("/proc/self/fd").ok()?;
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..LINKS {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        if folder == open_files {
            let number = path.file_name()?.to_str()?.parse().ok()?;
            // SAFETY: a query of the system; any number is a valid descriptor to ask about.
            let own = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
            let is_open = own >= 0;
            // SAFETY: the descriptor was just made, and has no other owner.
            let file = is_open.then(|| unsafe { File::from_raw_fd(own) });
            return Some(file.ok_or_else(io::Error::last_os_error));
        }
        path = folder.join(fs::read_link(folder.join(path.file_name()?)).ok()?);
    }
    None
}

#[cfg(not(target_os = "linux"))]
fn open_file(_: &Path) -> Option<io::Result<File>> {
    None
}

/// Writes a temporary file in the folder of the file that `path` refers to, and removes those of
/// killed processes there. On Unix it has the permission bits `mode`, subject to the umask.
fn write_temporary(
    path: &Path,
    folder: &Arc<Folder>,
    mode: u32,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Temporary, Error> {
    temporary::remove_leftovers(folder);
    let made = Temporary::create(folder, mode).map_err(|e| Error::io("create", path, e))?;
    let mut out = BufWriter::with_capacity(BUFFER, made.file());
    let written = fill(&mut out).and_then(|()| out.flush()).and_then(|()| sync(made.file()));
    drop(out);
    written.map(|()| made).map_err(|e| Error::io("write", path, e))
}

/// Waits until a file is on the disk, if the file system can tell.
fn sync(file: &File) -> io::Result<()> {
    file.sync_all().or_else(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => Ok(()),
        _ if is_unsupported(&error) => Ok(()),
        _ => Err(error),
    })
}

/// True if a file system does not have an operation. The kind of such an error is not always
/// `Unsupported`.
#[cfg(unix)]
fn is_unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [libc::ENOTSUP, libc::EOPNOTSUPP].into_iter().any(|known| number == Some(known))
}

#[cfg(not(unix))]
fn is_unsupported(_: &io::Error) -> bool {
    false
}

/// Opens a regular file of the user without following a symbolic link. Does not wait for the other
/// end of a pipe.
///
/// # Errors
///
/// An error if the file cannot be opened, if it is not a regular file, and on Unix if it belongs to
/// another user or another user may write to it.
pub fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = regular(options.open(path)?)?;
    #[cfg(unix)]
    private::check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file for reading. Does not wait for the other end of a pipe.
///
/// # Errors
///
/// An error if the file cannot be opened, or if it is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // Miri has no such flag.
    #[cfg(all(unix, not(miri)))]
    options.custom_flags(libc::O_NONBLOCK);
    regular(options.read(true).open(path)?)
}

/// The file, if it is a regular one.
fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// A folder of the user; `None` if it is relative, since the home folder of the user is then
/// unknown.
pub(crate) fn absolute(folder: PathBuf) -> Option<PathBuf> {
    folder.is_absolute().then_some(folder)
}

/// Text of a file in which the system describes itself; none if it cannot be read.
pub(crate) fn system_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
