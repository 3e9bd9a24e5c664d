//! Launch gate: delays a stream while work is enqueued on it, so that a timing covers the GPU and
//! not the launch overhead of the host.
//!
//! A host needs about 3 µs per launch, depending on its processor and load. Timings of kernels of
//! about that length or shorter would measure the launches, and different kernels would seem equal.
//! A kernel of one thread waits until the host writes a word of page-locked memory. A host function
//! in the stream would be slower: it runs on a thread of the driver, which must first wake up.

use super::{Gpu, Kernel, Pinned, Queue};
use crate::Error;
use crate::device::{Launch, Ptr, kernels};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time after which a gate opens by itself. A queue holds about a thousand launches: enqueuing more
/// waits until the first of them has run.
const TIMEOUT: Duration = Duration::from_millis(5);

/// Gates of a GPU, created with the first one. They live as long as the process: a stream may still
/// wait when its queue is dropped.
#[derive(Default)]
pub(super) struct LaunchGates(OnceCell<Gates>);

/// Numbered gates, which are opened in order.
struct Gates {
    kernel: Kernel,
    /// Number of the last open gate; all gates before it are open, too.
    opened: Pinned<u32>,
    /// Number of the last gate that was created.
    last: AtomicU32,
}

/// A closed gate in a stream. It opens when it is dropped, when a later gate of the GPU opens, or
/// after [`TIMEOUT`].
pub(super) struct LaunchGate {
    gates: &'static Gates,
    number: u32,
}

impl Gates {
    fn new(gpu: Gpu) -> Result<Self, Error> {
        let (kernel, opened) = (gpu.kernel("gate", "gate_wait")?, gpu.pinned(1)?);
        Ok(Self { kernel, opened, last: AtomicU32::new(0) })
    }

    fn opened(&self) -> &AtomicU32 {
        // SAFETY: an aligned word that lives as long as `self`, which the host accesses only here.
        unsafe { AtomicU32::from_ptr(self.opened.start()) }
    }
}

impl LaunchGate {
    /// Enqueues a gate: work that is enqueued on `queue` afterwards waits for it. The queue is not
    /// being captured.
    pub(super) fn on(gpu: Gpu, queue: &Queue) -> Result<Self, Error> {
        let gates = gpu.0.gates.0.get_or_try_init(|| Gates::new(gpu))?;
        let number = gates.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let gate = Self { gates, number };
        let launch = Launch::new(1, 1).with(kernels::gate::Wait {
            opened: Ptr::from_address(gates.opened.start() as u64),
            number,
            timeout: TIMEOUT.as_nanos() as u64,
        });
        // SAFETY: the kernel is `gate_wait`; the word is never freed.
        unsafe { gates.kernel.launch(queue, launch)? };
        Ok(gate)
    }
}

impl Drop for LaunchGate {
    fn drop(&mut self) {
        // Numbers wrap around. A later gate that is open already stays so.
        let later = |open: u32| (self.number.wrapping_sub(open) as i32 > 0).then_some(self.number);
        let release = Ordering::Release;
        let _ = self.gates.opened().fetch_update(release, Ordering::Relaxed, later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::testing::devices;
    use std::time::Instant;

    #[test]
    fn a_gate_opens_when_it_or_a_later_one_is_dropped_and_after_the_timeout() {
        for device in devices() {
            let Device::Cuda(gpu) = *device else { continue };
            let queue = gpu.new_queue().unwrap();
            drop(LaunchGate::on(gpu, &queue).unwrap());
            let begin = Instant::now();
            queue.synchronize().unwrap();
            assert!(begin.elapsed() < TIMEOUT, "it was open");

            let (first, second) = (LaunchGate::on(gpu, &queue), LaunchGate::on(gpu, &queue));
            drop(second.unwrap());
            queue.synchronize().unwrap();
            drop(first.unwrap());

            let begin = Instant::now();
            let closed = LaunchGate::on(gpu, &queue).unwrap();
            queue.synchronize().unwrap();
            assert!(begin.elapsed() >= TIMEOUT);
            drop(closed);
        }
    }
}
