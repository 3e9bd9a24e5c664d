//! Arrays of CuPy. Their attributes are those of `__cuda_array_interface__`, which is a dictionary
//! that CuPy writes anew for every look at it.

use super::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use sparseop::Device;
use std::sync::OnceLock;

pub(super) fn describe(array: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let py = array.py();
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let dtype = dtype.cast::<PyArrayDescr>()?;
    let shape = array.getattr(intern!(py, "shape"))?;
    let shape = shape.cast::<PyTuple>()?;
    let mut dims = [1; 2];
    for (dim, size) in dims.iter_mut().zip(shape.iter()) {
        *dim = size.extract()?;
    }
    let data = array.getattr(intern!(py, "data"))?;
    let ordinal = match data.getattr_opt(intern!(py, "device_id"))? {
        Some(ordinal) => ordinal.extract()?,
        None => array.getattr(intern!(py, "device"))?.getattr(intern!(py, "id"))?.extract()?,
    };
    let contiguous = |own, flag| match array.getattr(own) {
        Ok(value) => value.is_truthy(),
        Err(_) => array.getattr(intern!(py, "flags"))?.getattr(flag)?.is_truthy(),
    };
    Ok(ArrayRef {
        library: ArrayLibrary::CuPy,
        address: data.getattr(intern!(py, "ptr"))?.extract()?,
        elements: ElementType::new(dtype.kind(), dtype.itemsize()),
        ndim: shape.len(),
        dims,
        row_major: contiguous(intern!(py, "_c_contiguous"), intern!(py, "c_contiguous"))?,
        column_major: contiguous(intern!(py, "_f_contiguous"), intern!(py, "f_contiguous"))?,
        place: ArrayPlace::Cuda(ordinal),
        writable: true,
        tensor: None,
    })
}

/// The current stream of the thread.
pub(super) fn current_stream<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CURRENT.import(py, "cupy.cuda", "get_current_stream")?.call0()
}

/// A new array like another, with another number of rows, and its address. Its contents are
/// undefined.
pub(super) fn new<'py>(
    like: &Bound<'py, PyAny>,
    of: &ArrayRef,
    rows: usize,
) -> PyResult<(Bound<'py, PyAny>, u64)> {
    let py = like.py();
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DEVICE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.import(py, "cupy", "ndarray")?;
    let dtype = like.getattr(intern!(py, "dtype"))?;
    let make = || match of.vectors() {
        None => class.call1((rows, &dtype)),
        Some(count) if of.row_major => class.call1(((rows, count), &dtype)),
        // Without memory and strides.
        Some(count) => {
            let order = intern!(py, "F");
            class.call1(((rows, count), &dtype, py.None(), py.None(), order))
        }
    };
    static GPUS: OnceLock<usize> = OnceLock::new();
    let new = match of.place {
        ArrayPlace::Cuda(ordinal) if *GPUS.get_or_init(Device::gpu_count) > 1 => {
            let device = DEVICE.import(py, "cupy.cuda", "Device")?.call1((ordinal,))?;
            device.call_method0("__enter__")?;
            let made = make();
            device.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
            made
        }
        _ => make(),
    }?;
    let address = new.getattr(intern!(py, "data"))?.getattr(intern!(py, "ptr"))?.extract()?;
    Ok((new, address))
}
