//! The program under test.

use assert_cmd::Command;

/// The program, in surroundings that are the same everywhere: two threads, a terminal of 100 columns, no profiles but
/// those that come with it, nothing remembered.
pub(crate) fn sparseop(args: &[&str]) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("sparseop");
    command.args(args).env("RAYON_NUM_THREADS", "2").env("COLUMNS", "100").env("SPARSEOP_DEVICE", "cpu");
    command.env("SPARSEOP_PROFILE", "off").env("SPARSEOP_STORE", "off");
    command
}

/// What the program printed, having succeeded.
pub(crate) fn stdout(args: &[&str]) -> String {
    let output = sparseop(args).assert().success().get_output().stdout.clone();
    String::from_utf8(output).expect("the output is UTF-8")
}
