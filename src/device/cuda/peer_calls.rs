//! Peer calls: calls in which kernels wait for kernels of other GPUs, one at a time in a process.
//!
//! The driver waits for running kernels where memory is freed or made accessible to peers and where
//! code is loaded, and keeps other threads from enqueuing meanwhile. If one of these kernels waits
//! for a kernel that such a thread has yet to enqueue, neither continues. During a peer call, other
//! threads do not load modules, look up kernels or allocate peer-accessible memory. Memory is freed
//! after the call.

use super::Gpu;
use std::cell::Cell;
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// Written during a peer call; read where kernels are loaded and peer-accessible memory allocated.
static CALL: RwLock<()> = RwLock::new(());

/// Memory to free after the present peer call.
static DEFERRED: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

thread_local! {
    /// True if this thread has locked [`CALL`] or works for the thread that has: it does not lock
    /// again.
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// Section, one at a time in a process, in which kernels wait for kernels of other GPUs.
#[derive(Debug)]
pub struct PeerCall {
    lock: Option<RwLockWriteGuard<'static, ()>>,
}

impl Gpu {
    /// Begins a peer call, for all GPUs of the process.
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
        let _holder = LockHolder::new();
        body()
    }
}

impl Drop for PeerCall {
    fn drop(&mut self) {
        self.lock = None;
        run_deferred();
    }
}

/// Guard during which this thread counts as a holder of the lock.
#[derive(Debug)]
struct LockHolder {
    before: bool,
}

impl LockHolder {
    fn new() -> Self {
        Self { before: HOLDS_LOCK.replace(true) }
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        HOLDS_LOCK.set(self.before);
    }
}

/// Guard during which no other thread begins a peer call.
#[derive(Debug)]
pub(super) struct ExcludedCalls {
    _lock: Option<(LockHolder, RwLockReadGuard<'static, ()>)>,
}

/// Waits for the end of a peer call of other threads, and keeps another one from beginning.
pub(super) fn exclude_calls() -> ExcludedCalls {
    let lock = || (LockHolder::new(), CALL.read().unwrap_or_else(PoisonError::into_inner));
    ExcludedCalls { _lock: (!holds_lock()).then(lock) }
}

/// True if this thread has the lock, or works for the thread that has.
pub(super) fn holds_lock() -> bool {
    HOLDS_LOCK.get()
}

/// Runs `body` for another thread, for which [`holds_lock`] is `holds`.
pub(super) fn inherit_lock<R>(holds: bool, body: impl FnOnce() -> R) -> R {
    let _holder = holds.then(LockHolder::new);
    body()
}

/// Runs `work`, after the present peer call if there is one.
pub(super) fn after_call(work: impl FnOnce() + Send + 'static) {
    match unlocked() {
        Some(_lock) => work(),
        None => {
            deferred().push(Box::new(work));
            // The peer call may have ended in between.
            run_deferred();
        }
    }
}

/// Runs the deferred work, unless there is a peer call, which runs it at its end.
fn run_deferred() {
    if let Some(_lock) = unlocked() {
        let works = std::mem::take(&mut *deferred());
        works.into_iter().for_each(|work| work());
    }
}

/// The lock for reading; none during a peer call. A call that panicked has ended like any other.
fn unlocked() -> Option<RwLockReadGuard<'static, ()>> {
    match CALL.try_read() {
        Ok(lock) => Some(lock),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
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

    /// True if the deferred work that sets `done` has run within some seconds.
    fn is_run(done: &AtomicBool) -> bool {
        (0..5000).any(|_| {
            run_deferred();
            thread::sleep(Duration::from_millis(u64::from(!done.load(SeqCst))));
            done.load(SeqCst)
        })
    }

    #[test]
    fn others_wait_for_a_call_and_free_memory_after_it() {
        let (sender, receiver) = mpsc::channel();
        let is_freed = Arc::new(AtomicBool::new(false));
        let call = PeerCall::new();
        // Threads of the call do not lock again.
        call.run(|| drop((exclude_calls(), exclude_calls())));
        call.run(|| inherit_lock(holds_lock(), || drop(exclude_calls())));
        assert!(!holds_lock());
        let freed = is_freed.clone();
        after_call(move || freed.store(true, SeqCst));
        let other = thread::spawn(move || {
            let _outside = exclude_calls();
            let _nested = exclude_calls();
            sender.send(()).unwrap();
        });
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(!is_freed.load(SeqCst));
        drop(call);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        other.join().unwrap();
        // Another thread may hold the lock for a moment, and then does the work itself.
        assert!(is_run(&is_freed));
        // A call that panics ends, too: memory is freed afterwards.
        let is_freed = Arc::new(AtomicBool::new(false));
        let freed = is_freed.clone();
        let panicked = thread::spawn(move || {
            let _call = PeerCall::new();
            after_call(move || freed.store(true, SeqCst));
            std::panic::resume_unwind(Box::new("a part failed"));
        });
        assert!(panicked.join().is_err());
        assert!(is_run(&is_freed));
    }
}
