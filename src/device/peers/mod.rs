//! Communication among GPUs that access each other's memory, or through NCCL.
//!
//! Every part of a matrix has a GPU and a host thread of its own, in one process or in a process
//! for each part, and all threads enqueue the same work. Kernels write to the memory of other GPUs
//! and wait for their signals, so that the host takes no part: iterations can be captured in
//! graphs. Between hosts kernels write to memory of their GPU, and NCCL transfers it.
// Without GPU support, code that has a GPU is unreachable.
#![cfg_attr(not(feature = "cuda"), allow(unreachable_code))]

mod constants;
mod exchange;
mod network;
mod processes;
mod sums;

pub use super::cuda::PeerCall;
pub use exchange::{Neighbour, PeerExchange, PeerInbox, RowPlaces, UsedElements};
pub use network::ID_BYTES;
pub use processes::{PLACE_WORDS, PeerPlace, free_unmapped, new_group, unmapped_groups};
pub use sums::{PeerSums, SumsTable};

use super::{Buffer, Device, Gpu, Pinned, Ptr};
use crate::Error;
use network::Network;
use processes::SharedMemory;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// GPUs that exchange elements, one for each part.
///
/// Waits of kernels end with the signal or the messages that they wait for, with the time limit, or
/// with [`end`](Self::end). After one of the latter all waits end at once, and what is computed is
/// worthless, until the group is [restarted](Self::restart). NCCL cannot be restarted.
#[derive(Debug)]
pub struct PeerGroup {
    /// GPUs of the parts in this process: of all, or of one.
    gpus: Vec<Gpu>,
    /// First part in this process, and number of all parts.
    first: usize,
    parts: usize,
    limit: Duration,
    memory: Arc<GroupMemory>,
}

/// Memory that kernels of all GPUs of a group use.
#[derive(Debug)]
struct GroupMemory {
    gpus: Vec<Gpu>,
    /// A word that ends all waits.
    ended: Pinned<u32>,
    /// Numbers of rounds and flags of all parts.
    words: Mutex<Vec<Arc<Buffer<u32>>>>,
    /// Memory that other parts write to; it lives as long as the group.
    inboxes: Mutex<Vec<Arc<dyn PeerMemory>>>,
    reach: Reach,
}

/// Way from the GPU of a part to the others.
#[derive(Debug)]
enum Reach {
    /// They are GPUs of one process, and access each other's memory.
    Process,
    /// They are GPUs of processes of one host, which map each other's memory.
    Host(SharedMemory),
    /// NCCL transfers messages.
    Hosts(Network),
}

impl GroupMemory {
    /// The word that ends all waits.
    fn ended(&self) -> &AtomicU32 {
        // SAFETY: an aligned word that lives as long as `self`; kernels and the host set it alone.
        unsafe { AtomicU32::from_ptr(self.ended.start()) }
    }

    /// Memory that the processes of a host share, if there are several.
    fn shared(&self) -> Option<&SharedMemory> {
        match &self.reach {
            Reach::Host(shared) => Some(shared),
            Reach::Process | Reach::Hosts(_) => None,
        }
    }
}

/// Memory of groups that have ended, until all work with it is done. A wait may fail, and the
/// driver waits neither for work with memory of a pool nor for kernels that read host memory.
static ENDED: Mutex<Vec<Arc<GroupMemory>>> = Mutex::new(Vec::new());

/// Frees memory of groups that have ended.
fn free_ended() {
    // Not locked meanwhile: the GPUs may wait for another thread.
    let ended = std::mem::take(&mut *locked(&ENDED));
    let is_used =
        |memory: &Arc<GroupMemory>| memory.gpus.iter().any(|gpu| gpu.synchronize().is_err());
    let (mut used, unused): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_used);
    unused.into_iter().for_each(processes::unmap);
    locked(&ENDED).append(&mut used);
}

/// Memory of a part that other parts write to, with elements of any type.
trait PeerMemory: std::fmt::Debug + Send + Sync {}

impl<T: std::fmt::Debug + Send + Sync> PeerMemory for Buffer<T> {}

impl PeerGroup {
    /// Creates a group of different GPUs, whose kernels wait for each other no longer than `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] for a device that is no GPU, is there more than once, or cannot
    /// access the memory of another one; [`Error::Gpu`].
    pub fn new(devices: &[Device], limit: Duration) -> Result<Arc<Self>, Error> {
        let refused = |device: &Device, reason: String| {
            Err(Error::DeviceUnavailable { device: device.to_string(), reason })
        };
        let mut gpus: Vec<Gpu> = Vec::new();
        for device in devices {
            let Device::Cuda(gpu) = device else { return Err(no_gpu(device)) };
            if gpus.contains(gpu) {
                return refused(device, "two parts cannot share a GPU".to_owned());
            }
            for other in &gpus {
                if !(gpu.can_access(*other)? && other.can_access(*gpu)?) {
                    return refused(device, format!("it cannot access the memory of {other}"));
                }
            }
            gpus.push(*gpu);
        }
        let Some(first) = gpus.first() else {
            return refused(&Device::Cpu, "there is no GPU for a part".to_owned());
        };
        let ended = first.pinned(1)?;
        Ok(Self::of(gpus, 0..devices.len(), limit, ended, Reach::Process))
    }

    /// The group of `parts` parts; this process has those from `first` on.
    fn of(
        gpus: Vec<Gpu>,
        Range { start: first, end: parts }: Range<usize>,
        limit: Duration,
        ended: Pinned<u32>,
        reach: Reach,
    ) -> Arc<Self> {
        free_ended();
        let (words, inboxes) = (Mutex::default(), Mutex::default());
        let memory = Arc::new(GroupMemory { gpus: gpus.clone(), ended, words, inboxes, reach });
        Arc::new(Self { gpus, first, parts, limit, memory })
    }

    /// Device of a part in this process.
    pub fn device(&self, rank: usize) -> Device {
        Device::Cuda(*self.gpu(rank))
    }

    fn gpu(&self, rank: usize) -> &Gpu {
        &self.gpus[rank - self.first]
    }

    /// Begins a call in which kernels of the GPUs wait for each other. It waits for the end of
    /// another one of the process.
    pub fn call(&self) -> PeerCall {
        self.gpus[0].peer_call()
    }

    /// Ends the present and all later waits.
    pub fn end(&self) {
        self.ended().store(1, Relaxed);
    }

    /// Makes the group usable again. No host thread of a part is in a call.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub fn restart(&self) -> Result<(), Error> {
        if self.ended().load(Relaxed) == 0 {
            return Ok(());
        }
        self.gpus.iter().try_for_each(Gpu::synchronize)?;
        for words in locked(&self.memory.words).iter() {
            words.write(words.gpu().queue(), &vec![0; words.len()])?;
        }
        self.ended().store(0, Relaxed);
        Ok(())
    }

    /// Checks that no wait has ended without its signal.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`].
    pub fn check(&self) -> Result<(), Error> {
        // Another operator may have noticed that the network fails.
        self.network().map_or(Ok(()), Network::check)?;
        if self.ended().load(Relaxed) == 0 {
            return Ok(());
        }
        let message =
            format!("a GPU has failed, or another one has waited for it for {:?}", self.limit);
        Err(Error::Communication { message })
    }

    fn ended(&self) -> &AtomicU32 {
        self.memory.ended()
    }

    /// Address of the word that ends waits, and the time limit in nanoseconds.
    fn waits(&self) -> (Ptr<u32>, u64) {
        let limit = u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX);
        (Ptr::from_address(self.memory.ended.start() as u64), limit)
    }

    /// Zeroed memory of a part that other parts access.
    fn zeroed<T: Copy>(&self, rank: usize, len: usize) -> Result<Buffer<T>, Error> {
        match self.memory.reach {
            Reach::Process => self.gpu(rank).zeroed_for(&self.gpus, len),
            Reach::Host(_) | Reach::Hosts(_) => self.gpu(rank).zeroed(len),
        }
    }

    /// Zeroed words of a part that a restart clears.
    fn words(&self, rank: usize, len: usize) -> Result<Arc<Buffer<u32>>, Error> {
        let words = Arc::new(self.zeroed(rank, len)?);
        locked(&self.memory.words).push(words.clone());
        Ok(words)
    }

    /// Zeroed memory of a part that the other parts write to.
    fn memory<T>(&self, rank: usize, len: usize) -> Result<Arc<Buffer<T>>, Error>
    where
        T: Copy + std::fmt::Debug + Send + Sync + 'static,
    {
        let memory = Arc::new(self.zeroed(rank, len)?);
        locked(&self.memory.inboxes).push(memory.clone());
        Ok(memory)
    }
}

impl Drop for PeerGroup {
    fn drop(&mut self) {
        // Other GPUs may still write to the memory of a part.
        locked(&ENDED).push(self.memory.clone());
        free_ended();
    }
}

fn no_gpu(device: &Device) -> Error {
    let reason = "the parts are all on GPUs or all on the CPU".to_owned();
    Error::DeviceUnavailable { device: device.to_string(), reason }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
