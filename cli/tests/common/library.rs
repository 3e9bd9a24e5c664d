//! Libraries that stand in for those of the system.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Builds a library from Rust sources, which are kept beside it. Without a Rust compiler it prints
/// a message and returns false.
pub(crate) fn build(source: &str, library: &Path) -> bool {
    let file = library.with_extension("rs");
    fs::write(&file, source).unwrap();
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args([
        "--crate-type=cdylib",
        "--crate-name=replaced",
        "--edition=2021",
        "-Cpanic=abort",
        "-O",
        "-Anon_snake_case",
    ]);
    let Ok(output) = compiler.arg("-o").arg(library).arg(&file).output() else {
        println!("skipped: no rustc");
        return false;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}
