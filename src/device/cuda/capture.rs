//! Captures of graphs in progress.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, ThreadId};

/// Memory and operators that a graph keeps alive.
pub(super) type Retained = Vec<Arc<dyn Any + Send + Sync>>;

/// Ends the capture on another queue that takes part.
type EndOfOther = Box<dyn FnOnce() -> Option<Recorded> + Send>;

/// A capture in progress.
pub(super) struct Recorded {
    thread: ThreadId,
    number: u64,
    kept: Retained,
    others: Vec<EndOfOther>,
}

impl Recorded {
    pub(super) fn by_this_thread() -> Self {
        static CAPTURES: AtomicU64 = AtomicU64::new(0);
        let (thread, number) = (thread::current().id(), CAPTURES.fetch_add(1, Relaxed));
        Self { thread, number, kept: Retained::new(), others: Vec::new() }
    }

    /// True if this thread captures.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread == thread::current().id()
    }

    /// Unique number of the capture.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Keeps an object alive as long as the graph.
    pub(super) fn keep(&mut self, kept: Arc<dyn Any + Send + Sync>) {
        self.kept.push(kept);
    }

    /// Adds another queue, by what ends the capture there.
    pub(super) fn join(&mut self, end: impl FnOnce() -> Option<Self> + Send + 'static) {
        self.others.push(Box::new(end));
    }

    /// Ends the capture, also on the other queues. Returns what the graph keeps alive.
    pub(super) fn end(mut self) -> Retained {
        for end in self.others {
            self.kept.extend(end().into_iter().flat_map(Self::end));
        }
        self.kept
    }
}
