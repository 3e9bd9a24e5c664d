//! Interrupts: Ctrl-C ends solves and builds, which have released the GIL.

use crate::shared::called_back;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks for signals.
const INTERVAL: Duration = Duration::from_millis(100);

/// True on the thread that runs the handlers of signals.
fn handles_signals(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}

/// Checks for signals at intervals, on the thread that handles them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SignalWatch {
    /// Time of the last check. None on other threads.
    last: Option<Instant>,
}

impl SignalWatch {
    /// A watch for work of the current thread.
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { last: handles_signals(py)?.then(Instant::now) })
    }

    /// Runs the handlers of signals if the last check was an interval ago. The caller does not hold
    /// the GIL.
    ///
    /// # Errors
    ///
    /// The exception of a handler: `KeyboardInterrupt` after Ctrl-C.
    pub(crate) fn check(&mut self) -> PyResult<()> {
        match &mut self.last {
            Some(last) if last.elapsed() >= INTERVAL => {
                let checked = called_back(|| Python::attach(|py| py.check_signals()));
                *last = Instant::now();
                checked
            }
            _ => Ok(()),
        }
    }
}

/// Does work without the GIL. Unless it is short, a signal whose handler raises an exception ends
/// the call: the work continues in the background, and its result is dropped.
pub(crate) fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    is_short: bool,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    // Starting a thread takes as long as the build of a tiny operator.
    if is_short || !handles_signals(py)? {
        return Ok(py.detach(work));
    }
    let (sender, mut receiver) = channel();
    // The result of interrupted work is not received.
    let work = move || drop(sender.send(work()));
    let worker = thread::Builder::new().name("sparseop".to_owned()).spawn(work);
    let worker = worker.map_err(|error| PyOSError::new_err(error.to_string()))?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(INTERVAL)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("the worker has sent its result"),
            },
        }
    }
}
