//! The primitives of src/device/cpu/sync.rs, by loom.

pub(super) use loom::hint::spin_loop;
pub(super) use loom::sync::Mutex;
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(super) use loom::thread::{Builder, JoinHandle, Thread, yield_now};

use loom::sync::atomic::{Ordering::SeqCst, fence};
use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool as Flag;

pub(super) const SPINS: u32 = 1;

/// True when the model is over: threads that would sleep end.
pub(super) static OVER: Flag = Flag::new(false);

pub(super) fn park() {
    let end = || {
        if OVER.load(SeqCst) {
            resume_unwind(Box::new("the model is over"));
        }
    };
    end();
    loom::thread::park();
    end();
}

pub(super) struct LoomCell<T>(loom::cell::UnsafeCell<T>);
pub(super) use LoomCell as UnsafeCell;

impl<T> LoomCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.0.with(read)
    }

    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}

pub(super) fn write_before_read() {
    fence(SeqCst);
}
