//! The `sparseop` program.
fn main() {}
