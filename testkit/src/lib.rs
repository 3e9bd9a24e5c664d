//! Oracle, error bounds, test vectors and small matrices for sparse matrix–vector products.
//!
//! The modules are also part of the unit tests of `sparseop`, which include them by path.

pub mod chapter;
mod oracle;

pub use oracle::{Oracle, x_vector};
