//! Memory that products on a GPU need for themselves.

use super::{Buffer, Gpu, Ptr, Queue};
use crate::Error;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

/// Working memory of a product: a piece for every queue, so that products on different queues do not meet. What is in a piece when a
/// product begins is of no account; or, when it was made [`cleared`](Self::cleared), it was zero before the first and is what the product
/// before left.
///
/// The piece of a queue is made at the first product on it and lives as long as the matrix; a captured product has one of its own, which
/// belongs to the graph.
#[derive(Debug)]
pub(crate) struct Scratch<T> {
    gpu: Gpu,
    len: usize,
    cleared: bool,
    pieces: Mutex<HashMap<u64, Arc<Buffer<T>>>>,
}

impl<T: Copy + Debug + Send + Sync + 'static> Scratch<T> {
    /// Pieces of `len` elements.
    pub(crate) fn new(gpu: Gpu, len: usize) -> Self {
        Self { gpu, len, cleared: false, pieces: Mutex::default() }
    }

    /// Pieces of `len` elements that are zero before the first product, for products that leave them so.
    pub(crate) fn cleared(gpu: Gpu, len: usize) -> Self {
        Self { cleared: true, ..Self::new(gpu, len) }
    }

    /// The piece of a queue, or a fresh one for the graph that it captures.
    pub(crate) fn on(&self, queue: &Queue) -> Result<Ptr<T>, Error> {
        if self.len == 0 {
            return Ok(Ptr::NULL);
        }
        if queue.is_capturing()? {
            // Cleared by itself: as part of the graph it would be cleared at every launch.
            let piece =
                Arc::new(if self.cleared { self.gpu.zeroed(self.len)? } else { self.gpu.unset(self.len)? });
            let ptr = piece.ptr();
            queue.keep(piece);
            return Ok(ptr);
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces.get(&queue.id()) {
            return Ok(piece.ptr());
        }
        let piece = Arc::new(self.gpu.unset(self.len)?);
        let ptr = piece.ptr();
        if self.cleared {
            // SAFETY: the piece has `len` elements, and is kept below.
            unsafe { queue.clear(ptr, self.len)? };
        }
        pieces.insert(queue.id(), piece);
        Ok(ptr)
    }
}
