"""Matrices of other libraries as arrays of CSR."""

from ._errors import DtypeError, MatrixError, SettingError
from ._gpu import prepare
from ._sparseop import Operator, build as build_arrays, row_order


def packages(thing):
    """Names of the packages of an object's class and of its base classes."""
    return [kind.__module__.partition(".")[0] for kind in type(thing).__mro__]


def root(thing):
    """Name of the library of an array, also of a subclass; otherwise of the class's package."""
    found = packages(thing)
    for name in found:
        if name in ("numpy", "cupy", "torch", "jax", "jaxlib"):
            return "jax" if name == "jaxlib" else name
    return found[0]


def is_complex(array):
    """True if the elements are complex."""
    return "complex" in str(getattr(array, "dtype", ""))


def is_single(dtype):
    """True for float32, False for float64."""
    import numpy

    # PyTorch has types of its own.
    name = str(dtype).removeprefix("torch.") if root(dtype) == "torch" else dtype
    try:
        found = numpy.dtype(name)
    except TypeError:
        found = repr(dtype)
    if found not in (numpy.float32, numpy.float64):
        raise DtypeError(f"`dtype` is float32 or float64, not {found}")
    return found == numpy.float32


def scipy_csr(arrays):
    """A matrix of SciPy around arrays."""
    from scipy.sparse import csr_array

    shape, offsets, columns, values = arrays
    return csr_array((values, columns, offsets), shape=shape)


def to_scipy(op):
    """The matrix of an operator."""
    return scipy_csr(op._to_csr())


def as_linear_operator(op):
    """The operator as one of SciPy."""
    from scipy.sparse.linalg import LinearOperator

    products = {name: getattr(op, name) for name in ("rmatvec", "matmat", "rmatmat")}
    return LinearOperator(op.shape, op.matvec, dtype=op.dtype, **products)


def build(A, shape, dtype, settings, copy):
    """The operator of a matrix."""
    return built(*csr_arrays(A, shape, dtype), settings, copy)


def built(shape, arrays, order, settings, copy):
    """The operator of the arrays of CSR."""
    if settings["device"] not in (None, "cpu") or hasattr(arrays[2], "__cuda_array_interface__"):
        prepare()
    return build_arrays(shape, arrays, order, settings, copy)


def host_arrays(A):
    """Shape and arrays of CSR of a matrix or an operator, in host memory."""
    if isinstance(A, Operator):
        shape, *arrays = A._to_csr()
        return shape, arrays
    shape, arrays, _ = csr_arrays(A)
    arrays = [to_host(array) for array in arrays]
    if arrays[2].dtype.kind in "biu":
        whole, arrays[2] = arrays[2], arrays[2].astype("float64")
        if ((whole > 2**53) | (whole < -(2**53))).any():
            raise DtypeError("the matrix has integers that float64 cannot represent; convert them")
    return shape, arrays


def to_host(array):
    """An array as one of NumPy, copied from a GPU."""
    import numpy

    if root(array) == "cupy":
        return array.get()
    if root(array) == "torch":
        return array.detach().cpu().numpy()
    return numpy.asarray(array)


def csr_arrays(A, shape=None, dtype=None):
    """Shape, the arrays `(indptr, indices, data)`, and the positions of the entries in the values
    of `A` with the number of these, or None if they are in its order."""
    if isinstance(A, Operator):
        raise SettingError("the matrix is an operator already; use it, or pass op.to_scipy()")
    if isinstance(A, tuple):
        if shape is None or len(A) != 3:
            raise SettingError("pass the arrays (data, indices, indptr) together with a shape")
        data, indices, indptr = A
        return checked_shape(shape), [indptr, indices, cast(data, dtype)], None
    take = reader(A)
    if take is None:
        if not hasattr(A, "tocsr"):
            raise DtypeError(
                f"{type(A).__module__}.{type(A).__name__} is no sparse matrix of SciPy, CuPy, "
                "PyTorch or JAX; for a dense array pass scipy.sparse.csr_array(A)"
            )
        A, take = A.tocsr(), of_scipy
    if shape is not None and checked_shape(shape) != tuple(A.shape):
        raise SettingError(f"`shape` is {shape!r}, the matrix has {tuple(A.shape)}; leave it out")
    return take(A, dtype)


def reader(A):
    """The function that takes the arrays out of a matrix, or None for other things."""
    # Each with an attribute that other classes of the library lack.
    kinds = {
        "scipy": (of_scipy, "format"),
        "cupyx": (of_cupy, "format"),
        "torch": (of_torch, "layout"),
        "jax": (of_jax, "nse"),
    }
    for name in packages(A):
        take, attribute = kinds.get(name, (None, ""))
        if take is not None and hasattr(A, attribute):
            return take
    return None


def checked_shape(shape):
    """A shape as two integers."""
    import operator

    try:
        nrows, ncols = map(operator.index, shape)
    except (TypeError, ValueError):
        nrows = ncols = -1
    if not (0 <= nrows < 2**63 and 0 <= ncols < 2**63):
        raise SettingError(f"`shape` is two numbers of rows and columns, not {shape!r}")
    return nrows, ncols


def cast(data, dtype):
    """Values converted to a type, if one is given."""
    if dtype is None:
        return data
    name, library = "float32" if is_single(dtype) else "float64", root(data)
    if not hasattr(data, "dtype"):
        raise DtypeError(f"the values are of type {type(data).__name__}; pass an array of them")
    if is_complex(data):
        raise DtypeError("the values are complex; build operators of the real and imaginary parts")
    if library == "torch":
        import torch

        return data.to(getattr(torch, name))
    return data.astype(name, copy=False) if library != "jax" else data.astype(name)


def filled(A):
    """Number of entries, or of blocks, before those that fill the arrays of a matrix up."""
    end = int(A.indptr[-1]) if A.indptr.size else 0
    return min(max(end, 0), A.indices.size)


def repeated(A, dtype):
    """For each entry or block of a compressed matrix, its column or row: that of its offsets."""
    import numpy

    lengths = numpy.diff(A.indptr)
    if A.indptr.size == 0 or (lengths < 0).any() or lengths.sum() != filled(A):
        raise MatrixError("`indptr` does not rise from 0 to the number of entries; mend the matrix")
    return numpy.repeat(numpy.arange(lengths.size, dtype=dtype), lengths)


def of_scipy(A, dtype):
    import numpy

    if A.format not in ("csr", "csc", "coo", "bsr"):
        raise MatrixError(f"the matrix is in the format {A.format}; pass A.tocsr()")
    shape, data = A.shape, A.data
    if len(shape) != 2:
        raise MatrixError(f"the array has {len(shape)} dimensions; an operator has two")
    if A.format == "csr":
        return of_csr(shape, A.indptr, A.indices, data, filled(A), dtype)
    given = data.size
    if A.format == "csc":
        end = filled(A)
        rows, columns, data = A.indices[:end], repeated(A, A.indices.dtype), data[:end]
    elif A.format == "coo":
        rows, columns = A.row, A.col
    else:
        (height, width), end = A.blocksize, filled(A)
        rows = height * repeated(A, "int64")[:, None, None] + numpy.arange(height)[None, :, None]
        columns = width * A.indices[:end].astype("int64")[:, None, None] + numpy.arange(width)
        rows, columns = numpy.broadcast_arrays(rows, columns)
        rows, columns, data = rows.ravel(), columns.ravel(), data[:end].ravel()
    if not rows.size == columns.size == data.size:
        raise MatrixError(
            f"{rows.size} rows, {columns.size} columns and {data.size} values are no entries of a "
            "matrix; pass as many of each"
        )
    indptr, order = row_order(numpy.require(rows, requirements="CA"), shape[0])
    return shape, [indptr, columns[order], cast(data, dtype)[order]], (order, given)


def of_csr(shape, indptr, indices, data, end, dtype):
    """The first `end` entries of the arrays of CSR: others fill the arrays up."""
    given = data.size
    if end < given == indices.size:
        return shape, [indptr, indices[:end], cast(data[:end], dtype)], (slice(end), given)
    return shape, [indptr, indices, cast(data, dtype)], None


def of_cupy(A, dtype):
    import cupy

    if A.format not in ("csr", "csc", "coo"):
        raise MatrixError(f"the matrix is in the format {A.format}; pass A.tocsr()")
    shape, data = A.shape, cast(A.data, dtype)
    if A.format == "csr":
        return shape, [A.indptr, A.indices, data], None
    if A.format == "csc":
        entries = cupy.arange(data.size, dtype=A.indptr.dtype)
        rows, columns = A.indices, cupy.searchsorted(A.indptr, entries, side="right") - 1
    else:
        rows, columns = A.row, A.col
    order = cupy.argsort(rows, kind="stable")
    indptr = cupy.searchsorted(rows[order], cupy.arange(shape[0] + 1, dtype=rows.dtype))
    return shape, [indptr, columns[order].astype("int32"), data[order]], (order, data.size)


def of_torch(A, dtype):
    import torch

    if A.layout != torch.sparse_csr:
        raise MatrixError(f"the tensor has the layout {A.layout}; pass A.to_sparse_csr()")
    if A.ndim != 2 or A.values().ndim != 1:
        raise MatrixError("the tensor has batches or dense dimensions; pass matrices one by one")
    indptr, indices = A.crow_indices(), A.col_indices()
    if A.is_cuda:
        if A.shape[1] > 2**32 - 2:
            raise MatrixError("the matrix has more than 2**32 - 2 columns")
        # GPUs take columns of 32 bits.
        indices = indices.to(torch.int32)
    return tuple(A.shape), [indptr, indices, cast(A.values().detach(), dtype)], None


def of_jax(A, dtype):
    import jax.numpy
    import numpy

    kind = type(A).__name__
    if kind not in ("BCSR", "BCOO") or A.n_batch or A.n_dense:
        raise MatrixError("the matrix is neither BCSR nor BCOO, or has batches; convert it")
    if A.ndim != 2:
        raise MatrixError(f"the array has {A.ndim} dimensions; an operator has two")
    if kind == "BCSR":
        return of_csr(A.shape, A.indptr, A.indices, A.data, filled(A), dtype)
    data, given = cast(A.data, dtype), A.data.size
    on_cpu = data.device.platform == "cpu"
    library = numpy if on_cpu else jax.numpy
    rows, columns = (library.asarray(A.indices[:, axis]) for axis in (0, 1))
    data = library.asarray(data)
    # Entries outside the matrix fill the arrays up.
    inside = library.flatnonzero((rows < A.shape[0]) & (columns < A.shape[1]))
    if inside.size < given:
        rows, columns = rows[inside], columns[inside]
    if on_cpu:
        indptr, order = row_order(numpy.ascontiguousarray(rows), A.shape[0])
    else:
        order = jax.numpy.argsort(rows, stable=True)
        indptr = jax.numpy.searchsorted(rows[order], jax.numpy.arange(A.shape[0] + 1))
        indptr, columns = indptr.astype("int32"), columns.astype("int32")
    columns = columns[order]
    if inside.size < given:
        order = inside[order]
    return A.shape, [indptr, columns, data[order]], (order, given)
