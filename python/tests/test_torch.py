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


def test_a_layer_keeps_its_operator():
    A = sparseop.gallery("uniform,rows=60")
    op = sparseop.auto(A)
    layer, transposed = sparseop.torch.SparseLinear(op), sparseop.torch.SparseLinear(op.T)
    u = torch.ones(60, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        (op.T @ u).sum().backward()
        assert np.allclose(layer(u).detach(), A @ np.ones(60))
        assert np.allclose(transposed(u).detach(), A.T @ np.ones(60))


def test_refusals():
    op = sparseop.auto(sparseop.gallery("banded,rows=100"))
    with pytest.raises(sparseop.DtypeError, match=r"torch\.float64"):
        op @ torch.ones(100)
    with pytest.raises(sparseop.ContiguityError, match="contiguous"):
        op @ torch.ones(200, dtype=torch.float64)[::2]
    assert np.allclose(op(torch.ones(100), copy=True), op @ np.ones(100))


def test_what_is_copied():
    A = sparseop.gallery("uniform,rows=100")
    op = sparseop.auto(A)
    # The matrix is packed from its arrays, of 32 and of 64 bits; the vectors are used as they are.
    for kind in (torch.int32, torch.int64):
        parts = [torch.from_numpy(part).to(kind) for part in (A.indptr, A.indices)]
        B = torch.sparse_csr_tensor(*parts, torch.from_numpy(A.data), size=A.shape)
        assert np.allclose(sparseop.auto(B) @ torch.ones(100, dtype=torch.float64), A.sum(1))
    # Several vectors in either order, in both directions; the result has the order of `x`.
    X = torch.randn((100, 3), dtype=torch.float64)
    for x in (X, X.t().contiguous().t()):
        leaf = x.detach().requires_grad_()
        y = op @ leaf
        assert y.stride() == x.stride() and np.allclose(y.detach(), A @ X.numpy())
        y.backward(x)
        assert np.allclose(leaf.grad, A.T @ X.numpy())
    # Only the gradient of a sum is copied, which has one element.
    leaf = X.clone().requires_grad_()
    (op @ leaf).sum().backward()
    assert np.allclose(leaf.grad, A.T @ np.ones((100, 3)))


def test_recorded_products_copy_only_if_asked_for():
    A = sparseop.gallery("uniform,rows=100")
    op = sparseop.auto(A)
    gaps = torch.ones(200, dtype=torch.float64, requires_grad=True)
    with pytest.raises(sparseop.ContiguityError):
        op @ gaps[::2]
    op(gaps[::2], copy=True).sum().backward()
    assert np.allclose(gaps.grad[::2], A.T @ np.ones(100)) and not gaps.grad[1::2].any()
    single = torch.ones(100, requires_grad=True)
    with pytest.raises(sparseop.DtypeError):
        op @ single
    (sparseop.auto(A, copy=True) @ single).sum().backward()
    assert single.grad.dtype == torch.float32
    assert np.allclose(single.grad, A.T @ np.ones(100), rtol=1e-5)


def test_views_with_negated_elements_are_refused():
    A = sparseop.gallery("uniform,rows=100")
    op = sparseop.auto(A)
    x = torch.view_as_complex(torch.ones((100, 2), dtype=torch.float64)).conj().imag
    assert x.is_neg()
    whole = x.contiguous()
    negated = torch._neg_view(torch.ones(100, dtype=torch.float64))
    with pytest.raises(sparseop.ContiguityError, match="resolve_neg"):
        op @ negated
    assert np.allclose(op(negated, copy=True), A @ -np.ones(100))
    assert np.allclose(op @ whole.resolve_neg(), A @ -np.ones(100))


def test_solvers():
    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    x, info = sparseop.cg(sparseop.auto(A), torch.ones(400, dtype=torch.float64))
    assert info == 0 and np.allclose(A @ x.numpy(), 1)
