//! CUDA streams: in-order queues of GPU work.

use super::api::{self, DriverError};
use super::capture::Recorded;
use super::driver::Attempt;
use super::event::Event;
use super::launch_gate::LaunchGate;
use super::{Gpu, Kernel, overlap};
use crate::Error;
use crate::device::{Launch, Ptr};
use cudarc::driver::sys;
use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

/// Allocator of queue identifiers. An identifier is not reused while its queue lives or its work
/// may be in progress.
static IDS: Mutex<Ids> = Mutex::new(Ids { next: 0, free: Vec::new(), retired: Vec::new() });

/// The per-thread default stream. It differs in every thread, and only the thread itself can wait
/// for its work.
const PER_THREAD: u64 = 2;

/// Flags of all streams: none waits for the legacy default stream.
const FLAGS: u32 = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

type PriorityRange = unsafe extern "C" fn(&mut i32, &mut i32) -> u32;
type CreateStream = unsafe extern "C" fn(&mut sys::CUstream, u32, i32) -> u32;

struct Ids {
    next: u64,
    free: Vec<u64>,
    /// Identifiers of foreign streams no longer in use, with the end of their work.
    retired: Vec<(Event, u64)>,
}

impl Ids {
    fn take(&mut self) -> u64 {
        if let Some(place) = self.retired.iter().position(|(end, _)| end.is_reached()) {
            return self.retired.swap_remove(place).1;
        }
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        })
    }
}

/// A CUDA stream.
pub(crate) struct Queue(Arc<OpenStream>);

/// A stream, shared with the list of streams that [`Gpu::synchronize`] waits for.
pub(super) struct OpenStream {
    gpu: Gpu,
    stream: sys::CUstream,
    id: u64,
    owned: bool,
    /// Held while a product is enqueued, which may take several launches, and while a capture
    /// begins and ends.
    order: Mutex<()>,
    /// The capture in progress, if any.
    recorded: Mutex<Option<Recorded>>,
    /// Held shared while the stream is waited for, which would break a capture, and exclusively
    /// when a capture begins.
    gate: RwLock<()>,
    /// Bytes of other data that pass through the L2 between two products.
    other_bytes: AtomicU64,
}

// SAFETY: the driver allows a stream to be used from any thread.
unsafe impl Send for OpenStream {}
// SAFETY: as above.
unsafe impl Sync for OpenStream {}

impl Kernel {
    /// Enqueues a launch, or nothing if the grid has no blocks.
    ///
    /// # Safety
    ///
    /// The parameters are those of the kernel, and the memory they point to lives until it is done.
    pub(crate) unsafe fn launch(&self, queue: &Queue, mut launch: Launch) -> Result<(), Error> {
        if launch.blocks() == 0 {
            return Ok(());
        }
        let grid = (launch.blocks(), 1, 1);
        let block = (launch.threads(), 1, 1);
        let shared = launch.shared_bytes();
        let args = launch.args();
        let mut pointers = [std::ptr::null_mut(); crate::device::launch::MAX_ARGS];
        for (pointer, arg) in pointers.iter_mut().zip(args.iter_mut()) {
            *pointer = std::ptr::from_mut(arg).cast();
        }
        let pointers = &mut pointers[..args.len()];
        // SAFETY: the caller's promise; every pointer points to a complete word.
        queue.call("launch a kernel", || unsafe {
            if self.overlaps {
                overlap::launch_kernel(self.function, grid, block, shared, queue.0.stream, pointers)
            } else {
                let (start, extra) = (pointers.as_mut_ptr(), std::ptr::null_mut());
                api::launch_kernel(
                    self.function,
                    grid.0,
                    grid.1,
                    grid.2,
                    block.0,
                    block.1,
                    block.2,
                    shared,
                    queue.0.stream,
                    start,
                    extra,
                )
            }
        })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.0.id, self.0.gpu)
    }
}

impl Queue {
    pub(super) fn around(gpu: Gpu, stream: sys::CUstream, owned: bool) -> Self {
        let id = IDS.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (order, recorded, gate) = (Mutex::default(), Mutex::default(), RwLock::default());
        let other_bytes = AtomicU64::new(0);
        let open = OpenStream { gpu, stream, id, owned, order, recorded, gate, other_bytes };
        let shared = Arc::new(open);
        let mut queues = gpu.queues();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&shared));
        Self(shared)
    }

    /// Creates a stream that does not synchronise with any other. The context of `gpu` is current.
    pub(super) fn create(gpu: Gpu) -> Result<Self, DriverError> {
        // SAFETY: the function writes the stream.
        let stream = api::value(std::ptr::null_mut(), |stream| unsafe {
            api::stream_create(stream, FLAGS)
        })?;
        Ok(Self::around(gpu, stream, true))
    }

    /// As [`create`](Self::create), with the highest priority.
    fn create_preferred(gpu: Gpu) -> Result<Self, DriverError> {
        let (ask, create): (PriorityRange, CreateStream) = (
            api::optional("cuCtxGetStreamPriorityRange")?,
            api::optional("cuStreamCreateWithPriority")?,
        );
        let mut least = 0;
        // SAFETY: the function writes two numbers.
        let highest = api::value(0, |highest| api::result(unsafe { ask(&mut least, highest) }))?;
        let stream = api::value(std::ptr::null_mut(), |stream| {
            // SAFETY: the function writes the stream.
            api::result(unsafe { create(stream, FLAGS, highest) })
        })?;
        Ok(Self::around(gpu, stream, true))
    }

    /// Returns the GPU of the queue.
    pub(crate) fn gpu(&self) -> Gpu {
        self.0.gpu
    }

    /// Bytes of other data that pass through the L2 between two products.
    pub(crate) fn other_bytes(&self) -> &AtomicU64 {
        &self.0.other_bytes
    }

    /// Identifier, unique among living queues.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The `CUstream`.
    pub(crate) fn raw(&self) -> u64 {
        self.0.stream as u64
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.0.stream
    }

    pub(super) fn recorded(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.0.recorded()
    }

    /// Ends a capture in which this queue takes part.
    pub(super) fn end_of_capture(&self) -> impl Fn() -> Option<Recorded> + Clone + Send + 'static {
        let queue = self.0.clone();
        move || queue.recorded().take()
    }

    /// Waits until no thread waits for the stream, and keeps other threads from doing so.
    pub(super) fn unwaited(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the queue against launches of other threads between those of one product.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] while another thread captures a graph: enqueued work would become part of it.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, ()>, Error> {
        let lock = self.0.order.lock().unwrap_or_else(PoisonError::into_inner);
        match self.recorded().as_ref() {
            Some(recorded) if !recorded.is_of_this_thread() => Err(Error::Gpu {
                device: self.0.gpu.to_string(),
                action: "enqueue on this stream".to_owned(),
                code: None,
                message: "another thread captures a graph from it; use another stream".to_owned(),
            }),
            _ => Ok(lock),
        }
    }

    /// As [`lock`](Self::lock), for work that is waited for, such as copies from and to host
    /// memory.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] while a graph is captured, also by this thread: captured work is not
    /// executed, so that it cannot be waited for.
    pub(crate) fn lock_to_wait(&self, action: &str) -> Result<MutexGuard<'_, ()>, Error> {
        let lock = self.lock()?;
        if self.is_capturing()? {
            return Err(Error::Gpu {
                device: self.0.gpu.to_string(),
                action: action.to_owned(),
                code: None,
                message: "the stream is captured for a graph; do it after a launch of the graph"
                    .to_owned(),
            });
        }
        Ok(lock)
    }

    /// Calls the driver with the context of the GPU current.
    pub(super) fn call<R>(
        &self,
        action: &str,
        call: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<R, Error> {
        self.0.call(action, call)
    }

    /// Waits for everything enqueued.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        self.0.synchronize()
    }

    /// Enqueues zeroing of `len` elements.
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
            api::memset_d8_async(ptr.address(), 0, bytes, self.0.stream)
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
            api::memcpy_htod_async(
                to.address(),
                from.as_ptr().cast(),
                size_of_val(from),
                self.0.stream,
            )
        })
    }

    /// Enqueues a copy within the memory of the GPU.
    ///
    /// # Safety
    ///
    /// `from` and `to` have `len` elements, do not overlap, and live until it is done.
    pub(crate) unsafe fn copy_on_device<T: Copy>(
        &self,
        to: Ptr<T>,
        from: Ptr<T>,
        len: usize,
    ) -> Result<(), Error> {
        let bytes = len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call("copy on the GPU", || unsafe {
            api::memcpy_dtod_async(to.address(), from.address(), bytes, self.0.stream)
        })
    }

    /// Enqueues a copy from the GPU.
    ///
    /// # Safety
    ///
    /// `from` has as many elements as `to`, and both live until it is done.
    pub(crate) unsafe fn copy_out<T: Copy>(&self, to: &mut [T], from: Ptr<T>) -> Result<(), Error> {
        let bytes = size_of_val(to);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.call("copy from the GPU", || unsafe {
            api::memcpy_dtoh_async(to.as_mut_ptr().cast(), from.address(), bytes, self.0.stream)
        })
    }

    /// Enqueues a copy within the GPU.
    ///
    /// # Safety
    ///
    /// Both have `len` elements and live until it is done.
    pub(super) unsafe fn copy_within(
        &self,
        to: Ptr<u8>,
        from: Ptr<u8>,
        len: usize,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.call("copy within the GPU", || unsafe {
            api::memcpy_dtod_async(to.address(), from.address(), len, self.0.stream)
        })
    }

    /// Time of the work enqueued by `work` on the GPU, in seconds. The GPU begins when all of it is
    /// enqueued.
    pub(crate) fn seconds(
        &self,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let gate = self.close_gate()?;
        let start = Event::after(self.0.gpu, self.0.stream)?;
        work()?;
        let end = Event::after(self.0.gpu, self.0.stream)?;
        drop(gate);
        end.synchronize()?;
        end.seconds_since(&start)
    }

    /// Closes a launch gate in the stream.
    fn close_gate(&self) -> Result<LaunchGate, Error> {
        // No capture begins in the meantime.
        let _gate = self.0.gate.read().unwrap_or_else(PoisonError::into_inner);
        if self.0.is_capturing()? {
            return Err(Error::Gpu {
                device: self.0.gpu.to_string(),
                action: "time enqueued work".to_owned(),
                code: None,
                message: "the stream is captured for a graph; time a launch of the graph"
                    .to_owned(),
            });
        }
        LaunchGate::on(self.0.gpu, self)
    }

    /// True if enqueued work is captured into a graph instead of being executed.
    pub(crate) fn is_capturing(&self) -> Result<bool, Error> {
        self.0.is_capturing()
    }

    /// True if this thread is capturing a graph with [`Queue::capture`].
    pub(crate) fn records(&self) -> bool {
        self.capture_number().is_some()
    }

    /// Unique number of the capture by this thread with [`Queue::capture`], if any.
    pub(crate) fn capture_number(&self) -> Option<u64> {
        let recorded = self.recorded();
        recorded.as_ref().filter(|recorded| recorded.is_of_this_thread()).map(Recorded::number)
    }

    /// Keeps an object alive as long as the graph that is being captured; forever if another
    /// library captures.
    pub(crate) fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        match self.recorded().as_mut() {
            Some(recorded) => recorded.keep(kept),
            None => std::mem::forget(kept),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The caller that drops the queue may next free memory that is still being copied.
        if self.0.owned {
            let _ = self.0.synchronize();
        }
    }
}

impl Gpu {
    /// Creates a queue.
    pub(crate) fn new_queue(&self) -> Result<Queue, Error> {
        let _current = self.bind()?;
        Queue::create(*self).attempt(self.ordinal(), || "create a stream".to_owned())
    }

    /// Creates a queue whose work is preferred to that of others.
    pub(crate) fn preferred_queue(&self) -> Result<Queue, Error> {
        let _current = self.bind()?;
        let created = Queue::create_preferred(*self);
        created.attempt(self.ordinal(), || "create a stream".to_owned())
    }

    /// Wraps a `CUstream` owned by the caller.
    ///
    /// # Safety
    ///
    /// The stream belongs to this GPU's primary context and outlives the queue.
    pub(crate) unsafe fn foreign_queue(&self, stream: u64) -> Result<Queue, Error> {
        if stream == PER_THREAD {
            return Err(Error::Gpu {
                device: self.to_string(),
                action: "use this stream".to_owned(),
                code: None,
                message: "the per-thread default stream is another one in every thread; make one"
                    .to_owned(),
            });
        }
        Ok(Queue::around(*self, stream as sys::CUstream, false))
    }
}

impl OpenStream {
    fn recorded(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<R>(
        &self,
        action: &str,
        call: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<R, Error> {
        let _current = self.gpu.bind()?;
        call().attempt(self.gpu.ordinal(), || action.to_owned())
    }

    fn is_capturing(&self) -> Result<bool, Error> {
        let status = self.call("ask for captures", || {
            // SAFETY: the stream is alive.
            api::value(0, |status| unsafe { api::stream_is_capturing(self.stream, status) })
        })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32)
    }

    /// Waits for everything enqueued. Captured work is not executed, and so not waited for. Other
    /// threads may continue to enqueue.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        // Captures by other libraries are not in `recorded`.
        if self.recorded().is_some() || (!self.owned && self.is_capturing()?) {
            return Ok(());
        }
        // SAFETY: the stream is alive.
        self.call("complete enqueued work", || unsafe { api::stream_synchronize(self.stream) })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.bind() else { return };
        let ids = || IDS.lock().unwrap_or_else(PoisonError::into_inner);
        if self.owned {
            // SAFETY: this value owns the stream. Enqueued work is done before another queue gets
            // its identifier, and with it its scratch memory.
            unsafe {
                let _ = api::stream_synchronize(self.stream);
                let _ = api::stream_destroy(self.stream);
            }
            ids().free.push(self.id);
        } else if let (Ok(false), Ok(end)) =
            (self.is_capturing(), Event::after(self.gpu, self.stream))
        {
            // Waiting for all queues of the GPU includes this stream. Without an end event, the
            // identifier is not reused.
            let _ = end.make_wait(self.gpu.queue().stream());
            ids().retired.push((end, self.id));
        }
    }
}
