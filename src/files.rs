//! Files that appear whole or not at all.

use crate::Error;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Bytes gathered before they are handed to the operating system.
const BUFFER: usize = 1 << 18;

/// Lets `fill` write a temporary file beside `path` and gives it its name once it is complete.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".sparseop-");
    // A temporary file is private by default; this one is to become an ordinary file, subject to the umask.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let temporary = builder.tempfile_in(folder).map_err(|e| Error::io("create", path, e))?;
    let mut out = BufWriter::with_capacity(BUFFER, temporary);
    let written = fill(&mut out).and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error));
    let temporary = written.map_err(|e| Error::io("write", path, e))?;
    temporary.persist(path).map_err(|e| Error::io("create", path, e.error))?;
    Ok(())
}
