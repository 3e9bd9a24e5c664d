//! Copies from and to pageable host memory through page-locked buffers that several threads fill
//! and empty. The driver's own copy has one buffer and one thread: on the way in it reaches 7 of
//! the 50 GB/s of a PCIe 5 slot, on the way out to new memory 1 GB/s.

use super::event::Event;
use super::{Gpu, Pinned, Queue};
use crate::Error;
use crate::device::Ptr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::thread;

/// A byte of any element, which may be padding.
pub(super) type Byte = MaybeUninit<u8>;

/// Number of bytes of a buffer. A call of the driver takes some 15 µs, whatever thread makes it:
/// 16 cores copy 18 GB/s in parts of 256 KiB, 29 in parts of 512 KiB, 43 in parts of 1 MiB.
const BUFFER_BYTES: usize = 1 << 20;

/// Largest number of threads that fill buffers.
const THREADS: usize = 8;

/// Least number of bytes of a copy to the GPU that is staged, and bytes for each thread.
const MIN: usize = 1 << 21;

/// Least number of bytes of a copy from the GPU that is staged.
const MIN_OUT: usize = 1 << 16;

/// Page-locked buffers of a GPU, allocated when they are first used.
#[derive(Default)]
pub(super) struct StagingThreads(Mutex<[Mutex<[StagingBuffer; 2]>; THREADS]>);

/// A page-locked buffer, allocated at its first use.
#[derive(Default)]
struct StagingBuffer(Option<PageLocked>);

struct PageLocked {
    host: Pinned<Byte>,
    /// End of the last copy from the buffer.
    copied: Event,
}

impl StagingThreads {
    /// Enqueues a copy of a slice to `gpu`. False if nothing is enqueued: the slice is short, or
    /// another thread uses the buffers.
    ///
    /// # Safety
    ///
    /// `to` has room for `from` until the copy is done.
    pub(super) unsafe fn copy_in(
        &self,
        queue: &Queue,
        to: Ptr<Byte>,
        from: &[Byte],
    ) -> Result<bool, Error> {
        let next = AtomicUsize::new(0);
        self.shared(from.len(), MIN, |buffers| {
            for copy in 0.. {
                let start = next.fetch_add(BUFFER_BYTES, Relaxed);
                let Some(rest) = from.get(start..).filter(|rest| !rest.is_empty()) else { break };
                let part = &rest[..rest.len().min(BUFFER_BYTES)];
                // SAFETY: the caller's promise, for a part of the copy.
                unsafe { buffers[copy % 2].copy_in(queue, to.add(start), part)? };
            }
            Ok(())
        })
    }

    /// Copies `to.len()` bytes from a GPU, after everything enqueued on `queue`, and waits. False
    /// if nothing is copied, as [`copy_in`](Self::copy_in).
    ///
    /// # Safety
    ///
    /// `from` has as many bytes as `to`.
    pub(super) unsafe fn copy_out(
        &self,
        queue: &Queue,
        to: &mut [Byte],
        from: Ptr<Byte>,
    ) -> Result<bool, Error> {
        let len = to.len();
        let parts = Mutex::new(to.chunks_mut(BUFFER_BYTES).enumerate());
        self.shared(len, MIN_OUT, |buffers| {
            // A buffer is emptied while the other one is filled.
            let mut filled: Option<&mut [Byte]> = None;
            for copy in 0.. {
                let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((number, part)) = next else {
                    return filled.map_or(Ok(()), |part| buffers[(copy + 1) % 2].empty_to(part));
                };
                // SAFETY: the caller's promise, for a part of the copy.
                let in_buffer = unsafe {
                    buffers[copy % 2].fill_from(queue, part, from.add(number * BUFFER_BYTES))?
                };
                let before = std::mem::replace(&mut filled, in_buffer.then_some(part));
                before.map_or(Ok(()), |part| buffers[(copy + 1) % 2].empty_to(part))?;
            }
            Ok(())
        })
    }

    /// Calls `work` on some threads, each with two buffers, for a copy of `len` bytes. False
    /// without a call if they are fewer than `least`, or if another thread uses the buffers.
    fn shared(
        &self,
        len: usize,
        least: usize,
        work: impl Fn(&mut [StagingBuffer; 2]) -> Result<(), Error> + Sync,
    ) -> Result<bool, Error> {
        if len < least {
            return Ok(false);
        }
        let threads = match self.0.try_lock() {
            Ok(threads) => threads,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let failure = Mutex::new(None);
        let run = &|thread: usize| {
            let mut buffers = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = work(&mut buffers) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        // Threads of its own: those of a pool may be waiting for short tasks.
        let count = (len / MIN).clamp(1, most_threads());
        thread::scope(|scope| {
            for number in 1..count {
                // Without this thread the others do all the work.
                let _ = thread::Builder::new().spawn_scoped(scope, move || run(number));
            }
            run(0);
        });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(true), Err)
    }
}

/// Largest number of threads on this machine. To ask for it takes up to 100 µs.
fn most_threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let ask = || thread::available_parallelism().map_or(1, usize::from);
    THREADS.min(*CORES.get_or_init(ask))
}

impl StagingBuffer {
    /// Enqueues a copy of at most [`BUFFER_BYTES`] bytes.
    ///
    /// # Safety
    ///
    /// As [`StagingThreads::copy_in`].
    unsafe fn copy_in(&mut self, queue: &Queue, to: Ptr<Byte>, from: &[Byte]) -> Result<(), Error> {
        let Some(PageLocked { host, copied }) = self.allocated(queue) else {
            // SAFETY: the caller's promise; the driver has read pageable memory when it returns.
            return unsafe { queue.copy_in(to, from) };
        };
        copied.synchronize()?;
        let host = &mut host.as_mut_slice()[..from.len()];
        host.copy_from_slice(from);
        // SAFETY: the caller's promise; the buffer is not written before the copy is done.
        unsafe { queue.copy_in(to, host)? };
        copied.record(queue.stream()).or_else(|_| queue.synchronize())
    }

    /// Enqueues a copy of at most [`BUFFER_BYTES`] bytes from a GPU to the buffer, which
    /// [`empty_to`](Self::empty_to) has emptied. Without a buffer copies them to `to`, waits, and
    /// returns false.
    ///
    /// # Safety
    ///
    /// As [`StagingThreads::copy_out`].
    unsafe fn fill_from(
        &mut self,
        queue: &Queue,
        to: &mut [Byte],
        from: Ptr<Byte>,
    ) -> Result<bool, Error> {
        let Some(PageLocked { host, copied }) = self.allocated(queue) else {
            // SAFETY: the caller's promise; the wait outlasts the copy.
            unsafe { queue.copy_out(to, from)? };
            return queue.synchronize().map(|()| false);
        };
        copied.synchronize()?;
        // SAFETY: as above; the buffer is read after the copy.
        unsafe { queue.copy_out(&mut host.as_mut_slice()[..to.len()], from)? };
        copied.record(queue.stream()).or_else(|_| queue.synchronize())?;
        Ok(true)
    }

    /// Waits for the copy to the buffer, and copies its first bytes to `to`.
    fn empty_to(&mut self, to: &mut [Byte]) -> Result<(), Error> {
        let Some(PageLocked { host, copied }) = &mut self.0 else { return Ok(()) };
        copied.synchronize()?;
        to.copy_from_slice(&host.as_mut_slice()[..to.len()]);
        Ok(())
    }

    /// The buffer, if there is memory for it.
    fn allocated(&mut self, queue: &Queue) -> Option<&mut PageLocked> {
        if self.0.is_none() {
            self.0 = PageLocked::new(queue.gpu()).ok();
        }
        self.0.as_mut()
    }
}

impl PageLocked {
    fn new(gpu: Gpu) -> Result<Self, Error> {
        Ok(Self { host: gpu.pinned(BUFFER_BYTES)?, copied: Event::new(gpu)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::testing::devices;

    #[test]
    fn copies_of_several_threads_arrive() {
        let gpu = devices().iter().find_map(|device| match device {
            Device::Cuda(gpu) => Some(*gpu),
            Device::Cpu => None,
        });
        let Some(gpu) = gpu else { return };
        // One thread uses the buffers, the others leave the copy to the driver.
        std::thread::scope(|scope| {
            for thread in 0..3u32 {
                scope.spawn(move || {
                    for len in [MIN / 4 - 1, MIN / 4, 5 * BUFFER_BYTES + 3] {
                        let data: Vec<u32> = (0..len as u32).map(|i| i ^ thread << 24).collect();
                        let copy = gpu.upload(&data).unwrap();
                        assert!(copy.to_vec().unwrap() == data, "{len} numbers");
                    }
                });
            }
        });
    }

    #[test]
    fn working_memory_is_used_again() {
        let gpu = devices().iter().find_map(|device| match device {
            Device::Cuda(gpu) => Some(*gpu),
            Device::Cpu => None,
        });
        let Some(gpu) = gpu else { return };
        let memory = gpu.working_memory(1 << 20).unwrap();
        assert!(memory.len() >= 1 << 20);
        gpu.keep_working_memory(memory);
        assert!(gpu.working_memory(1 << 10).unwrap().len() >= 1 << 10);
    }
}
