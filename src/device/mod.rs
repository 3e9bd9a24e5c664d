//! Where products run, and what is known of the machine there.

pub(crate) mod cpu;
mod cuda_disabled;

pub use cuda_disabled::Gpu;

use crate::Error;
use crate::error::suggestion;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// The environment variable that settles what [`Device::auto`] gives: `cpu` keeps every product on the CPU.
pub const DEVICE_VARIABLE: &str = "SPARSEOP_DEVICE";

/// The version of the CPU kernels: raised when their speed changes, so that older measurements are known as such.
pub const KERNELS: &str = "cpu-2";

/// Where products run.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor, with as many threads as rayon's pool has.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda(Gpu),
}

/// What is known of a device: enough to choose a plan for it, and to tell whether a profile was measured on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// The device's name as it gives it itself.
    pub name: String,
    /// The instructions its kernels are compiled for: `avx512`, `avx2`, `portable`.
    pub instructions: String,
    /// Threads a product is spread over.
    pub threads: usize,
}

impl Device {
    /// The best device there is: a GPU if one can be used, else the CPU. Never fails; [`Device::why_no_gpu`] tells why no GPU
    /// was taken.
    pub fn auto() -> Self {
        Self::Cpu
    }

    /// GPU number `n`.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] with the reason in one line.
    pub fn cuda(n: usize) -> Result<Self, Error> {
        cuda_disabled::open(n).map(Self::Cuda)
    }

    /// Why [`Device::auto`] gives the CPU, in one line.
    pub fn why_no_gpu() -> String {
        match std::env::var(DEVICE_VARIABLE).as_deref() {
            Ok("cpu") => format!("{DEVICE_VARIABLE}=cpu"),
            _ => cuda_disabled::REASON.to_owned(),
        }
    }

    /// What is known of the device.
    pub fn spec(&self) -> DeviceSpec {
        match self {
            Self::Cpu => DeviceSpec {
                name: cpu::brand(),
                instructions: cpu::simd_name().to_owned(),
                threads: rayon::current_num_threads(),
            },
            Self::Cuda(gpu) => gpu.spec(),
        }
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(gpu) => write!(f, "{gpu}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = |reason: String| Error::DeviceUnavailable { device: text.to_owned(), reason };
        match text {
            "auto" => Ok(Self::auto()),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Self::cuda(0),
            _ => match text.strip_prefix("cuda:") {
                Some(n) => {
                    let n = n
                        .parse()
                        .map_err(|_| unknown(format!("`{n}` is not a device number; write cuda:0")))?;
                    Self::cuda(n)
                }
                None => {
                    let hint = suggestion(text, ["auto", "cpu", "cuda"]);
                    Err(unknown(format!("a device is auto, cpu, cuda or cuda:N{hint}")))
                }
            },
        }
    }
}

impl Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.threads == 1 { "" } else { "s" };
        write!(f, "{} ({}, {} thread{plural})", self.name, self.instructions, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_refused_in_one_line() {
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
        assert_eq!("auto".parse::<Device>().unwrap(), Device::Cpu);
        for (text, expected) in [
            ("cuda", "no GPU support"),
            ("cuda:1", "no GPU support"),
            ("cuda:x", "`x` is not a device number"),
            ("cup", "did you mean `cpu`?"),
        ] {
            let message = text.parse::<Device>().unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn the_cpu_knows_itself() {
        let spec = Device::Cpu.spec();
        assert!(!spec.name.is_empty() && spec.threads > 0);
        assert!(["avx512", "avx2", "portable"].contains(&&*spec.instructions));
    }
}
