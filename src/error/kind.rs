//! Areas of errors.

use super::Error;

/// Area of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Arrays that are no matrix, or another matrix than is needed.
    InvalidMatrix,
    /// Vectors or arrays of the wrong length.
    WrongLength,
    /// Text, settings or numbers that mean nothing.
    InvalidArgument,
    /// An address that is not memory of the device.
    InvalidPointer,
    /// A device that is not there.
    DeviceUnavailable,
    /// Operands on different devices.
    WrongDevice,
    /// Not enough memory on the host or the device, or a limit.
    OutOfMemory,
    /// A failure of a GPU, its driver or its compiler.
    Gpu,
    /// A file that cannot be read or written, or whose contents are malformed.
    Io,
    /// An operation that the plan, the format or the values do not allow.
    Unsupported,
    /// An iteration that did not converge.
    NotConverged,
    /// A failure of another part of a distributed operator, or of the messages among the parts.
    Communication,
}

/// Codes after which CUDA refuses all further work of a process: errors of the memory, addresses
/// that are not there or not aligned, the time limit, assertions, and other faults of a kernel.
const LAST: [u32; 10] = [214, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// Remedy for an error of the driver, behind its message.
pub(super) fn way_out(code: Option<u32>) -> &'static str {
    match code.is_some_and(|code| LAST.contains(&code)) {
        true => "; this process can use no GPU any more: start it again, or use the CPU",
        false => "",
    }
}

impl Error {
    /// The area of the error: for programs that react to areas and not to single errors.
    pub fn kind(&self) -> ErrorKind {
        use ErrorKind as Kind;
        match self {
            Self::InvalidMatrix { .. }
            | Self::OtherPattern { .. }
            | Self::NotSquare { .. }
            | Self::ZeroDiagonal { .. }
            | Self::RanksDiffer { .. } => Kind::InvalidMatrix,
            Self::VectorLength { .. }
            | Self::VectorsLength { .. }
            | Self::MultivectorMismatch { .. }
            | Self::CopyLength { .. }
            | Self::ValuesLength { .. } => Kind::WrongLength,
            Self::PlanText { .. }
            | Self::GalleryText { .. }
            | Self::OutOfBounds { .. }
            | Self::NotFinite { .. }
            | Self::SolverSetting { .. }
            | Self::Partition { .. }
            | Self::VectorPass { .. } => Kind::InvalidArgument,
            Self::ForeignMemory { .. } => Kind::InvalidPointer,
            Self::DeviceUnavailable { .. } => Kind::DeviceUnavailable,
            Self::WrongDevice { .. } => Kind::WrongDevice,
            Self::MemoryLimit { .. }
            | Self::NoPlanFits { .. }
            | Self::HostMemory { .. }
            | Self::GpuMemory { .. } => Kind::OutOfMemory,
            Self::Gpu { .. } | Self::KernelCompile { .. } => Kind::Gpu,
            Self::Io { .. } | Self::Market { .. } | Self::Profile { .. } => Kind::Io,
            Self::NotDeterministic { .. }
            | Self::PlanLimit { .. }
            | Self::UpdatedByGraph { .. }
            | Self::NotUpdatable { .. }
            | Self::ValueRange { .. }
            | Self::ValueInexact { .. }
            | Self::NoAccess { .. }
            | Self::NoRoom { .. }
            | Self::NotCapturable { .. } => Kind::Unsupported,
            Self::NotConverged { .. } => Kind::NotConverged,
            Self::Communication { .. } | Self::RankFailed { .. } => Kind::Communication,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_know_their_area() {
        let kind = |text: &str| text.parse::<crate::Plan>().unwrap_err().kind();
        assert_eq!(kind("sel"), ErrorKind::InvalidArgument);
        let lengths =
            Error::VectorLength { vector: "x", expected: 2, found: 1, nrows: 1, ncols: 2 };
        assert_eq!(lengths.kind(), ErrorKind::WrongLength);
        let missing = crate::matrix::market::read::<f32>("/nowhere/a.mtx").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Io);
        // Text of files, users, the system and libraries may contain anything.
        let foreign = || "a\nb\u{1b}[2J".to_owned();
        let file = || std::path::PathBuf::from(foreign());
        let io = |action| Error::io(action, file(), std::io::Error::other("no"));
        let (text, message, device) = (foreign, foreign, foreign);
        let errors = [
            (Error::ZeroDiagonal { row: 1 }, ErrorKind::InvalidMatrix),
            (Error::NotSquare { method: "cg", nrows: 1, ncols: 2 }, ErrorKind::InvalidMatrix),
            (Error::CopyLength { expected: 1, found: 2 }, ErrorKind::WrongLength),
            (Error::PlanText { text: text(), message: message() }, ErrorKind::InvalidArgument),
            (Error::GalleryText { text: text(), message: message() }, ErrorKind::InvalidArgument),
            (
                Error::ForeignMemory {
                    what: "vector",
                    address: 1,
                    device: "cuda:0".to_owned(),
                    message: "it is freed".to_owned(),
                },
                ErrorKind::InvalidPointer,
            ),
            (
                Error::DeviceUnavailable { device: device(), reason: message() },
                ErrorKind::DeviceUnavailable,
            ),
            (
                Error::WrongDevice {
                    what: "x",
                    expected: "cpu".to_owned(),
                    found: "cuda:0".to_owned(),
                },
                ErrorKind::WrongDevice,
            ),
            (Error::HostMemory { needed: 2, limit: 1 }, ErrorKind::OutOfMemory),
            (
                Error::Gpu {
                    device: "cuda:0".to_owned(),
                    action: "launch".to_owned(),
                    code: Some(700),
                    message: message(),
                },
                ErrorKind::Gpu,
            ),
            (
                Error::KernelCompile {
                    kernel: "csr",
                    architecture: "sm_90".to_owned(),
                    message: message(),
                    log: message(),
                },
                ErrorKind::Gpu,
            ),
            (io("read"), ErrorKind::Io),
            (Error::Market { path: file(), line: Some(3), message: message() }, ErrorKind::Io),
            (Error::Profile { origin: text(), message: message() }, ErrorKind::Io),
            (Error::UpdatedByGraph { product: "SpMMs" }, ErrorKind::Unsupported),
            (
                Error::NotConverged {
                    method: "cg",
                    iterations: 3,
                    residual: 0.5,
                    reason: "it stagnates",
                },
                ErrorKind::NotConverged,
            ),
            (Error::RankFailed { rank: 1, message: message() }, ErrorKind::Communication),
            (Error::Communication { message: message() }, ErrorKind::Communication),
        ];
        for (error, kind) in errors {
            assert_eq!(error.kind(), kind, "{error}");
            let line = error.to_string();
            assert!(!line.is_empty() && !line.contains(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn an_error_after_which_no_gpu_works_names_the_way_out() {
        let message = |code| {
            let (device, action) = ("cuda:0".to_owned(), "launch".to_owned());
            Error::Gpu { device, action, code, message: "it fails".to_owned() }.to_string()
        };
        assert!(message(Some(700)).contains("start it again, or use the CPU"));
        for code in [None, Some(2), Some(999)] {
            assert_eq!(message(code), "cuda:0 could not launch: it fails");
        }
    }
}
