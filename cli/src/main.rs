//! The `sparseop` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sparseop_cli::run(std::env::args_os()))
}
