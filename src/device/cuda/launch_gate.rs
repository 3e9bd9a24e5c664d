//! Launch gate: holds a stream back while work is enqueued on it, so that a timing covers the GPU
//! and not the launch overhead of the host.
//!
//! A host needs about 3 µs per launch, depending on its processor and load. The time of kernels of
//! about that length or shorter would include it, and two different kernels could not be told
//! apart.

use super::Gpu;
use super::driver::Attempt;
use crate::Error;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time after which the stream continues by itself. A queue holds about a thousand launches;
/// enqueuing more waits for the first of them.
const PATIENCE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

/// Holds a stream back until it is dropped.
pub(super) struct LaunchGate(Arc<Latch>);

impl LaunchGate {
    /// Makes work enqueued from now on wait. `stream` is a live stream of `gpu` that is not being
    /// captured.
    pub(super) fn on(gpu: Gpu, stream: sys::CUstream) -> Result<Self, Error> {
        let _current = gpu.bind()?;
        let latch = Arc::new(Latch::default());
        let theirs = Arc::into_raw(latch.clone());
        // SAFETY: the stream is alive; the function takes over this reference to the latch and is
        // called once.
        let enqueued =
            unsafe { result::stream::launch_host_function(stream, wait, theirs.cast_mut().cast()) };
        if enqueued.is_err() {
            // SAFETY: the driver has not taken it over.
            drop(unsafe { Arc::from_raw(theirs) });
        }
        enqueued.attempt(gpu.ordinal(), || "hold a stream back".to_owned())?;
        Ok(Self(latch))
    }
}

impl Drop for LaunchGate {
    fn drop(&mut self) {
        *self.0.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.opened.notify_all();
    }
}

/// Host function called by the driver when all earlier work is done. Later work begins when it
/// returns.
///
/// # Safety
///
/// `latch` is a reference to a [`Latch`] from [`Arc::into_raw`].
unsafe extern "C" fn wait(latch: *mut c_void) {
    // SAFETY: the caller's promise.
    let latch = unsafe { Arc::from_raw(latch.cast_const().cast::<Latch>()) };
    let is_open = latch.is_open.lock().unwrap_or_else(PoisonError::into_inner);
    drop(latch.opened.wait_timeout_while(is_open, PATIENCE, |is_open| !*is_open));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shared() -> (LaunchGate, *mut c_void) {
        let latch = Arc::new(Latch::default());
        (LaunchGate(latch.clone()), Arc::into_raw(latch).cast_mut().cast())
    }

    #[test]
    fn it_opens_when_the_hold_is_dropped_before_or_after_and_by_itself() {
        let (hold, theirs) = shared();
        drop(hold);
        let begin = Instant::now();
        // SAFETY: the pointer is such a reference.
        unsafe { wait(theirs) };
        assert!(begin.elapsed() < PATIENCE);

        let (hold, theirs) = shared();
        let theirs = theirs as usize;
        // SAFETY: as above.
        let waiting = std::thread::spawn(move || unsafe { wait(theirs as *mut c_void) });
        drop(hold);
        waiting.join().unwrap();

        let (_hold, theirs) = shared();
        let begin = Instant::now();
        // SAFETY: as above.
        unsafe { wait(theirs) };
        assert!(begin.elapsed() >= PATIENCE);
    }
}
