//! Calls in which kernels of a GPU wait for another one, one at a time in a process.
//!
//! The driver waits for running kernels where memory is freed or shared and where code is loaded,
//! and meanwhile keeps other threads from enqueuing. If one of these kernels waits for a kernel
//! that a thread cannot enqueue, neither continues. During a call other threads therefore neither
//! load code nor allocate shared memory, and memory is freed after the call.

use super::Gpu;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held exclusively during a call, and shared by what must not happen meanwhile.
static CALL: RwLock<()> = RwLock::new(());

/// Work that is left for the time without a call.
static DEFERRED: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

thread_local! {
    /// True in a thread that works for the call, or holds the lock already.
    static ADMITTED: Cell<bool> = const { Cell::new(false) };
}

/// A call in which kernels wait for other GPUs. Other calls wait for its end.
#[derive(Debug)]
pub struct PeerCall {
    lock: Option<RwLockWriteGuard<'static, ()>>,
}

impl Gpu {
    /// Begins a call in which kernels wait for other GPUs.
    pub(crate) fn peer_call(&self) -> PeerCall {
        PeerCall::new()
    }
}

impl PeerCall {
    fn new() -> Self {
        Self { lock: Some(CALL.write().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Runs `body`, a part of the call, on this thread.
    pub fn run<R>(&self, body: impl FnOnce() -> R) -> R {
        let _admitted = Admitted::new();
        body()
    }
}

impl Drop for PeerCall {
    fn drop(&mut self) {
        self.lock = None;
        finish();
    }
}

/// Guard during which this thread is admitted.
#[derive(Debug)]
struct Admitted {
    before: bool,
}

impl Admitted {
    fn new() -> Self {
        Self { before: ADMITTED.replace(true) }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        ADMITTED.set(self.before);
    }
}

/// Guard during which no other thread begins a call.
#[derive(Debug)]
pub(super) struct OutsideCalls {
    _lock: Option<(Admitted, RwLockReadGuard<'static, ()>)>,
}

/// Waits for the end of a call of other threads, and keeps calls from beginning.
pub(super) fn outside_calls() -> OutsideCalls {
    let lock = || (Admitted::new(), CALL.read().unwrap_or_else(PoisonError::into_inner));
    OutsideCalls { _lock: (!is_admitted()).then(lock) }
}

/// True if this thread works for a call or keeps calls from beginning.
pub(super) fn is_admitted() -> bool {
    ADMITTED.get()
}

/// Runs `body` on a thread that works for one that is `admitted` or not.
pub(super) fn on_behalf<R>(admitted: bool, body: impl FnOnce() -> R) -> R {
    let _admitted = admitted.then(Admitted::new);
    body()
}

/// Does `work`, after the present call if there is one.
pub(super) fn after_call(work: impl FnOnce() + Send + 'static) {
    match CALL.try_read() {
        Ok(_lock) => work(),
        Err(_) => {
            deferred().push(Box::new(work));
            // The call may have ended in between.
            finish();
        }
    }
}

/// Does the deferred work, unless there is a call, whose end does it.
fn finish() {
    if let Ok(_lock) = CALL.try_read() {
        let works = std::mem::take(&mut *deferred());
        works.into_iter().for_each(|work| work());
    }
}

fn deferred() -> MutexGuard<'static, Vec<Box<dyn FnOnce() + Send>>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn others_wait_for_a_call_and_free_memory_after_it() {
        let (sender, receiver) = mpsc::channel();
        let is_freed = Arc::new(AtomicBool::new(false));
        let call = PeerCall::new();
        // The threads of the call are admitted, and may be nested.
        call.run(|| drop((outside_calls(), outside_calls())));
        call.run(|| on_behalf(is_admitted(), || drop(outside_calls())));
        assert!(!is_admitted());
        let freed = is_freed.clone();
        after_call(move || freed.store(true, SeqCst));
        let other = thread::spawn(move || {
            let _outside = outside_calls();
            let _nested = outside_calls();
            sender.send(()).unwrap();
        });
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(!is_freed.load(SeqCst));
        drop(call);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        other.join().unwrap();
        // Another thread may hold the lock for a moment, and then does the work itself.
        while !is_freed.load(SeqCst) {
            finish();
        }
    }
}
