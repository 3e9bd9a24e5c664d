//! What a device reaches at best: measured for a profile, so that it can be scaled to other devices and its records can be judged.

use super::stopwatch::timed;
use crate::Error;
use crate::device::{Ceilings, Device};
use rayon::prelude::*;

/// Measures every ceiling of a device; takes some tenths of a second.
///
/// # Errors
///
/// [`Error::Gpu`] or [`Error::GpuMemory`] when one cannot be measured.
pub fn measure(device: &Device) -> Result<Ceilings, Error> {
    match device {
        Device::Cpu => Ok(Ceilings { copy_bandwidth: Some(copy_bandwidth()), ..Ceilings::default() }),
        Device::Cuda(gpu) => Ok(Ceilings {
            copy_bandwidth: Some(gpu.copy_bandwidth()?),
            launch_us: Some(gpu.launch_us()?),
            upload_bandwidth: Some(gpu.upload_bandwidth()?),
        }),
    }
}

/// Bytes a second that all threads together read and write when they copy.
fn copy_bandwidth() -> f64 {
    /// Beyond the last cache of all but a few processors.
    const BYTES: usize = 256 << 20;
    const REPEATS: usize = 5;
    // No zeroes, which the system may hand out without any memory behind them.
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    let piece = BYTES.div_ceil(rayon::current_num_threads());
    let mut copy = || {
        let pieces = to.par_chunks_mut(piece).zip(from.par_chunks(piece));
        timed(|| pieces.for_each(|(to, from)| to.copy_from_slice(from))).1
    };
    let least = (0..REPEATS).map(|_| copy()).fold(f64::INFINITY, f64::min);
    2.0 * BYTES as f64 / least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_copies_and_has_no_launches() {
        let ceilings = measure(&Device::Cpu).unwrap();
        assert!(ceilings.is_valid() && ceilings.copy_bandwidth.unwrap() > 1e8, "{ceilings:?}");
        assert_eq!((ceilings.launch_us, ceilings.upload_bandwidth), (None, None));
    }
}
