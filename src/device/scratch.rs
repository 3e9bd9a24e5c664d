//! Scratch memory of products on a GPU.

use super::{Buffer, Gpu, Ptr, Queue};
use crate::Error;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Scratch memory of a product: one buffer per queue, so that products on different queues do not
/// share it. The content of a buffer at the beginning of a product is undefined. For a
/// [`cleared`](Self::cleared) scratch it is zero before the first product, and what the previous
/// product left before all others.
///
/// The buffer of a queue is allocated by the first product on it and lives as long as the matrix.
/// The products of a graph, which run one after another, share one buffer that the graph owns.
#[derive(Debug)]
pub(crate) struct Scratch<T> {
    gpu: Gpu,
    len: usize,
    cleared: bool,
    buffers: Box<Mutex<ScratchBuffers<T>>>,
}

/// The buffers allocated so far.
#[derive(Debug)]
struct ScratchBuffers<T> {
    /// Buffers by queue identifier.
    own: HashMap<u64, Arc<Buffer<T>>>,
    /// Buffer of the latest capture, with the number of the capture.
    captured: Option<(u64, Weak<Buffer<T>>)>,
}

impl<T: Copy + Debug + Send + Sync + 'static> Scratch<T> {
    /// Scratch with buffers of `len` elements.
    pub(crate) fn new(gpu: Gpu, len: usize) -> Self {
        let buffers = Box::new(Mutex::new(ScratchBuffers { own: HashMap::new(), captured: None }));
        Self { gpu, len, cleared: false, buffers }
    }

    /// Scratch with buffers of `len` elements that are zero before the first product, for products
    /// that leave them zero.
    pub(crate) fn cleared(gpu: Gpu, len: usize) -> Self {
        Self { cleared: true, ..Self::new(gpu, len) }
    }

    /// Returns the buffer of a queue, or of the graph that it captures.
    pub(crate) fn on(&self, queue: &Queue) -> Result<Ptr<T>, Error> {
        if self.len == 0 {
            return Ok(Ptr::NULL);
        }
        if queue.is_capturing()? {
            return self.of_capture(queue);
        }
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = buffers.own.get(&queue.id()) {
            return Ok(buffer.ptr());
        }
        let buffer = Arc::new(self.gpu.uninitialised(self.len)?);
        let ptr = buffer.ptr();
        if self.cleared {
            // SAFETY: the buffer has `len` elements and is kept below.
            unsafe { queue.clear(ptr, self.len)? };
        }
        buffers.own.insert(queue.id(), buffer);
        Ok(ptr)
    }

    /// Returns the buffer of the graph that a queue captures. If another library captures, each
    /// product gets a new buffer, because the order of its products is not known.
    fn of_capture(&self, queue: &Queue) -> Result<Ptr<T>, Error> {
        let number = queue.capture_number();
        let captured = &mut self.buffers.lock().unwrap_or_else(PoisonError::into_inner).captured;
        let known = captured
            .as_ref()
            .filter(|known| number == Some(known.0))
            .and_then(|known| known.1.upgrade());
        if let Some(buffer) = known {
            return Ok(buffer.ptr());
        }
        // Cleared outside of the graph: as part of the graph it would be cleared at every launch.
        let buffer = Arc::new(if self.cleared {
            self.gpu.zeroed(self.len)?
        } else {
            self.gpu.uninitialised(self.len)?
        });
        let ptr = buffer.ptr();
        *captured = number.map(|number| (number, Arc::downgrade(&buffer)));
        queue.keep(buffer);
        Ok(ptr)
    }
}

#[cfg(test)]
#[cfg(feature = "cuda")]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn products_of_a_graph_share_a_buffer_and_graphs_do_not() {
        let gpu = crate::testing::devices().iter().find_map(|device| match device {
            Device::Cuda(gpu) => Some(*gpu),
            Device::Cpu => None,
        });
        let Some(gpu) = gpu else { return };
        for scratch in [Scratch::<u32>::new(gpu, 9), Scratch::cleared(gpu, 9)] {
            let queue = gpu.new_queue().unwrap();
            let outside = scratch.on(&queue).unwrap().address();
            assert_eq!(scratch.on(&queue).unwrap().address(), outside);
            let capture = || {
                let mut found = Vec::new();
                let graph = queue.capture(&mut || {
                    for _ in 0..3 {
                        found.push(scratch.on(&queue)?.address());
                    }
                    Ok(())
                });
                (graph.unwrap(), found)
            };
            let ((first, one), (_second, other)) = (capture(), capture());
            assert!(
                one.iter().all(|buffer| *buffer == one[0])
                    && other.iter().all(|buffer| *buffer == other[0])
            );
            assert!(one[0] != other[0] && ![one[0], other[0]].contains(&outside));
            drop(first);
        }
    }
}
