//! Communication among the threads of a process.

use crate::comm::Communicator;
use crate::deadline::Deadline;
use sparseop::Error;
use sparseop::device::peers::PeerGroup;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Ranks that are threads of this process.
#[derive(Debug)]
pub(crate) struct ThreadRank {
    rank: usize,
    channel: Arc<SharedChannel>,
}

/// State that the ranks share: messages in transit and failures.
#[derive(Debug)]
struct SharedChannel {
    size: usize,
    limit: Duration,
    queues: Mutex<MessageQueues>,
    arrived: Condvar,
    /// GPUs of the ranks, whose waits a failure ends.
    gpus: Option<Arc<PeerGroup>>,
}

#[derive(Debug, Default)]
struct MessageQueues {
    /// Messages by sender and receiver, the oldest first.
    messages: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// First failure: the rank and its error.
    failure: Option<(usize, String)>,
}

impl ThreadRank {
    /// Creates ranks that wait for one another no longer than `limit`, on the CPU or on `gpus`.
    pub(crate) fn group(
        size: usize,
        limit: Duration,
        gpus: Option<Arc<PeerGroup>>,
    ) -> Vec<Arc<Self>> {
        let (queues, arrived) = (Mutex::default(), Condvar::new());
        let channel = Arc::new(SharedChannel { size, limit, queues, arrived, gpus });
        (0..size).map(|rank| Arc::new(Self { rank, channel: channel.clone() })).collect()
    }

    /// GPUs of the ranks.
    pub(crate) fn gpus(&self) -> Option<&PeerGroup> {
        self.channel.gpus.as_deref()
    }

    /// Forgets messages and failures. No rank may be in a call. GPUs that fail again stay out of
    /// use.
    pub(crate) fn reset(&self) {
        *self.queues() = MessageQueues::default();
        if let Some(gpus) = &self.channel.gpus {
            let _ = gpus.restart();
        }
    }

    fn queues(&self) -> MutexGuard<'_, MessageQueues> {
        self.channel.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, to: impl Iterator<Item = (usize, Vec<u8>)>) {
        let mut queues = self.queues();
        for (rank, message) in to {
            queues.messages.entry((self.rank, rank)).or_default().push_back(message);
        }
        drop(queues);
        self.channel.arrived.notify_all();
    }

    /// Receives the next message from a rank, of the given number of bytes.
    fn receive(&self, from: usize, bytes: usize, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let message = self.take(from, deadline)?;
        if message.len() == bytes {
            return Ok(message);
        }
        let message = format!("rank {from} sends {} bytes instead of {bytes}", message.len());
        self.fail(&message);
        Err(Error::Communication { message })
    }

    fn take(&self, from: usize, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let mut queues = self.queues();
        loop {
            let queue = queues.messages.get_mut(&(from, self.rank));
            if let Some(message) = queue.and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            // Messages that were sent before the failure are received above, so that a rank returns
            // its own error if all ranks find one.
            if let Some((rank, message)) = &queues.failure {
                return Err(Error::RankFailed { rank: *rank, message: message.clone() });
            }
            let left = deadline.left();
            if left.is_zero() {
                drop(queues);
                let error = deadline.error(&format!("rank {from}"));
                self.fail(&error.to_string());
                return Err(error);
            }
            let waited = self.channel.arrived.wait_timeout(queues, left);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.channel.size
    }

    fn exchange(
        &self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        self.send(sends.iter().map(|(rank, message)| (*rank, message.to_vec())));
        meanwhile();
        let deadline = Deadline::new(self.channel.limit);
        for (rank, to) in receives {
            to.copy_from_slice(&self.receive(*rank, to.len(), deadline)?);
        }
        Ok(())
    }

    fn all_gather(&self, own: &[u8], lengths: &[usize]) -> Result<Vec<u8>, Error> {
        let others = (0..self.size()).filter(|rank| *rank != self.rank);
        self.send(others.map(|rank| (rank, own.to_vec())));
        let deadline = Deadline::new(self.channel.limit);
        let mut all = Vec::with_capacity(lengths.iter().sum());
        for (rank, &length) in lengths.iter().enumerate() {
            match rank == self.rank {
                true => all.extend_from_slice(own),
                false => all.extend_from_slice(&self.receive(rank, length, deadline)?),
            }
        }
        Ok(all)
    }

    fn fail(&self, message: &str) {
        self.queues().failure.get_or_insert_with(|| (self.rank, message.to_owned()));
        self.channel.gpus.iter().for_each(|gpus| gpus.end());
        self.channel.arrived.notify_all();
    }
}

/// Calls `body` with the item of each rank, on a thread each, and returns the results. The calling
/// thread takes the first item.
///
/// # Errors
///
/// The error of the first rank that did not fail because of another one. The ranks can be used
/// again.
pub(crate) fn on_threads<I: Send, R: Send>(
    ranks: &[Arc<ThreadRank>],
    items: Vec<I>,
    body: impl Fn(I) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let run = |rank: &ThreadRank, item: I| {
        let result = catch_unwind(AssertUnwindSafe(|| body(item)));
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => rank.fail(&error.to_string()),
            Err(_) => rank.fail("it panicked"),
        }
        result
    };
    let results: Vec<_> = thread::scope(|scope| {
        let mut items = ranks.iter().zip(items);
        let first = items.next();
        let others: Vec<_> = items
            .map(|(rank, item)| {
                let named = thread::Builder::new().name(format!("sparseop-part-{}", rank.rank));
                named.spawn_scoped(scope, || run(rank, item)).map_err(|error| {
                    let message = format!("cannot start a thread for a part: {error}");
                    rank.fail(&message);
                    Error::Communication { message }
                })
            })
            .collect();
        let first = first.map(|(rank, item)| run(rank, item));
        let others = others.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(Err),
            Err(error) => Ok(Err(error)),
        });
        first.into_iter().chain(others).collect()
    });
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(Ok(value)) => values.push(value),
            Ok(Err(error)) => errors.push(error),
            Err(panic) => {
                ranks[0].reset();
                resume_unwind(panic);
            }
        }
    }
    if errors.is_empty() {
        return Ok(values);
    }
    ranks[0].reset();
    let own = errors.iter().position(|error| !matches!(error, Error::RankFailed { .. }));
    Err(errors.swap_remove(own.unwrap_or(0)))
}
