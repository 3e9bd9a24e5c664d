//! Page-locked host memory that kernels of the default queue read and write, in place of copies of
//! small arrays: a copy and the wait for it take some 20 µs.

use super::event::Event;
use super::{Gpu, Pinned};
use crate::Error;
use crate::device::Ptr;
use std::cell::Cell;
use std::sync::PoisonError;

/// Bytes of all arrays.
const BYTES: usize = 1 << 21;

/// Alignment of an array, in bytes.
const ALIGNMENT: usize = 256;

/// Arrays that kernels of the default queue read and write. The memory is kept for later ones.
#[derive(Debug)]
pub(crate) struct HostArrays {
    gpu: Gpu,
    memory: Option<HostArrayMemory>,
    taken: Cell<usize>,
}

/// Memory of the arrays, and an event at the end of the work that writes them.
#[derive(Debug)]
pub(super) struct HostArrayMemory {
    bytes: Pinned<u8>,
    end: Event,
}

impl HostArrays {
    /// Memory without arrays.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if no memory can be page-locked.
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        let kept = gpu.0.host_arrays.lock().unwrap_or_else(PoisonError::into_inner).take();
        let new = || Ok(HostArrayMemory { bytes: gpu.pinned(BYTES)?, end: Event::untimed(gpu)? });
        let memory = kept.map_or_else(new, Ok)?;
        Ok(Self { gpu, memory: Some(memory), taken: Cell::new(0) })
    }

    /// Memory for `len` elements, for the host and for the GPU, until this value is dropped.
    /// `None` if there is no room.
    pub(crate) fn take<N: Copy>(&self, len: usize) -> Option<(*mut N, Ptr<N>)> {
        let memory = self.memory.as_ref()?;
        let bytes = len.checked_mul(size_of::<N>())?.checked_next_multiple_of(ALIGNMENT)?;
        let start = self.taken.get();
        if bytes > room().saturating_sub(start) {
            return None;
        }
        self.taken.set(start + bytes);
        let address = memory.bytes.start().wrapping_add(start);
        Some((address.cast(), Ptr::from_address(address as u64)))
    }

    /// Ends what [`wait`](Self::wait) waits for: everything enqueued on the default queue so far.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub(crate) fn mark(&self) -> Result<(), Error> {
        let stream = self.gpu.queue().stream();
        self.memory.iter().try_for_each(|memory| memory.end.record(stream))
    }

    /// Waits for the work before the last [`mark`](Self::mark), which has written `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub(crate) fn wait(
        &self,
        #[cfg_attr(not(test), expect(unused))] bytes: usize,
    ) -> Result<(), Error> {
        #[cfg(test)]
        super::memory::count_copied(bytes as u64);
        self.memory.iter().try_for_each(|memory| memory.end.synchronize())
    }
}

#[cfg(not(test))]
const fn room() -> usize {
    BYTES
}

#[cfg(test)]
thread_local! {
    /// Bytes that arrays of this thread may have.
    static ROOM: Cell<usize> = const { Cell::new(BYTES) };
}

#[cfg(test)]
fn room() -> usize {
    ROOM.get()
}

/// Calls `work` with `bytes` bytes for the arrays of this thread.
#[cfg(test)]
pub(crate) fn with_room<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    let before = ROOM.replace(bytes.min(BYTES));
    let result = work();
    ROOM.set(before);
    result
}

impl Drop for HostArrays {
    fn drop(&mut self) {
        // After an error kernels may still use the memory, which is then freed: the driver waits.
        if self.gpu.queue().synchronize().is_ok() {
            *self.gpu.0.host_arrays.lock().unwrap_or_else(PoisonError::into_inner) =
                self.memory.take();
        }
    }
}
