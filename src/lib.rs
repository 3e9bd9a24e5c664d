//! `y = A x` with a sparse A, as fast as the machine allows, without the user knowing anything about storage formats.
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

pub mod analysis;
mod device;
mod error;
pub mod formats;
pub mod matrix;
mod scalar;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use error::Error;
pub use scalar::{Scalar, ScalarKind};
