//! Streams: in-order queues of device work.

use super::cuda::Recording;
use super::{Device, Queue};
use crate::Error;
use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// An in-order queue of work for a device. Work of different streams has no order.
///
/// On a GPU it is a CUDA stream, and enqueued work runs asynchronously. On the CPU all work is done
/// at once.
#[derive(Debug, Clone)]
pub struct Stream(StreamKind);

#[derive(Debug, Clone)]
enum StreamKind {
    Cpu,
    Own(Arc<Queue>),
}

impl Stream {
    /// Creates a stream that does not synchronise with any other.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if the GPU cannot create one.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(match device {
            Device::Cpu => Self(StreamKind::Cpu),
            Device::Cuda(gpu) => Self::of(gpu.new_queue()?),
        })
    }

    /// The stream of a queue.
    pub(super) fn of(queue: Queue) -> Self {
        Self(StreamKind::Own(Arc::new(queue)))
    }

    /// Wraps a `CUstream` (or `cudaStream_t`) of the caller.
    ///
    /// A graph that the caller captures from it by other means uses the operators and vectors that
    /// were enqueued: they must be kept alive as long as that graph. [`Stream::capture`] keeps them
    /// alive itself.
    ///
    /// # Safety
    ///
    /// The stream belongs to the primary context of the GPU, and outlives this value and every
    /// graph captured from it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] if the device is the CPU, [`Error::Gpu`] for the per-thread
    /// default stream, which is a different stream in every thread.
    pub unsafe fn from_raw(device: &Device, stream: *mut c_void) -> Result<Self, Error> {
        match device {
            Device::Cpu => Err(Error::DeviceUnavailable {
                device: device.to_string(),
                reason: "it has no CUDA streams; use Stream::new".to_owned(),
            }),
            Device::Cuda(gpu) => {
                // SAFETY: the caller's promise.
                Ok(Self::of(unsafe { gpu.foreign_queue(stream as u64)? }))
            }
        }
    }

    /// Returns the `CUstream` for other libraries; null on the CPU.
    pub fn raw(&self) -> *mut c_void {
        self.queue().map_or(std::ptr::null_mut(), |queue| queue.raw() as *mut c_void)
    }

    /// Sets the bytes of other data that pass through the caches between two products on the
    /// stream, such as the other vectors of a solver. Of a matrix that does not fit the L2 of a
    /// GPU less is then kept there; results do not change.
    ///
    /// It is 0 at first. Clones of the stream share it, and a graph keeps that of its capture. It
    /// does nothing on the CPU.
    #[doc(hidden)]
    pub fn set_other_bytes(&self, bytes: u64) {
        self.queue().into_iter().for_each(|queue| queue.other_bytes().store(bytes, Relaxed));
    }

    /// Returns the device of the stream.
    #[doc(hidden)]
    pub fn device(&self) -> Device {
        self.queue().map_or(Device::Cpu, |queue| Device::Cuda(queue.gpu()))
    }

    /// Waits for everything enqueued.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if enqueued work failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.queue().map_or(Ok(()), Queue::synchronize)
    }

    /// Measures the time of the work enqueued by `work` with the GPU's clock, in seconds, and waits
    /// for its end. The GPU starts when all of it is enqueued, or after some milliseconds. The
    /// launch overhead of the host is therefore not included, and `work` should not wait for the
    /// stream.
    ///
    /// # Errors
    ///
    /// Errors of `work`; [`Error::Gpu`] while the stream is captured; [`Error::DeviceUnavailable`]
    /// on the CPU, where a wall clock suffices.
    #[doc(hidden)]
    pub fn seconds(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        self.on_gpu("time enqueued work")?.seconds(work)
    }

    /// Captures the work enqueued by `work` on this stream as a graph that can be launched
    /// repeatedly. The work does not run now. Waits first for everything enqueued earlier; other
    /// threads cannot enqueue on this stream until the capture ends.
    ///
    /// The graph owns the memory it uses: operators and vectors may be dropped before it. Its
    /// kernels keep the priority of this stream.
    ///
    /// # Errors
    ///
    /// Errors of `work`; [`Error::Gpu`] if some of it cannot be captured;
    /// [`Error::DeviceUnavailable`] on the CPU.
    pub fn capture(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Graph, Error> {
        let recording = self.on_gpu("capture a graph")?.capture(work)?;
        Ok(Graph { device: self.device(), recording: Mutex::new(recording) })
    }

    fn on_gpu(&self, action: &str) -> Result<&Queue, Error> {
        self.queue().ok_or_else(|| Error::DeviceUnavailable {
            device: "cpu".to_owned(),
            reason: format!("only a GPU can {action}"),
        })
    }

    /// The queue; `None` on the CPU.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        match &self.0 {
            StreamKind::Cpu => None,
            StreamKind::Own(queue) => Some(queue),
        }
    }
}

/// Captured GPU work, launched as a whole: one call for a sequence of products.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    /// The driver allows one launch at a time.
    recording: Mutex<Recording>,
}

impl Graph {
    /// Enqueues the captured work. Launches of one graph run one after another.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] if the stream belongs to another device, [`Error::Gpu`] if the GPU
    /// fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        match stream.queue() {
            Some(queue) if stream.device() == self.device => {
                self.recording.lock().unwrap_or_else(PoisonError::into_inner).launch(queue)
            }
            _ => Err(Error::WrongDevice {
                what: "stream",
                expected: self.device.to_string(),
                found: stream.device().to_string(),
            }),
        }
    }
}
