//! Copies from pageable host memory through page-locked buffers that several threads fill. The
//! driver's own copy fills one buffer on one thread, at 7 of the 50 GB/s of a PCIe 5 slot.

use super::event::Event;
use super::{Gpu, Pinned, Queue};
use crate::Error;
use crate::device::Ptr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;

/// A byte of any element, which may be padding.
pub(super) type Byte = MaybeUninit<u8>;

/// Number of bytes of a buffer; two of them fit the second-level cache of a core.
const PIECE: usize = 1 << 19;

/// Largest number of threads that fill buffers.
const THREADS: usize = 8;

/// Least number of bytes of a copy that is staged, and bytes for each thread.
const LEAST: usize = 1 << 21;

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
        if from.len() < LEAST {
            return Ok(false);
        }
        let threads = match self.0.try_lock() {
            Ok(threads) => threads,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let fill = &|thread: usize| {
            let mut pieces = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            for turn in 0.. {
                let start = next.fetch_add(PIECE, Relaxed);
                let Some(rest) = from.get(start..).filter(|rest| !rest.is_empty()) else { break };
                let (piece, part) = (&mut pieces[turn % 2], &rest[..rest.len().min(PIECE)]);
                // SAFETY: the caller's promise, for a part of the copy.
                if let Err(error) = unsafe { piece.copy_in(queue, to.add(start), part) } {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    break;
                }
            }
        };
        // Threads of its own: those of a pool may be waiting for short tasks.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = (from.len() / LEAST).clamp(1, THREADS.min(cores));
        thread::scope(|scope| {
            for number in 1..count {
                // Without this thread the others fill all buffers.
                let _ = thread::Builder::new().spawn_scoped(scope, move || fill(number));
            }
            fill(0);
        });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(true), Err)
    }
}

impl StagingBuffer {
    /// Enqueues a copy of at most [`PIECE`] bytes.
    ///
    /// # Safety
    ///
    /// As [`StagingThreads::copy_in`].
    unsafe fn copy_in(&mut self, queue: &Queue, to: Ptr<Byte>, from: &[Byte]) -> Result<(), Error> {
        if self.0.is_none() {
            self.0 = PageLocked::new(queue.gpu()).ok();
        }
        let Some(PageLocked { host, copied }) = &mut self.0 else {
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
}

impl PageLocked {
    fn new(gpu: Gpu) -> Result<Self, Error> {
        Ok(Self { host: gpu.pinned(PIECE)?, copied: Event::new(gpu)? })
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
                    for len in [LEAST / 4 - 1, LEAST / 4, 5 * PIECE + 3] {
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
