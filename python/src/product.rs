//! Products with arrays of a caller, and updates of values.

use crate::arrays::{
    ArrayLibrary, ArrayPlace, ArrayRef, NewArray, check_unrecorded, describe, host_slice,
    is_recorded, is_transformed, library_of, mark_written, stream_of,
};
use crate::checked::{CheckedProduct, ProductOptions, run};
use crate::deferred::DeferredProduct;
use crate::error::{Exception, raised};
use crate::shared::{PyOperator, SharedOp, either};
use pyo3::intern;
use pyo3::prelude::*;
use sparseop::device::DeviceView;
use sparseop::{Error, Layout, Scalar, SparseOp, Stream};

/// Checks that an array can be an operand in place.
pub(crate) fn check_operand(
    py: Python<'_>,
    op: &SharedOp,
    array: &ArrayRef,
    name: &str,
    staged: bool,
) -> PyResult<()> {
    if array.elements != op.elements {
        let (own, found) = (op.elements.name(), array.elements.name());
        let message = format!(
            "`{name}` has elements of {found}, the operator of {own}; convert it with \
             astype(\"{own}\") (PyTorch: to(torch.{own})), or pass copy=True"
        );
        return Err(Exception::Dtype.error(py, message));
    }
    if array.place != op.place && !(staged && array.place == ArrayPlace::Host) {
        let (own, found) = (op.place, array.place);
        let message = format!(
            "`{name}` is on {found}, the operator on {own}; pass an array on {own}, build the \
             operator with device=\"{}\", or pass copy=True",
            if found == ArrayPlace::Host { "cpu".to_owned() } else { found.to_string() }
        );
        return Err(Exception::Device.error(py, message));
    }
    if !array.is_aligned() {
        let message = format!(
            "`{name}` is not aligned: its elements begin between multiples of their size; pass \
             {name}.copy() (PyTorch: {name}.clone()), or copy=True"
        );
        return Err(Exception::Contiguity.error(py, message));
    }
    if !array.row_major && !array.column_major {
        let message = format!(
            "`{name}` is not contiguous; pass numpy.ascontiguousarray({name}) (CuPy: the same; \
             PyTorch: {name}.contiguous()), or copy=True"
        );
        return Err(Exception::Contiguity.error(py, message));
    }
    Ok(())
}

fn check_shape(
    py: Python<'_>,
    op: &SharedOp,
    transposed: bool,
    array: &ArrayRef,
    name: &str,
    rows: usize,
) -> PyResult<()> {
    if (1..=2).contains(&array.ndim) && array.dims[0] == rows {
        return Ok(());
    }
    let (nrows, ncols) = op.shape(transposed);
    let found = match array.ndim {
        1 => format!("({},)", array.dims[0]),
        2 => format!("({}, {})", array.dims[0], array.dims[1]),
        other => format!("{other} dimensions"),
    };
    let message = format!(
        "`{name}` has shape {found}; an operator of {nrows} x {ncols} needs ({rows},) or \
         ({rows}, k)"
    );
    Err(Exception::Shape.error(py, message))
}

/// Checks the array for a result.
fn check_out(
    py: Python<'_>,
    op: &SharedOp,
    transposed: bool,
    (x, y): (&ArrayRef, &ArrayRef),
    staged: bool,
) -> PyResult<()> {
    if !y.writable {
        let message = match y.library {
            ArrayLibrary::Jax => "`out` is an array of JAX, which cannot be written; leave it out",
            _ => "`out` is read-only; pass an array that may be written",
        };
        return Err(Exception::ReadOnly.error(py, message));
    }
    check_operand(py, op, y, "out", staged)?;
    check_shape(py, op, transposed, y, "out", op.shape(transposed).0)?;
    if (x.ndim, x.vectors()) != (y.ndim, y.vectors()) {
        return Err(Exception::Shape.error(py, "`x` and `out` differ in the number of vectors"));
    }
    if x.layout(Some(y)) != y.layout(Some(x)) {
        let message = "`x` and `out` differ in their layout; both need order \"C\", or both \"F\"";
        return Err(Exception::Contiguity.error(py, message));
    }
    if x.place != ArrayPlace::Host && x.library != y.library {
        let message = "`x` and `out` are arrays of two libraries, whose streams have no order; \
                       pass arrays of one";
        return Err(Exception::Device.error(py, message));
    }
    if x.overlaps(y) {
        return Err(Exception::Setting.error(py, "`x` and `out` have memory in common"));
    }
    Ok(())
}

/// `op @ x`; with `copy`, arguments that cannot be used in place are copied.
pub(crate) fn multiply<'py>(
    op: &Bound<'py, PyOperator>,
    x: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    options: ProductOptions,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, this) = (op.py(), op.get());
    let library = library_of(x, "x")?;
    let recorded = || {
        let (torch, copy) = (py.import("sparseop.torch")?, copy.unwrap_or(this.shared.copy));
        torch.call_method1("_recorded", (op, x, out, options.alpha, options.beta, copy))
    };
    if is_recorded(x, library)? {
        return recorded();
    }
    match describe(x, "x").and_then(|array| product(this, x, array, out, options)) {
        Err(_) if is_transformed(x, library) => recorded(),
        Err(error) if copy.unwrap_or(this.shared.copy) => {
            let copies = py.import("sparseop._copies")?;
            copies.call_method1("multiply", (op, x, out, options.alpha, options.beta, error))
        }
        multiplied => multiplied,
    }
}

/// A product with an array that is used in place.
pub(crate) fn product<'py>(
    this: &PyOperator,
    x: &Bound<'py, PyAny>,
    array: ArrayRef,
    out: Option<&Bound<'py, PyAny>>,
    options: ProductOptions,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, shared, transposed) = (x.py(), &*this.shared, this.transposed);
    let (nrows, ncols) = shared.shape(transposed);
    check_operand(py, shared, &array, "x", options.staged)?;
    check_shape(py, shared, transposed, &array, "x", ncols)?;
    if out.is_none() && options.beta != 0.0 {
        return Err(Exception::Setting.error(py, "`beta` needs an `out`, which it multiplies"));
    }
    let make = |y: &ArrayRef| {
        let layout = y.layout(Some(&array)).unwrap_or(Layout::RowMajor);
        CheckedProduct {
            transposed,
            x: (array.address, array.len()),
            y: (y.address, y.len()),
            vectors: y.vectors().map(|count| (count, layout)),
            options,
            stream: None,
            waits: false,
        }
    };
    let stream = || match array.place {
        ArrayPlace::Host => Ok(None),
        ArrayPlace::Cuda(ordinal) => {
            stream_of(py, array.library, ordinal, &shared.device).map(Some)
        }
    };
    match out {
        Some(out) => {
            let y = describe(out, "out")?;
            check_out(py, shared, transposed, (&array, &y), options.staged)?;
            if y.library == ArrayLibrary::Torch {
                check_unrecorded(out, "out")?;
            }
            let waits = array.library == ArrayLibrary::Standard;
            run(py, shared, &CheckedProduct { stream: stream()?, waits, ..make(&y) })?;
            mark_written(out, y.library)?;
            Ok(out.clone())
        }
        None => {
            let y = NewArray::like(x, &array, nrows, &shared.device)?;
            let product = make(&y.array);
            if y.is_deferred() {
                let (op, x) = (this.shared.clone(), x.clone().unbind());
                let product = DeferredProduct { op, x, library: array.library, product };
                y.defer(Box::new(|py, ordinal, raw| product.enqueue(py, ordinal, raw)))?;
            } else {
                run(py, shared, &CheckedProduct { stream: stream()?, ..product })?;
            }
            y.finish()
        }
    }
}

/// Describes the values for an operator, which may have several dimensions if it has an order of
/// its own.
fn described_values<'py>(
    shared: &SharedOp,
    values: &Bound<'py, PyAny>,
    copy: bool,
) -> PyResult<(Bound<'py, PyAny>, ArrayRef)> {
    let (py, mut values) = (values.py(), values.clone());
    let mut array = describe(&values, "values")?;
    if shared.order.is_some() && array.ndim > 1 && array.row_major {
        values = values.call_method1(intern!(py, "reshape"), (-1,))?;
        array = describe(&values, "values")?;
    }
    check_operand(py, shared, &array, "values", copy)?;
    let given = shared.order.as_ref().map_or(shared.nnz, |order| order.given);
    if array.ndim == 1 && array.len() as u64 == given {
        return Ok((values, array));
    }
    let message = format!(
        "`values` has {} elements in {} dimensions; pass one for each of the {given} entries of \
         the matrix",
        array.len(),
        array.ndim,
    );
    Err(Exception::Shape.error(py, message))
}

/// Replaces the values of an operator; with `copy`, values that cannot be used in place are copied.
pub(crate) fn update_values(
    op: &Bound<'_, PyOperator>,
    values: &Bound<'_, PyAny>,
    copy: bool,
) -> PyResult<()> {
    let (py, shared) = (values.py(), &*op.get().shared);
    let described = match described_values(shared, values, copy) {
        Err(error) if copy && !Exception::Shape.is(py, &error) => {
            let copies = py.import("sparseop._copies")?;
            let copied = copies.call_method1("converted", (op, values))?.get_item(0)?;
            described_values(shared, &copied, copy)
        }
        described => described,
    };
    // The reordered copy lives until the end.
    let (mut values, mut array) = described?;
    if let Some(order) = &shared.order {
        values = values.call_method1(intern!(py, "__getitem__"), (&order.positions,))?;
        array = describe(&values, "values")?;
    }
    let stream = match array.place {
        ArrayPlace::Host => None,
        ArrayPlace::Cuda(ordinal) => Some(stream_of(py, array.library, ordinal, &shared.device)?),
    };
    let (address, len) = (array.address, array.len());
    let waits = array.is_borrowed();
    let done = py.detach(|| {
        let mut guard = shared.write()?;
        // SAFETY: as in `run`.
        let done = either!(&mut *guard, op => unsafe { update(op, address, len, stream.as_ref()) });
        // The library of a borrowed array does not know of the stream.
        let stream = stream.filter(|_| waits);
        Some(done.and_then(|()| stream.map_or(Ok(()), |stream| stream.synchronize())))
    });
    let Some(done) = done else {
        let message = "the operator is in use by the solve that has called; update it afterwards";
        return Err(Exception::Setting.error(py, message));
    };
    // On a GPU a reordered copy lives until the update has ended: its library frees it in the order
    // of its stream.
    done.map_err(|error| raised(py, error))
}

/// # Safety
///
/// There are `len` values of the operator's type, on its device if there is a stream.
unsafe fn update<T: Scalar>(
    op: &mut SparseOp<T>,
    address: u64,
    len: usize,
    stream: Option<&Stream>,
) -> Result<(), Error> {
    match stream {
        // SAFETY: the caller's promise.
        None => op.update_values(unsafe { host_slice(address, len) }),
        Some(stream) => {
            // SAFETY: as above.
            let values = unsafe { DeviceView::from_raw(op.device(), address, len)? };
            op.update_values_device(stream, &values)
        }
    }
}
