//! Where the machine code of the GPU kernels came from.

use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};

/// What was made ready in this process, in order.
static LOG: Mutex<Vec<KernelEvent>> = Mutex::new(Vec::new());

/// One kernel file was made ready for one GPU architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelEvent {
    /// The kernel file, without its ending.
    pub kernel: &'static str,
    /// The architecture as major and minor number.
    pub architecture: (u32, u32),
    /// Where its machine code came from.
    pub origin: KernelOrigin,
    /// What there is to add: the file of the cache, the compiler, why something was not possible. May be empty.
    pub detail: String,
}

/// Where the machine code of a kernel came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelOrigin {
    /// From the program itself: there was a CUDA compiler when it was built.
    Embedded,
    /// From the cache on disk.
    Cached,
    /// Compiled now.
    Compiled,
    /// Left to the driver, which compiles it from assembly when it loads it.
    Ptx,
}

/// Where the machine code of the GPU kernels that this process uses came from, in the order in which they were made ready. Empty as
/// long as no GPU was used.
pub fn kernel_log() -> Vec<KernelEvent> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
            Self::Ptx => "left to the driver",
        })
    }
}

impl Display for KernelEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.architecture;
        write!(f, "{} for sm_{major}{minor}: {}", self.kernel, self.origin)?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ", {}", self.detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = |origin, detail: &str| KernelEvent {
            kernel: "csr",
            architecture: (9, 0),
            origin,
            detail: detail.to_owned(),
        };
        assert_eq!(event(KernelOrigin::Embedded, "").to_string(), "csr for sm_90: built in");
        assert_eq!(
            event(KernelOrigin::Cached, "/cache/csr").to_string(),
            "csr for sm_90: cached, /cache/csr"
        );
    }
}
