//! Auto-tuned sparse matrix–vector products (SpMV) for CPUs and NVIDIA GPUs.
//!
//! [`SparseOp::auto`] analyses a matrix, predicts the fastest storage format and kernel, checks the
//! prediction with a few products, and returns an operator. [`SparseOp::apply`] multiplies with it,
//! thousands of times; [`SparseOp::explain`] says what was chosen and why.
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
//! # Matrices
//!
//! Own arrays in CSR, with offsets and columns of `u32`, `i32`, `u64`, `i64` or `usize`, borrowed
//! where the width fits:
//!
//! ```
//! use sparseop::{CsrCow, CsrMatrix, SparseOp};
//!
//! // 3 0 1
//! // 0 2 0
//! let (offsets, columns, values) = (vec![0i32, 2, 3], vec![0i32, 2, 1], vec![3.0, 1.0, 2.0]);
//! let borrowed = CsrCow::try_new(2, 3, &offsets, &columns, &values)?;
//! let op = SparseOp::auto(&borrowed)?;
//! let owned = CsrMatrix::try_new(2, 3, offsets, columns, values)?;
//! # assert_eq!(op.to_csr()?, owned);
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! [`Triplets`] take entries in any order, [`matrix::market`] reads Matrix Market files,
//! [`ToCsr`] is implemented, with the features of their names, for the matrices of `faer`,
//! `nalgebra` and, by default, `sprs`. [`ForeignCsr`] names arrays in the memory of a GPU,
//! [`matrix::gallery`] generates matrices.
//!
//! # Products
//!
//! `y = A x`, `y = Aᵀ x`, and `Y = A X` for several vectors (SpMM), with vectors in host memory
//! or on the device ([`SparseOp::apply_device`]), plain or as `alpha A x + beta y`
//! ([`SparseOp::apply_with`]):
//!
//! ```
//! # use sparseop::{Multivector, SparseOp, matrix::gallery};
//! # let a = "poisson2d,n=10".parse::<gallery::Spec>()?.generate::<f64>()?;
//! # let op = SparseOp::auto(&a)?;
//! let (x, mut y) = (vec![1.0; a.nrows()], vec![0.0; a.ncols()]);
//! op.apply_transpose(&x, &mut y)?;
//!
//! let k = 4;
//! let (xs, mut ys) = (vec![1.0; k * a.ncols()], vec![0.0; k * a.nrows()]);
//! op.apply_multi(Multivector::row_major(&xs, k), Multivector::row_major(&mut ys, k))?;
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! New values on the same pattern keep format and plan:
//!
//! ```
//! # use sparseop::{SparseOpBuilder, matrix::gallery};
//! # let a = "poisson2d,n=10".parse::<gallery::Spec>()?.generate::<f64>()?;
//! let mut op = SparseOpBuilder::new().updatable(true).build(&a)?;
//! let twice: Vec<f64> = a.values().iter().map(|value| 2.0 * value).collect();
//! op.update_values(&twice)?;
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! # Solvers
//!
//! CG, BiCGSTAB, GMRES, Chebyshev iteration, power iteration and PageRank are in the package
//! `sparseop-solvers`:
//!
//! ```
//! use sparseop::{SparseOp, matrix::gallery};
//! use sparseop_solvers::{Method, SolverBuilder};
//!
//! let a = "poisson2d,n=30,values=laplacian".parse::<gallery::Spec>()?.generate::<f64>()?;
//! let op = SparseOp::auto(&a)?;
//! let (b, mut x) = (vec![1.0; a.nrows()], vec![0.0; a.ncols()]);
//! let report = SolverBuilder::new(Method::Cg).build(&op)?.solve(&b, &mut x)?;
//! println!("{report}");
//! # assert!(report.converged().is_ok());
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! # Tuning
//!
//! Predictions come from a [`Profile`]: the library has some, `sparseop tune` measures one for a
//! machine. By default a prediction is checked on the matrix itself with a few products
//! ([`Tuning::Check`]). [`Tuning::Predict`] times nothing, [`Tuning::Calibrate`] times up to ten
//! plans, [`Tuning::Fixed`] takes a given [`Plan`].
//!
//! ```no_run
//! # use sparseop::{Profile, SparseOpBuilder, Tuning, matrix::market};
//! let a = market::read::<f32>("matrix.mtx")?;
//! let profile = Profile::read("machine.ron")?;
//! let op = SparseOpBuilder::new().profile(profile).tuning(Tuning::Calibrate).build(&a)?;
//! # Ok::<(), sparseop::Error>(())
//! ```
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

// The unit tests share files with the packages that use this one.
#[cfg(test)]
extern crate self as sparseop;

// The hidden modules are for the other packages of this project and may change in any version.
#[doc(hidden)]
pub mod analysis;
mod compiled;
#[doc(hidden)]
pub mod device;
mod error;
mod files;
#[doc(hidden)]
pub mod formats;
pub mod matrix;
mod memory;
mod op;
mod order;
mod parallel;
mod precision;
mod scalar;
#[cfg(test)]
mod testing;
mod trace;
#[doc(hidden)]
pub mod tuning;

pub use analysis::RowStats;
pub use device::{Device, DeviceVec, DeviceView, Factor, ForeignCsr, Graph, Offsets, Stream};
#[doc(hidden)]
pub use error::printable;
pub use error::{Error, ErrorKind};
#[doc(hidden)]
pub use files::{
    abandon_writes, file_warnings, open_own, open_regular, print_file_warnings, write_atomically,
    write_new,
};
#[doc(hidden)]
pub use formats::FormatKind;
pub use formats::{Layout, Multivector, Plan};
pub use matrix::{CsrCow, CsrMatrix, CsrView, Index, ToCsr, Triplets};
#[doc(hidden)]
pub use memory::{Reserve, check_room, filled, listed, reserved, try_zeroed, zeroed};
pub use op::{SparseOp, SparseOpBuilder, Tuning};
#[doc(hidden)]
pub use precision::ExactIn;
pub use precision::Precision;
pub use scalar::Scalar;
#[doc(hidden)]
pub use scalar::ScalarKind;
pub use tuning::calibrate::Calibration;
pub use tuning::decision::{Candidate, Decision, Verdict};
pub use tuning::explain::{Explanation, Preparation};
pub use tuning::profile::Profile;
