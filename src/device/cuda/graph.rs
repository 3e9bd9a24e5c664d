//! Graphs: work captured from a stream, to be launched repeatedly.

use super::capture::{Recorded, Retained};
use super::driver::is_since;
use super::{Gpu, Queue, api};
use crate::Error;
use cudarc::driver::sys;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`: kernels of a graph keep the priority of the
/// stream from which they were captured, so that messages begin before the blocks of a large
/// product beside them have ended.
const NODE_PRIORITIES: u64 = 8;

/// Oldest driver interface that has this flag.
const OLDEST_WITH_PRIORITIES: (i32, i32) = (11, 7);

impl Queue {
    /// Captures the work enqueued by `work` as a graph. Waits first for everything enqueued
    /// earlier.
    pub(crate) fn capture(
        &self,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Recording, Error> {
        // Relaxed: other threads may continue to allocate.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        let gpu = self.gpu();
        {
            let _lock = self.lock()?;
            self.synchronize()?;
            let _gate = self.unwaited();
            let mut recorded = self.recorded();
            // SAFETY: the stream is alive.
            self.call("begin a capture", || unsafe {
                api::stream_begin_capture(self.stream(), mode)
            })?;
            *recorded = Some(Recorded::by_this_thread());
        }
        let worked = catch_unwind(AssertUnwindSafe(work));
        let (graph, kept) = {
            let _lock = self.lock()?;
            let mut recorded = self.recorded();
            let graph = self.call("end a capture", || {
                // SAFETY: the capture was begun above.
                api::value(ptr::null_mut(), |graph| unsafe {
                    api::stream_end_capture(self.stream(), graph)
                })
            });
            (graph, recorded.take().map_or_else(Retained::new, Recorded::end))
        };
        let graph = graph.map(|graph| Captured { gpu, graph });
        match worked {
            Err(panic) => resume_unwind(panic),
            Ok(worked) => worked?,
        }
        let graph = graph?;
        let flags = if is_since(OLDEST_WITH_PRIORITIES) { NODE_PRIORITIES } else { 0 };
        let executable = self.call("instantiate a graph", || {
            api::value(ptr::null_mut(), |executable| {
                // SAFETY: the graph is complete.
                unsafe { api::graph_instantiate(executable, graph.graph, flags) }
            })
        })?;
        Ok(Recording { gpu, executable, _kept: kept })
    }
}

/// A captured graph, no longer needed after its instantiation.
struct Captured {
    gpu: Gpu,
    graph: sys::CUgraph,
}

impl Drop for Captured {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: the graph has no other owner.
            let _ = unsafe { api::graph_destroy(self.graph) };
        }
    }
}

/// A captured graph, ready to be launched, and the memory it uses.
pub(crate) struct Recording {
    gpu: Gpu,
    executable: sys::CUgraphExec,
    _kept: Retained,
}

// SAFETY: the driver allows a graph to be launched from any thread, one at a time; `Graph` ensures
// that.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a graph on {}", self.gpu)
    }
}

impl Recording {
    /// Enqueues the captured work. Fails while another graph is being captured, because that graph
    /// would not own the memory that this one uses.
    pub(crate) fn launch(&self, queue: &Queue) -> Result<(), Error> {
        let _lock = queue.lock()?;
        if queue.records() {
            return Err(Error::NotCapturable {
                plan: "a graph".to_owned(),
                reason: "it cannot be part of another one",
            });
        }
        // SAFETY: both are alive and of one GPU, which the caller has checked.
        queue.call("launch a graph", || unsafe {
            api::graph_launch(self.executable, queue.stream())
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The memory it uses must outlive its last launch.
        let _ = self.gpu.synchronize();
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: it is never launched again.
            let _ = unsafe { api::graph_exec_destroy(self.executable) };
        }
    }
}
