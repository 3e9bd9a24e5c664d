//! Reports of iterations.

use sparseop::Error;
use std::fmt::{self, Display};

/// Outcome of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The tolerance was reached.
    Converged,
    /// The largest number of iterations was reached.
    MaxIterations,
    /// The true residual does not decrease any more, even if that of the recurrences does.
    Stagnated,
    /// The method had to divide by zero, also after a restart.
    Breakdown,
    /// The matrix or the preconditioner is not positive definite.
    NotPositiveDefinite,
    /// A value is infinite or NaN.
    NotFinite,
    /// The residual has grown beyond the limit.
    Diverged,
    /// The observer of the progress has ended the iteration.
    Interrupted,
}

impl Outcome {
    /// A word for programs: `converged`, `max-iterations`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::Converged => "converged",
            Self::MaxIterations => "max-iterations",
            Self::Stagnated => "stagnated",
            Self::Breakdown => "breakdown",
            Self::NotPositiveDefinite => "not-positive-definite",
            Self::NotFinite => "not-finite",
            Self::Diverged => "diverged",
            Self::Interrupted => "interrupted",
        }
    }

    /// Meaning of the outcome, and possible remedies.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Converged => "it has converged",
            Self::MaxIterations => {
                "the iteration limit was reached; allow more iterations, or use a preconditioner"
            }
            Self::Stagnated => {
                "the true residual stagnates; the tolerance may be below the accuracy of the \
                 scalar type, or the system needs a preconditioner, or gmres a larger restart"
            }
            Self::Breakdown => {
                "the method broke down; use gmres, which breaks down only if the matrix is \
                 singular, or another preconditioner"
            }
            Self::NotPositiveDefinite => {
                "the matrix or its preconditioner is not positive definite; use bicgstab or gmres"
            }
            Self::NotFinite => {
                "the product holds an infinity or a NaN; check the matrix for them, or for an \
                 overflow"
            }
            Self::Diverged => "the residual diverged; the bounds of the eigenvalues do not hold",
            Self::Interrupted => "it was interrupted; begin again with the `x` that it has reached",
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Formats a time.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// Progress of an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Number of iterations.
    pub iterations: usize,
    /// Residual, as defined for the tolerance: see
    /// [`Settings::tolerance`](super::Settings::tolerance).
    pub residual: f64,
}

/// Report of the solution of a system.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Name of the method.
    pub method: &'static str,
    /// Outcome of the iteration. In every case `x` is the best approximation found.
    pub outcome: Outcome,
    /// Number of iterations.
    pub iterations: usize,
    /// ‖b − A x‖ / ‖b‖, computed from the returned `x`; 0 if `b` and therefore `x` are 0.
    pub residual: f64,
    /// Relative residual before the first iteration and after each, from the method's recurrences.
    pub history: Vec<f64>,
    /// Number of restarts from the true residual.
    pub restarts: usize,
    /// Wall-clock seconds of the iterations, without copies from and to host memory and without
    /// preparation.
    pub seconds: f64,
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, outcome, iterations, residual, .. } = self;
        write!(f, "{method}: {outcome} after {iterations} iterations, ")?;
        write!(f, "relative residual {residual:.2e}, {}", seconds(self.seconds))
    }
}

impl Report {
    /// Returns the report if the method has converged.
    ///
    /// # Errors
    ///
    /// [`Error::NotConverged`] with the reason, otherwise.
    pub fn converged(self) -> Result<Self, Error> {
        let Self { method, outcome, iterations, residual, .. } = self;
        require(outcome, method, iterations, residual, outcome.advice())?;
        Ok(self)
    }
}

/// Returns an error unless an iteration has converged.
pub(super) fn require(
    outcome: Outcome,
    method: &'static str,
    iterations: usize,
    residual: f64,
    reason: &'static str,
) -> Result<(), Error> {
    if outcome == Outcome::Converged {
        return Ok(());
    }
    Err(Error::NotConverged { method, iterations, residual, reason })
}
