//! Functions of the library: files, generated matrices, devices, profiles, and the program.

use crate::error::{Exception, raised};
use crate::interrupt::interruptible;
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sparseop::device::GpuRuntime;
use sparseop::matrix::gallery::{self, Spec};
use sparseop::matrix::market::{self, Reader};
use sparseop::{CsrMatrix, Device, Error, Profile};
use std::ffi::OsString;
use std::path::PathBuf;

/// A matrix of either scalar type.
pub(crate) enum AnyCsr {
    F32(CsrMatrix<f32>),
    F64(CsrMatrix<f64>),
}

/// Shape, offsets, columns and values of a matrix; the arrays are moved to NumPy. Indices have 32
/// bits where that is enough, as in SciPy.
pub(crate) fn csr_arrays<'py>(py: Python<'py>, a: AnyCsr) -> PyResult<Bound<'py, PyTuple>> {
    let (shape, offsets, columns, values) = match a {
        AnyCsr::F32(a) => {
            let shape = (a.nrows(), a.ncols());
            let (offsets, columns, values) = a.into_parts();
            (shape, offsets, columns, values.into_pyarray(py).into_any())
        }
        AnyCsr::F64(a) => {
            let shape = (a.nrows(), a.ncols());
            let (offsets, columns, values) = a.into_parts();
            (shape, offsets, columns, values.into_pyarray(py).into_any())
        }
    };
    let limit = i32::MAX as usize;
    let narrow = offsets.last().is_none_or(|&nnz| nnz <= limit) && shape.1 <= limit;
    let (offsets, columns) = match narrow {
        true => {
            let offsets: Vec<i32> = offsets.into_iter().map(|offset| offset as i32).collect();
            let columns: Vec<i32> = columns.into_iter().map(|column| column as i32).collect();
            (offsets.into_pyarray(py).into_any(), columns.into_pyarray(py).into_any())
        }
        false => {
            let offsets: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
            let columns: Vec<i64> = columns.into_iter().map(i64::from).collect();
            (offsets.into_pyarray(py).into_any(), columns.into_pyarray(py).into_any())
        }
    };
    (shape, offsets, columns, values).into_pyobject(py)
}

/// The path of a file, given as text or as an object of `pathlib`.
fn file_path(path: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    path.extract().map_err(|_| {
        let message = "`path` is the path of a file, as text or of pathlib, not ";
        refused(path, message)
    })
}

/// The exception for an argument of another type.
fn refused(argument: &Bound<'_, PyAny>, message: &str) -> PyErr {
    match argument.repr() {
        Ok(found) => Exception::Setting.error(argument.py(), format!("{message}{found}")),
        Err(error) => error,
    }
}

/// A matrix from a Matrix Market file.
#[pyfunction]
pub(crate) fn read<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    single: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let path = file_path(path)?;
    let made = interruptible(py, false, move || match single {
        true => Reader::new().read(&path).map(AnyCsr::F32),
        false => Reader::new().read(&path).map(AnyCsr::F64),
    })?;
    csr_arrays(py, made.map_err(|error| raised(py, error))?)
}

/// Writes a matrix, given as an operator packs it, to a Matrix Market file.
#[pyfunction]
pub(crate) fn write(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    shape: (usize, usize),
    arrays: [Bound<'_, PyAny>; 3],
) -> PyResult<()> {
    let path = file_path(path)?;
    crate::build::with_csr(py, shape, arrays, move |a| match a {
        crate::build::AnyView::F32(a) => market::write(&path, a),
        crate::build::AnyView::F64(a) => market::write(&path, a),
    })
}

/// A generated matrix.
#[pyfunction]
pub(crate) fn generate<'py>(
    py: Python<'py>,
    spec: &Bound<'py, PyAny>,
    single: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let text: String = spec.extract().map_err(|_| {
        refused(spec, "`spec` is the name of a generator with settings, \"banded,rows=500\", not ")
    })?;
    let spec: Spec = text.parse().map_err(|error| raised(py, error))?;
    let made = interruptible(py, false, move || match single {
        true => spec.generate().map(AnyCsr::F32),
        false => spec.generate().map(AnyCsr::F64),
    })?;
    csr_arrays(py, made.map_err(|error| raised(py, error))?)
}

/// Names of the generators, with a description of each.
#[pyfunction]
pub(crate) fn gallery_names() -> Vec<(&'static str, &'static str)> {
    gallery::list().iter().map(|entry| (entry.name, entry.structure)).collect()
}

/// Devices of this machine with their descriptions.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<(String, String)> {
    py.detach(|| {
        let devices = std::iter::once(Device::Cpu).chain(Device::gpus());
        devices.map(|device| (device.to_string(), device.spec().to_string())).collect()
    })
}

/// The reason why no GPU is used, if there is one.
#[pyfunction]
pub(crate) fn why_no_gpu(py: Python<'_>) -> Option<String> {
    py.detach(Device::why_no_gpu)
}

/// Modules of kernels, each with the targets for which the build has compiled it.
#[pyfunction]
pub(crate) fn embedded_kernels() -> Vec<(&'static str, Vec<String>)> {
    GpuRuntime::find().embedded
}

/// Coefficients of the cost model, measured on a device; for `profile` of :func:`sparseop.auto`.
#[pyclass(frozen, name = "Profile", module = "sparseop")]
pub(crate) struct PyProfile(pub(crate) Profile);

#[pymethods]
impl PyProfile {
    /// Reads a profile from a file.
    #[staticmethod]
    fn read(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let path = file_path(path)?;
        py.detach(|| Profile::read(&path)).map(Self).map_err(|error| raised(py, error))
    }

    /// Writes the profile to a file.
    fn write(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = file_path(path)?;
        py.detach(|| self.0.write(&path)).map_err(|error| raised(py, error))
    }

    /// Device that was measured.
    #[getter]
    fn device(&self) -> String {
        self.0.device.to_string()
    }

    /// Date of the measurements.
    #[getter]
    fn date(&self) -> &str {
        &self.0.date
    }

    /// Command that made the measurements.
    #[getter]
    fn command(&self) -> &str {
        &self.0.command
    }

    fn __repr__(&self) -> String {
        format!("<Profile of {}, {}>", self.0.device, self.0.date)
    }
}

/// A device from its name.
pub(crate) fn device(py: Python<'_>, name: &str) -> PyResult<Device> {
    match py.detach(|| name.parse()) {
        Ok(device) => Ok(device),
        Err(error) => Err(Exception::Device.error(py, Error::to_string(&error))),
    }
}

/// Runs the program `sparseop` with the given arguments, and returns its exit code.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| sparseop_cli::run(arguments))
}
