"""Copies of arguments, for callers that have asked for them with `copy=True`."""

from ._build import is_complex, root, to_host
from ._errors import DtypeError, ReadOnlyError, SettingError, ShapeError
from ._sparseop import check_unrecorded


def refuse_complex(x):
    """Refuses an array whose copy would lose its imaginary parts."""
    if is_complex(x):
        raise DtypeError("the elements are complex; multiply the real and the imaginary parts")


def converted(op, x):
    """An array with the elements of `x` that products with `op` take, and whether it is in host
    memory for an operator on a GPU."""
    import numpy

    x = x if hasattr(x, "dtype") else numpy.asarray(x)
    refuse_complex(x)
    name, library = str(op.dtype), root(x)
    on_gpu = op.device != "cpu"
    if library == "cupy" and on_gpu:
        import cupy

        with cupy.cuda.Device(int(op.device[5:])):
            return cupy.ascontiguousarray(cupy.asarray(x, dtype=name)), False
    if library == "torch":
        import torch

        x = x.detach().to(op.device, getattr(torch, name)).resolve_neg().contiguous()
        return x.clone() if x.data_ptr() % x.element_size() else x, False
    if library == "jax" and (x.device.platform != "cpu") == on_gpu:
        return x.astype(name), False
    try:
        host = numpy.asarray(to_host(x), dtype=name)
    except (TypeError, ValueError):
        kind = type(x).__name__
        raise DtypeError(f"the {kind} has other elements than numbers; pass an array") from None
    contiguous = host.flags.c_contiguous or host.flags.f_contiguous
    return host if contiguous and host.flags.aligned else host.copy(), on_gpu


def restored(y, like):
    """An array with the elements of `y` in the library and on the device of another."""
    library, own = root(like), root(y)
    if library == own and library != "torch":
        return y
    if library == "cupy":
        import cupy

        return cupy.asarray(y)
    if library == "torch":
        import torch

        return (y if own == "torch" else torch.as_tensor(to_host(y))).to(like.device)
    if library == "jax":
        import jax

        return jax.device_put(y if own == "numpy" else to_host(y), like.device)
    return to_host(y) if library == "numpy" else y


def check_out(out, shape):
    """Checks that a product of this shape can be written to `out`."""
    if not (hasattr(out, "shape") and hasattr(out, "dtype")):
        raise DtypeError(f"`out` is of type {type(out).__name__}, which is no array; pass one")
    if tuple(out.shape) != shape:
        raise ShapeError(f"`out` has shape {tuple(out.shape)}; the product has {shape}")
    if not str(out.dtype).endswith(("float32", "float64")):
        raise DtypeError(f"`out` has elements of {out.dtype}; pass float32 or float64")
    if root(out) == "jax" or not getattr(getattr(out, "flags", None), "writeable", True):
        raise ReadOnlyError("`out` is read-only; pass an array that may be written")
    check_unrecorded(out, "out")


def multiply(op, x, out, alpha, beta, error):
    """A product with copies of its arguments. `error` is the reason why they are needed."""
    from ._errors import ContiguityError, DeviceError

    if not isinstance(error, (ContiguityError, DeviceError, DtypeError)):
        raise error
    if out is None and beta != 0:
        raise SettingError("`beta` needs an `out`, which it multiplies")
    array, staged = converted(op, x)
    if out is not None:
        check_out(out, (op.shape[0], *array.shape[1:]))
    y = restored(op._apply(array, None, alpha, 0.0, staged), x if out is None else out)
    if out is None:
        return y
    out[...] = y if beta == 0 else y + beta * out
    return out


def multiply_any(op, x):
    """A product with a copy of `x`. The real matrix keeps the parts of complex elements apart."""
    import numpy

    x = x if hasattr(x, "dtype") else numpy.asarray(x)
    if is_complex(x):
        return op(x.real, copy=True) + 1j * op(x.imag, copy=True)
    return op(x, copy=True)
