//! Tensors of PyTorch. A function in C describes them where their class has one, as in PyTorch
//! 2.11, and their attributes otherwise: either takes less time than a capsule of DLPack.

use super::dlpack::ArrayViews;
use super::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType};
use crate::error::Exception;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Element types and their objects in PyTorch.
static DTYPES: PyOnceLock<Vec<(Py<PyAny>, ElementType)>> = PyOnceLock::new();

fn element_type(dtype: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    use ElementType::{F32, F64, I32, I64, U32, U64};
    let py = dtype.py();
    let known = DTYPES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let types = [F32, F64, I32, I64, U32, U64].into_iter().map(|elements| {
            // Old versions have no unsigned numbers.
            let found = torch.getattr_opt(elements.name())?;
            Ok::<_, PyErr>(found.map(|found| (found.unbind(), elements)))
        });
        types.filter_map(Result::transpose).collect::<PyResult<Vec<_>>>()
    })?;
    let found = known.iter().find(|(object, _)| object.is(dtype));
    Ok(found.map_or(ElementType::Other, |found| found.1))
}

pub(super) fn describe(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayRef> {
    described(tensor, name).map_err(|error| {
        let py = tensor.py();
        if Exception::is_any(py, &error) {
            return error;
        }
        // PyTorch refuses to tell the address, or earlier the layout.
        let (cause, remedy) = (error.value(py), format!("{name}.to_dense() of a sparse tensor"));
        let message = format!(
            "`{name}` is no tensor with memory of its own: {cause}; pass one, such as {remedy}"
        );
        Exception::Unsupported.error(py, message)
    })
}

fn described(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayRef> {
    static VIEWS: PyOnceLock<(Py<PyAny>, Option<ArrayViews>)> = PyOnceLock::new();
    let py = tensor.py();
    // The sign of the elements is elsewhere, as in the imaginary part of a conjugate.
    if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        let message = format!(
            "`{name}` is a view with negated elements; pass {name}.resolve_neg(), or copy=True"
        );
        return Err(Exception::Contiguity.error(py, message));
    }
    let (class, views) = VIEWS.get_or_try_init(py, || {
        let class = py.import("torch")?.getattr("Tensor")?;
        Ok::<_, PyErr>((class.clone().unbind(), ArrayViews::of(&class)))
    })?;
    // An exception of that function takes long.
    let has_view = tensor.get_type().is(class) && !is_transformed(tensor);
    let viewed = views.as_ref().filter(|_| has_view);
    let array = match viewed.and_then(|views| views.array(tensor, ArrayLibrary::Torch)) {
        Some(array) => array,
        None => described_by_attributes(tensor, name)?,
    };
    if array.address == 0 && array.len() > 0 {
        let message = format!("`{name}` stands for another tensor, or its memory was freed");
        return Err(Exception::Unsupported.error(py, message));
    }
    Ok(array)
}

fn described_by_attributes(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayRef> {
    let py = tensor.py();
    let ordinal: i64 = tensor.call_method0(intern!(py, "get_device"))?.extract()?;
    let host = ordinal < 0;
    let kind = if host { intern!(py, "is_cpu") } else { intern!(py, "is_cuda") };
    if !tensor.getattr(kind)?.is_truthy()? {
        let device = tensor.getattr("device")?;
        let message = format!("`{name}` is on {device}; move it to the CPU or to an NVIDIA GPU");
        return Err(Exception::Device.error(py, message));
    }
    let ndim: usize = tensor.call_method0(intern!(py, "dim"))?.extract()?;
    let mut dims = [1; 2];
    for (index, dim) in dims.iter_mut().enumerate().take(ndim) {
        *dim = tensor.call_method1(intern!(py, "size"), (index,))?.extract()?;
    }
    let contiguous =
        |tensor: &Bound<'_, PyAny>| tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy();
    let row_major = contiguous(tensor)?;
    let column_major = match ndim {
        2 if !row_major || dims.contains(&1) || dims.contains(&0) => {
            contiguous(&tensor.call_method0(intern!(py, "t"))?)?
        }
        2 => false,
        _ => row_major,
    };
    Ok(ArrayRef {
        library: ArrayLibrary::Torch,
        address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
        elements: element_type(&tensor.getattr(intern!(py, "dtype"))?)?,
        ndim,
        dims,
        row_major,
        column_major,
        place: if host { ArrayPlace::Host } else { ArrayPlace::Cuda(ordinal as usize) },
        writable: true,
        tensor: None,
    })
}

/// True if operations on the tensor are recorded for a backward pass.
fn needs_gradient(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ENABLED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tensor.py();
    Ok(tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?
        && ENABLED.import(py, "torch", "is_grad_enabled")?.call0()?.is_truthy()?)
}

/// True if operations on the tensor compute a tangent, too: in the forward mode of autograd.
fn has_tangent(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FORWARD: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = tensor.py();
    let forward = FORWARD
        .get_or_try_init(py, || py.import("torch.autograd.forward_ad").map(Bound::unbind))?;
    let forward = forward.bind(py);
    // Negative outside of the mode. Unpacking each tensor would take as long as a small product.
    let level = forward.getattr_opt(intern!(py, "_current_level"))?;
    let level = level.and_then(|level| level.extract::<i64>().ok());
    if level.is_some_and(|level| level < 0) {
        return Ok(false);
    }
    let dual = forward.call_method1(intern!(py, "unpack_dual"), (tensor,))?;
    Ok(!dual.getattr(intern!(py, "tangent"))?.is_none())
}

/// True if autograd takes part in operations on the tensor.
pub(super) fn is_recorded(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(needs_gradient(tensor)? || has_tangent(tensor)?)
}

/// True if the tensor stands for others in a transform of `torch.func`, and has no memory.
pub(super) fn is_transformed(tensor: &Bound<'_, PyAny>) -> bool {
    static WRAPPED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (py, name) = (tensor.py(), "is_functorch_wrapped_tensor");
    let wrapped = WRAPPED.import(py, "torch._C._functorch", name);
    wrapped.and_then(|wrapped| wrapped.call1((tensor,))?.is_truthy()).unwrap_or(false)
}

/// Refuses a tensor that autograd follows, for work that it does not see.
pub(super) fn check_unrecorded(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    let message = if needs_gradient(tensor)? {
        format!(
            "`{name}` requires grad, and autograd does not record its use here; pass \
             {name}.detach(), or use torch.no_grad()"
        )
    } else if has_tangent(tensor)? {
        format!("`{name}` has a tangent, which is not used here; pass unpack_dual({name}).primal")
    } else {
        return Ok(());
    };
    Err(Exception::Setting.error(tensor.py(), message))
}

/// Tells autograd that the elements of a tensor have changed.
pub(super) fn mark_written(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    static MARK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tensor.py();
    MARK.import(py, "torch.autograd.graph", "increment_version")?.call1((tensor,))?;
    Ok(())
}

/// The current stream of the thread on a GPU, as a number.
pub(super) fn current_stream(py: Python<'_>, ordinal: usize) -> PyResult<u64> {
    static RAW: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let raw = RAW.get_or_try_init(py, || {
        let module = py.import("torch")?.getattr("_C")?;
        Ok::<_, PyErr>(module.getattr_opt("_cuda_getCurrentRawStream")?.map(Bound::unbind))
    })?;
    match raw {
        Some(raw) => raw.bind(py).call1((ordinal,))?.extract(),
        None => {
            let cuda = py.import("torch.cuda")?;
            cuda.call_method1("current_stream", (ordinal,))?.getattr("cuda_stream")?.extract()
        }
    }
}

/// A new tensor like another, with another number of rows, and its address. Its contents are
/// undefined.
pub(super) fn new<'py>(
    like: &Bound<'py, PyAny>,
    of: &ArrayRef,
    rows: usize,
) -> PyResult<(Bound<'py, PyAny>, u64)> {
    static EMPTY_LIKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (py, new_empty) = (like.py(), intern!(like.py(), "new_empty"));
    let new = match of.vectors() {
        // Takes less time, and keeps the order of dense elements.
        _ if rows == of.dims[0] => EMPTY_LIKE.import(py, "torch", "empty_like")?.call1((like,))?,
        None => like.call_method1(new_empty, ((rows,),))?,
        Some(count) if of.row_major => like.call_method1(new_empty, ((rows, count),))?,
        Some(count) => {
            like.call_method1(new_empty, ((count, rows),))?.call_method0(intern!(py, "t"))?
        }
    };
    let address = new.call_method0(intern!(py, "data_ptr"))?.extract()?;
    Ok((new, address))
}
