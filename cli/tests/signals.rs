//! Interrupts, and readers that close the pipe.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// True if a folder has no entries.
fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn an_interrupt_leaves_no_half_written_file() {
    let folder = tempfile::tempdir().unwrap();
    // Compressing it takes seconds.
    let file = folder.path().join("big.mtx.gz");
    let mut child = Command::new(env!("CARGO_BIN_EXE_sparseop"))
        .args(["gallery", "write", "uniform,rows=400k"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while is_empty(folder.path()) {
        assert!(Instant::now() < patience, "the temporary file never came");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!file.exists(), "it is written under another name");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_empty(folder.path()));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    // More than a pipe holds.
    let mut child = Command::new(env!("CARGO_BIN_EXE_sparseop"))
        .args(["apply", "gallery:small,n=300", "-q"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}
