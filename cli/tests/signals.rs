//! Signals, and readers that close the pipe.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// True if a folder has no entries.
fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Waits until a folder has an entry.
fn wait_for_file(folder: &Path) {
    let patience = Instant::now() + Duration::from_secs(60);
    while is_empty(folder) {
        assert!(Instant::now() < patience, "the temporary file never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_leaves_no_half_written_file() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        check(signal, code);
    }
}

/// Sends a signal to a program that writes a file.
fn check(signal: &str, code: i32) {
    let folder = tempfile::tempdir().unwrap();
    // Compressing it takes seconds.
    let file = folder.path().join("big.mtx.gz");
    let mut child = Command::new(env!("CARGO_BIN_EXE_sparseop"))
        .args(["gallery", "write", "uniform,rows=400k"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_file(folder.path());
    assert!(!file.exists(), "it is written under another name");
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    assert!(is_empty(folder.path()), "{signal}");
}

#[test]
fn a_program_of_nohup_survives_a_hang_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("big.mtx.gz");
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_sparseop"))
        .args(["gallery", "write", "uniform,rows=30k"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_file(folder.path());
    let sent = Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert!(child.wait().unwrap().success());
    assert!(file.exists());
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
