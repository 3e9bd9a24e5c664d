//! The order in which a device does its work.

use super::cuda::Recording;
use super::{Device, Queue};
use crate::Error;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// Work for a device, done in order; of different streams, in any.
///
/// On a GPU it is a CUDA stream, and what is enqueued is done later. On the CPU everything is done at once.
#[derive(Debug, Clone)]
pub struct Stream(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Cpu,
    Own(Arc<Queue>),
}

impl Stream {
    /// A stream of its own, which waits for no other.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] when the GPU has none left.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(Self(match device {
            Device::Cpu => Kind::Cpu,
            Device::Cuda(gpu) => Kind::Own(Arc::new(gpu.new_queue()?)),
        }))
    }

    /// A stream around a `CUstream` (or `cudaStream_t`) that somebody else made.
    ///
    /// What is captured from it by somebody else uses the operators and vectors that were enqueued: they must then be kept alive as
    /// long as that graph. [`Stream::capture`] sees to it itself.
    ///
    /// # Safety
    ///
    /// It is one of the GPU's primary context and outlives the stream and every graph captured from it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] when the device is the CPU, [`Error::Gpu`] for the per-thread default stream, which is another one
    /// in every thread.
    pub unsafe fn from_raw(device: &Device, stream: *mut c_void) -> Result<Self, Error> {
        match device {
            Device::Cpu => Err(Error::DeviceUnavailable {
                device: device.to_string(),
                reason: "it has no CUDA streams; use Stream::new".to_owned(),
            }),
            // SAFETY: the caller's promise.
            Device::Cuda(gpu) => Ok(Self(Kind::Own(Arc::new(unsafe { gpu.foreign_queue(stream as u64)? })))),
        }
    }

    /// The `CUstream`, for libraries that take one; null on the CPU.
    pub fn raw(&self) -> *mut c_void {
        self.queue().map_or(std::ptr::null_mut(), |queue| queue.raw() as *mut c_void)
    }

    /// The device whose work it is.
    #[doc(hidden)]
    pub fn device(&self) -> Device {
        self.queue().map_or(Device::Cpu, |queue| Device::Cuda(queue.gpu()))
    }

    /// Waits until everything that was enqueued is done.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] when the GPU failed at it.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.queue().map_or(Ok(()), Queue::synchronize)
    }

    /// Seconds that what `work` enqueues takes, by the GPU's own clock; waits until it is done. The GPU begins when all of it is enqueued, or after
    /// some milliseconds: how fast the host launches is not in it, and `work` should not wait for the stream.
    ///
    /// # Errors
    ///
    /// What `work` gives; [`Error::Gpu`] while the stream is captured; [`Error::DeviceUnavailable`] on the CPU, where a clock on the wall does as
    /// well.
    #[doc(hidden)]
    pub fn seconds(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        self.on_gpu("time what is enqueued")?.seconds(work)
    }

    /// What `work` enqueues on this stream, as a graph to be launched again and again. It is not done now. Waits first for what was
    /// enqueued before; other threads are refused on this stream until it is captured.
    ///
    /// The graph owns what it uses: operators and vectors may be dropped before it.
    ///
    /// # Errors
    ///
    /// What `work` gives; [`Error::Gpu`] when something in it cannot be captured; [`Error::DeviceUnavailable`] on the CPU.
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

    /// The queue, on a GPU.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        match &self.0 {
            Kind::Cpu => None,
            Kind::Own(queue) => Some(queue),
        }
    }
}

/// Captured work of a GPU, launched as a whole: one call for a chain of products.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    /// The driver allows one launch at a time.
    recording: Mutex<Recording>,
}

impl Graph {
    /// Enqueues everything that was captured. Launches of one graph are done one after another.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] when the stream is another device's, [`Error::Gpu`] when the GPU fails.
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
