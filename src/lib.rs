//! `y = A x` with a sparse A, as fast as the machine allows, without the user knowing anything about storage formats.
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

pub mod analysis;
mod error;
pub mod matrix;
mod scalar;

pub use error::Error;
pub use scalar::{Scalar, ScalarKind};
