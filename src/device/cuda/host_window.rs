//! Page-locked host memory that kernels of the default queue read and write, in place of copies of
//! small arrays: a copy and the wait for it take some 20 µs.

use super::event::Event;
use super::{Gpu, Pinned};
use crate::Error;
use crate::device::Ptr;
use std::cell::Cell;
use std::sync::PoisonError;

/// Bytes of a window.
const BYTES: usize = 1 << 21;

/// Alignment of the arrays of a window, in bytes.
const ALIGNMENT: usize = 256;

/// Page-locked memory for arrays that kernels of the default queue read and write. The memory is
/// kept for later windows.
#[derive(Debug)]
pub(crate) struct HostWindow {
    gpu: Gpu,
    memory: Option<WindowMemory>,
    taken: Cell<usize>,
}

/// Memory of a window, and an event at the end of the work that writes it.
#[derive(Debug)]
pub(super) struct WindowMemory {
    bytes: Pinned<u8>,
    end: Event,
}

impl HostWindow {
    /// A window without arrays.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if no memory can be page-locked.
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        let kept = gpu.0.window.lock().unwrap_or_else(PoisonError::into_inner).take();
        let new = || Ok(WindowMemory { bytes: gpu.pinned(BYTES)?, end: Event::untimed(gpu)? });
        let memory = kept.map_or_else(new, Ok)?;
        Ok(Self { gpu, memory: Some(memory), taken: Cell::new(0) })
    }

    /// Memory for `len` elements, for the host and for the GPU, until the window is dropped. `None`
    /// if there is no room.
    pub(crate) fn take<N: Copy>(&self, len: usize) -> Option<(*mut N, Ptr<N>)> {
        let memory = self.memory.as_ref()?;
        let bytes = len.checked_mul(size_of::<N>())?.checked_next_multiple_of(ALIGNMENT)?;
        let start = self.taken.get();
        if bytes > BYTES - start {
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
    pub(crate) fn wait(&self, bytes: usize) -> Result<(), Error> {
        #[cfg(test)]
        super::memory::count_copied(bytes as u64);
        let _ = bytes;
        self.memory.iter().try_for_each(|memory| memory.end.synchronize())
    }
}

impl Drop for HostWindow {
    fn drop(&mut self) {
        // After an error kernels may still use the memory, which is then freed: the driver waits.
        if self.gpu.queue().synchronize().is_ok() {
            *self.gpu.0.window.lock().unwrap_or_else(PoisonError::into_inner) = self.memory.take();
        }
    }
}
