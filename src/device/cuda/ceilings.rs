//! What a GPU reaches at best, each measured once when it is asked for.

use super::{Gpu, Queue};
use crate::Error;
use crate::device::{Launch, Ptr};
use std::sync::OnceLock;

/// The measured ceilings.
#[derive(Debug, Default)]
pub(super) struct Measured {
    copy_bandwidth: OnceLock<f64>,
    launch_us: OnceLock<f64>,
    upload_bandwidth: OnceLock<f64>,
}

/// Times that each of them is taken; the least counts.
const REPEATS: usize = 10;

/// What was measured before, or what `measure` gives.
fn once(kept: &OnceLock<f64>, measure: impl FnOnce() -> Result<f64, Error>) -> Result<f64, Error> {
    match kept.get() {
        Some(measured) => Ok(*measured),
        None => measure().map(|measured| *kept.get_or_init(|| measured)),
    }
}

impl Gpu {
    /// Bytes a second that a copy within its memory reads and writes.
    pub(crate) fn copy_bandwidth(&self) -> Result<f64, Error> {
        /// Well beyond any L2, and nothing to the memory of a GPU.
        const BYTES: usize = 256 << 20;
        once(&self.0.ceilings.copy_bandwidth, || {
            let (from, to) = (self.zeroed::<u8>(BYTES)?, self.zeroed::<u8>(BYTES)?);
            let queue = self.new_queue()?;
            // SAFETY: both have so many bytes and live until the time is taken.
            let least = least(&queue, || unsafe { queue.copy_within(to.ptr(), from.ptr(), BYTES) })?;
            Ok(2.0 * BYTES as f64 / least)
        })
    }

    /// Microseconds between kernels of next to no work that are enqueued one after the other.
    pub(crate) fn launch_us(&self) -> Result<f64, Error> {
        /// Enough to hide when the first of them begins, and fewer than a queue holds.
        const LAUNCHES: usize = 500;
        once(&self.0.ceilings.launch_us, || {
            let kernel = self.kernel("hyb", "hyb_add_f32")?;
            let queue = self.new_queue()?;
            let nothing = Launch::over(1, 1).arg(Ptr::<u32>::NULL).arg(Ptr::<f32>::NULL).arg(0u32);
            let nothing = nothing.arg(Ptr::<f32>::NULL);
            // SAFETY: these are the parameters of `hyb_add`, which touches nothing when the count is 0.
            let launch = || unsafe { kernel.launch(&queue, nothing) };
            let least = least(&queue, || (0..LAUNCHES).try_for_each(|_| launch()))?;
            Ok(least / LAUNCHES as f64 * 1e6)
        })
    }

    /// Bytes a second from page-locked memory of the host.
    pub(crate) fn upload_bandwidth(&self) -> Result<f64, Error> {
        /// A millisecond or two: the start of a copy is nothing beside it.
        const BYTES: usize = 64 << 20;
        once(&self.0.ceilings.upload_bandwidth, || {
            let (from, to) = (self.pinned::<u8>(BYTES)?, self.unset::<u8>(BYTES)?);
            let queue = self.new_queue()?;
            // SAFETY: both have so many bytes and live until the time is taken.
            let least = least(&queue, || unsafe { queue.copy_in(to.ptr(), from.as_slice()) })?;
            Ok(BYTES as f64 / least)
        })
    }
}

/// The least of the seconds that what `work` enqueues takes, after once without counting.
fn least(queue: &Queue, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    work()?;
    let mut least = f64::INFINITY;
    for _ in 0..REPEATS {
        least = queue.seconds(&mut work)?.min(least);
    }
    Ok(least)
}
