//! Streams whose work runs beside that of another one.

use super::cuda::Fork;
use super::{Device, Stream};
use crate::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A stream whose work runs beside that of another one, and is preferred to it.
pub struct SideStream {
    stream: Stream,
    fork: Fork,
    /// Held while work is enqueued on both streams.
    order: Mutex<()>,
}

impl SideStream {
    /// Creates a stream of a GPU.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] for the CPU, [`Error::Gpu`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        match device {
            Device::Cpu => Err(Error::DeviceUnavailable {
                device: device.to_string(),
                reason: "it has no streams that run at the same time".to_owned(),
            }),
            Device::Cuda(gpu) => Ok(Self {
                stream: Stream::of(gpu.preferred_queue()?),
                fork: Fork::new(*gpu)?,
                order: Mutex::default(),
            }),
        }
    }

    /// Enqueues `aside` on this stream and `work` on `main`, to run at the same time after the
    /// earlier work of `main`. The later work of `main` waits for both, and a graph that is being
    /// captured from it contains both, one after the other if another library captures. What they
    /// write differs from what the other uses.
    ///
    /// # Errors
    ///
    /// Those of the work; [`Error::Gpu`].
    pub fn run(
        &self,
        main: &Stream,
        aside: impl FnOnce(&Stream) -> Result<(), Error>,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (Some(on_main), Some(on_side)) = (main.queue(), self.stream.queue()) else {
            return aside(main).and_then(|()| work());
        };
        if on_main.is_capturing()? && !on_main.records() {
            return aside(main).and_then(|()| work());
        }
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.fork.begin(on_main, on_side)?;
        let done = aside(&self.stream).and_then(|()| work());
        self.fork.join(on_main, on_side)?;
        done
    }
}

impl fmt::Debug for SideStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} beside another", self.stream)
    }
}
