//! Files that appear whole or not at all.

use crate::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes gathered before they are handed to the operating system.
const BUFFER: usize = 1 << 18;

/// How the names of temporary files begin.
const PREFIX: &str = ".sparseop-";

/// The temporary files there are. Whoever makes one, or gives one its name, or removes one, holds the lock meanwhile: so the list is
/// never behind the folder.
static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporaries() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what unfinished writes of this library have left in folders, and keeps every write from ever finishing.
///
/// For a program that is about to end because it was interrupted; the threads that write may go on until it does. A file that
/// is complete by now stays.
pub fn abandon_writes() {
    let temporaries = temporaries();
    for path in temporaries.iter() {
        // There is nobody left to tell, and nothing else to try.
        let _ = std::fs::remove_file(path);
    }
    // Locked for ever: no new temporary file, and none that gets its name.
    std::mem::forget(temporaries);
}

/// The operating system's answer, without the name of the temporary file that `tempfile` adds to it.
fn os_error(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|e| e.source()).and_then(|e| e.downcast_ref::<io::Error>());
    let code = inner.and_then(io::Error::raw_os_error);
    code.map_or(error, io::Error::from_raw_os_error)
}

/// Lets `fill` write a temporary file beside `path` and gives it its name once it is complete.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    // A temporary file is private by default; this one is to become an ordinary file, subject to the umask.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let temporary = {
        let mut temporaries = temporaries();
        let temporary = builder.tempfile_in(folder).map_err(|e| Error::io("create", path, os_error(e)))?;
        temporaries.push(temporary.path().to_owned());
        temporary
    };
    let mut out = BufWriter::with_capacity(BUFFER, temporary.as_file());
    let written = fill(&mut out).and_then(|()| out.flush());
    drop(out);
    let mut temporaries = temporaries();
    temporaries.retain(|known| known != temporary.path());
    match written {
        Ok(()) => temporary.persist(path).map(drop).map_err(|e| Error::io("create", path, e.error)),
        Err(error) => {
            // Removed while the lock is held.
            drop(temporary);
            Err(Error::io("write", path, error))
        }
    }
}
