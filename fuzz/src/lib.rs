//! Shared by fuzz targets: a file, one a process, in memory where there is such a folder, and edits
//! of files.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs, process};

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| folder().join(format!("sparseop-fuzz-{}", process::id())));

/// A folder in memory, or that of temporary files.
pub fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { env::temp_dir() }
}

/// Path of the file, with these bytes.
pub fn file_of(bytes: &[u8]) -> &'static Path {
    fs::write(&*FILE, bytes).unwrap();
    &FILE
}

/// Bytes with pieces replaced: each edit has a position, the number of bytes that go, and those
/// that come.
pub fn edited(bytes: &[u8], mut edits: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    while let [high, low, lengths, rest @ ..] = edits {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % (bytes.len() + 1);
        let end = bytes.len().min(at + usize::from(lengths >> 4));
        let (new, behind) = rest.split_at(rest.len().min(usize::from(lengths & 15)));
        bytes.splice(at..end, new.iter().copied());
        edits = behind;
    }
    bytes
}
