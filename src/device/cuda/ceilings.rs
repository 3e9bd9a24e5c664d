//! Upper bounds on the performance of a GPU, each measured once on demand.

use super::{Gpu, Queue};
use crate::Error;
use crate::device::{Launch, Out, Ptr, Scaling, kernels};
use std::sync::OnceLock;

/// The measured ceilings.
#[derive(Debug, Default)]
pub(super) struct MeasuredCeilings {
    copy_bandwidth: OnceLock<f64>,
    launch_us: OnceLock<f64>,
    upload_bandwidth: OnceLock<f64>,
}

/// Number of repetitions; the shortest time counts.
const REPEATS: usize = 10;

/// Returns the measured value, or measures it with `measure`.
fn once(kept: &OnceLock<f64>, measure: impl FnOnce() -> Result<f64, Error>) -> Result<f64, Error> {
    match kept.get() {
        Some(measured) => Ok(*measured),
        None => measure().map(|measured| *kept.get_or_init(|| measured)),
    }
}

impl Gpu {
    /// Bandwidth of a copy within device memory, reads and writes counted, in bytes per second.
    pub(crate) fn copy_bandwidth(&self) -> Result<f64, Error> {
        /// Size of the copied array: much larger than any L2 cache, and small compared to the
        /// memory of a GPU.
        const BYTES: usize = 256 << 20;
        once(&self.0.ceilings.copy_bandwidth, || {
            let (from, to) = (self.zeroed::<u8>(BYTES)?, self.zeroed::<u8>(BYTES)?);
            let queue = self.new_queue()?;
            // SAFETY: both have `BYTES` bytes and live until the time is taken.
            let least =
                least(&queue, || unsafe { queue.copy_within(to.ptr(), from.ptr(), BYTES) })?;
            Ok(2.0 * BYTES as f64 / least)
        })
    }

    /// Time between nearly empty kernels enqueued back to back, in microseconds.
    pub(crate) fn launch_us(&self) -> Result<f64, Error> {
        /// Number of launches of a measurement: enough to hide the start of the first kernel, and
        /// fewer than a queue holds.
        const LAUNCHES: usize = 500;
        once(&self.0.ceilings.launch_us, || {
            let kernel = self.kernel("scaled", "scaled_f32")?;
            let queue = self.new_queue()?;
            let by = Scaling { alpha: 1.0f32.into(), beta: 1.0f32.into() };
            let (product, out) = (Ptr::NULL, Out::scaled(Ptr::NULL, by));
            let nothing =
                Launch::over(1, 1).with(kernels::scaled::Scaled { product, nrows: 0, out });
            // SAFETY: the kernel is `scaled_f32`, which touches no memory without rows.
            let launch = || unsafe { kernel.launch(&queue, nothing) };
            let least = least(&queue, || (0..LAUNCHES).try_for_each(|_| launch()))?;
            Ok(least / LAUNCHES as f64 * 1e6)
        })
    }

    /// Bandwidth of copies from page-locked host memory, in bytes per second.
    pub(crate) fn upload_bandwidth(&self) -> Result<f64, Error> {
        /// Size of the copied array: a copy takes a millisecond or two, so that its start-up time
        /// is negligible.
        const BYTES: usize = 64 << 20;
        once(&self.0.ceilings.upload_bandwidth, || {
            let (from, to) = (self.pinned::<u8>(BYTES)?, self.uninitialised::<u8>(BYTES)?);
            let queue = self.new_queue()?;
            // SAFETY: both have `BYTES` bytes and live until the time is taken.
            let least = least(&queue, || unsafe { queue.copy_in(to.ptr(), from.as_slice()) })?;
            Ok(BYTES as f64 / least)
        })
    }
}

/// Shortest time of the work enqueued by `work`, in seconds, after one warm-up run.
fn least(queue: &Queue, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    work()?;
    let mut least = f64::INFINITY;
    for _ in 0..REPEATS {
        least = queue.seconds(&mut work)?.min(least);
    }
    Ok(least)
}
