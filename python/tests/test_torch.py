"""Tensors and matrices of PyTorch on the CPU."""

import copy
import gc
import io

import numpy as np
import pytest
import scipy.sparse
import sparseop

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402


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


def test_all_modes_of_autograd():
    A = sparseop.gallery("uniform,rows=20")[:, :15].tocsr()
    layer = sparseop.torch.SparseLinear(sparseop.auto(A))
    for multiply in (lambda x: layer.op @ x, layer):
        for shape in ((15,), (15, 3)):
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            options = {"check_forward_ad": True, "check_batched_grad": True}
            assert torch.autograd.gradcheck(multiply, x, **options)
            assert torch.autograd.gradgradcheck(multiply, x)


def test_tangents():
    A = sparseop.gallery("uniform,rows=60")
    op, t = sparseop.auto(A), torch.linspace(0, 1, 60, dtype=torch.float64)
    x, out = torch.ones(60, dtype=torch.float64), torch.empty(60, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        for y in (op @ dual, op(dual, alpha=1), op(dual, copy=True)):
            y, tangent = forward_ad.unpack_dual(y)
            assert np.allclose(y, A @ x.numpy()) and np.allclose(tangent, A @ t.numpy())
        # Tensors without a tangent are multiplied as everywhere.
        assert op(x, out=out) is out and forward_ad.unpack_dual(op @ x).tangent is None
        with pytest.raises(sparseop.SettingError, match="out"):
            op(dual, out=out)
        with pytest.raises(sparseop.SettingError, match="tangent"):
            op(x, out=forward_ad.make_dual(out, t))
        with pytest.raises(sparseop.SettingError, match="`b` has a tangent"):
            sparseop.cg(op, dual)


def test_transforms_of_functions():
    A = sparseop.gallery("uniform,rows=12")[:, :9].tocsr()
    layer, dense = sparseop.torch.SparseLinear(sparseop.auto(A)), torch.from_numpy(A.toarray())
    x, t, X = (torch.randn(s, dtype=torch.float64) for s in ((9,), (9,), (4, 9, 2)))
    func = torch.func
    for multiply in (lambda x: layer.op @ x, layer):
        square = lambda x: (multiply(x) ** 2).sum()  # noqa: E731
        assert torch.allclose(func.grad(square)(x), 2 * dense.T @ (dense @ x))
        assert torch.allclose(func.hessian(square)(x), 2 * dense.T @ dense)
        assert torch.allclose(func.jvp(multiply, (x,), (t,))[1], dense @ t)
        assert torch.allclose(func.jacrev(multiply)(x), dense)
        assert torch.allclose(func.jacfwd(multiply)(x), dense)
        assert torch.allclose(torch.vmap(multiply)(X[:, :, 0].contiguous()), X[:, :, 0] @ dense.T)
        assert torch.allclose(torch.vmap(multiply)(X), dense @ X)
        assert torch.allclose(torch.vmap(torch.vmap(multiply, -1), 0)(X), (dense @ X).mT)
        with pytest.raises(sparseop.ShapeError):
            torch.vmap(multiply)(X[:, None])
    with pytest.raises(sparseop.SettingError, match="out"):
        torch.vmap(lambda x: layer.op(x, out=torch.empty(12)))(X[:, :, 0])


def test_outputs_are_seen_by_autograd():
    A = sparseop.gallery("uniform,rows=60")
    op, x = sparseop.auto(A), torch.ones(60, dtype=torch.float64)
    single = x.to(torch.float32)
    for write in (
        lambda out: op(x, out=out),
        lambda out: op(single, out=out, copy=True),
        lambda out: op.dot(x, out),
    ):
        leaf, out = x.clone().requires_grad_(), x.clone()
        product = (leaf * out).sum()
        write(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
        out.requires_grad_()
        with pytest.raises(sparseop.SettingError, match="`out` requires grad"):
            write(out)
        with torch.no_grad():
            write(out)
    with torch.inference_mode():
        out = torch.empty(60, dtype=torch.float64)
        assert np.allclose(op(x, out=out), A @ x.numpy())


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
    for sparse in (torch.eye(100).to_sparse(), torch.eye(100).to_sparse_csr()):
        for copy_ in (False, True):
            with pytest.raises(sparseop.UnsupportedError, match="to_dense"):
                op(sparse.double(), copy=copy_)
    base = torch.zeros(804, dtype=torch.uint8).numpy()[4:].view("f8")
    unaligned = torch.from_numpy(base)
    with pytest.raises(sparseop.ContiguityError, match="not aligned"):
        op @ unaligned
    assert not op(unaligned, copy=True).any()


def test_imaginary_parts_are_not_dropped():
    A = sparseop.gallery("uniform,rows=60")
    op, x = sparseop.auto(A), torch.ones(60, dtype=torch.complex128, requires_grad=True)
    for given in (x, x.detach()):
        with pytest.raises(sparseop.DtypeError, match="complex"):
            op(given, copy=True)
        y = op.matvec(given * (1 + 2j))
        assert np.allclose(y.detach(), (1 + 2j) * (A @ np.ones(60)))
    with pytest.raises(sparseop.DtypeError, match="complex"):
        sparseop.auto(sparse_csr(A + 1j * A), dtype=torch.float64)


def test_types_of_torch():
    A = sparseop.gallery("uniform,rows=60", dtype=torch.float32)
    assert A.dtype == np.float32
    assert sparseop.auto(sparse_csr(A), dtype=torch.float64).dtype == np.float64
    with pytest.raises(sparseop.DtypeError, match="bfloat16"):
        sparseop.auto(A, dtype=torch.bfloat16)


def test_layers_are_copied_and_saved():
    A = sparseop.gallery("uniform,rows=60")
    op, x = sparseop.auto(A, updatable=True), torch.ones(60, dtype=torch.float64)
    layer, file = sparseop.torch.SparseLinear(op), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for own in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert own._handle != layer._handle
        op.update_values(2 * A.data)
        compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
        assert np.allclose(own(x), A @ np.ones(60)) and np.allclose(compiled(x), own(x))
        own.op.update_values(3 * A.data)
        assert np.allclose(layer(x), 2 * (A @ np.ones(60)))
        assert np.allclose(own(x), 3 * (A @ np.ones(60)))


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


def test_solvers_refuse_gradients():
    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    op, b = sparseop.auto(A), torch.ones(400, dtype=torch.float64)
    leaf = b.clone().requires_grad_()
    for name, arguments in (("b", (leaf,)), ("x0", (b, leaf))):
        for copies in (False, True):
            with pytest.raises(sparseop.SettingError, match=rf"{name}.detach.*no_grad"):
                sparseop.cg(op, *arguments, copy=copies)
        with torch.no_grad():
            assert sparseop.cg(op, *arguments)[1] == 0
    with pytest.raises(sparseop.DtypeError, match="x0"):
        sparseop.cg(op, b, np.ones(400))
    assert isinstance(sparseop.cg(op, b, np.ones(400), copy=True)[0], torch.Tensor)


def test_subclasses():
    class Own(torch.Tensor):
        __module__ = "elsewhere"

    A = sparseop.gallery("poisson2d,n=20,values=laplacian")
    op, b = sparseop.auto(A), torch.ones(400, dtype=torch.float64).as_subclass(Own)
    assert isinstance(op @ b, torch.Tensor) and isinstance(sparseop.cg(op, b)[0], torch.Tensor)
    assert isinstance(op(b.to(torch.float32), copy=True), torch.Tensor)


def test_tensors_without_memory():
    op = sparseop.auto(sparseop.gallery("small,n=6"))
    x = torch.ones(op.shape[1], dtype=torch.float64)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    zeros = torch._efficientzerotensor(x.shape, dtype=x.dtype)
    for tensor in (freed, zeros, x.to("meta")):
        with pytest.raises(sparseop.Error):
            op @ tensor
    with torch._subclasses.FakeTensorMode(), pytest.raises(sparseop.Error):
        op @ torch.ones(op.shape[1], dtype=torch.float64)
    # PyTorch has no such rule for functions with derivatives of their own.
    with pytest.raises(RuntimeError):
        torch.func.functionalize(lambda x: op @ x)(x)


def test_both_descriptions_of_a_tensor_are_the_same():
    class Own(torch.Tensor):
        """Has no function in C."""

    data = np.arange(1.0, 37.0).reshape(6, 2, 3)
    A = scipy.sparse.bsr_array((data, [0, 1] * 3, [0, 2, 4, 6]), shape=(6, 6))
    op, values = sparseop.auto(A, updatable=True), torch.from_numpy(data.copy())
    gaps = values.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    for tensor in (values, values.as_subclass(Own)):
        op.update_values(tensor)
    for tensor in (gaps, gaps.as_subclass(Own)):
        with pytest.raises(sparseop.ContiguityError):
            op.update_values(tensor)
    for rows, columns in ((6, 1), (6, 3), (6, 0)):
        X = torch.ones((rows, columns), dtype=torch.float64)
        for given in (X, X.t().contiguous().t()):
            assert torch.equal(op @ given, (op @ given.as_subclass(Own)).as_subclass(torch.Tensor))
