//! Tests that run in a process of their own.

use std::process::{Child, Command, Stdio};

/// Starts a test in a new process, with an environment variable by which it knows.
pub(super) fn start(name: &str, (variable, value): (&str, &str)) -> Child {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([name, "--exact"]).env(variable, value).stdout(Stdio::piped());
    process.spawn().unwrap()
}

/// Waits for the process, and fails if its test failed or did not run.
pub(super) fn finish(process: Child) {
    let output = process.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
