//! Log of the origins of GPU machine code.

use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
#[cfg(feature = "cuda")]
use std::time::Instant;

/// Machine code loaded in this process, in order.
static LOG: Mutex<Vec<KernelEvent>> = Mutex::new(Vec::new());

/// The load of a kernel, or of all kernels of a module, for one GPU architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelEvent {
    /// Name of the kernel or of the module.
    pub kernel: String,
    /// Architecture, as major and minor number.
    pub architecture: (u32, u32),
    /// Origin of the machine code.
    pub origin: KernelOrigin,
    /// Details: the cache file, the compiler, or the reason of a failure. May be empty.
    pub detail: String,
    /// Time to read, compile or find the machine code.
    pub time: Duration,
}

/// Origin of the machine code of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelOrigin {
    /// Embedded in the program.
    Embedded,
    /// Loaded from the cache on disk.
    Cached,
    /// Compiled in this process.
    Compiled,
}

/// Returns the origins of the GPU machine code that this process uses, in the order of loading.
/// Empty as long as no GPU is used.
pub fn kernel_log() -> Vec<KernelEvent> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Clock of a search for machine code.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy)]
pub(super) struct SearchClock(Instant);

#[cfg(feature = "cuda")]
impl SearchClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Adds to the log.
#[cfg(feature = "cuda")]
pub(super) fn record(event: KernelEvent) {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push(event);
}

impl Display for KernelOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "built in",
            Self::Cached => "cached",
            Self::Compiled => "compiled",
        })
    }
}

impl Display for KernelEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.architecture;
        write!(f, "{} for sm_{major}{minor}: {}", self.kernel, self.origin)?;
        if self.origin == KernelOrigin::Compiled {
            write!(f, " in {:.2} s", self.time.as_secs_f64())?;
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ", {}", self.detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = |origin, detail: &str| KernelEvent {
            kernel: "csr".to_owned(),
            architecture: (9, 0),
            origin,
            detail: detail.to_owned(),
            time: Duration::ZERO,
        };
        assert_eq!(event(KernelOrigin::Embedded, "").to_string(), "csr for sm_90: built in");
        assert_eq!(
            event(KernelOrigin::Cached, "/cache/csr").to_string(),
            "csr for sm_90: cached, /cache/csr"
        );
        let compiled = KernelEvent {
            time: Duration::from_millis(1234),
            ..event(KernelOrigin::Compiled, "NVRTC 13.0")
        };
        assert_eq!(compiled.to_string(), "csr for sm_90: compiled in 1.23 s, NVRTC 13.0");
    }
}
