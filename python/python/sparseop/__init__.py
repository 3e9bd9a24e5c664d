"""Auto-tuned sparse matrix–vector products (SpMV) for CPUs and NVIDIA GPUs.

>>> import numpy as np, sparseop
>>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")    # any sparse matrix of SciPy
>>> op = sparseop.auto(A)                                      # analyse, choose, pack
>>> x = np.ones(A.shape[1])
>>> y = op @ x                                                 # thousands of times
>>> bool(np.allclose(y, A @ x))
True

`auto` takes the matrices of SciPy, CuPy, PyTorch and JAX. A product returns an array of the
library of `x`, computed on its current stream, and copies nothing. `op.explain()` says which
storage format was chosen and why.
"""

from ._errors import (
    ContiguityError,
    DeviceError,
    DtypeError,
    Error,
    FileError,
    GpuError,
    MatrixError,
    NotConvergedError,
    OutOfMemoryError,
    ReadOnlyError,
    SettingError,
    ShapeError,
    UnsupportedError,
)
from ._sparseop import Operator, Profile, __version__, why_no_gpu

__all__ = [
    "ContiguityError",
    "DeviceError",
    "DtypeError",
    "Error",
    "FileError",
    "GpuError",
    "MatrixError",
    "NotConvergedError",
    "Operator",
    "OutOfMemoryError",
    "Profile",
    "Progress",
    "ReadOnlyError",
    "SettingError",
    "ShapeError",
    "SolveInfo",
    "UnsupportedError",
    "auto",
    "bicgstab",
    "cg",
    "chebyshev",
    "devices",
    "gallery",
    "generators",
    "gmres",
    "pagerank",
    "read",
    "show",
    "tune",
    "why_no_gpu",
    "write",
]


def auto(
    A,
    *,
    shape=None,
    dtype=None,
    device=None,
    plan=None,
    tuning=None,
    expected_calls=None,
    memory_limit=None,
    deterministic=False,
    updatable=False,
    transpose=False,
    value_precision=None,
    profile=None,
    remember=False,
    copy=False,
):
    """Packs a matrix with the plan that is predicted, and checked, to be fastest.

    `A` of shape (m, n) is a csr, csc, coo or bsr matrix or array of SciPy, a csr, csc or coo
    matrix of CuPy, a `torch.sparse_csr` tensor, a BCSR or BCOO matrix of JAX, or the arrays
    `(data, indices, indptr)` of CSR with a `shape`. Its values are float32 or float64; with a
    `dtype` they are converted first. The operator keeps a packed copy, not `A`: to PyTorch the
    values are constants, without a gradient.

    `device` is that of the matrix unless given: "cpu", "cuda", "cuda:1", or "auto" for the first
    usable GPU. With `copy=True` arguments of other types, layouts or devices are copied for
    products; by default they are refused.

    `plan` is a plan such as "csr(balanced)"; `tuning` is "check" (the default), "predict" or
    "calibrate". The other settings are those of `SparseOpBuilder` in Rust.

    >>> import sparseop
    >>> A = sparseop.gallery("banded,rows=500")
    >>> sparseop.auto(A, plan="csr(scalar)")
    <500x500 Operator of float64, 8487 entries: csr(scalar) on cpu>
    """
    from ._build import build

    settings = {
        "device": device,
        "plan": plan,
        "tuning": tuning,
        "expected_calls": expected_calls,
        "memory_limit": memory_limit,
        "deterministic": deterministic,
        "updatable": updatable,
        "transpose": transpose,
        "value_precision": value_precision,
        "profile": profile,
        "remember": remember,
    }
    return build(A, shape, dtype, settings, copy)


def cg(op, b, x0=None, *, rtol=1e-8, maxiter=10_000, M=None, callback=None, copy=None):
    """Solves A x = b by conjugate gradients, for symmetric positive definite matrices.

    `op` is an operator or a matrix of shape (n, n), `b` and `x0` are vectors of shape (n,).
    Iterates until ‖b − A x‖ ≤ `rtol` ‖b‖. `M="jacobi"` divides residuals by the diagonal.
    `callback` is called with the progress: its `iterations` and `residual`.

    Returns `x` and a :class:`SolveInfo`, which is 0 after convergence.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")
    >>> x, info = sparseop.cg(sparseop.auto(A), np.ones(900), M="jacobi")
    >>> info == 0, info.outcome, bool(np.linalg.norm(A @ x - 1) <= 1e-8 * 30)
    (True, 'converged', True)
    """
    from ._solvers import solve

    return solve("cg", op, b, x0, rtol, maxiter, M, callback, copy)


def bicgstab(op, b, x0=None, *, rtol=1e-8, maxiter=10_000, M=None, callback=None, copy=None):
    """Solves A x = b by stabilised bi-conjugate gradients, for any square matrix; otherwise as
    :func:`cg`.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")
    >>> sparseop.bicgstab(A, np.ones(900))[1].outcome
    'converged'
    """
    from ._solvers import solve

    return solve("bicgstab", op, b, x0, rtol, maxiter, M, callback, copy)


def gmres(
    op, b, x0=None, *, rtol=1e-8, restart=30, maxiter=10_000, M=None, callback=None, copy=None
):
    """Solves A x = b by generalised minimal residuals, restarted every `restart` iterations (1 to
    100); otherwise as :func:`cg`.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")
    >>> sparseop.gmres(A, np.ones(900), restart=50)[1].outcome
    'converged'
    """
    from ._solvers import solve

    return solve("gmres", op, b, x0, rtol, maxiter, M, callback, copy, restart)


def chebyshev(op, b, x0=None, *, rtol=1e-8, maxiter=10_000, M=None, callback=None, copy=None):
    """Solves A x = b by Chebyshev iteration, for symmetric positive definite matrices, with
    estimated bounds of the eigenvalues; otherwise as :func:`cg`.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("poisson2d,n=30,values=laplacian")
    >>> sparseop.chebyshev(A, np.ones(900))[1].outcome
    'converged'
    """
    from ._solvers import solve

    return solve("chebyshev", op, b, x0, rtol, maxiter, M, callback, copy)


def pagerank(A, damping=0.85, *, rtol=1e-8, maxiter=10_000, device=None, callback=None):
    """Ranks of the pages of a graph of shape (n, n), whose entry (i, j) is a link from page i to
    page j with its value as weight.

    Returns the ranks, of shape (n,) and with sum 1, and a :class:`SolveInfo`. Iterates until the
    ranks change by at most `rtol` in total. The graph is prepared on the host; the iterations run
    on the device of the matrix unless `device` names another.

    >>> import numpy as np, sparseop
    >>> A = sparseop.gallery("rmat,scale=10,values=pattern")
    >>> ranks, info = sparseop.pagerank(A)
    >>> info.outcome, round(float(ranks.sum()), 6)
    ('converged', 1.0)
    """
    from ._solvers import pagerank as rank

    return rank(A, damping, rtol, maxiter, device, callback)


def read(path, dtype="float64"):
    """Reads a Matrix Market file (.mtx, .mtx.gz, .mtx.zst) or an archive of the SuiteSparse
    collection (.tar.gz), and returns a `scipy.sparse.csr_array` of shape (m, n).

    >>> import os, sparseop, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "a.mtx")
    >>> sparseop.write(file, sparseop.gallery("banded,rows=50"))
    >>> sparseop.read(file, dtype="float32").shape
    (50, 50)
    """
    from ._build import is_single, scipy_csr
    from ._sparseop import read as read_arrays

    return scipy_csr(read_arrays(path, is_single(dtype)))


def write(path, A):
    """Writes a matrix or an operator to a Matrix Market file, compressed if the name ends in .gz
    or .zst. The file is replaced as a whole.

    >>> import os, sparseop, tempfile
    >>> A = sparseop.gallery("banded,rows=50")
    >>> file = os.path.join(tempfile.mkdtemp(), "a.mtx.gz")
    >>> sparseop.write(file, A)
    >>> bool(abs(sparseop.read(file) - A).sum() == 0)
    True
    """
    from ._build import host_arrays
    from ._sparseop import write as write_arrays

    shape, arrays = host_arrays(A)
    write_arrays(path, shape, arrays)


def gallery(spec, dtype="float64"):
    """Generates a matrix, `NAME[,key=value...]`, as a `scipy.sparse.csr_array`.

    >>> import sparseop
    >>> sparseop.gallery("poisson2d,n=10", dtype="float32").shape
    (100, 100)
    """
    from ._build import is_single, scipy_csr
    from ._sparseop import generate

    return scipy_csr(generate(spec, is_single(dtype)))


def generators():
    """Names of the generators of :func:`gallery`, each with a description.

    >>> import sparseop
    >>> "poisson2d" in sparseop.generators()
    True
    """
    from ._sparseop import gallery_names

    return dict(gallery_names())


def devices():
    """Devices of this machine, each with a description. Looks for GPUs.

    >>> import sparseop
    >>> "cpu" in sparseop.devices()
    True
    """
    from ._gpu import prepare
    from ._sparseop import devices as names

    prepare()
    return dict(names())


def show(A):
    """Shows the decision for a matrix or an operator: row lengths, candidates and their times. In
    a notebook as a picture, elsewhere as text.
    """
    op = A if isinstance(A, Operator) else auto(A)
    import sys

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and shell.has_trait("kernel"):
        sys.modules["IPython"].display.display(op)
    else:
        print(op.explain())


def tune(out, *arguments, suite="100000,1000000", device=None):
    """Measures this machine with the program `sparseop tune`, writes the profile to the file
    `out`, and returns it. Takes minutes. `arguments` are further options of the program.
    """
    import subprocess
    import sys

    command = [sys.executable, "-m", "sparseop", "tune", "--suite", suite, "--out", str(out)]
    if device is not None:
        command += ["--device", device]
    if subprocess.run(command + list(arguments)).returncode != 0:
        raise Error("`sparseop tune` has failed; its messages say why")
    return Profile.read(out)


def __dir__():
    return sorted({*globals(), *__all__, "torch"})


def __getattr__(name):
    if name in ("SolveInfo", "Progress"):
        from . import _solvers

        return getattr(_solvers, name)
    if name == "torch":
        import importlib

        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
