//! The program under test.

use assert_cmd::Command;

/// The program in a fixed environment: two threads, a terminal of 100 columns, only the built-in
/// profiles, no stored decisions.
pub(crate) fn sparseop(args: &[&str]) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("sparseop");
    command
        .args(args)
        .env("RAYON_NUM_THREADS", "2")
        .env("COLUMNS", "100")
        .env("SPARSEOP_DEVICE", "cpu");
    command.env("SPARSEOP_PROFILE", "off").env("SPARSEOP_STORE", "off");
    command
}

/// Standard output of the program, which must succeed.
pub(crate) fn stdout(args: &[&str]) -> String {
    let output = sparseop(args).assert().success().get_output().stdout.clone();
    String::from_utf8(output).expect("the output is UTF-8")
}
