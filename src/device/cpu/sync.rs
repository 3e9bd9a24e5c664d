//! Primitives of the thread team. `scripts/loom` replaces this file by one with loom's, which try
//! every order of the threads.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(super) use std::thread::{Builder, JoinHandle, Thread, park, yield_now};

/// Spin iterations before a thread sleeps: about 30 µs, the time of a few small products or of a
/// dot product. Miri would interpret them for longer than a product.
pub(super) const SPINS: u32 = if cfg!(miri) { 20 } else { 2000 };

/// `std::cell::UnsafeCell` with the access functions of loom's, which find unordered accesses.
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to read from.
    #[inline]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to write to.
    #[inline]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Order of a write before a read of another variable. `SeqCst` alone gives it, but not in loom,
/// where it needs a fence.
#[inline]
pub(super) fn write_before_read() {}
