//! Devices that products run on, and their properties.

mod array;
mod constants;
pub(crate) mod cpu;
mod csr_source;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda_disabled.rs"]
mod cuda;
mod foreign;
#[doc(hidden)]
pub mod fused;
mod kernel_log;
pub(crate) mod kernels;
mod launch;
mod module;
#[doc(hidden)]
pub mod peers;
mod residency;
mod scaling;
mod scratch;
mod side_stream;
mod stream;
mod vector;
mod working_memory;

#[doc(hidden)]
pub use array::DeviceArray;
pub(crate) use constants::{BANK_LINE, BLOCK, SCANNED, WARP};
pub use cpu::prepare_threads;
pub(crate) use csr_source::CsrSource;
pub use cuda::Gpu;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use cuda::KernelCache;
pub(crate) use cuda::{Buffer, HostArrays, Kernel, Pinned, Queue};
#[cfg(all(feature = "cuda", test))]
pub(crate) use cuda::{compiler, copied_bytes, host_arrays};
pub use foreign::{DeviceView, ForeignCsr, Offsets};
#[doc(hidden)]
pub use kernel_log::{KernelEvent, KernelOrigin, kernel_log};
pub(crate) use launch::{Launch, Numbers, Ptr, VectorUnits};
pub(crate) use module::Module;
#[doc(hidden)]
pub use residency::Residency;
#[cfg(test)]
pub(crate) use residency::TEST_L2_BYTES;
pub use scaling::Factor;
pub(crate) use scaling::{Out, RowKernel, Scaling};
pub(crate) use scratch::Scratch;
#[doc(hidden)]
pub use side_stream::SideStream;
pub use stream::{Graph, Stream};
pub use vector::DeviceVec;
pub(crate) use working_memory::{SCAN, WorkingMemory};

use crate::Error;
use crate::error::suggestion;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

/// Environment variable that overrides [`Device::auto`]: `cpu` keeps all products on the CPU,
/// `cuda:1` selects the second GPU.
#[doc(hidden)]
pub const DEVICE_VARIABLE: &str = "SPARSEOP_DEVICE";

/// Version of the CPU kernels. It is raised when their speed changes, so that older measurements
/// can be recognised.
const CPU_KERNELS: &str = "cpu-2";

/// The device that products run on.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The processor of this machine, with as many threads as rayon's pool.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda(Gpu),
}

/// Properties of a device: enough to choose a plan for it, and to decide if a profile was measured
/// on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct DeviceSpec {
    /// Name that the device reports.
    pub name: String,
    /// Instruction set of its kernels: `avx512`, `avx2`, `portable`, or for a GPU `sm_` and its
    /// compute capability.
    pub instructions: String,
    /// Number of threads that share a product; for a GPU its number of multiprocessors.
    pub threads: usize,
    /// Properties of a GPU; `None` for the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
}

/// Properties of a GPU in addition to those of every device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct GpuSpec {
    /// Size of the L2 cache, in bytes.
    pub l2_bytes: u64,
    /// Size of the device memory, in bytes.
    pub memory_bytes: u64,
    /// CUDA version supported by the driver.
    pub driver: String,
}

/// Measured upper bounds on the performance of a device; `None` if not known.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[doc(hidden)]
pub struct Ceilings {
    /// Bandwidth of a copy within device memory on all threads or multiprocessors, reads and writes
    /// counted, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bandwidth: Option<f64>,
    /// Time between nearly empty kernels enqueued back to back, in microseconds. GPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_us: Option<f64>,
    /// Bandwidth from page-locked host memory to the device, in bytes per second. GPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_bandwidth: Option<f64>,
}

impl Ceilings {
    /// Valid range of a ceiling in its unit; it keeps ratios of such numbers finite.
    const POSSIBLE: std::ops::RangeInclusive<f64> = 1e-6..=1e18;

    /// True if all known values are in the valid range.
    pub(crate) fn is_valid(&self) -> bool {
        let known = [self.copy_bandwidth, self.launch_us, self.upload_bandwidth];
        known.iter().flatten().all(|ceiling| Self::POSSIBLE.contains(ceiling))
    }
}

/// Software that GPUs need, with the reason for each part that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct GpuRuntime {
    /// CUDA version supported by the driver.
    pub driver: Result<String, String>,
    /// Name and version of the run-time compiler of kernels.
    pub nvrtc: Result<String, String>,
    /// Modules of kernels, each with the targets for which the build has compiled it: `sm_90`.
    pub embedded: Vec<(&'static str, Vec<String>)>,
    /// Folder of compiled kernels, which need not exist; `None` if nothing is cached.
    pub cache: Option<PathBuf>,
}

impl GpuRuntime {
    /// Looks for the software on this machine.
    pub fn find() -> Self {
        cuda::runtime()
    }
}

impl Device {
    /// Returns the best device: the first GPU if it can be used, otherwise the CPU; or the device
    /// that [`DEVICE_VARIABLE`] selects. Never fails; [`Device::why_no_gpu`] gives the reason if no
    /// GPU is selected.
    pub fn auto() -> Self {
        Self::first_gpu().map_or(Self::Cpu, Self::Cuda)
    }

    /// Returns GPU number `n`.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] with the reason in one line.
    pub fn cuda(n: usize) -> Result<Self, Error> {
        let unavailable = |reason| Error::DeviceUnavailable { device: format!("cuda:{n}"), reason };
        cuda::open(n).map(Self::Cuda).map_err(unavailable)
    }

    /// Returns all usable GPUs.
    pub fn gpus() -> Vec<Self> {
        (0..Self::gpu_count()).filter_map(|n| Self::cuda(n).ok()).collect()
    }

    /// Number of GPUs that the driver finds, usable or not.
    #[doc(hidden)]
    pub fn gpu_count() -> usize {
        cuda::count().unwrap_or(0)
    }

    /// The reason why [`Device::auto`] returns the CPU, in one line; `None` if it returns a GPU.
    pub fn why_no_gpu() -> Option<String> {
        Self::first_gpu().err()
    }

    /// Returns the GPU that [`Device::auto`] selects, or the reason why it selects none. It is
    /// opened and tested once per process.
    fn first_gpu() -> Result<Gpu, String> {
        static TAKEN: OnceLock<Result<Gpu, String>> = OnceLock::new();
        let n = match std::env::var(DEVICE_VARIABLE).ok().as_deref() {
            None | Some("" | "auto" | "cuda") => 0,
            Some("cpu") => return Err(format!("{DEVICE_VARIABLE}=cpu")),
            Some(text) => match text.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(n) => n,
                None => {
                    return Err(format!(
                        "{DEVICE_VARIABLE}={text} is not auto, cpu, cuda or cuda:N"
                    ));
                }
            },
        };
        let taken = TAKEN.get_or_init(|| {
            let gpu = cuda::open(n)?;
            gpu.test().map_err(|error| error.to_string())?;
            Ok(gpu)
        });
        taken.clone()
    }

    /// Upper bound on the size of a matrix, in bytes: on the CPU the memory that the process may
    /// use; on a GPU its free memory, but at most that of the host, which packs the matrices.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if the GPU does not report its free memory.
    #[doc(hidden)]
    pub fn memory(&self) -> Result<u64, Error> {
        let host = crate::memory::limit();
        match self {
            Self::Cpu => Ok(host),
            Self::Cuda(gpu) => Ok(gpu.free_memory()?.min(host)),
        }
    }

    /// Compiles all kernels for this device and keeps the machine code in the cache on disk, so
    /// that no later process compiles any. Calls `done` with the number of finished modules and the
    /// number of all, from several threads. Returns the number of modules that were compiled: 0 on
    /// the CPU, and for modules that the build has compiled or the cache has.
    ///
    /// # Errors
    ///
    /// [`Error::KernelCompile`]: there is no NVRTC, or it fails.
    #[doc(hidden)]
    pub fn compile_kernels(&self, done: impl Fn(usize, usize) + Sync) -> Result<usize, Error> {
        match self {
            Self::Cpu => Ok(0),
            Self::Cuda(gpu) => gpu.compile_kernels(done),
        }
    }

    /// Waits for everything enqueued on the [`Stream`]s of the device. Returns at once on the CPU.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if enqueued work failed.
    #[doc(hidden)]
    pub fn synchronize(&self) -> Result<(), Error> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(gpu) => gpu.synchronize(),
        }
    }

    /// Size of the last-level cache in bytes: on the CPU the part available to one thread, on a GPU
    /// the L2 cache.
    pub(crate) fn last_cache_bytes(&self) -> u64 {
        self.spec().gpu.map_or_else(crate::memory::last_cache, |gpu| gpu.l2_bytes)
    }

    /// Bandwidth of a copy within GPU memory, reads and writes counted, in bytes per second.
    /// Measured once; `None` for the CPU.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] or [`Error::GpuMemory`] if it cannot be measured.
    #[doc(hidden)]
    pub fn copy_bandwidth(&self) -> Result<Option<f64>, Error> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(gpu) => gpu.copy_bandwidth().map(Some),
        }
    }

    /// Returns the properties of the device.
    #[doc(hidden)]
    pub fn spec(&self) -> DeviceSpec {
        /// Name of the CPU, queried once: in a virtual machine the query takes microseconds.
        static BRAND: OnceLock<String> = OnceLock::new();
        match self {
            Self::Cpu => DeviceSpec {
                name: BRAND.get_or_init(cpu::brand).clone(),
                instructions: cpu::simd_name().to_owned(),
                threads: {
                    cpu::prepare_threads();
                    rayon::current_num_threads()
                },
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

    /// Parses `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = |reason: String| Error::DeviceUnavailable { device: text.to_owned(), reason };
        match text {
            "auto" => Ok(Self::auto()),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Self::cuda(0),
            _ => match text.strip_prefix("cuda:") {
                Some(n) => {
                    let n = n.parse().map_err(|_| {
                        unknown(format!("`{n}` is not a device number; write cuda:0"))
                    })?;
                    Self::cuda(n)
                }
                None => {
                    let meant = if text.eq_ignore_ascii_case("gpu") { "cuda" } else { text };
                    let hint = suggestion(meant, ["auto", "cpu", "cuda"]);
                    Err(unknown(format!("a device is auto, cpu, cuda or cuda:N{hint}")))
                }
            },
        }
    }
}

impl DeviceSpec {
    /// True if both are devices of the same model. The driver version and the amount of memory are
    /// ignored.
    #[doc(hidden)]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { name, instructions, threads, .. } = self;
        (name, instructions, threads) == (&other.name, &other.instructions, &other.threads)
    }

    /// Version of the kernels for such a device. Measurements of another version are outdated.
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
                "{name} ({instructions}, {threads} multiprocessor{plural}, {} MiB of L2, {} MiB of \
                 memory, driver for CUDA {})",
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
            ("gpu", "did you mean `cuda`?"),
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
