"""Solvers of this package, and those of SciPy with operators."""

import threading
import time

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg as linalg
import sparseop

A = sparseop.gallery("poisson2d,n=40,values=laplacian")
B = np.random.default_rng(3).standard_normal(1600)


@pytest.mark.parametrize("method", ["cg", "bicgstab", "gmres", "chebyshev"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("M", [None, "jacobi"])
def test_solvers(method, dtype, M):
    rtol = 1e-4 if dtype == np.float32 else 1e-9
    seen = []
    op, b = sparseop.auto(A.astype(dtype)), B.astype(dtype)
    solve = getattr(sparseop, method)
    x, info = solve(op, b, rtol=rtol, M=M, callback=seen.append)
    assert info == 0 and info.outcome == "converged" and info.converged() is info
    assert x.dtype == dtype and np.linalg.norm(b - A @ x) <= 2 * rtol * np.linalg.norm(b)
    assert seen and seen[-1].iterations == info.iterations
    assert [p.iterations for p in seen] == sorted(p.iterations for p in seen)
    again, info = solve(op, b, x0=x, rtol=2 * rtol, M=M)
    assert info.iterations == 0 and np.array_equal(again, x)
    assert "converged" in repr(info)


def test_outcomes():
    x, info = sparseop.cg(A, B, maxiter=3)
    assert info == 3 and info.outcome == "max-iterations" and x.shape == B.shape
    with pytest.raises(sparseop.NotConvergedError, match="preconditioner"):
        info.converged()
    _, info = sparseop.cg(sparseop.auto(-A), B)
    assert info < 0 and info.outcome == "not-positive-definite"


def test_errors_of_callbacks_are_raised():
    def fail(progress):
        raise KeyError(progress.iterations)

    with pytest.raises(KeyError):
        sparseop.cg(A, B, callback=fail)


def test_transposed_systems():
    # Rows, not columns, have larger diagonals than the sum of all others.
    C = sparseop.gallery("uniform,rows=400")
    C = (C + sp.diags_array(1 + abs(C).sum(axis=1))).tocsr()
    b = np.ones(400)
    for method in (sparseop.gmres, sparseop.bicgstab):
        x, info = method(sparseop.auto(C).T, b, rtol=1e-10, M="jacobi")
        assert info == 0 and np.allclose(C.T @ x, b) and not np.allclose(C @ x, b)


def test_operators_are_linear_operators():
    op = sparseop.auto(A)
    linear = linalg.aslinearoperator(op)
    assert linear.shape == A.shape and linear.dtype == A.dtype
    assert np.allclose(linear.matvec(B), A @ B)
    assert np.allclose(linear.rmatvec(B), A.T @ B)
    assert np.allclose(linear.matmat(np.eye(1600)[:, :3]), A.toarray()[:, :3])
    for solve in (linalg.cg, linalg.bicgstab, linalg.gmres, linalg.minres):
        x, info = solve(op, B, rtol=1e-8)
        assert info == 0 and np.allclose(A @ x, B, atol=1e-5)
    values = linalg.eigsh(op, k=3, return_eigenvectors=False)
    assert np.allclose(values, linalg.eigsh(A, k=3, return_eigenvectors=False))
    singular = linalg.svds(op, k=2, return_singular_vectors=False)
    assert np.allclose(singular, linalg.svds(A, k=2, return_singular_vectors=False))
    assert np.allclose((2 * linear + linear) @ B, 3 * (A @ B))


def test_operators_are_those_of_scipy():
    op, other = sparseop.auto(A), linalg.aslinearoperator(A)
    assert isinstance(op, linalg.LinearOperator) and isinstance(op, sparseop.Operator)
    assert type(op) is sparseop.Operator and linalg.aslinearoperator(op) is op
    x, AB = B, A @ B
    for found, expected in (
        (2 * op, 2 * AB),
        (op * np.float32(2), 2 * AB),
        (np.float64(2) * op, 2 * AB),
        (-op, -AB),
        (op / 2, AB / 2),
        (op + op, 2 * AB),
        (op - 2 * op, -AB),
        (op + other, 2 * AB),
        (other + op, 2 * AB),
        (other - op, 0 * AB),
        (op @ op, A @ AB),
        (op * op, A @ AB),
        (op.dot(op), A @ AB),
        (op @ other, A @ AB),
        (other @ op, A @ AB),
        (op**2, A @ AB),
        (linalg.matrix_power(op, 2), A @ AB),
        (linalg.matrix_power(op, 1), AB),
        ((op.T @ op + op).H, A.T @ AB + AB),
    ):
        assert isinstance(found, linalg.LinearOperator)
        assert np.allclose(found @ x, expected)
    assert np.allclose(op * x, AB) and np.allclose(x * op, A.T @ x)
    for refused, error in (
        (lambda: op + 1, sparseop.UnsupportedError),
        (lambda: op - A, sparseop.UnsupportedError),
        (lambda: op / "2", sparseop.UnsupportedError),
        (lambda: op + linalg.aslinearoperator(A[:3]), sparseop.ShapeError),
        (lambda: op @ linalg.aslinearoperator(A[:3]), sparseop.ShapeError),
        (lambda: op**-1, sparseop.SettingError),
    ):
        with pytest.raises(error):
            refused()


def test_functions_of_scipy_take_operators():
    op, small = sparseop.auto(A), -0.1 * A
    trace = small.diagonal().sum()
    found = linalg.expm_multiply(sparseop.auto(small), B, traceA=trace)
    assert np.allclose(found, linalg.expm_multiply(small, B))
    solved = scipy.optimize.lsq_linear(op, B, lsmr_tol=1e-12)
    assert np.allclose(A @ solved.x, B, atol=1e-5)
    assert np.isclose(linalg.onenormest(op), linalg.onenormest(A))


def test_lobpcg_needs_an_operator_of_scipy_for_other_types():
    """It calls operators as functions, which copy nothing: as the guide says."""
    op, X = sparseop.auto(A.astype("f4")), np.random.default_rng(5).standard_normal((1600, 3))
    with pytest.raises(sparseop.DtypeError):
        op(X)
    options = {"tol": 1e-3, "maxiter": 300, "largest": True}
    values = linalg.lobpcg(op.as_linear_operator(), X, **options)[0]
    assert np.allclose(values, linalg.lobpcg(A, X, **options)[0], rtol=1e-2)


def test_complex_vectors_of_scipy():
    C = sparseop.gallery("uniform,rows=400")
    for dtype, limit in (("f8", 1e-12), ("f4", 1e-4)):
        op, D = sparseop.auto(C.astype(dtype)), C.astype(dtype)
        linear = op.as_linear_operator()
        X = np.random.default_rng(6).standard_normal((400, 6))
        X = (X[:, :3] + 1j * X[:, 3:]).astype("c16" if dtype == "f8" else "c8")
        for found, expected in (
            (op.matvec(X[:, 0]), D @ X[:, 0]),
            (op.rmatvec(X[:, 0]), D.T @ X[:, 0]),
            (op.matmat(X), D @ X),
            (op.rmatmat(X), D.T @ X),
            (linear @ X, D @ X),
            (linear.H @ X[:, 1], D.T @ X[:, 1]),
        ):
            assert found.dtype == X.dtype and np.allclose(found, expected, atol=limit)
    with pytest.raises(sparseop.DtypeError):
        op @ X


def test_subclasses_of_arrays():
    class Own(np.ndarray):
        __module__ = "elsewhere"

    b = B.view(Own)
    x, info = sparseop.cg(A, b, b.copy())
    assert info == 0 and np.allclose(A @ x, B)


def test_pagerank():
    G = sparseop.gallery("rmat,scale=9,values=pattern")
    ranks, info = sparseop.pagerank(G, rtol=1e-12)
    assert info == 0 and ranks.shape == (512,)
    links = G.toarray()
    sums = links.sum(axis=1)
    passed = np.divide(links, sums[:, None], where=sums[:, None] > 0, out=np.zeros_like(links))
    walk = 0.85 * (passed + (sums == 0)[:, None] / 512) + 0.15 / 512
    expected = np.full(512, 1 / 512)
    for _ in range(200):
        expected = expected @ walk
    assert np.allclose(ranks, expected, atol=1e-10)
    assert np.allclose(sparseop.pagerank(G.astype(int), rtol=1e-12)[0], expected, atol=1e-10)


def test_solvers_are_kept_and_follow_new_values():
    op = sparseop.auto(A, updatable=True)
    for factor in (1.0, 2.0, 2.0, 5.0):
        op.update_values(factor * A.data)
        for M in (None, "jacobi", "jacobi"):
            x, info = sparseop.cg(op, B, M=M)
            assert info == 0 and np.allclose(factor * (A @ x), B, atol=1e-6)


def test_solves_of_several_threads_and_in_callbacks():
    op, wrong = sparseop.auto(A), []
    expected = sparseop.cg(op, B)[0]

    def work(number):
        for _ in range(10):
            x, info = sparseop.cg(op, number * B)
            if info != 0 or not np.allclose(x, number * expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    inner = []
    sparseop.cg(op, B, callback=lambda p: inner.append(sparseop.cg(op, B)[0]))
    assert inner and all(np.array_equal(x, expected) for x in inner)


def test_callbacks_wait_for_products_of_others_while_others_wait_to_update():
    op, products, finished = sparseop.auto(A, updatable=True), [], []
    updating = threading.Thread(target=op.update_values, args=(2 * A.data,), daemon=True)
    multiplying = threading.Thread(target=lambda: products.append(op @ B), daemon=True)

    def callback(progress):
        if not products:
            updating.start()
            time.sleep(0.05)
            multiplying.start()
            multiplying.join()

    def work():
        finished.append(sparseop.cg(op, B, callback=callback)[1])

    solving = threading.Thread(target=work, daemon=True)
    solving.start()
    solving.join(20)
    assert finished == [0] and np.allclose(products, [A @ B])
    updating.join(20)
    assert np.allclose(op @ B, 2 * (A @ B))


def test_callbacks_multiply_while_others_wait_to_update():
    op = sparseop.auto(A, updatable=True)
    waiting = threading.Thread(target=op.update_values, args=(2 * A.data,))
    seen = []

    def callback(progress):
        if not seen:
            waiting.start()
            time.sleep(0.05)
        seen.append(op @ B)
        with pytest.raises(sparseop.SettingError, match="afterwards"):
            op.update_values(A.data)

    x, info = sparseop.cg(op, B, callback=callback)
    assert info == 0 and all(np.allclose(y, A @ B) for y in seen)
    waiting.join()
    assert np.allclose(op @ B, 2 * (A @ B))
