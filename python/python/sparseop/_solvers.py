"""Solvers: arguments and results as arrays of the caller's library."""

from typing import NamedTuple

from ._build import csr_arrays, root, to_host
from ._copies import converted, restored
from ._errors import DtypeError, NotConvergedError, SettingError
from ._gpu import prepare
from ._sparseop import (
    Operator,
    check_unrecorded,
    device_zeros,
    pagerank as rank_arrays,
    solve as solve_arrays,
)


class Progress(NamedTuple):
    """Progress of an iteration."""

    iterations: int
    residual: float


# Its place in the package. The body of a named tuple cannot set it.
Progress.__module__ = "sparseop"


class SolveInfo(int):
    """Report of an iteration, and a number as of SciPy's solvers: 0 after convergence, the number
    of iterations if their limit was reached, negative otherwise.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")
    >>> info = sparseop.cg(A, np.ones(900), maxiter=5)[1]
    >>> int(info), info.outcome, info.iterations, len(info.history)
    (5, 'max-iterations', 5, 6)
    """

    __module__ = "sparseop"

    def __new__(cls, report):
        outcome, advice, iterations, residual, history, restarts, seconds = report
        number = {"converged": 0, "max-iterations": max(iterations, 1)}.get(outcome, -1)
        self = super().__new__(cls, number)
        self._report = report
        self.outcome = outcome
        self.advice = advice
        self.iterations = iterations
        self.residual = residual
        self.history = history
        self.restarts = restarts
        self.seconds = seconds
        return self

    def __reduce__(self):
        return SolveInfo, (self._report,)

    def __repr__(self):
        return (
            f"<{self.outcome} after {self.iterations} iterations, residual {self.residual:.2e}, "
            f"{self.seconds * 1e3:.3g} ms>"
        )

    def converged(self):
        """Returns itself after convergence, and raises an exception with advice otherwise."""
        if self != 0:
            raise NotConvergedError(
                f"{self.outcome} after {self.iterations} iterations with residual "
                f"{self.residual:.2e}: {self.advice}"
            )
        return self


def listener(callback):
    if callback is None:
        return None
    if not callable(callback):
        raise SettingError(f"`callback` is a function of the progress, not {callback!r}")
    return lambda iterations, residual: callback(Progress(iterations, residual))


def start(b, x0):
    """A vector for the solution, which begins as `x0` or 0, and a function that hands it over."""
    library = root(b)
    if x0 is not None and root(x0) != library:
        name = f"{type(x0).__module__}.{type(x0).__name__}"
        raise DtypeError(f"`x0` is of type {name}; pass an array of the library of `b`")
    if library == "jax":
        import jax.numpy
        import numpy

        if b.device.platform == "cpu":
            x = numpy.zeros_like(b) if x0 is None else numpy.array(x0)
            return x, jax.numpy.asarray
        if x0 is not None:
            raise SettingError("`x0` is not taken with arrays of JAX on a GPU; leave it out")
        return device_zeros(b), jax.numpy.from_dlpack
    if x0 is not None and library == "torch":
        return x0.clone(), None
    import importlib

    namespace = importlib.import_module(library if library in ("torch", "cupy") else "numpy")
    return namespace.zeros_like(b) if x0 is None else namespace.array(x0), None


def number(name, value):
    """A setting that is a real number."""
    try:
        # Unlike `float`, not of text.
        return value.__float__()
    except (AttributeError, TypeError, OverflowError):
        raise SettingError(f"`{name}` is a number, not {value!r}") from None


def whole(name, number):
    """A setting that is a number of iterations."""
    import operator

    try:
        found = operator.index(number)
    except TypeError:
        found = -1
    if not 0 <= found < 2**63:
        raise SettingError(f"`{name}` is a number of iterations, not {number!r}")
    return found


def solve(method, op, b, x0, rtol, maxiter, M, callback, copy, restart=30):
    if not (M is None or isinstance(M, str) and M == "jacobi"):
        raise SettingError('`M` is None or "jacobi"; other preconditioners are not supported')
    restart, maxiter = whole("restart", restart), whole("maxiter", maxiter)
    rtol, callback = number("rtol", rtol), listener(callback)
    check_unrecorded(b, "b")
    check_unrecorded(x0, "x0")
    if not isinstance(op, Operator):
        from . import auto

        op = auto(op)
    given, staged = b, False
    if op.copies if copy is None else copy:
        b, staged = converted(op, b)
        x0 = None if x0 is None else restored(converted(op, x0)[0], b)
    if root(b) == "torch":
        b = b.detach()
    x, finish = start(b, x0)
    report = solve_arrays(
        op, b, x, method, restart, rtol, maxiter, M == "jacobi", callback, staged
    )
    x = x if finish is None else finish(x)
    return (x if b is given else restored(x, given)), SolveInfo(report)


def pagerank(A, damping, rtol, maxiter, device, callback):
    maxiter, callback = whole("maxiter", maxiter), listener(callback)
    damping, rtol = number("damping", damping), number("rtol", rtol)
    shape, arrays, _ = csr_arrays(A)
    values = arrays[2]
    if not str(values.dtype).endswith(("float32", "float64")):
        values = arrays[2] = csr_arrays(A, dtype="float64")[1][2]
    library = root(values)
    if device is None:
        on_gpu = library == "cupy" or (library == "torch" and values.is_cuda)
        device = "cuda" if on_gpu else "cpu"
    if device != "cpu":
        prepare()
    ranks, report = rank_arrays(
        shape,
        [to_host(array) for array in arrays],
        {"device": device},
        damping,
        rtol,
        maxiter,
        callback,
    )
    if library == "torch":
        import torch

        ranks = torch.from_numpy(ranks)
    return restored(ranks, A.data if root(A) == "jax" else values), SolveInfo(report)
