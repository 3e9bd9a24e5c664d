//! Events: points in a stream that can be waited for and timed.

use super::Gpu;
use super::api;
use super::driver::Attempt;
use crate::Error;
use cudarc::driver::sys;
use std::ptr;

/// A point in a stream.
#[derive(Debug)]
pub(super) struct Event {
    gpu: Gpu,
    event: sys::CUevent,
}

// SAFETY: the driver allows an event to be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Records an event after everything enqueued on `stream`, which is a live stream of `gpu`.
    pub(super) fn after(gpu: Gpu, stream: sys::CUstream) -> Result<Self, Error> {
        let event = Self::new(gpu)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Creates an event that is reached already.
    pub(super) fn new(gpu: Gpu) -> Result<Self, Error> {
        Self::with_flags(gpu, 0)
    }

    /// As [`new`](Self::new), for waiting alone.
    pub(super) fn untimed(gpu: Gpu) -> Result<Self, Error> {
        Self::with_flags(gpu, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with_flags(gpu: Gpu, flags: u32) -> Result<Self, Error> {
        let _current = gpu.bind()?;
        // SAFETY: the function writes the event.
        let event = api::value(ptr::null_mut(), |event| unsafe { api::event_create(event, flags) });
        Ok(Self { gpu, event: event.attempt(gpu.ordinal(), || "create an event".to_owned())? })
    }

    /// Moves the event behind everything enqueued on `stream`, which is a live stream of its GPU.
    pub(super) fn record(&self, stream: sys::CUstream) -> Result<(), Error> {
        let _current = self.gpu.bind()?;
        // SAFETY: both are alive and of one GPU.
        let recorded = unsafe { api::event_record(self.event, stream) };
        recorded.attempt(self.gpu.ordinal(), || "record an event".to_owned())
    }

    /// Waits until the event is reached.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        let _current = self.gpu.bind()?;
        // SAFETY: the event is alive.
        let done = unsafe { api::event_synchronize(self.event) };
        done.attempt(self.gpu.ordinal(), || "complete enqueued work".to_owned())
    }

    /// True if the event has been reached.
    pub(super) fn is_reached(&self) -> bool {
        // SAFETY: the event is alive.
        self.gpu.bind().is_ok_and(|_current| unsafe { api::event_query(self.event) }.is_ok())
    }

    /// Makes work enqueued on `stream` from now on wait for the event.
    pub(super) fn make_wait(&self, stream: sys::CUstream) -> Result<(), Error> {
        let _current = self.gpu.bind()?;
        // SAFETY: both are alive and of one GPU.
        let waits = unsafe { api::stream_wait_event(stream, self.event, 0) };
        waits.attempt(self.gpu.ordinal(), || "let a stream wait for another".to_owned())
    }

    /// Seconds from an earlier event to this one; both have been reached.
    pub(super) fn seconds_since(&self, earlier: &Self) -> Result<f64, Error> {
        let _current = self.gpu.bind()?;
        // SAFETY: both were recorded and reached.
        let ms =
            api::value(0.0, |ms| unsafe { api::event_elapsed_time(ms, earlier.event, self.event) });
        Ok(f64::from(ms.attempt(self.gpu.ordinal(), || "time enqueued work".to_owned())?) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.bind() {
            // SAFETY: this value owns the event.
            let _ = unsafe { api::event_destroy(self.event) };
        }
    }
}
