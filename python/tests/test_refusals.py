"""Arguments that are refused, with a type and a remedy; and copies, where they are asked for."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import sparseop
from scipy.sparse.linalg import aslinearoperator

A = sparseop.gallery("banded,rows=300")
OP = sparseop.auto(A)
X = np.ones(300)


def read_only(array):
    array.flags.writeable = False
    return array


def unaligned(array):
    return np.frombuffer(bytes(1) + array.tobytes(), "u1")[1:].view(array.dtype)


OVERLAPPING = np.ones(450)
ARRAYS = (A.data, A.indices, A.indptr)

CASES = [
    (lambda: OP @ np.ones(600)[::2], sparseop.ContiguityError, ValueError, "ascontiguousarray"),
    (lambda: OP @ X.astype("f4"), sparseop.DtypeError, TypeError, 'astype("float64")'),
    (lambda: OP @ X.astype(">f8"), sparseop.DtypeError, TypeError, "astype"),
    (lambda: OP @ X.astype(complex), sparseop.DtypeError, TypeError, "float64"),
    (lambda: OP @ [1.0, 2.0], sparseop.DtypeError, TypeError, "list"),
    (lambda: OP @ np.ones(299), sparseop.ShapeError, ValueError, "(300,)"),
    (lambda: OP @ np.ones((299, 2)), sparseop.ShapeError, ValueError, "(300, k)"),
    (lambda: OP @ np.float64(3), sparseop.DtypeError, TypeError, "array"),
    (lambda: OP @ np.ones((300, 1, 1)), sparseop.ShapeError, ValueError, "3 dimensions"),
    (lambda: OP(X, out=np.ones(301)), sparseop.ShapeError, ValueError, "out"),
    (lambda: OP(X, out=np.ones((300, 1))), sparseop.ShapeError, ValueError, "number of vectors"),
    (lambda: OP(X, out=np.ones(300, "f4")), sparseop.DtypeError, TypeError, "out"),
    (lambda: OP(X, out=np.ones(600)[::2]), sparseop.ContiguityError, ValueError, "out"),
    (lambda: OP(X, out=read_only(np.ones(300))), sparseop.ReadOnlyError, ValueError, "written"),
    (lambda: OP(X, out=X), sparseop.SettingError, ValueError, "in common"),
    (
        lambda: OP(OVERLAPPING[:300], out=OVERLAPPING[150:]),
        sparseop.SettingError,
        ValueError,
        "in common",
    ),
    (
        lambda: OP(np.ones((300, 3)), out=np.ones((300, 3), order="F")),
        sparseop.ContiguityError,
        ValueError,
        "order",
    ),
    (lambda: OP(X, beta=1), sparseop.SettingError, ValueError, "out"),
    (lambda: OP.update_values(X), sparseop.ShapeError, ValueError, "entries"),
    (lambda: OP.update_values(A.data.astype("f4")), sparseop.DtypeError, TypeError, "float64"),
    (lambda: sparseop.auto(A.astype(int)), sparseop.DtypeError, TypeError, "dtype="),
    (lambda: sparseop.auto(A.todense()), sparseop.DtypeError, TypeError, "csr_array"),
    (lambda: sparseop.auto(A, plan="cst"), sparseop.SettingError, ValueError, "csr"),
    (lambda: sparseop.auto(A, plan="csr", tuning="check"), sparseop.SettingError, ValueError, ""),
    (lambda: sparseop.auto(A, tuning="guess"), sparseop.SettingError, ValueError, "calibrate"),
    (lambda: sparseop.auto(A, device="tpu"), sparseop.DeviceError, ValueError, "tpu"),
    (lambda: sparseop.auto(A, value_precision="f8"), sparseop.SettingError, ValueError, "f16"),
    (lambda: sparseop.auto(A, memory_limit=10), sparseop.OutOfMemoryError, MemoryError, "limit"),
    (lambda: sparseop.auto(A, profile="/nowhere.ron"), sparseop.FileError, OSError, "nowhere"),
    (lambda: sparseop.auto(OP), sparseop.SettingError, ValueError, "operator"),
    (lambda: sparseop.auto(A.asformat("dia")), sparseop.MatrixError, ValueError, "tocsr"),
    (
        lambda: sparseop.auto((np.ones(1), np.array([7]), np.array([0, 1])), shape=(1, 2)),
        sparseop.MatrixError,
        ValueError,
        "7",
    ),
    (
        lambda: sparseop.auto(sp.coo_array(([1.0], ([0], [0])), shape=(1, 1)), dtype="int8"),
        sparseop.DtypeError,
        TypeError,
        "float32",
    ),
    (lambda: sparseop.auto(A, device=3), sparseop.SettingError, ValueError, '"cpu"'),
    (lambda: sparseop.auto(A, plan=3), sparseop.SettingError, ValueError, "csr(balanced)"),
    (lambda: sparseop.auto(A, memory_limit="1G"), sparseop.SettingError, ValueError, "bytes"),
    (lambda: sparseop.auto(A, memory_limit=-1), sparseop.SettingError, ValueError, "bytes"),
    (lambda: sparseop.auto(A, expected_calls=1.5), sparseop.SettingError, ValueError, "products"),
    (lambda: sparseop.auto(A, updatable="yes"), sparseop.SettingError, ValueError, "True"),
    (lambda: sparseop.auto(A, profile=3), sparseop.SettingError, ValueError, "path"),
    (lambda: sparseop.auto(A, dtype="floating"), sparseop.DtypeError, TypeError, "floating"),
    (lambda: sparseop.auto(ARRAYS, shape=(300,)), sparseop.SettingError, ValueError, "shape"),
    (lambda: sparseop.auto(ARRAYS, shape=(-1, 2)), sparseop.SettingError, ValueError, "shape"),
    (lambda: sparseop.auto(ARRAYS, shape=300), sparseop.SettingError, ValueError, "shape"),
    (lambda: sparseop.pagerank(A, device=3), sparseop.SettingError, ValueError, '"cpu"'),
    (lambda: sparseop.pagerank(A, maxiter=-1), sparseop.SettingError, ValueError, "maxiter"),
    (lambda: sparseop.cg(OP, X, M=X), sparseop.SettingError, ValueError, "jacobi"),
    (lambda: sparseop.cg(OP, X, maxiter=-1), sparseop.SettingError, ValueError, "maxiter"),
    (lambda: sparseop.cg(OP, X, maxiter=1e3), sparseop.SettingError, ValueError, "maxiter"),
    (lambda: sparseop.gmres(OP, X, restart=-1), sparseop.SettingError, ValueError, "restart"),
    (lambda: sparseop.cg(OP, X, M="ilu"), sparseop.SettingError, ValueError, "jacobi"),
    (lambda: sparseop.cg(OP, X, rtol=-1), sparseop.SettingError, ValueError, "tolerance"),
    (lambda: sparseop.cg(OP, np.ones((300, 2))), sparseop.ShapeError, ValueError, "one vector"),
    (lambda: sparseop.cg(OP, X.astype("f4")), sparseop.DtypeError, TypeError, "float64"),
    (lambda: sparseop.read("/nowhere.mtx"), sparseop.FileError, OSError, "nowhere"),
    (lambda: sparseop.gallery("poison2d"), sparseop.SettingError, ValueError, "poisson2d"),
    (lambda: OP @ 2.0, sparseop.DtypeError, TypeError, "float"),
    (lambda: OP @ unaligned(X), sparseop.ContiguityError, ValueError, "pass x.copy()"),
    (lambda: OP.matvec(["a"] * 300), sparseop.DtypeError, TypeError, "numbers"),
    (lambda: OP(X, out=[0.0] * 300, copy=True), sparseop.DtypeError, TypeError, "list"),
    (
        lambda: OP(X.astype("f4"), out=[0.0] * 300, copy=True),
        sparseop.DtypeError,
        TypeError,
        "`out` is of type list",
    ),
    (lambda: sparseop.auto(A + 1j * A, dtype="f8"), sparseop.DtypeError, TypeError, "complex"),
    (lambda: sparseop.pagerank(A + 1j * A), sparseop.DtypeError, TypeError, "complex"),
    (
        lambda: sparseop.auto((A.data + 1j, *ARRAYS[1:]), shape=A.shape, dtype="f4"),
        sparseop.DtypeError,
        TypeError,
        "complex",
    ),
    (
        lambda: sparseop.auto((list(A.data), *ARRAYS[1:]), shape=A.shape, dtype="f4"),
        sparseop.DtypeError,
        TypeError,
        "list",
    ),
    (
        lambda: sparseop.auto((unaligned(A.data), *ARRAYS[1:]), shape=A.shape),
        sparseop.ContiguityError,
        ValueError,
        "values are not aligned",
    ),
    (lambda: sparseop.auto(A, shape=(7, 9)), sparseop.SettingError, ValueError, "(300, 300)"),
    (lambda: sparseop.auto(aslinearoperator(A)), sparseop.DtypeError, TypeError, "no sparse matrix"),
    (lambda: sparseop.gallery(5), sparseop.SettingError, ValueError, "generator"),
    (lambda: sparseop.read(5), sparseop.SettingError, ValueError, "path"),
    (lambda: sparseop.write(5, A), sparseop.SettingError, ValueError, "path"),
    (lambda: sparseop.Profile.read(5), sparseop.SettingError, ValueError, "path"),
    (lambda: sparseop.cg(OP, X, (1.0,) * 300), sparseop.DtypeError, TypeError, "`x0` is of type"),
    (lambda: sparseop.cg(OP, X, 0), sparseop.DtypeError, TypeError, "`x0` is of type"),
    (lambda: sparseop.cg(OP, X, X.astype("f4")), sparseop.DtypeError, TypeError, "`x0` has elem"),
    (lambda: sparseop.cg(OP, X, np.ones((300, 1))), sparseop.ShapeError, ValueError, "`x0`"),
    (lambda: sparseop.cg(OP, X, rtol=None), sparseop.SettingError, ValueError, "rtol"),
    (lambda: sparseop.pagerank(A, "most"), sparseop.SettingError, ValueError, "damping"),
    (lambda: sparseop.pagerank(A, rtol=1j), sparseop.SettingError, ValueError, "rtol"),
    (lambda: sparseop.cg(OP, X, callback=7), sparseop.SettingError, ValueError, "callback"),
    (lambda: sparseop.pagerank(A, callback=7), sparseop.SettingError, ValueError, "callback"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_refusals(number):
    call, kind, base, text = CASES[number]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind and isinstance(caught.value, base)
    assert text in str(caught.value)
    assert kind is TypeError or isinstance(caught.value, sparseop.Error)


def test_nothing_is_written_when_refused():
    out = np.full(300, 7.0)
    with pytest.raises(sparseop.DtypeError):
        OP(X.astype("f4"), out=out)
    assert (out == 7).all()


def test_copies_on_request():
    strided, single = np.arange(600.0)[::2], np.arange(300, dtype="f4")
    for x in (strided, single, single.astype(">f8"), np.arange(600.0).reshape(300, 2)[:, :1]):
        expected = A @ x
        assert np.allclose(OP(x, copy=True), expected)
        assert np.allclose(sparseop.auto(A, copy=True) @ x, expected)
        out = np.ones(expected.shape)
        OP(x, out=out, copy=True, alpha=2, beta=3)
        assert np.allclose(out, 2 * expected + 3)
    with pytest.raises(sparseop.ShapeError):
        OP(np.ones(299), copy=True)
    spd = sparseop.gallery("poisson2d,n=20,values=laplacian")
    x, info = sparseop.cg(spd, np.ones(400, "f4"), copy=True)
    assert info == 0 and np.allclose(spd @ x, 1)
    op = sparseop.auto(A.astype(int), dtype="float32")
    assert np.allclose(op @ single, A.astype(int) @ single)


@pytest.mark.parametrize("new", [True, False])
def test_arrays_of_cupy_are_described(new):
    """Without a GPU, by a class with CuPy's attributes; two versions of them."""

    class Thing:
        def __init__(self, **attributes):
            vars(self).update(attributes)

    class ndarray(Thing):
        __module__ = "cupy"

    if new:
        layout = {"_c_contiguous": True, "_f_contiguous": True}
        data = Thing(ptr=4096, device_id=3)
    else:
        layout = {"flags": Thing(c_contiguous=True, f_contiguous=True), "device": Thing(id=3)}
        data = Thing(ptr=4096)
    x = ndarray(dtype=np.dtype("f8"), shape=(300,), data=data, **layout)
    with pytest.raises(sparseop.DeviceError, match="`x` is on cuda:3, the operator on the CPU"):
        OP @ x
    x.dtype = np.dtype("f4")
    with pytest.raises(sparseop.DtypeError, match="float32"):
        OP @ x


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
def test_too_few_and_too_many_new_values_are_refused(format):
    B = A.asformat(format)
    op = sparseop.auto(B, updatable=True)
    before = op @ X
    for length in (0, B.nnz - 1, B.nnz + 1, 2 * B.nnz):
        with pytest.raises(sparseop.ShapeError, match=f"{B.nnz} entries"):
            op.update_values(np.ones(length))
    assert np.array_equal(op @ X, before)


@pytest.mark.parametrize("format", ["csr", "coo"])
def test_new_values_of_other_types_and_with_gaps_are_copied_if_asked(format):
    B = A.asformat(format)
    op = sparseop.auto(B, updatable=True)
    for values in (np.full(B.nnz, 2, "f4"), np.full(2 * B.nnz, 2.0)[::2], [2.0] * B.nnz):
        with pytest.raises(sparseop.Error):
            op.update_values(values)
        op.update_values(3 * B.data)
        op.update_values(values, copy=True)
        assert np.allclose(op @ X, 2 * (abs(A) > 0).astype("f8") @ X)


def test_outputs_of_copies_are_checked():
    x, gaps = X.astype("f4"), np.zeros(600)[::2]
    for out, error in [
        (np.ones((5, 300)), sparseop.ShapeError),
        (np.ones(300, int), sparseop.DtypeError),
        (read_only(np.ones(300)), sparseop.ReadOnlyError),
    ]:
        with pytest.raises(error, match="out"):
            OP(x, out=out, copy=True)
    assert OP(X, out=gaps, copy=True) is gaps and np.allclose(gaps, A @ X)
    assert np.allclose(OP(unaligned(X), copy=True), A @ X)
    for complex_ in (X + 1j, (X + 1j).astype("c8")):
        with pytest.raises(sparseop.DtypeError, match="complex"):
            OP(complex_, copy=True)


def test_arrays_of_other_libraries():
    """By a class with what the standard demands, around an array of NumPy."""

    class Lent:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    class Whole(Lent):
        def __array_namespace__(self):
            return np

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.array, dtype)

    assert np.array_equal(OP @ Whole(X), OP @ X)
    out = np.zeros(300)
    assert OP(Lent(X), out=out) is out and np.array_equal(out, OP @ X)
    with pytest.raises(sparseop.UnsupportedError, match="pass `out`"):
        OP @ Lent(X)
    fixed = Whole(read_only(X.copy()))
    try:
        fixed.__dlpack__()
    except BufferError:
        with pytest.raises(sparseop.DtypeError, match="not handed over"):
            OP @ fixed
    assert np.array_equal(OP(fixed, copy=True), OP @ X)


def limited(program):
    """Runs a program, whose `limit()` leaves it 16 MB, and returns what it prints."""
    limit = (
        "import numpy as np, scipy.sparse as sp, sparseop, resource\n"
        "def limit():\n"
        "    pages = int(open('/proc/self/statm').read().split()[0])\n"
        "    space = pages * resource.getpagesize() + (16 << 20)\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (space, space))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", limit + program], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of address space")
def test_little_memory_is_an_exception():
    tall = (
        "A = sp.coo_array(([1.0], ([0], [0])), shape=(10**11, 5))\n"
        "limit()\n"
        "try: sparseop.auto(A)\n"
        "except MemoryError as error: print(type(error).__name__)\n"
    )
    assert limited(tall) == "OutOfMemoryError"
    result = (
        "op, x = sparseop.auto(sparseop.gallery('banded,rows=100k')), np.ones((100_000, 200))\n"
        "op @ x[:, :1].copy()\n"
        "limit()\n"
        "try: op @ x\n"
        "except MemoryError as error: print('refused')\n"
    )
    assert limited(result) == "refused"


def test_rows_that_are_no_integers_are_named():
    from sparseop._sparseop import row_order

    with pytest.raises(sparseop.DtypeError, match="integers"):
        row_order(np.zeros(3, np.int16), 400)
    with pytest.raises(sparseop.MatrixError, match="entry 1"):
        row_order(np.array([0, 400]), 400)


def test_reports_are_pickled():
    info = sparseop.cg(sparseop.gallery("poisson2d,n=20,values=laplacian"), np.ones(400))[1]
    again = pickle.loads(pickle.dumps(info))
    assert (again, again.iterations, again.outcome) == (0, info.iterations, "converged")
