//! Where products run, and what is known of the machine there.

mod array;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda_disabled.rs"]
mod cuda;
mod foreign;
#[doc(hidden)]
pub mod fused;
mod kernel_log;
mod launch;
mod module;
mod residency;
mod scaling;
mod scratch;
mod stream;
mod vector;

#[doc(hidden)]
pub use array::DeviceArray;
pub use cuda::Gpu;
#[cfg(all(feature = "cuda", test))]
pub(crate) use cuda::compiler;
pub(crate) use cuda::{Buffer, Kernel, Pinned, Queue};
pub use foreign::{DeviceView, ForeignCsr, Offsets};
#[doc(hidden)]
pub use kernel_log::{KernelEvent, KernelOrigin, kernel_log};
pub(crate) use launch::{BLOCK, Launch, Ptr};
pub(crate) use module::Module;
#[doc(hidden)]
pub use residency::Residency;
pub use scaling::Factor;
pub(crate) use scaling::{Out, RowKernel, Scaling};
pub(crate) use scratch::Scratch;
pub use stream::{Graph, Stream};
pub use vector::DeviceVec;

use crate::Error;
use crate::error::suggestion;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that settles what [`Device::auto`] gives: `cpu` keeps every product on the CPU, `cuda:1` takes the
/// second GPU.
#[doc(hidden)]
pub const DEVICE_VARIABLE: &str = "SPARSEOP_DEVICE";

/// The version of the CPU kernels: raised when their speed changes, so that older measurements are known as such.
const CPU_KERNELS: &str = "cpu-2";

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
#[doc(hidden)]
pub struct DeviceSpec {
    /// The device's name as it gives it itself.
    pub name: String,
    /// The instructions its kernels are compiled for: `avx512`, `avx2`, `portable`; of a GPU `sm_` and its compute capability.
    pub instructions: String,
    /// Threads a product is spread over; of a GPU its multiprocessors.
    pub threads: usize,
    /// What only a GPU has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
}

/// What is known of a GPU beside what is known of every device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct GpuSpec {
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// The version of CUDA its driver is for.
    pub driver: String,
}

/// What a device reaches at best, by measurement; what is not known is none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[doc(hidden)]
pub struct Ceilings {
    /// Bytes a second that a copy within the device's memory reads and writes, on all threads or multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bandwidth: Option<f64>,
    /// Microseconds between kernels of next to no work that are enqueued one after the other; of GPUs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_us: Option<f64>,
    /// Bytes a second from page-locked memory of the host to the device; of GPUs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_bandwidth: Option<f64>,
}

impl Ceilings {
    /// What a ceiling can be at all, in its unit: ratios of such numbers stay finite.
    const POSSIBLE: std::ops::RangeInclusive<f64> = 1e-6..=1e18;

    /// Whether what is known is possible.
    pub(crate) fn is_valid(&self) -> bool {
        let known = [self.copy_bandwidth, self.launch_us, self.upload_bandwidth];
        known.iter().flatten().all(|ceiling| Self::POSSIBLE.contains(ceiling))
    }
}

impl Device {
    /// The best device there is: the first GPU if it can be used, else the CPU; or what [`DEVICE_VARIABLE`] names. Never fails;
    /// [`Device::why_no_gpu`] tells why no GPU was taken.
    pub fn auto() -> Self {
        Self::first_gpu().map_or(Self::Cpu, Self::Cuda)
    }

    /// GPU number `n`.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] with the reason in one line.
    pub fn cuda(n: usize) -> Result<Self, Error> {
        let unavailable = |reason| Error::DeviceUnavailable { device: format!("cuda:{n}"), reason };
        cuda::open(n).map(Self::Cuda).map_err(unavailable)
    }

    /// Every GPU that can be used.
    pub fn gpus() -> Vec<Self> {
        (0..Self::gpu_count()).filter_map(|n| Self::cuda(n).ok()).collect()
    }

    /// How many GPUs the driver finds, whether they can be used or not.
    #[doc(hidden)]
    pub fn gpu_count() -> usize {
        cuda::count().unwrap_or(0)
    }

    /// Why [`Device::auto`] gives the CPU, in one line; none when it gives a GPU.
    pub fn why_no_gpu() -> Option<String> {
        Self::first_gpu().err()
    }

    /// The GPU that [`Device::auto`] takes, or why it takes none. It is opened, and tried, once in the life of the program.
    fn first_gpu() -> Result<Gpu, String> {
        static TAKEN: OnceLock<Result<Gpu, String>> = OnceLock::new();
        let n = match std::env::var(DEVICE_VARIABLE).ok().as_deref() {
            None | Some("" | "auto" | "cuda") => 0,
            Some("cpu") => return Err(format!("{DEVICE_VARIABLE}=cpu")),
            Some(text) => match text.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(n) => n,
                None => return Err(format!("{DEVICE_VARIABLE}={text} is not auto, cpu, cuda or cuda:N")),
            },
        };
        let taken = TAKEN.get_or_init(|| {
            let gpu = cuda::open(n)?;
            // A GPU whose driver takes no kernels is of no use. This is the smallest file of them.
            gpu.kernel("hyb", "hyb_add_f32").map_err(|error| error.to_string())?;
            Ok(gpu)
        });
        taken.clone()
    }

    /// Bytes that a matrix could take: on the CPU the machine's memory, on a GPU what is free of its own, and no more than the machine
    /// has, where matrices are packed.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] when the GPU does not say.
    #[doc(hidden)]
    pub fn memory(&self) -> Result<u64, Error> {
        let host = crate::memory::physical();
        match self {
            Self::Cpu => Ok(host),
            Self::Cuda(gpu) => Ok(gpu.free_memory()?.min(host)),
        }
    }

    /// Waits until everything that was enqueued on its [`Stream`]s is done; on the CPU everything is.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] when the GPU failed at it.
    #[doc(hidden)]
    pub fn synchronize(&self) -> Result<(), Error> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(gpu) => gpu.synchronize(),
        }
    }

    /// Bytes of the last cache before its memory: on the CPU as far as one thread sees it, on a GPU the L2.
    pub(crate) fn last_cache_bytes(&self) -> u64 {
        self.spec().gpu.map_or_else(crate::memory::last_cache, |gpu| gpu.l2_bytes)
    }

    /// Bytes a second that a copy within the GPU's memory reads and writes, measured once; none for the CPU.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] or [`Error::GpuMemory`] when it cannot be measured.
    #[doc(hidden)]
    pub fn copy_bandwidth(&self) -> Result<Option<f64>, Error> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(gpu) => gpu.copy_bandwidth().map(Some),
        }
    }

    /// What is known of the device.
    #[doc(hidden)]
    pub fn spec(&self) -> DeviceSpec {
        /// Asked once: in a virtual machine the processor's answer takes microseconds.
        static BRAND: OnceLock<String> = OnceLock::new();
        match self {
            Self::Cpu => DeviceSpec {
                name: BRAND.get_or_init(cpu::brand).clone(),
                instructions: cpu::simd_name().to_owned(),
                threads: rayon::current_num_threads(),
                gpu: None,
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

impl DeviceSpec {
    /// Whether it is a device of the same make; the driver and the memory that other programs leave do not matter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let make = |spec: &Self| (spec.name.clone(), spec.instructions.clone(), spec.threads);
        make(self) == make(other)
    }

    /// The version of the kernels for such a device: measurements of another version are old.
    pub fn kernels(&self) -> &'static str {
        if self.gpu.is_some() { cuda::KERNELS } else { CPU_KERNELS }
    }
}

impl Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.threads == 1 { "" } else { "s" };
        let Self { name, instructions, threads, gpu } = self;
        match gpu {
            None => write!(f, "{name} ({instructions}, {threads} thread{plural})"),
            Some(gpu) => write!(
                f,
                "{name} ({instructions}, {threads} multiprocessor{plural}, {} MiB of L2, {} MiB of memory, driver for CUDA {})",
                gpu.l2_bytes >> 20,
                gpu.memory_bytes >> 20,
                gpu.driver
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_refused_in_one_line() {
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
        assert_eq!("auto".parse::<Device>().unwrap(), Device::auto());
        for (text, expected) in [
            ("cuda:99", "device `cuda:99` is not available"),
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
