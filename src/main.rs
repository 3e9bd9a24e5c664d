//! The `sparseop` program: what the library does, from a terminal.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
