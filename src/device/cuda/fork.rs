//! Work of one queue beside that of another.

use super::api::{self, DriverError};
use super::capture::Recorded;
use super::driver::Attempt;
use super::event::Event;
use super::{Gpu, Queue};
use crate::Error;
use cudarc::driver::sys::CUstream;

/// `CU_STREAM_NON_BLOCKING`.
const UNSYNCHRONISED: u32 = 1;

type PriorityRange = unsafe extern "C" fn(&mut i32, &mut i32) -> u32;
type CreateStream = unsafe extern "C" fn(&mut CUstream, u32, i32) -> u32;

/// Places at which the work of a side queue begins and ends beside that of a main queue.
pub(crate) struct Fork {
    begin: Event,
    end: Event,
}

impl Gpu {
    /// Creates a queue whose work is preferred to that of others.
    pub(crate) fn preferred_queue(&self) -> Result<Queue, Error> {
        let _current = self.bind()?;
        let created = preferred_stream().map(|stream| Queue::around(*self, stream, true));
        created.attempt(self.ordinal(), || "create a stream".to_owned())
    }
}

/// Creates a stream of the highest priority. The context of its GPU is current.
fn preferred_stream() -> Result<CUstream, DriverError> {
    let (ask, create): (PriorityRange, CreateStream) = (
        api::optional("cuCtxGetStreamPriorityRange")?,
        api::optional("cuStreamCreateWithPriority")?,
    );
    let mut least = 0;
    // SAFETY: the function writes two numbers.
    let highest = api::value(0, |highest| api::result(unsafe { ask(&mut least, highest) }))?;
    api::value(std::ptr::null_mut(), |stream| {
        // SAFETY: the function writes the stream.
        api::result(unsafe { create(stream, UNSYNCHRONISED, highest) })
    })
}

impl Fork {
    /// Creates a fork of queues of a GPU.
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        Ok(Self { begin: Event::untimed(gpu)?, end: Event::untimed(gpu)? })
    }

    /// Makes the next work of `side` wait for the earlier work of `main`, and take part in the
    /// graph that is being captured from it, if any.
    pub(crate) fn begin(&self, main: &Queue, side: &Queue) -> Result<(), Error> {
        let _lock = side.lock()?;
        if main.records() && !side.records() {
            // Nothing waits for it until the capture ends.
            side.synchronize()?;
            let _gate = side.unwaited();
            *side.recorded() = Some(Recorded::by_this_thread());
            let end = side.end_of_capture();
            main.recorded().iter_mut().for_each(|recorded| recorded.join(end.clone()));
        }
        self.begin.record(main.stream())?;
        self.begin.make_wait(side.stream())
    }

    /// Makes the next work of `main` wait for the work of `side`.
    pub(crate) fn join(&self, main: &Queue, side: &Queue) -> Result<(), Error> {
        self.end.record(side.stream())?;
        self.end.make_wait(main.stream())
    }
}
