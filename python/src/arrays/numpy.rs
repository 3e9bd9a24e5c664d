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

/// A new array. Its contents are undefined.
fn empty<'py>(
    py: Python<'py>,
    elements: ElementType,
    dims: &[usize],
    row_major: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype = match elements {
        ElementType::F32 => f32::get_dtype(py),
        _ => f64::get_dtype(py),
    };
    let mut sizes = [0; 2];
    sizes.iter_mut().zip(dims).for_each(|(size, dim)| *size = *dim as npy_intp);
    let (ndim, fortran) = (dims.len() as c_int, c_int::from(!row_major));
    // SAFETY: there are as many sizes as dimensions, at most two; the call takes over the type, and
    // returns a new array, or null and an exception. Every bit pattern is a number.
    unsafe {
        let dtype = dtype.into_dtype_ptr();
        let array = PY_ARRAY_API.PyArray_Empty(py, ndim, sizes.as_mut_ptr(), dtype, fortran);
        Bound::from_owned_ptr_or_err(py, array)
    }
}

/// A new array like another, with another number of rows. Its contents are undefined.
pub(crate) fn new_host<'py>(
    py: Python<'py>,
    like: &ArrayRef,
    rows: usize,
) -> PyResult<Bound<'py, PyAny>> {
    match like.vectors() {
        None => empty(py, like.elements, &[rows], true),
        Some(count) => empty(py, like.elements, &[rows, count], like.row_major),
    }
}

/// As [`new_host`], beginning at a multiple of 64 bytes, as libraries want it that import arrays
/// without a copy.
pub(super) fn new_aligned<'py>(
    py: Python<'py>,
    like: &ArrayRef,
    rows: usize,
) -> PyResult<Bound<'py, PyAny>> {
    const ALIGNMENT: usize = 64;
    let (size, vectors) = (like.elements.bytes(), like.vectors());
    let len = rows.saturating_mul(vectors.unwrap_or(1));
    let all = empty(py, like.elements, &[len.saturating_add(ALIGNMENT / size)], true)?;
    let skipped = describe(&all)?.address.wrapping_neg() as usize % ALIGNMENT / size;
    let own = all.get_item(PySlice::new(py, skipped as isize, (skipped + len) as isize, 1))?;
    let Some(count) = vectors else { return Ok(own) };
    let order = [("order", if like.row_major { "C" } else { "F" })].into_py_dict(py)?;
    own.call_method("reshape", ((rows, count),), Some(&order))
}
