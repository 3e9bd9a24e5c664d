//! Time limits of waiting.

use sparseop::Error;
use std::time::{Duration, Instant};

/// End of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    /// Deadline that begins now.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit }
    }

    /// Time that is left; zero after the end.
    pub(crate) fn left(self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    /// Error about messages that have not arrived.
    pub(crate) fn error(self, from: &str) -> Error {
        let seconds = self.limit.as_secs_f64();
        Error::Communication {
            message: format!(
                "no message from {from} within {seconds} s; it may have ended, or be slower than \
                 the time limit allows"
            ),
        }
    }
}
