//! Row-partitioned sparse matrix–vector products (SpMV) on auto-tuned operators.
//!
//! [`DistributedOp`] has several parts in one process, each on a thread, on the CPU or on a GPU of
//! its own. With the feature `mpi` a [`PartOp`] is the part of an MPI rank, on the CPU or on a GPU
//! of its own. Parts are ordinary [`SparseOp`](sparseop::SparseOp)s.
//!
//! ```
//! use sparseop::matrix::gallery;
//! use sparseop_distributed::DistributedOp;
//! use sparseop_solvers::{Method, Settings};
//!
//! let a = "poisson2d,n=50,values=laplacian".parse::<gallery::Spec>()?.generate::<f64>()?;
//! let b = vec![1.0; a.nrows()];
//! let solution = |parts| {
//!     let (op, mut x) = (DistributedOp::auto(&a, parts)?, vec![0.0; a.ncols()]);
//!     op.solve(Method::Cg, Settings::default(), false, &b, &mut x)?.converged()?;
//!     Ok::<_, sparseop::Error>(x)
//! };
//! assert_eq!(solution(1)?, solution(4)?, "the same bits");
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! Errors are variants of [`Error`](sparseop::Error), which is the library's.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod balance;
mod blocks;
mod builder;
mod choice;
mod comm;
mod deadline;
mod devices;
mod equality;
mod explain;
#[cfg(test)]
mod failure_tests;
mod findings;
mod gpu;
mod halo;
mod links;
mod market;
#[cfg(feature = "metis")]
mod metis;
#[cfg(feature = "mpi")]
mod mpi;
mod multivectors;
mod operator;
mod part;
mod partition;
mod processes;
mod rows;
mod simulate;
mod solve;
mod sums;
mod threads;
mod transpose;

pub use balance::Balance;
pub use builder::DistributedBuilder;
pub use comm::Communicator;
pub use devices::Devices;
pub use equality::check_equal;
pub use explain::{DistributedExplanation, Link, PartSummary};
pub use findings::FileFindings;
#[cfg(feature = "metis")]
pub use metis::metis_parts;
#[cfg(feature = "mpi")]
pub use mpi::MpiRank;
pub use operator::DistributedOp;
pub use part::PartOp;
pub use partition::Partition;
pub use processes::gpu_of_rank;
pub use simulate::{ScalingStep, simulate};
