"""Arrays and matrices of JAX on the CPU."""

import os

import numpy as np
import pytest
import scipy.sparse as sp
import sparseop
from conftest import growth

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


def test_nothing_is_copied():
    # Vectors of more than 32 MB, whose memory the system takes back at once.
    A = sp.eye_array(9_000_000, dtype="float32", format="csr")
    op, x = sparseop.auto(A, plan="csr(balanced)"), jax.numpy.ones(A.shape[1], "float32")
    limit = x.nbytes // 4
    (op @ x).delete()
    y, bytes_ = growth(lambda: op @ x)
    assert y.nbytes - limit < bytes_ < y.nbytes + limit
    # What a copy adds is counted.
    double = x.astype("float64")
    assert growth(lambda: op(double, copy=True))[1] > 2 * x.nbytes - limit


def test_arrays_that_are_filled_up():
    A = sparseop.gallery("uniform,rows=50")
    x, given = jax.numpy.linspace(0, 1, 50), A.nnz + 7
    coo = sparse.BCOO.fromdense(A.toarray(), nse=given)
    for B in (coo, sparse.BCSR.from_bcoo(coo)):
        assert B.data.size == given
        op = sparseop.auto(B, updatable=True)
        assert op.nnz == A.nnz and np.allclose(op @ x, A @ np.asarray(x))
        with pytest.raises(sparseop.ShapeError, match=f"{given} entries"):
            op.update_values(jax.numpy.ones(A.nnz))
        op.update_values(3 * B.data)
        assert np.allclose(op @ x, 3 * (A @ np.asarray(x)))
        assert np.allclose(op.T @ x, 3 * (A.T @ np.asarray(x)))


def test_pagerank():
    G = sparseop.gallery("rmat,scale=8,values=pattern")
    expected = sparseop.pagerank(G)[0]
    for kind in (sparse.BCSR, sparse.BCOO):
        ranks, info = sparseop.pagerank(kind.from_scipy_sparse(G))
        assert info == 0 and isinstance(ranks, jax.Array) and np.allclose(ranks, expected)


def test_refusals():
    op = sparseop.auto(sparseop.gallery("banded,rows=100"))
    x = jax.numpy.ones(100)
    with pytest.raises(sparseop.ReadOnlyError, match="leave it out"):
        op(x, out=x + 1)
    with pytest.raises(sparseop.DtypeError):
        op @ x.astype("float32")
    assert isinstance(op(x.astype("float32"), copy=True), jax.Array)


def test_transformations_are_refused():
    op, x = sparseop.auto(sparseop.gallery("banded,rows=100")), jax.numpy.ones(100)
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        argument = jax.numpy.ones((2, 100)) if transform is jax.vmap else x
        for multiply in (lambda x: op @ x, lambda x: op(x, copy=True)):
            with pytest.raises(sparseop.UnsupportedError, match="pure_callback"):
                transform(multiply)(argument)
    x.delete()
    for copy in (False, True):
        with pytest.raises(sparseop.UnsupportedError, match="deleted"):
            op(x, copy=copy)


def test_types_and_dimensions_of_matrices():
    A = sparseop.gallery("uniform,rows=50")
    B = sparse.BCOO.from_scipy_sparse(A)
    assert sparseop.auto(B, dtype=jax.numpy.float32).dtype == np.float32
    with pytest.raises(sparseop.DtypeError, match="complex"):
        sparseop.auto(sparse.BCOO((B.data + 1j, B.indices), shape=B.shape), dtype="float64")
    for shape in ((3,), (3, 3, 3)):
        with pytest.raises(sparseop.MatrixError, match=f"{len(shape)} dimensions"):
            sparseop.auto(sparse.BCOO.fromdense(jax.numpy.ones(shape)))


def test_solvers():
    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    b = jax.numpy.ones(400)
    x, info = sparseop.cg(sparseop.auto(A), b, M="jacobi")
    assert info == 0 and isinstance(x, jax.Array) and np.allclose(A @ np.asarray(x), 1)
