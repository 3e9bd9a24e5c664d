//! The file that fuzz targets share: in memory where there is such a folder, one a process.

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
