//! `y = A x` with a sparse A, as fast as the machine allows, without the user knowing anything about storage formats.
//!
//! [`SparseOp::auto`] looks at a matrix, decides how to store it, and hands back one operator that is then applied thousands
//! of times. It can say why it chose what it chose.
//!
//! ```
//! use sparseop::{SparseOp, matrix::gallery};
//!
//! let a = "poisson2d,n=100".parse::<gallery::Spec>()?.generate::<f32>()?;
//! let op = SparseOp::auto(&a)?;
//!
//! let x = vec![1.0; a.ncols()];
//! let mut y = vec![0.0; a.nrows()];
//! op.apply(&x, &mut y)?;
//! println!("{}", op.explain());
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! Matrices come from Matrix Market files ([`matrix::market`]), from `sprs`, nalgebra-sparse or faer ([`matrix::ToCsr`]), from triplets, from
//! raw arrays, from arrays on a GPU ([`device::ForeignCsr`]), or from the [`matrix::gallery`] of generated ones. The way from there is [`analysis`], [`tuning`], [`formats`], [`SparseOp`].
//! The package `sparseop-solvers` has iterative solvers.
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

// The unit tests share files with the packages that use this one.
#[cfg(test)]
extern crate self as sparseop;

pub mod analysis;
mod compiled;
pub mod device;
mod encoding;
mod error;
mod files;
pub mod formats;
pub mod matrix;
mod memory;
mod op;
mod precision;
mod scalar;
#[cfg(test)]
mod testing;
mod trace;
pub mod tuning;

pub use device::{Device, DeviceVec, Factor, Stream};
pub use error::Error;
pub use files::{abandon_writes, write_atomically};
pub use formats::{Layout, Plan};
#[doc(hidden)]
pub use memory::zeroed;
pub use op::{SparseOp, SparseOpBuilder, Tuning};
pub use precision::{ExactIn, Precision};
pub use scalar::{Scalar, ScalarKind};
