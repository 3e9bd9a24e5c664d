//! Work of one queue beside that of another.

use super::capture::Recorded;
use super::event::Event;
use super::{Gpu, Queue};
use crate::Error;

/// Places at which the work of a side queue begins and ends beside that of a main queue.
pub(crate) struct Fork {
    begin: Event,
    end: Event,
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
