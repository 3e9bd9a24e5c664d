//! Arrays of NumPy, read through its C interface.

use super::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType};
use numpy::npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE};
use numpy::{PyArray1, PyArray2, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

pub(super) fn describe(array: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let array = array.cast::<PyUntypedArray>()?;
    let dtype = array.dtype();
    let native = dtype.is_native_byteorder().unwrap_or(true);
    let elements = match native {
        true => ElementType::new(dtype.kind(), dtype.itemsize()),
        false => ElementType::Other,
    };
    // SAFETY: the pointer is that of a living array.
    let (address, flags) = unsafe {
        let fields = _PyArray_GET_ITEM_DATA(array.as_array_ptr());
        ((*fields).data.expose_provenance() as u64, (*fields).flags)
    };
    let (shape, aligned) = (array.shape(), array.is_aligned());
    let mut dims = [1; 2];
    shape.iter().take(2).zip(&mut dims).for_each(|(size, dim)| *dim = *size);
    Ok(ArrayRef {
        library: ArrayLibrary::NumPy,
        address,
        elements,
        ndim: shape.len(),
        dims,
        row_major: aligned && array.is_c_contiguous(),
        column_major: aligned && array.is_fortran_contiguous(),
        place: ArrayPlace::Host,
        writable: flags & NPY_ARRAY_WRITEABLE != 0,
        tensor: None,
    })
}

/// A new array of one or two dimensions. Its contents are undefined.
pub(crate) fn new_host<'py>(
    py: Python<'py>,
    elements: ElementType,
    rows: usize,
    vectors: Option<usize>,
    row_major: bool,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the elements are numbers in NumPy's memory, of which every bit pattern is valid.
    Ok(unsafe {
        match (elements, vectors) {
            (ElementType::F32, None) => PyArray1::<f32>::new(py, rows, false).into_any(),
            (ElementType::F32, Some(count)) => {
                PyArray2::<f32>::new(py, [rows, count], !row_major).into_any()
            }
            (_, None) => PyArray1::<f64>::new(py, rows, false).into_any(),
            (_, Some(count)) => PyArray2::<f64>::new(py, [rows, count], !row_major).into_any(),
        }
    })
}
