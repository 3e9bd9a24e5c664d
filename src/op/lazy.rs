//! Values that are made at their first use.

use crate::Error;
use once_cell::sync::OnceCell;
use std::sync::{Mutex, PoisonError};

/// Value of a cell, made at the first use. Threads outside of rayon make it one at a time, holding
/// `making`. A thread of a rayon pool may run other tasks of the pool while it makes the value,
/// which may need it as well. It does not hold the lock: if two threads make a value, the first one
/// is kept.
pub(super) fn get_or_make<'a, V>(
    cell: &'a OnceCell<V>,
    making: &Mutex<()>,
    make: impl FnOnce() -> Result<V, Error>,
) -> Result<&'a V, Error> {
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    let alone = rayon::current_thread_index().is_none();
    let _lock = alone.then(|| making.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    match make() {
        Ok(made) => Ok(cell.get_or_init(|| made)),
        Err(error) => cell.get().ok_or(error),
    }
}
