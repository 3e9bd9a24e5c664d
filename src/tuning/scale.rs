//! Coefficients of one device on another one of its kind.

use super::cost::{Coefficients, Term};
use crate::device::{Ceilings, DeviceSpec};
use serde::Serialize;

/// What times that were measured on one device are multiplied by on another.
///
/// Threads, or the multiprocessors of a GPU, share what can be shared; bytes stream as fast as copies do. Where the bandwidth of copies is
/// not known of both, that of GPUs is taken to grow with their multiprocessors, and that of CPUs to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scale {
    /// Beginning and ending a product, and launching further kernels.
    pub call: f64,
    /// What threads share.
    pub shared: f64,
    /// A byte from memory.
    pub stream: f64,
    /// Packing.
    pub pack: f64,
    /// Not a time: the bytes that the last cache holds.
    pub cache: f64,
}

impl Scale {
    /// On the device itself.
    pub const NONE: Self = Self { call: 1.0, shared: 1.0, stream: 1.0, pack: 1.0, cache: 1.0 };

    /// From the device that was measured to another one. Ceilings that are not known of both do not scale.
    pub fn between(measured: (&DeviceSpec, &Ceilings), device: (&DeviceSpec, &Ceilings)) -> Self {
        let ((then, old), (now, new)) = (measured, device);
        let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        let shared = then.threads as f64 / now.threads.max(1) as f64;
        let gpus = then.gpu.as_ref().zip(now.gpu.as_ref());
        let stream = ratio(old.copy_bandwidth, new.copy_bandwidth);
        Self {
            call: ratio(new.launch_us, old.launch_us).unwrap_or(1.0),
            shared,
            stream: stream.unwrap_or(if gpus.is_some() { shared } else { 1.0 }),
            // The host packs, or copies what a GPU packs faster than it came, whatever its multiprocessors.
            pack: if gpus.is_some() { 1.0 } else { shared },
            cache: gpus.map_or(1.0, |(then, now)| now.l2_bytes.max(1) as f64 / then.l2_bytes.max(1) as f64),
        }
    }

    /// The coefficients there.
    pub fn coefficients(&self, c: &Coefficients) -> Coefficients {
        let mut terms = c.terms();
        for (time, term) in terms.iter_mut().zip(Term::ALL) {
            *time *= match term {
                Term::Call | Term::Launches => self.call,
                Term::Stream => self.stream,
                _ if term.scales() => self.shared,
                _ => 1.0,
            };
        }
        Coefficients::new(terms, c.packing().map(|c| c * self.pack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuSpec;

    fn gpu(threads: usize, l2_bytes: u64) -> DeviceSpec {
        let gpu = GpuSpec { l2_bytes, memory_bytes: 1 << 30, driver: "13.0".to_owned() };
        DeviceSpec {
            name: format!("GPU of {threads}"),
            instructions: "sm_90".to_owned(),
            threads,
            gpu: Some(gpu),
        }
    }

    fn copies(bandwidth: f64) -> Ceilings {
        Ceilings { copy_bandwidth: Some(bandwidth), ..Ceilings::default() }
    }

    #[test]
    fn on_the_same_device_nothing_changes() {
        let device = gpu(132, 60 << 20);
        let ceilings =
            Ceilings { copy_bandwidth: Some(4e12), launch_us: Some(2.0), upload_bandwidth: Some(5e10) };
        assert_eq!(Scale::between((&device, &ceilings), (&device, &ceilings)), Scale::NONE);
    }

    #[test]
    fn half_a_gpu_takes_twice_as_long() {
        let (whole, half) = (gpu(132, 60 << 20), gpu(66, 30 << 20));
        let (fast, slow) = (copies(4e12), copies(1e12));
        let scale = Scale::between((&whole, &fast), (&half, &slow));
        assert_eq!(scale, Scale { call: 1.0, shared: 2.0, stream: 4.0, pack: 1.0, cache: 0.5 });
        let unknown = Scale::between((&whole, &fast), (&half, &Ceilings::default()));
        assert_eq!(unknown.stream, 2.0);
        let c = Coefficients { call: 5.0, slot: 1.0, depth: 3.0, byte: 0.5, ..Coefficients::default() };
        let there = scale.coefficients(&c);
        assert_eq!((there.call, there.slot, there.depth, there.byte), (5.0, 2.0, 3.0, 2.0));
    }
}
