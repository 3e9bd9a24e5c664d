//! What an operator makes when it is first needed.

use crate::Error;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Something that is made when it is first needed; once, however many threads need it.
#[derive(Debug)]
pub(super) struct Later<V> {
    made: OnceLock<V>,
    making: Mutex<()>,
}

impl<V> Default for Later<V> {
    fn default() -> Self {
        Self { made: OnceLock::new(), making: Mutex::default() }
    }
}

impl<V> Later<V> {
    /// What was made, if it was.
    pub(super) fn get(&self) -> Option<&V> {
        self.made.get()
    }

    /// What was made, now or before; others wait meanwhile. What fails is tried again the next time.
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> Result<V, Error>) -> Result<&V, Error> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let value = make()?;
        Ok(self.made.get_or_init(|| value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn it_is_made_once_and_again_only_after_a_failure() {
        let (later, tries) = (Later::default(), AtomicUsize::new(0));
        let make = || match tries.fetch_add(1, SeqCst) {
            0 => Err(Error::InvalidMatrix { format: "first", message: String::new() }),
            n => Ok(n),
        };
        assert!(later.get_or_make(make).is_err() && later.get().is_none());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(*later.get_or_make(make).unwrap(), 1));
            }
        });
        assert_eq!((later.get(), tries.load(SeqCst)), (Some(&1), 2));
    }
}
