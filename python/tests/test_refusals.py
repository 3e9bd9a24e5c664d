"""Arguments that are refused, with a type and a remedy; and copies, where they are asked for."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import sparseop

A = sparseop.gallery("banded,rows=300")
OP = sparseop.auto(A)
X = np.ones(300)


def read_only(array):
    array.flags.writeable = False
    return array


OVERLAPPING = np.ones(450)

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
    (lambda: sparseop.cg(OP, X, M="ilu"), sparseop.SettingError, ValueError, "jacobi"),
    (lambda: sparseop.cg(OP, X, rtol=-1), sparseop.SettingError, ValueError, "tolerance"),
    (lambda: sparseop.cg(OP, np.ones((300, 2))), sparseop.ShapeError, ValueError, "one vector"),
    (lambda: sparseop.cg(OP, X.astype("f4")), sparseop.DtypeError, TypeError, "float64"),
    (lambda: sparseop.read("/nowhere.mtx"), sparseop.FileError, OSError, "nowhere"),
    (lambda: sparseop.gallery("poison2d"), sparseop.SettingError, ValueError, "poisson2d"),
    (lambda: pickle.dumps(OP), sparseop.UnsupportedError, TypeError, "to_scipy"),
    (lambda: OP * 2.0, TypeError, TypeError, "alpha"),
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
