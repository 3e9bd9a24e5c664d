//! Oracle, error bounds, test vectors, small matrices and devices for tests of sparse
//! matrix–vector products.
//!
//! The modules are also part of the unit tests of `sparseop`, which include them by path.

pub mod chapter;
mod devices;
mod oracle;

pub use devices::{devices, few_cases, gpu, keep_busy};
pub use oracle::{Oracle, x_vector};
