"""Tensors and matrices of PyTorch on the CPU."""

import gc

import numpy as np
import pytest
import sparseop

torch = pytest.importorskip("torch")


def sparse_csr(A):
    parts = (torch.from_numpy(part) for part in (A.indptr, A.indices, A.data))
    return torch.sparse_csr_tensor(*parts, size=A.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(dtype):
    A = sparseop.gallery("uniform,rows=500", dtype=dtype)
    op = sparseop.auto(sparse_csr(A), updatable=True)
    x = torch.linspace(0, 1, 500, dtype=getattr(torch, dtype))
    y = op @ x
    assert isinstance(y, torch.Tensor) and y.dtype == x.dtype
    assert np.allclose(y, A @ x.numpy(), rtol=1e-4)
    X = torch.ones((500, 4), dtype=x.dtype)
    assert np.allclose(op @ X, A @ X.numpy(), rtol=1e-4)
    assert np.allclose(op @ X.t().contiguous().t(), A @ X.numpy(), rtol=1e-4)
    out = torch.empty_like(x)
    assert op(x, out=out) is out and torch.equal(out, y)
    op.update_values(torch.from_numpy(2 * A.data))
    assert np.allclose(op @ x, 2 * (A @ x.numpy()), rtol=1e-4)


def test_gradients():
    A = sparseop.gallery("uniform,rows=60")[:, :40].tocsr()
    op = sparseop.auto(A)
    for shape in ((40,), (40, 3)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: op @ x, x)
        assert torch.autograd.gradgradcheck(lambda x: op @ x, x)
        (op @ x).sum().backward()
        expected = A.T @ np.ones((60,) + shape[1:])
        assert np.allclose(x.grad, expected)
    x = torch.ones(40, dtype=torch.float64, requires_grad=True)
    loss = (sparseop.auto(A) @ x).sum()
    gc.collect()
    loss.backward()
    assert np.allclose(x.grad, A.T @ np.ones(60))
    with pytest.raises(sparseop.SettingError, match="no_grad"):
        op(x, out=torch.empty(60, dtype=torch.float64))
    with torch.no_grad():
        assert not (op @ x).requires_grad


def test_a_registered_operator():
    op = sparseop.auto(sparseop.gallery("banded,rows=100"))
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    sparseop.torch.matmul(op, x)
    arguments = (x, op._handle, False, 100)
    torch.library.opcheck(torch.ops.sparseop.matmul, arguments)


def test_a_compiled_module():
    A = sparseop.gallery("uniform,rows=60")
    layer = sparseop.torch.SparseLinear(sparseop.auto(A))
    compiled = torch.compile(lambda x: 2 * layer(x), backend="aot_eager", fullgraph=True)
    x = torch.ones(60, dtype=torch.float64, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert np.allclose(y.detach(), 2 * (A @ np.ones(60)))
    assert np.allclose(x.grad, 2 * (A.T @ np.ones(60)))
    assert "60x60 Operator" in repr(layer)


def test_refusals():
    op = sparseop.auto(sparseop.gallery("banded,rows=100"))
    with pytest.raises(sparseop.DtypeError, match=r"torch\.float64"):
        op @ torch.ones(100)
    with pytest.raises(sparseop.ContiguityError, match="contiguous"):
        op @ torch.ones(200, dtype=torch.float64)[::2]
    assert np.allclose(op(torch.ones(100), copy=True), op @ np.ones(100))


def test_solvers():
    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    x, info = sparseop.cg(sparseop.auto(A), torch.ones(400, dtype=torch.float64))
    assert info == 0 and np.allclose(A @ x.numpy(), 1)
