//! Measured ceilings of a device, used to scale a profile to other devices and to rate its records.

use super::stopwatch::timed;
use crate::Error;
use crate::device::{Ceilings, Device, prepare_threads};
use crate::memory::filled;
use crate::parallel;

/// Measures every ceiling of a device. Takes some tenths of a second.
///
/// # Errors
///
/// [`Error::Gpu`], [`Error::GpuMemory`] or [`Error::HostMemory`] if a ceiling cannot be measured.
pub fn measure(device: &Device) -> Result<Ceilings, Error> {
    match device {
        Device::Cpu => {
            Ok(Ceilings { copy_bandwidth: Some(copy_bandwidth()?), ..Ceilings::default() })
        }
        Device::Cuda(gpu) => Ok(Ceilings {
            copy_bandwidth: Some(gpu.copy_bandwidth()?),
            launch_us: Some(gpu.launch_us()?),
            upload_bandwidth: Some(gpu.upload_bandwidth()?),
        }),
    }
}

/// Copy bandwidth of all threads together, reads plus writes, in bytes per second.
fn copy_bandwidth() -> Result<f64, Error> {
    /// Size of the copied array: larger than the last-level cache of all but a few processors.
    const BYTES: usize = 256 << 20;
    const REPEATS: usize = 5;
    // Not zeros: the system may provide zeroed pages without any memory behind them.
    let (from, mut to) = (filled(BYTES, 1u8)?, filled(BYTES, 2u8)?);
    prepare_threads();
    let share = BYTES.div_ceil(rayon::current_num_threads());
    let mut copy = || {
        let shares = to.chunks_mut(share).zip(from.chunks(share));
        timed(|| parallel::for_each_item(shares, |(to, from)| to.copy_from_slice(from))).1
    };
    let least = (0..REPEATS).map(|_| copy()).fold(f64::INFINITY, f64::min);
    Ok(2.0 * BYTES as f64 / least)
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
