//! Signals, and readers that close the pipe.
#![cfg(unix)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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

/// Sends a signal to a program that still runs.
fn send(signal: &str, child: &mut Child) {
    assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparseop"));
    command.args(["gallery", "write", "uniform,rows=400k"]).arg(&file).stderr(Stdio::null());
    let defaults = || {
        // The tests may run under `nohup`, whose children ignore hang-ups.
        for signal in [libc::SIGHUP, libc::SIGTERM] {
            // SAFETY: the number of the signal is valid, and the action is the default one.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: `signal` may be called between `fork` and `exec`.
    let mut child = unsafe { command.pre_exec(defaults) }.spawn().unwrap();
    wait_for_file(folder.path());
    assert!(!file.exists(), "it is written under another name");
    send(signal, &mut child);
    assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    assert!(is_empty(folder.path()), "{signal}");
}

#[test]
fn a_program_of_nohup_survives_a_hang_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("big.mtx.gz");
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_sparseop"))
        .args(["gallery", "write", "uniform,rows=100k"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_file(folder.path());
    send("-HUP", &mut child);
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

#[test]
fn a_file_above_the_limit_of_the_system_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.mtx", "a.mtx.gz"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 8; exec \"$0\" gallery write uniform,rows=20k \"$1\""]);
        let output =
            shell.arg(env!("CARGO_BIN_EXE_sparseop")).arg(folder.path().join(name)).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(name) && said.contains("File too large"), "{said}");
        assert!(is_empty(folder.path()), "{said}");
    }
}
