//! Scaling of coefficients from one device to another of the same kind.

use super::cost::{Coefficients, Term};
use crate::device::{Ceilings, DeviceSpec};
use serde::Serialize;

/// Factors by which measured times are multiplied on another device.
///
/// Work that can be shared scales with the number of threads, or of multiprocessors of a GPU;
/// streamed bytes scale with the copy bandwidth. If the copy bandwidth of one of the devices is
/// unknown, it is assumed to be proportional to the number of multiprocessors on GPUs, and the same
/// on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scale {
    /// Factor for starting and finishing a product, and for launching further kernels.
    pub call: f64,
    /// Factor for work shared by threads.
    pub shared: f64,
    /// Factor for a byte from memory.
    pub stream: f64,
    /// Factor for packing.
    pub pack: f64,
    /// Ratio of the sizes of the last-level caches; not a factor of times.
    pub cache: f64,
}

impl Scale {
    /// No scaling: the device of the profile itself.
    pub const NONE: Self = Self { call: 1.0, shared: 1.0, stream: 1.0, pack: 1.0, cache: 1.0 };

    /// Factors from the measured device to another one. A ceiling that is unknown for one of the
    /// two does not scale.
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
            // The host packs, or copies matrices that a GPU packs faster than they arrive,
            // independent of its multiprocessors.
            pack: if gpus.is_some() { 1.0 } else { shared },
            cache: gpus.map_or(1.0, |(then, now)| {
                now.l2_bytes.max(1) as f64 / then.l2_bytes.max(1) as f64
            }),
        }
    }

    /// Scales coefficients.
    pub fn coefficients(&self, c: &Coefficients) -> Coefficients {
        let mut terms = c.terms();
        for (time, term) in terms.iter_mut().zip(Term::ALL) {
            *time *= match term {
                Term::Call | Term::Launches => self.call,
                Term::Bytes => self.stream,
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
        let ceilings = Ceilings {
            copy_bandwidth: Some(4e12),
            launch_us: Some(2.0),
            upload_bandwidth: Some(5e10),
        };
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
        let c = Coefficients {
            call: 5.0,
            slot: 1.0,
            critical_path: 3.0,
            byte: 0.5,
            ..Coefficients::default()
        };
        let there = scale.coefficients(&c);
        assert_eq!((there.call, there.slot, there.critical_path, there.byte), (5.0, 2.0, 3.0, 2.0));
    }
}
