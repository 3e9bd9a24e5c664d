"""Arrays and matrices of JAX on the CPU."""

import os

import numpy as np
import pytest
import sparseop

# JAX would take three quarters of the memory of a GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
from jax.experimental import sparse  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """Arrays on the CPU, also where there is a GPU; tests of GPUs have a file of their own."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("kind", [sparse.BCSR, sparse.BCOO])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(kind, dtype):
    A = sparseop.gallery("uniform,rows=500", dtype=dtype)
    op = sparseop.auto(kind.from_scipy_sparse(A), updatable=True)
    x = jax.numpy.linspace(0, 1, 500, dtype=dtype)
    y = op @ x
    assert isinstance(y, jax.Array) and y.dtype == dtype
    assert np.allclose(y, A @ np.asarray(x), rtol=1e-4)
    X = jax.numpy.ones((500, 4), dtype)
    assert np.allclose(op @ X, A @ np.asarray(X), rtol=1e-4)
    assert np.allclose(op.T @ x, A.T @ np.asarray(x), rtol=1e-4)
    op.update_values(2 * kind.from_scipy_sparse(A).data)
    assert np.allclose(op @ x, 2 * (A @ np.asarray(x)), rtol=1e-4)


def test_refusals():
    op = sparseop.auto(sparseop.gallery("banded,rows=100"))
    x = jax.numpy.ones(100)
    with pytest.raises(sparseop.ReadOnlyError, match="leave it out"):
        op(x, out=x + 1)
    with pytest.raises(sparseop.DtypeError):
        op @ x.astype("float32")
    assert isinstance(op(x.astype("float32"), copy=True), jax.Array)


def test_solvers():
    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    b = jax.numpy.ones(400)
    x, info = sparseop.cg(sparseop.auto(A), b, M="jacobi")
    assert info == 0 and isinstance(x, jax.Array) and np.allclose(A @ np.asarray(x), 1)
