//! Groups whose parts are processes of several hosts: NCCL transfers what kernels have written.

pub use crate::device::cuda::ID_BYTES;

use super::{GroupMemory, PeerGroup, Reach, locked, no_gpu};
use crate::Error;
use crate::device::cuda::Nccl;
use crate::device::{Device, Pinned, Ptr, Queue};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// Shortest and longest time between two polls of the rounds.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Polls during the time limit.
const POLLS: u32 = 8;

/// Communicators that this process has joined, by their numbers.
static JOINED: Mutex<Vec<(u64, Arc<Nccl>)>> = Mutex::new(Vec::new());

/// Communicator of a group, and the rounds whose end is watched.
#[derive(Debug)]
pub(super) struct Network {
    nccl: Arc<Nccl>,
    /// Calls of NCCL begun and completed.
    calls: [AtomicU32; 2],
    rounds: Mutex<Vec<WatchedRounds>>,
}

/// Numbers of rounds begun and completed.
#[derive(Debug, Default)]
struct WatchedRounds {
    /// Words that kernels count in; `None` for the calls of NCCL.
    words: Option<Pinned<u32>>,
    seen: [u32; 2],
    /// Time since the numbers have changed.
    unchanged: Duration,
}

/// Bytes at some addresses of the part, and the rank that they go to or come from.
pub(super) type Message = (usize, Range<u64>);

impl Network {
    fn new(nccl: Arc<Nccl>) -> Self {
        let rounds = Mutex::new(vec![WatchedRounds::default()]);
        Self { nccl, calls: Default::default(), rounds }
    }

    /// Runs a call, whose time is limited.
    fn call<R>(&self, call: impl FnOnce() -> R) -> R {
        self.calls[0].fetch_add(1, Relaxed);
        let result = call();
        self.calls[1].fetch_add(1, Relaxed);
        result
    }

    /// Enqueues messages of the part.
    ///
    /// # Safety
    ///
    /// The addresses are memory that lives until the messages are there.
    pub(super) unsafe fn exchange(
        &self,
        queue: &Queue,
        [sends, receives]: &[Vec<Message>; 2],
    ) -> Result<(), Error> {
        if sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call(|| unsafe { self.nccl.exchange(queue, sends, receives) })
    }

    /// Returns an error if a message has failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.nccl.check()
    }

    /// Watches rounds. Returns the words in which kernels count those begun and completed.
    fn watch(&self, words: Pinned<u32>) -> [Ptr<u32>; 2] {
        let first = Ptr::<u32>::from_address(words.start() as u64);
        locked(&self.rounds).push(WatchedRounds { words: Some(words), ..WatchedRounds::default() });
        [first, first.add(1)]
    }

    /// Returns an error if a message has failed, or if a round takes longer than `limit`. `since`
    /// is the time since the last call. Calls no function of the driver: another thread may hold
    /// its lock while it waits for a message.
    fn poll(&self, since: Duration, limit: Duration) -> Result<(), Error> {
        self.nccl.check()?;
        for rounds in locked(&self.rounds).iter_mut() {
            let now = [0, 1].map(|at| match &rounds.words {
                None => self.calls[at].load(Relaxed),
                // SAFETY: an aligned word that lives as long as the group.
                Some(words) => unsafe { AtomicU32::from_ptr(words.start().add(at)) }.load(Relaxed),
            });
            let waits = now == rounds.seen && now[0] != now[1];
            rounds.unchanged = if waits { rounds.unchanged + since } else { Duration::ZERO };
            rounds.seen = now;
            if rounds.unchanged > limit {
                let message = format!("a GPU has waited for messages of another one for {limit:?}");
                return Err(Error::Communication { message });
            }
        }
        Ok(())
    }
}

/// Ends the messages of a group when one fails or takes longer than `limit`, as long as the group
/// has memory.
fn watch(memory: &Weak<GroupMemory>, limit: Duration) {
    let [shortest, longest] = PAUSES;
    let pause = (limit / POLLS).clamp(shortest, longest);
    loop {
        thread::sleep(pause);
        let Some(memory) = memory.upgrade() else { return };
        let Reach::Hosts(network) = &memory.reach else { return };
        let failure = match (memory.ended().load(Relaxed), network.poll(pause, limit)) {
            (0, Ok(())) => continue,
            (_, Err(error)) => error,
            (_, Ok(())) => Error::Communication { message: "a part has failed".to_owned() },
        };
        // Kernels that follow the messages read it.
        memory.ended().store(1, Relaxed);
        network.nccl.abort(&failure);
        return;
    }
}

impl PeerGroup {
    /// True if GPUs of several hosts can exchange elements: NCCL is found.
    pub fn has_network() -> bool {
        Nccl::is_found()
    }

    /// True if this process has joined network number `network`, and no message has failed.
    pub fn has_joined(network: u64) -> bool {
        locked(&JOINED).iter().any(|(number, nccl)| *number == network && nccl.check().is_ok())
    }

    /// Identifier of a new network, which one of its processes makes for all.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`] without NCCL.
    pub fn new_network() -> Result<[u8; ID_BYTES], Error> {
        Nccl::new_id()
    }

    /// Joins network number `network` of `parts` processes, each with a part on a GPU of its own;
    /// `id` is its identifier, unless all processes have joined it before. All call it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] for the CPU; [`Error::Communication`] and [`Error::Gpu`].
    pub fn of_network(
        device: &Device,
        [rank, parts]: [usize; 2],
        network: u64,
        id: Option<[u8; ID_BYTES]>,
        limit: Duration,
    ) -> Result<Arc<Self>, Error> {
        let Device::Cuda(gpu) = device else { return Err(no_gpu(device)) };
        let nccl = match id {
            Some(id) => {
                // The others learn of an error before they stop waiting.
                let nccl = Arc::new(Nccl::join(*gpu, [rank, parts], id, limit / 4 * 3)?);
                let mut joined = locked(&JOINED);
                joined.retain(|(number, _)| *number != network);
                joined.push((network, nccl.clone()));
                nccl
            }
            None => {
                let joined = locked(&JOINED);
                let found = joined.iter().find(|(number, _)| *number == network);
                found.map(|(_, nccl)| nccl.clone()).ok_or_else(|| Error::Communication {
                    message: "this process has not joined the network".to_owned(),
                })?
            }
        };
        let reach = Reach::Hosts(Network::new(nccl));
        let group = Self::of(vec![*gpu], rank..parts, limit, gpu.pinned(1)?, reach);
        let memory = Arc::downgrade(&group.memory);
        thread::spawn(move || watch(&memory, limit));
        Ok(group)
    }

    /// The network of the group; `None` if GPUs access each other's memory.
    pub(super) fn network(&self) -> Option<&Network> {
        match &self.memory.reach {
            Reach::Hosts(network) => Some(network),
            _ => None,
        }
    }

    /// True if the messages of the group go through a network.
    pub fn is_network(&self) -> bool {
        self.network().is_some()
    }

    /// Transfers messages once, before the first round: NCCL connects two ranks at their first
    /// message, which graphs cannot contain. Without a network it does nothing.
    ///
    /// # Safety
    ///
    /// The addresses are memory of the part.
    pub(super) unsafe fn connect(&self, messages: &[Vec<Message>; 2]) -> Result<(), Error> {
        let Some(network) = self.network() else { return Ok(()) };
        let queue = self.gpu(self.first).queue();
        network.call(|| {
            // SAFETY: the caller's promise; the memory lives until the wait is over.
            unsafe { network.exchange(queue, messages)? };
            queue.synchronize()
        })?;
        self.check()
    }

    /// Words in which kernels count rounds begun and completed; null without a network.
    pub(super) fn counted_rounds(&self) -> Result<[Ptr<u32>; 2], Error> {
        let Some(network) = self.network() else { return Ok([Ptr::NULL; 2]) };
        let mut words = self.gpu(self.first).pinned(2)?;
        words.as_mut_slice().fill(0);
        Ok(network.watch(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn the_cpu_has_no_network() {
        let limit = Duration::from_secs(1);
        let joined = PeerGroup::of_network(&Device::Cpu, [0, 1], 3, None, limit);
        assert!(matches!(joined, Err(Error::DeviceUnavailable { .. })), "{joined:?}");
        assert!(!PeerGroup::has_joined(3));
        let made = PeerGroup::new_network();
        assert_eq!(made.is_ok(), PeerGroup::has_network());
        if let Err(error) = made {
            let text = error.to_string();
            assert!(text.contains("libnccl.so.2") || text.contains("feature `cuda`"), "{text}");
        }
    }

    #[test]
    fn a_round_that_takes_longer_than_the_limit_ends() {
        let Some(device) = gpu().filter(|_| PeerGroup::has_network()) else {
            return;
        };
        let (limit, id) = (Duration::from_millis(80), PeerGroup::new_network().unwrap());
        let join = |id, limit| PeerGroup::of_network(device, [0, 1], 4, id, limit);
        // Connecting takes longer than this limit.
        drop(join(Some(id), Duration::from_secs(60)).unwrap());
        assert!(PeerGroup::has_joined(4));
        let group = join(None, limit).unwrap();
        let count = |numbers: [u32; 2]| {
            let mut words = group.gpu(0).pinned(2).unwrap();
            words.as_mut_slice().copy_from_slice(&numbers);
            group.network().unwrap().watch(words);
            thread::sleep(8 * limit);
        };
        count([3, 3]);
        group.check().unwrap();
        count([4, 3]);
        let error = group.check().unwrap_err().to_string();
        assert!(error.contains("has waited for messages"), "{error}");
        assert!(!PeerGroup::has_joined(4));
    }
}
