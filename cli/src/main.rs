//! The `sparseop` program.

use std::process::ExitCode;

/// Memory that ends is an error, also where an allocation is small.
#[global_allocator]
static ALLOCATOR: sparseop::Reserve<std::alloc::System> =
    sparseop::Reserve::new(std::alloc::System);

fn main() -> ExitCode {
    ExitCode::from(sparseop_cli::run(std::env::args_os()))
}
