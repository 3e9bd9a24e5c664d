//! Exceptions: the classes of `sparseop._errors`.

use pyo3::prelude::*;
use pyo3::types::PyType;
use sparseop::{Error, ErrorKind};

/// Class of an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exception {
    Contiguity,
    Device,
    Dtype,
    Io,
    Gpu,
    Matrix,
    Memory,
    NotConverged,
    ReadOnly,
    Setting,
    Shape,
    Unsupported,
}

impl Exception {
    /// Name of the class.
    fn name(self) -> &'static str {
        match self {
            Self::Contiguity => "ContiguityError",
            Self::Device => "DeviceError",
            Self::Dtype => "DtypeError",
            Self::Io => "FileError",
            Self::Gpu => "GpuError",
            Self::Matrix => "MatrixError",
            Self::Memory => "OutOfMemoryError",
            Self::NotConverged => "NotConvergedError",
            Self::ReadOnly => "ReadOnlyError",
            Self::Setting => "SettingError",
            Self::Shape => "ShapeError",
            Self::Unsupported => "UnsupportedError",
        }
    }

    fn class<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyType>> {
        Ok(py.import("sparseop._errors")?.getattr(self.name())?.cast_into()?)
    }

    /// True if an exception is one of this package.
    pub(crate) fn is_any(py: Python<'_>, error: &PyErr) -> bool {
        let class = py.import("sparseop._errors").and_then(|errors| errors.getattr("Error"));
        class.is_ok_and(|class| error.is_instance(py, &class))
    }

    /// True if an exception is of this class.
    pub(crate) fn is(self, py: Python<'_>, error: &PyErr) -> bool {
        self.class(py).is_ok_and(|class| error.is_instance(py, class.as_any()))
    }

    /// The exception with a message.
    pub(crate) fn error(self, py: Python<'_>, message: impl Into<String>) -> PyErr {
        match self.class(py) {
            Ok(class) => PyErr::from_type(class, (message.into(),)),
            Err(error) => error,
        }
    }
}

/// The exception for an error of the library.
pub(crate) fn raised(py: Python<'_>, error: Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::InvalidMatrix => Exception::Matrix,
        ErrorKind::WrongLength => Exception::Shape,
        ErrorKind::DeviceUnavailable | ErrorKind::WrongDevice | ErrorKind::InvalidPointer => {
            Exception::Device
        }
        ErrorKind::OutOfMemory => Exception::Memory,
        ErrorKind::Gpu => Exception::Gpu,
        ErrorKind::Io => Exception::Io,
        ErrorKind::Unsupported => Exception::Unsupported,
        ErrorKind::NotConverged => Exception::NotConverged,
        _ => Exception::Setting,
    };
    class.error(py, error.to_string())
}
