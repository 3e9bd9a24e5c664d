//! Iterative solvers on auto-tuned sparse matrix–vector products: CG, BiCGSTAB, GMRES, Chebyshev,
//! power iteration, PageRank.
//!
//! | | |
//! | --- | --- |
//! | [`Method::Cg`] | symmetric positive definite matrices: conjugate gradients |
//! | [`Method::SingleReductionCg`] | the same, with one reduction per iteration for many ranks |
//! | [`Method::BiCgStab`] | any matrix; short recurrences, two products per iteration |
//! | [`Method::Gmres`] | any matrix; monotone residual, one stored vector per iteration |
//! | [`Method::Chebyshev`] | symmetric positive definite matrices; no inner products |
//! | [`power`] | the eigenvalue of largest magnitude and its vector |
//! | [`PageRank`] | the stationary distribution of a random walk with jumps |
//!
//! A product is a call of [`SparseOp::apply_device`], vectors are [`DeviceVec`]s, and the vector
//! operations between two products are [fused passes](sparseop::device::fused). On a GPU the step
//! lengths stay in its memory, iterations are captured in a graph, and the host reads the state of
//! the iteration every [`check_every`](Settings::check_every) iterations. Results do not depend on
//! that number: an iteration ends on the device as soon as it has converged. With the same plan and
//! device, the bits of results repeat.
//!
//! ```
//! use sparseop_solvers::{Method, SolverBuilder};
//! use sparseop::{SparseOp, matrix::gallery};
//!
//! let a = "poisson2d,n=50,values=laplacian".parse::<gallery::Spec>()?.generate::<f64>()?;
//! let op = SparseOp::auto(&a)?;
//! let b = vec![1.0; a.nrows()];
//! let mut x = vec![0.0; a.ncols()];
//! let report = SolverBuilder::new(Method::Cg).build(&op)?.solve(&b, &mut x)?.converged()?;
//! println!("{} iterations, ‖b − A x‖ = {:.1e} ‖b‖", report.iterations, report.residual);
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! Sources: Y. Saad, Iterative Methods for Sparse Linear Systems (2003), algorithms 6.18, 7.7, 9.1,
//! 9.5 and 12.1; A. T. Chronopoulos and C. W. Gear (1989) for CG with one reduction; H. A. van der
//! Vorst (1992) for BiCGSTAB; S. Kamvar et al. (2003) for the rank of dangling pages.
//!
//! Errors are variants of [`Error`], which is the library's.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod bicgstab;
mod cg;
mod chebyshev;
mod checks;
mod driver;
mod gmres;
#[cfg(test)]
mod input_tests;
mod jacobi;
mod operator;
mod pagerank;
mod power;
#[cfg(test)]
mod reduction_tests;
#[cfg(test)]
mod refusal_tests;
mod report;
mod single_reduction;
mod solver;
mod system;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_tests;

pub use chebyshev::estimate_bounds;
#[doc(hidden)]
pub use checks::{check_length, check_square, check_vector};
pub use jacobi::Jacobi;
pub use operator::SystemOperator;
pub use pagerank::{PageRank, Ranking, link_matrix};
#[doc(hidden)]
pub use pagerank::{rank, scale_links};
pub use power::{Eigenpair, power};
pub use report::{Outcome, Progress, Report};
pub use solver::{Solver, SolverBuilder};

use checks::invalid;
use sparseop::device::fused::RING;
use sparseop::{Device, Error};
#[cfg(doc)]
use sparseop::{DeviceVec, SparseOp};

/// Method for a linear system.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Method {
    /// Conjugate gradients, for symmetric positive definite matrices.
    #[default]
    Cg,
    /// Conjugate gradients with one reduction over all parts per iteration in place of two, for
    /// operators of many ranks. The residual of the iteration drifts further from ‖b − A x‖
    /// than that of [`Cg`](Self::Cg); where it has converged too early, the solver starts again
    /// from the true one. With a preconditioner the history is that of another norm, scaled to
    /// the residual at the start.
    SingleReductionCg,
    /// Stabilised bi-conjugate gradients, preconditioned from the right.
    BiCgStab,
    /// Generalised minimal residuals by modified Gram–Schmidt, preconditioned from the right,
    /// restarted every `restart` iterations. Stores `restart` + 1 vectors.
    Gmres {
        /// Number of iterations up to a restart, 1 to [`Method::MAX_RESTART`].
        restart: usize,
    },
    /// Chebyshev iteration, for symmetric positive definite matrices.
    Chebyshev {
        /// Bounds of the eigenvalues of the preconditioned matrix, both above 0; the upper one must
        /// hold. If `None`, they are [estimated](estimate_bounds).
        bounds: Option<(f64, f64)>,
    },
}

impl Method {
    /// Largest number of iterations up to a restart of GMRES.
    pub const MAX_RESTART: usize = 100;

    /// Name of the method: `cg`, `single-reduction-cg`, `bicgstab`, `gmres`, `chebyshev`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cg => "cg",
            Self::SingleReductionCg => "single-reduction-cg",
            Self::BiCgStab => "bicgstab",
            Self::Gmres { .. } => "gmres",
            Self::Chebyshev { .. } => "chebyshev",
        }
    }
}

/// Stopping criteria of an iteration, and the interval of its checks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Tolerance, above 0: of solvers, for ‖b − A x‖ / ‖b‖; of power iteration, for ‖A
    /// v − λ v‖ / |λ|; of PageRank, for the rank that changes in an iteration, of 1 in total.
    pub tolerance: f64,
    /// Largest number of iterations.
    pub max_iterations: usize,
    /// Number of iterations between two checks by the host, 1 to 128; by default 1 on the CPU and
    /// 32 on a GPU. Results do not depend on it.
    pub check_every: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { tolerance: 1e-8, max_iterations: 10_000, check_every: None }
    }
}

impl Settings {
    /// Number of iterations between two checks on a device.
    fn every(&self, device: &Device) -> usize {
        /// A few milliseconds of iterations on large matrices; the cost of a check is negligible
        /// beside it.
        const ON_GPU: usize = 32;
        self.check_every.unwrap_or(if *device == Device::Cpu { 1 } else { ON_GPU })
    }

    fn check(&self, method: &'static str) -> Result<(), Error> {
        let Self { tolerance, max_iterations, check_every } = *self;
        let every = check_every.unwrap_or(1);
        let message = if !(tolerance > 0.0 && tolerance.is_finite()) {
            format!("a tolerance is a finite number above 0, not {tolerance}")
        } else if max_iterations == 0 {
            "at least one iteration has to be allowed".to_owned()
        } else if !(1..=usize::from(RING)).contains(&every) {
            format!("there are 1 to {RING} iterations between two looks, not {every}")
        } else {
            return Ok(());
        };
        Err(invalid(method, message))
    }
}
