"""Products against SciPy."""

import copy
import pickle
import threading

import numpy as np
import pytest
import scipy.sparse as sp
import sparseop
from conftest import growth

SPECS = [
    "banded,rows=700",
    "poisson2d,n=25",
    "poisson3d,n=9",
    "rmat,scale=10",
    "uniform,rows=900",
    "small",
    "webbase,rows=2k",
    "circuit,rows=1k",
]


def close(found, expected, dtype):
    scale = np.abs(expected).max(initial=1e-30)
    limit = 1e-4 if dtype == np.float32 else 1e-12
    return found.dtype == dtype and np.abs(found - expected).max(initial=0) <= limit * scale


def vector(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gallery(spec, dtype):
    A, rng = sparseop.gallery(spec, dtype), np.random.default_rng(1)
    assert A.dtype == dtype
    op = sparseop.auto(A)
    m, n = op.shape
    assert (op.shape, op.nnz, op.dtype, op.ndim) == (A.shape, A.nnz, dtype, 2)
    x, z = vector(rng, dtype, n), vector(rng, dtype, m)
    assert close(op @ x, A @ x, dtype)
    assert close(op.T @ z, A.T @ z, dtype)
    assert close(z @ op, z @ A, dtype)
    for count in (1, 3, 16):
        X, Z = vector(rng, dtype, n, count), vector(rng, dtype, m, count)
        assert close(op @ X, A @ X, dtype)
        assert close(op @ np.asfortranarray(X), A @ X, dtype)
        assert close(op.T @ Z, A.T @ Z, dtype)
        assert close(Z.T @ op, Z.T @ A, dtype)
        out = np.empty((m, count), dtype)
        assert op(X, out=out) is out and close(out, A @ X, dtype)
    y = vector(rng, dtype, m)
    expected = 2 * (A @ x) - 3 * y
    assert op(x, out=y, alpha=2, beta=-3) is y and close(y, expected, dtype)
    assert abs(op.to_scipy() - A).sum() == 0
    assert abs(op.T.to_scipy() - A.T).sum() == 0


@pytest.mark.parametrize("kind", ["matrix", "array"])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_formats_and_new_values(kind, format, index):
    A = sparseop.gallery("uniform,rows=600")
    A = getattr(sp, f"csr_{kind}")(A).asformat(format)
    for name in ("indices", "indptr"):
        if hasattr(A, name):
            setattr(A, name, getattr(A, name).astype(index))
    before = A.data.copy()
    op, x = sparseop.auto(A, updatable=True), np.arange(600.0)
    assert np.allclose(op @ x, A @ x)
    A.data = np.random.default_rng(2).standard_normal(before.shape)
    assert np.allclose(op @ x, A.tocsr() @ x) is False
    op.update_values(A.data)
    assert np.allclose(op @ x, A @ x)
    assert np.allclose(op.T @ x, A.T @ x)
    assert op.T.nnz == before.size


def test_repeated_and_unsorted_entries_add_up():
    rows, columns = [1, 0, 1, 1, 0], [2, 1, 0, 2, 1]
    A = sp.coo_array((np.arange(1.0, 6.0), (rows, columns)), shape=(2, 3))
    op = sparseop.auto(A)
    assert op.nnz == 5
    assert np.array_equal(op @ np.array([1.0, 10.0, 100.0]), [70.0, 503.0])


@pytest.mark.parametrize("format", ["csr", "csc", "bsr"])
def test_arrays_that_are_filled_up(format, tmp_path):
    A = sparseop.gallery("uniform,rows=60")
    B = A.asformat(format)
    B.indices = np.concatenate([B.indices, np.full(5, 77, B.indices.dtype)])
    B.data = np.concatenate([B.data, np.full((5, *B.data.shape[1:]), np.nan)])
    op, x = sparseop.auto(B, updatable=True), np.arange(60.0)
    assert np.allclose(op @ x, A @ x)
    with pytest.raises(sparseop.ShapeError, match=f"{B.data.size} entries"):
        op.update_values(np.ones(B.data.size - 1))
    op.update_values(2 * B.data)
    assert np.allclose(op @ x, 2 * (A @ x)) and np.allclose(op.T @ x, 2 * (A.T @ x))
    own = pickle.loads(pickle.dumps(op))
    own.update_values(B.data)
    assert np.allclose(own @ x, A @ x)
    sparseop.write(tmp_path / "a.mtx", B)
    assert np.allclose(sparseop.read(tmp_path / "a.mtx") @ x, A @ x)


@pytest.mark.parametrize("format", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("change", ["short", "falling", "long"])
def test_broken_matrices_are_refused(format, change):
    B = sparseop.gallery("uniform,rows=60").asformat(format)
    if change == "short":
        B.data = B.data[:-1]
    elif change == "falling":
        B.indptr[3] = B.indptr[-1] + 1
    else:
        B.indptr[-1] += 5
    with pytest.raises(sparseop.MatrixError):
        sparseop.auto(B)


def test_copies_have_values_of_their_own():
    A = sparseop.gallery("uniform,rows=60")
    x = np.ones(60)
    for B in (A, A.tocsc()):
        op = sparseop.auto(B, plan="ell", updatable=True, expected_calls=7, copy=True)
        assert copy.copy(op) is op and op.copy() is op
        for own in (copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
            assert (own.plan, own.device, own.copies) == (op.plan, op.device, True)
            assert own._settings == op._settings and op._settings["updatable"]
            op.update_values(2 * B.data)
            assert np.allclose(own @ x, A @ x)
            own.update_values(3 * B.data)
            assert np.allclose(own @ x, 3 * (A @ x)) and np.allclose(op @ x, 2 * (A @ x))
            op.update_values(B.data)
    for own in (copy.deepcopy(op.T), pickle.loads(pickle.dumps(op.T))):
        assert own.T.plan == op.plan and np.allclose(own @ x, A.T @ x)
    rounded = sparseop.auto(A.astype("f4"), value_precision="f16")
    own = copy.deepcopy(rounded)
    assert own._settings == rounded._settings and own._settings["value_precision"] == "f16"
    assert np.array_equal(own @ x.astype("f4"), rounded @ x.astype("f4"))


def test_arrays_of_csr():
    data, indices, indptr = np.array([1.0, 2.0]), np.array([1, 0]), np.array([0, 1, 2])
    op = sparseop.auto((data, indices, indptr), shape=(2, 3))
    assert np.array_equal(op @ np.array([1.0, 2.0, 3.0]), [2.0, 2.0])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 3)])
def test_empty_matrices(shape):
    op = sparseop.auto(sp.csr_array(shape))
    assert np.array_equal(op @ np.ones(shape[1]), np.zeros(shape[0]))
    assert (op @ np.ones((shape[1], 4))).shape == (shape[0], 4)
    assert (op.T @ np.ones(shape[0])).shape == (shape[1],)


def test_plans_and_explanations():
    A = sparseop.gallery("poisson2d,n=20")
    x = np.ones(400)
    for plan in ["csr(scalar)", "coo", "ell", "sell(c:8,sigma:64)", "hyb(width:3)", "psell"]:
        op = sparseop.auto(A, plan=plan)
        assert op.plan.startswith(plan.partition("(")[0])
        assert np.allclose(op @ x, A @ x)
        assert op.plan in op.explain() and op.plan in repr(op)
    op = sparseop.auto(A, tuning="predict", deterministic=True, expected_calls=10)
    assert op.decision["expected_calls"] == 10
    chosen = [c for c in op.decision["candidates"] if c["verdict"] == "chosen"]
    assert [c["plan"] for c in chosen] == [op.plan]
    assert op.stats["nnz"] == A.nnz and op.memory_bytes > 0
    html = op._repr_html_()
    assert op.plan in html and "<svg" in html and "chosen" in html


@pytest.mark.parametrize("count", [None, 3])
def test_nothing_is_copied(count):
    # Vectors of more than 32 MB, whose memory the system takes back at once.
    A = sp.eye_array(9_000_000, dtype="float32", format="csr")
    op = sparseop.auto(A, plan="csr(balanced)")
    shape = (A.shape[1],) if count is None else (A.shape[1], count)
    x, out = np.ones(shape, "f4"), np.ones(shape, "f4")
    limit = x.nbytes // 4
    op(x, out=out)
    assert growth(lambda: op(x, out=out))[1] < limit
    y, bytes_ = growth(lambda: op @ x)
    assert y.nbytes - limit < bytes_ < y.nbytes + limit
    # What a copy adds is counted.
    assert growth(lambda: op(x[::-1], copy=True))[1] > 2 * x.nbytes - limit


def test_many_threads():
    A = sparseop.gallery("uniform,rows=20k")
    op, x = sparseop.auto(A), np.arange(20_000.0)
    expected, wrong = A @ x, []

    def work():
        y = np.empty_like(expected)
        for _ in range(50):
            op(x, out=y)
            if not np.allclose(y, expected) or not np.allclose(op.T @ x, A.T @ x):
                wrong.append(y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_updates_beside_products_of_other_threads():
    A = sparseop.gallery("uniform,rows=20k")
    op, x = sparseop.auto(A, updatable=True), np.ones(20_000)
    one, wrong = A @ x, []

    def multiply():
        for _ in range(100):
            y = op @ x
            factor = y[0] / one[0]
            if not np.allclose(y, factor * one):
                wrong.append(y)

    threads = [threading.Thread(target=multiply) for _ in range(2)]
    [thread.start() for thread in threads]
    for factor in range(1, 20):
        op.update_values(factor * A.data)
    [thread.join() for thread in threads]
    assert not wrong


def test_the_gil_is_released():
    A = sparseop.gallery("uniform,rows=300k")
    op = sparseop.auto(A, tuning="predict")
    x, y = np.ones((300_000, 8)), np.empty((300_000, 8))
    op(x, out=y)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    for _ in range(5):
        op(x, out=y)
    during = counted[0] - before
    done.set()
    thread.join()
    assert during > 1000


def test_shapes_and_types_at_random():
    pytest.importorskip("hypothesis")
    from hypothesis import given, strategies as st

    @given(
        m=st.integers(0, 40),
        n=st.integers(0, 40),
        density=st.floats(0, 1),
        count=st.one_of(st.none(), st.integers(0, 9)),
        dtype=st.sampled_from([np.float32, np.float64]),
        format=st.sampled_from(["csr", "csc", "coo"]),
        order=st.sampled_from("CF"),
        transposed=st.booleans(),
        seed=st.integers(0, 2**31),
    )
    def check(m, n, density, count, dtype, format, order, transposed, seed):
        rng = np.random.default_rng(seed)
        A = sp.random_array((m, n), density=density, dtype=dtype, rng=rng).asformat(format)
        op = sparseop.auto(A, tuning="predict")
        if transposed:
            A, op = A.T, op.T
        shape = (A.shape[1],) if count is None else (A.shape[1], count)
        x = np.asarray(vector(rng, dtype, *shape), order=order)
        y = op @ x
        assert y.shape == (A.shape[0],) + shape[1:]
        assert close(y, A @ x, dtype)

    check()
