//! Groups whose parts are processes of one host: each maps memory of the others.

use super::{GroupMemory, PeerGroup, Reach, locked, no_gpu};
use crate::Error;
use crate::device::cuda::{MappedMemory, SHARED_WORDS};
use crate::device::{Buffer, Device};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Words of a place.
pub const PLACE_WORDS: usize = 1 + SHARED_WORDS;

/// Place of memory of a part: its address in the process of the part, and what other processes need
/// to map it.
pub type PeerPlace = [u64; PLACE_WORDS];

/// Memory that the processes of a group share.
#[derive(Debug)]
pub(super) struct SharedMemory {
    /// Number of the group, and of its processes.
    group: u64,
    parts: usize,
    /// Memory of other processes.
    mapped: Mutex<Vec<MappedMemory>>,
}

/// Memory of groups that have ended in this process, which other processes may still have mapped.
static UNMAPPED: Mutex<Vec<Arc<GroupMemory>>> = Mutex::new(Vec::new());

/// Ends the use of the memory of other processes by a group that has ended.
pub(super) fn unmap(memory: Arc<GroupMemory>) {
    let Some(shared) = memory.shared() else { return };
    locked(&shared.mapped).clear();
    locked(&UNMAPPED).push(memory);
}

/// Number for a group, different from those of all other processes of the host.
pub fn new_group() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    u64::from(process::id()) << 32 | u64::from(NEXT.fetch_add(1, Relaxed))
}

/// Numbers of the groups of `parts` processes that have ended in this process, and whose memory it
/// keeps for the others.
pub fn unmapped_groups(parts: usize) -> Vec<u64> {
    let unmapped = locked(&UNMAPPED);
    let shared = unmapped.iter().filter_map(|memory| memory.shared());
    shared.filter(|shared| shared.parts == parts).map(|shared| shared.group).collect()
}

/// Frees the memory of groups that have ended in all their processes.
pub fn free_unmapped(groups: &[u64]) {
    let is_used = |memory: &Arc<GroupMemory>| {
        memory.shared().is_some_and(|shared| !groups.contains(&shared.group))
    };
    // Freed when the lock is released: that may wait for work of the GPU.
    let memory = std::mem::take(&mut *locked(&UNMAPPED));
    let (mut used, unused): (Vec<_>, Vec<_>) = memory.into_iter().partition(is_used);
    locked(&UNMAPPED).append(&mut used);
    drop(unused);
}

impl PeerGroup {
    /// Number that identifies the GPU of this process in the others of the host.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] for the CPU, and [`Error::Gpu`].
    pub fn identity(device: &Device) -> Result<[u64; 2], Error> {
        match device {
            Device::Cuda(gpu) => gpu.identity(),
            Device::Cpu => Err(no_gpu(device)),
        }
    }

    /// Joins group number `group` of `parts` processes of this host, each with a part on a GPU of
    /// its own.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] for the CPU, and [`Error::Gpu`].
    pub fn of_process(
        device: &Device,
        rank: usize,
        parts: usize,
        group: u64,
        limit: Duration,
    ) -> Result<Arc<Self>, Error> {
        let Device::Cuda(gpu) = device else { return Err(no_gpu(device)) };
        let reach = Reach::Host(SharedMemory { group, parts, mapped: Mutex::default() });
        Ok(Self::of(vec![*gpu], rank..parts, limit, gpu.pinned(1)?, reach))
    }

    /// Place of a little memory of a part in this process, to see if others can map it.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and [`Error::Gpu`].
    pub fn sample_place(&self) -> Result<PeerPlace, Error> {
        self.place_of(&*self.words(self.first, 1)?)
    }

    /// Place of memory of a part in this process.
    pub(super) fn place_of<T: Copy>(&self, memory: &Buffer<T>) -> Result<PeerPlace, Error> {
        let mut place = [memory.ptr().address(); PLACE_WORDS];
        place[1..].copy_from_slice(&match self.memory.reach {
            Reach::Host(_) => memory.shared()?,
            Reach::Process | Reach::Hosts(_) => [0; SHARED_WORDS],
        });
        Ok(place)
    }

    /// Address in this process of memory of part `rank`. The memory of another process is mapped
    /// as long as the group.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub fn address(&self, rank: usize, [own, shared @ ..]: PeerPlace) -> Result<u64, Error> {
        let Some(processes) = self.memory.shared() else { return Ok(own) };
        // Empty memory has no address.
        if rank == self.first || own == 0 {
            return Ok(own);
        }
        let mapped = self.gpu(self.first).map_shared(shared)?;
        let address = mapped.address();
        locked(&processes.mapped).push(mapped);
        Ok(address)
    }
}
