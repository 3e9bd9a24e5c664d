//! Errors of plans and baselines before they are timed.

use sparseop::Error;

/// Reason why a plan or a baseline is not timed.
#[derive(Debug)]
pub(super) enum RunFailure {
    /// More memory or more pieces than allowed or sensible.
    Refused(String),
    /// Anything else.
    Broken(String),
}

impl From<Error> for RunFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::MemoryLimit { .. } | Error::NoPlanFits { .. } | Error::PlanLimit { .. } => {
                Self::Refused(error.to_string())
            }
            _ => Self::Broken(error.to_string()),
        }
    }
}
