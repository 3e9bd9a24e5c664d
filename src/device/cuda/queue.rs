//! Work for a GPU, done in order: CUDA streams, the graphs captured from them, and how long it takes.

use super::driver::{Attempt, elapsed_ms};
use super::{Gpu, Kernel};
use crate::Error;
use crate::device::{Launch, Ptr};
use cudarc::driver::{DriverError, result, sys};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers of queues: the least that no living one has.
static IDS: Mutex<Ids> = Mutex::new(Ids { next: 0, free: Vec::new() });

/// Set in the number of a queue that somebody else owns; no address has it.
const FOREIGN: u64 = 1 << 63;

struct Ids {
    next: u64,
    free: Vec<u64>,
}

impl Ids {
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        })
    }
}

/// What a graph uses.
type Kept = Vec<Arc<dyn Any + Send + Sync>>;

/// A CUDA stream.
pub(crate) struct Queue(Arc<Shared>);

/// A stream, shared with the list of all that [`Gpu::synchronize`] waits for.
pub(super) struct Shared {
    gpu: Gpu,
    stream: sys::CUstream,
    id: u64,
    owned: bool,
    /// What the graph that is being captured uses. Locked while the stream is waited for: waiting for a capture would break it.
    kept: Mutex<Option<Kept>>,
}

// SAFETY: the driver allows a stream to be used from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.0.id, self.0.gpu)
    }
}

impl Queue {
    fn around(gpu: Gpu, stream: sys::CUstream, owned: bool) -> Self {
        let id = match owned {
            true => IDS.lock().unwrap_or_else(PoisonError::into_inner).take(),
            // Whoever owns the stream may wrap it again and again.
            false => stream as u64 | FOREIGN,
        };
        let shared = Arc::new(Shared { gpu, stream, id, owned, kept: Mutex::new(None) });
        let mut queues = gpu.queues();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&shared));
        Self(shared)
    }

    /// A stream that waits for no other. The context of `gpu` is current.
    pub(super) fn create(gpu: Gpu) -> Result<Self, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self::around(gpu, stream, true))
    }

    /// The GPU whose work it is.
    pub(crate) fn gpu(&self) -> Gpu {
        self.0.gpu
    }

    /// A number that no other living queue has.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The `CUstream`.
    pub(crate) fn raw(&self) -> u64 {
        self.0.stream as u64
    }

    /// Calls the driver with the GPU's context current.
    fn call<R>(&self, action: &str, call: impl FnOnce() -> Result<R, DriverError>) -> Result<R, Error> {
        self.0.gpu.bind()?;
        call().attempt(self.0.gpu.ordinal(), || action.to_owned())
    }

    /// Waits until everything is done.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        self.0.synchronize()
    }

    /// Enqueues setting `len` elements to zero bytes.
    ///
    /// # Safety
    ///
    /// They are memory of this GPU and live until it is done.
    pub(crate) unsafe fn clear<T: Copy>(&self, ptr: Ptr<T>, len: usize) -> Result<(), Error> {
        let bytes = len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call("clear memory", || unsafe {
            result::memset_d8_async(ptr.address(), 0, bytes, self.0.stream)
        })
    }

    /// Enqueues a copy to the GPU.
    ///
    /// # Safety
    ///
    /// `to` has room for `from`, and both live until it is done.
    pub(crate) unsafe fn copy_in<T: Copy>(&self, to: Ptr<T>, from: &[T]) -> Result<(), Error> {
        if size_of_val(from) == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call("copy to the GPU", || unsafe {
            result::memcpy_htod_async(to.address(), from, self.0.stream)
        })
    }

    /// Enqueues a copy from the GPU.
    ///
    /// # Safety
    ///
    /// `from` has as many elements as `to`, and both live until it is done.
    pub(crate) unsafe fn copy_out<T: Copy>(&self, to: &mut [T], from: Ptr<T>) -> Result<(), Error> {
        if size_of_val(to) == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call("copy from the GPU", || unsafe {
            result::memcpy_dtoh_async(to, from.address(), self.0.stream)
        })
    }

    /// Enqueues a copy within the GPU.
    ///
    /// # Safety
    ///
    /// Both have `len` elements and live until it is done.
    pub(super) unsafe fn copy_within(&self, to: Ptr<u8>, from: Ptr<u8>, len: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.call("copy within the GPU", || unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), len, self.0.stream)
        })
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    ///
    /// The parameters are those of the kernel, and what they point to lives until it is done.
    pub(super) unsafe fn launch(&self, kernel: Kernel, mut launch: Launch) -> Result<(), Error> {
        if launch.blocks() == 0 {
            return Ok(());
        }
        let grid = (launch.blocks(), 1, 1);
        let block = (launch.threads(), 1, 1);
        let args = launch.args();
        let mut pointers = [std::ptr::null_mut(); crate::device::launch::MAX_ARGS];
        for (pointer, arg) in pointers.iter_mut().zip(args.iter_mut()) {
            *pointer = std::ptr::from_mut(arg).cast();
        }
        let pointers = &mut pointers[..args.len()];
        // SAFETY: the caller's promise; every pointer leads to a whole word.
        self.call("launch a kernel", || unsafe {
            result::launch_kernel(kernel.function(), grid, block, 0, self.0.stream, pointers)
        })
    }

    /// Seconds that what `work` enqueues takes on the GPU.
    pub(crate) fn seconds(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        let start = Event::new(self.0.gpu)?;
        let end = Event::new(self.0.gpu)?;
        start.record(self)?;
        work()?;
        end.record(self)?;
        end.synchronize()?;
        // SAFETY: both were recorded, and the later one was reached.
        let ms = self.call("time what was enqueued", || unsafe { elapsed_ms(start.event, end.event) })?;
        Ok(f64::from(ms) * 1e-3)
    }

    /// Whether what is enqueued becomes part of a graph instead of being done.
    pub(crate) fn is_capturing(&self) -> Result<bool, Error> {
        // SAFETY: the stream is alive.
        let status =
            self.call("ask for captures", || unsafe { result::stream::is_capturing(self.0.stream) })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether a graph is being captured with [`Queue::capture`].
    pub(crate) fn records(&self) -> bool {
        self.0.kept().is_some()
    }

    /// Keeps something until the graph that is being captured is gone; forever when somebody else captures.
    pub(crate) fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        match self.0.kept().as_mut() {
            Some(graph) => graph.push(kept),
            None => std::mem::forget(kept),
        }
    }

    /// What `work` enqueues, as a graph.
    pub(crate) fn capture(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Recording, Error> {
        // Relaxed: other threads may go on allocating.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mut kept = self.0.kept();
        // SAFETY: the stream is alive.
        self.call("begin a capture", || unsafe { result::stream::begin_capture(self.0.stream, mode) })?;
        *kept = Some(Vec::new());
        drop(kept);
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let mut recorded = self.0.kept();
        // SAFETY: the capture was begun above.
        let graph = self.call("end a capture", || unsafe { result::stream::end_capture(self.0.stream) });
        let kept = recorded.take().unwrap_or_default();
        drop(recorded);
        let graph = match worked {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(Err(error)) => {
                if let Ok(graph) = graph {
                    // SAFETY: nothing else knows the graph.
                    let _ = unsafe { result::graph::destroy(graph) };
                }
                return Err(error);
            }
            Ok(Ok(())) => graph?,
        };
        let executable = self.call("instantiate a graph", || {
            // SAFETY: the graph is whole, and not used afterwards.
            unsafe {
                let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
                let destroyed = result::graph::destroy(graph);
                executable.and_then(|e| destroyed.map(|()| e))
            }
        })?;
        Ok(Recording { gpu: self.0.gpu, executable, _kept: kept })
    }
}

impl Gpu {
    /// A queue of its own.
    pub(crate) fn new_queue(&self) -> Result<Queue, Error> {
        self.bind()?;
        Queue::create(*self).attempt(self.ordinal(), || "create a stream".to_owned())
    }

    /// A queue around a `CUstream` that somebody else owns.
    ///
    /// # Safety
    ///
    /// The stream belongs to this GPU's primary context and outlives the queue.
    pub(crate) unsafe fn foreign_queue(&self, stream: u64) -> Result<Queue, Error> {
        Ok(Queue::around(*self, stream as sys::CUstream, false))
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is done; what is captured is not to be done, and so not waited for.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        let recorded = self.kept();
        if recorded.is_some() {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: the stream is alive.
        let done = unsafe { result::stream::synchronize(self.stream) };
        done.attempt(self.gpu.ordinal(), || "finish what was enqueued".to_owned())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.owned && self.gpu.bind().is_ok() {
            // SAFETY: the stream is ours. What is enqueued is done before another queue gets its number, and with it its scratch.
            unsafe {
                let _ = result::stream::synchronize(self.stream);
                let _ = result::stream::destroy(self.stream);
            }
            IDS.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.id);
        }
    }
}

/// A captured graph, ready to be launched, and what it uses.
pub(crate) struct Recording {
    gpu: Gpu,
    executable: sys::CUgraphExec,
    _kept: Kept,
}

// SAFETY: the driver allows a graph to be launched from any thread, one at a time; `Graph` sees to that.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a graph on {}", self.gpu)
    }
}

impl Recording {
    /// Enqueues everything that was captured.
    pub(crate) fn launch(&self, queue: &Queue) -> Result<(), Error> {
        // SAFETY: both are alive and of one GPU, which the caller has checked.
        queue.call("launch a graph", || unsafe { result::graph::launch(self.executable, queue.0.stream) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // What it uses must outlive its last launch.
            let _ = self.gpu.synchronize();
            // SAFETY: nothing launches it any more.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// A point in a queue whose time is taken.
struct Event {
    gpu: Gpu,
    event: sys::CUevent,
}

impl Event {
    fn new(gpu: Gpu) -> Result<Self, Error> {
        gpu.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Self { gpu, event: event.attempt(gpu.ordinal(), || "create an event".to_owned())? })
    }

    fn record(&self, queue: &Queue) -> Result<(), Error> {
        // SAFETY: both are alive and of one GPU.
        queue.call("record an event", || unsafe { result::event::record(self.event, queue.0.stream) })
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        let done = unsafe { result::event::synchronize(self.event) };
        done.attempt(self.gpu.ordinal(), || "finish what was enqueued".to_owned())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: the event is ours.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
