//! How an iteration went.

use sparseop::Error;
use std::fmt::{self, Display};

/// What an iteration ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// What was asked for.
    Converged,
    /// As many iterations as were allowed.
    MaxIterations,
    /// The true residual does not fall any more, whatever the method believes.
    Stagnated,
    /// The method had to divide by zero, also when it was begun anew.
    Breakdown,
    /// The matrix, or the preconditioner, is not positive definite.
    NotPositiveDefinite,
    /// Something became infinite or no number.
    NotFinite,
    /// The residual has grown beyond all measure.
    Diverged,
}

impl Outcome {
    /// One word for programs: `converged`, `max-iterations`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::Converged => "converged",
            Self::MaxIterations => "max-iterations",
            Self::Stagnated => "stagnated",
            Self::Breakdown => "breakdown",
            Self::NotPositiveDefinite => "not-positive-definite",
            Self::NotFinite => "not-finite",
            Self::Diverged => "diverged",
        }
    }

    /// What it means, and what may help.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Converged => "it has converged",
            Self::MaxIterations => {
                "that was all it was allowed; allow more iterations, or use a preconditioner"
            }
            Self::Stagnated => {
                "the true residual does not fall any more; the tolerance may be below what the number type allows, or the method \
                 needs a preconditioner or more vectors"
            }
            Self::Breakdown => {
                "the method broke down; another one or another preconditioner may not; gmres does so only where the matrix is singular"
            }
            Self::NotPositiveDefinite => {
                "the matrix or its preconditioner is not positive definite; use bicgstab or gmres"
            }
            Self::NotFinite => {
                "the product holds an infinity or a NaN; look for one in the matrix, or for an overflow"
            }
            Self::Diverged => {
                "the residual has grown beyond all measure; the bounds of the eigenvalues do not hold"
            }
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A time in words.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// How far an iteration is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Iterations made.
    pub iterations: usize,
    /// The residual, as the tolerance is meant: see [`Settings::tolerance`](super::Settings::tolerance).
    pub residual: f64,
}

/// How solving a system went.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The method's name.
    pub method: &'static str,
    /// What it ended with. Whatever it is, `x` is the best there is.
    pub outcome: Outcome,
    /// Iterations made.
    pub iterations: usize,
    /// ‖b − A x‖ / ‖b‖, computed from the returned `x`; 0 where `b` and so `x` are 0.
    pub residual: f64,
    /// The relative residual before the first iteration and after each, as the method's recurrences have it.
    pub history: Vec<f64>,
    /// Times that the method was begun anew from the true residual.
    pub restarts: usize,
    /// Seconds that the iterations took, on the wall; copies from and to host memory and preparations not counted.
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
    /// The report itself when the method has converged.
    ///
    /// # Errors
    ///
    /// [`Error::NotConverged`] with the reason otherwise.
    pub fn converged(self) -> Result<Self, Error> {
        match self.outcome {
            Outcome::Converged => Ok(self),
            outcome => Err(Error::NotConverged {
                method: self.method,
                iterations: self.iterations,
                residual: self.residual,
                reason: outcome.advice(),
            }),
        }
    }
}
