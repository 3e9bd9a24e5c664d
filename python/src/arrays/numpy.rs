//! Arrays of NumPy, read through its C interface.

use super::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType};
use numpy::npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE, PY_ARRAY_API, npy_intp};
use numpy::{Element, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PySlice};
use std::ffi::c_int;

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
    let dtype = match elements {
        ElementType::F32 => f32::get_dtype(py),
        _ => f64::get_dtype(py),
    };
    let mut dims = [rows, vectors.unwrap_or(1)].map(|size| size as npy_intp);
    let (ndim, fortran) = (1 + c_int::from(vectors.is_some()), c_int::from(!row_major));
    // SAFETY: there are as many sizes as dimensions; the call takes over the type, and returns a
    // new array, or null and an exception. Every bit pattern is a number.
    unsafe {
        let dtype = dtype.into_dtype_ptr();
        let array = PY_ARRAY_API.PyArray_Empty(py, ndim, dims.as_mut_ptr(), dtype, fortran);
        Bound::from_owned_ptr_or_err(py, array)
    }
}

/// As [`new_host`], beginning at a multiple of 64 bytes, as libraries want it that import arrays
/// without a copy.
pub(super) fn new_aligned<'py>(
    py: Python<'py>,
    elements: ElementType,
    rows: usize,
    vectors: Option<usize>,
    row_major: bool,
) -> PyResult<Bound<'py, PyAny>> {
    const ALIGNMENT: usize = 64;
    let (size, len) = (elements.bytes(), rows.saturating_mul(vectors.unwrap_or(1)));
    let all = new_host(py, elements, len.saturating_add(ALIGNMENT / size), None, true)?;
    let skipped = describe(&all)?.address.wrapping_neg() as usize % ALIGNMENT / size;
    let own = all.get_item(PySlice::new(py, skipped as isize, (skipped + len) as isize, 1))?;
    let Some(count) = vectors else { return Ok(own) };
    let order = [("order", if row_major { "C" } else { "F" })].into_py_dict(py)?;
    own.call_method("reshape", ((rows, count),), Some(&order))
}
