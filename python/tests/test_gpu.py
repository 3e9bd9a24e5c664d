"""Arrays in GPU memory: products in place, streams, graphs, solvers.

Runs with pytest, or alone: `python test_gpu.py`. Where there is no GPU, or a library is missing,
tests skip themselves and say why.
"""

import gc
import importlib
import os
import sys
import threading
import traceback
import unittest

import numpy as np
import sparseop

# JAX would take three quarters of the memory of the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

SPECS = ["banded,rows=30k", "uniform,rows=20k", "webbase,rows=40k", "poisson3d,n=30", "small"]


def need(name):
    """A library on a machine with a GPU."""
    reason = sparseop.why_no_gpu()
    if reason is not None:
        raise unittest.SkipTest(f"no GPU: {reason}")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise unittest.SkipTest(f"no {name}: {error}") from None
    if name == "torch" and not module.cuda.is_available():
        raise unittest.SkipTest("this PyTorch has no CUDA")
    if name == "jax":
        module.config.update("jax_enable_x64", True)
        if module.default_backend() not in ("gpu", "cuda"):
            raise unittest.SkipTest(f"this JAX runs on {module.default_backend()}")
    return module


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def close(found, expected, dtype):
    scale = np.abs(expected).max(initial=1e-30)
    difference = np.abs(np.asarray(found) - expected).max(initial=0)
    assert difference <= (1e-4 if dtype == "float32" else 1e-12) * scale, difference / scale


def cupy_matrices(cupy, A):
    from cupyx.scipy import sparse

    B = sparse.csr_matrix(A)
    return {"csr": B, "csc": B.tocsc(), "coo": B.tocoo()}


def test_cupy_products():
    cupy = need("cupy")
    rng = np.random.default_rng(1)
    for spec in SPECS:
        for dtype in ("float32", "float64"):
            A = sparseop.gallery(spec, dtype)
            x, z = rng.standard_normal(A.shape[1]), rng.standard_normal(A.shape[0])
            x, z = cupy.asarray(x.astype(dtype)), cupy.asarray(z.astype(dtype))
            for format, B in cupy_matrices(cupy, A).items():
                op = sparseop.auto(B, updatable=True)
                assert op.device == f"cuda:{x.device.id}" and op.nnz == A.nnz
                y = op @ x
                assert isinstance(y, cupy.ndarray) and y.dtype == dtype
                close(y.get(), A @ x.get(), dtype)
                close((op.T @ z).get(), A.T @ z.get(), dtype)
                close((z @ op).get(), A.T @ z.get(), dtype)
                out = cupy.full(A.shape[0], cupy.nan, dtype)
                assert op(x, out=out) is out
                close(out.get(), A @ x.get(), dtype)
                op(x, out=out, alpha=2, beta=-1)
                close(out.get(), A @ x.get(), dtype)
                for order in "CF":
                    X = cupy.asarray(
                        rng.standard_normal((A.shape[1], 4)).astype(dtype), order=order
                    )
                    Y = op @ X
                    assert Y.flags.f_contiguous == (order == "F")
                    close(Y.get(), A @ X.get(), dtype)
                op.update_values(3 * B.data)
                close((op @ x).get(), 3 * (A @ x.get()), dtype)
                close((op.T @ z).get(), 3 * (A.T @ z.get()), dtype)


def test_cupy_refusals():
    cupy = need("cupy")
    A = sparseop.gallery("banded,rows=3k")
    op, x = sparseop.auto(cupy_matrices(cupy, A)["csr"]), cupy.ones(3000)
    host = sparseop.auto(A)
    refused(sparseop.DeviceError, "copy=True", lambda: op @ np.ones(3000))
    refused(sparseop.DeviceError, "the operator on the CPU", lambda: host @ x)
    refused(sparseop.DtypeError, "float64", lambda: op @ x.astype("float32"))
    refused(sparseop.ContiguityError, "contiguous", lambda: op @ cupy.ones(6000)[::2])
    refused(sparseop.ShapeError, "(3000,)", lambda: op @ cupy.ones(2999))
    refused(sparseop.SettingError, "in common", lambda: op(x, out=x))
    refused(sparseop.DeviceError, "copy=True", lambda: sparseop.cg(op, np.ones(3000)))
    spd = sparseop.gallery("poisson2d,n=30,values=laplacian")
    solution, info = sparseop.cg(sparseop.auto(spd, device="cuda"), np.ones(900), copy=True)
    assert info == 0 and isinstance(solution, np.ndarray) and np.allclose(spd @ solution, 1)
    # And with copies.
    expected = A @ np.ones(3000)
    y = op(np.ones(3000), copy=True)
    assert isinstance(y, np.ndarray)
    close(y, expected, "float64")
    y = host(x, copy=True)
    assert isinstance(y, cupy.ndarray)
    close(y.get(), expected, "float64")
    close(op(x.astype("float32"), copy=True).get(), expected, "float32")
    moved = sparseop.auto(A, device="cuda", copy=True)
    assert moved.device.startswith("cuda")
    close(moved @ np.ones(3000), expected, "float64")


def test_cupy_zero_copies():
    cupy = need("cupy")
    A = sparseop.gallery("banded,rows=300k", "float32")
    op = sparseop.auto(cupy_matrices(cupy, A)["csr"])
    x, out = cupy.ones(300_000, "float32"), cupy.empty(300_000, "float32")
    op(x, out=out)
    cupy.cuda.Device().synchronize()
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    taken, free = pool.used_bytes(), cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(20):
        op(x, out=out)
    cupy.cuda.Device().synchronize()
    assert pool.used_bytes() == taken
    assert cupy.cuda.runtime.memGetInfo()[0] == free
    y = op @ x
    assert pool.used_bytes() - taken < y.nbytes + 1024


def filled_late(cupy, count, value):
    """A vector that a kernel writes about 10 ms later, on the current stream."""
    kernel = cupy.RawKernel(
        'extern "C" __global__ void fill(double* x, int n, double value) {'
        "  long long end = clock64() + 20000000; while (clock64() < end) {}"
        "  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value; }",
        "fill",
    )
    x = cupy.zeros(count)
    kernel((1,), (256,), (x, np.int32(count), np.float64(value)))
    return x


def test_cupy_streams():
    cupy = need("cupy")
    A = sparseop.gallery("uniform,rows=50k")
    op = sparseop.auto(cupy_matrices(cupy, A)["csr"])
    one = A @ np.ones(50_000)
    for number in range(8):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = filled_late(cupy, 50_000, number)
            y = op @ x
            twice = 2 * y
        del x
        stream.synchronize()
        close(twice.get(), 2 * number * one, "float64")


def test_cupy_graphs():
    cupy = need("cupy")
    A = sparseop.gallery("uniform,rows=50k")
    op = sparseop.auto(cupy_matrices(cupy, A)["csr"])
    x, out = cupy.ones(50_000), cupy.empty(50_000)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        op(x, out=out)
        stream.begin_capture()
        op(x, out=out)
        graph = stream.end_capture()
        for value in (2.0, 3.0):
            x.fill(value)
            graph.launch(stream)
            stream.synchronize()
            close(out.get(), value * (A @ np.ones(50_000)), "float64")


def test_cupy_threads():
    cupy = need("cupy")
    A = sparseop.gallery("uniform,rows=50k")
    op, wrong = sparseop.auto(cupy_matrices(cupy, A)["csr"]), []
    expected = A @ np.arange(50_000.0)

    def work():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.arange(50_000.0)
            for _ in range(50):
                y = op @ x
                stream.synchronize()
                if not np.allclose(y.get(), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_cupy_solvers():
    cupy = need("cupy")
    from cupyx.scipy.sparse import linalg

    A = sparseop.gallery("poisson2d,n=60,values=laplacian")
    op, b = sparseop.auto(cupy_matrices(cupy, A)["csr"]), cupy.ones(3600)
    for method in ("cg", "bicgstab", "gmres", "chebyshev"):
        for M in (None, "jacobi"):
            seen = []
            x, info = getattr(sparseop, method)(op, b, M=M, callback=seen.append)
            assert isinstance(x, cupy.ndarray) and info == 0 and seen, (method, info)
            assert float(cupy.linalg.norm(b - op @ x)) <= 2e-8 * 60
    with cupy.cuda.Stream(non_blocking=True):
        b = filled_late(cupy, 3600, 2)
        x, info = sparseop.cg(op, b)
        assert info == 0 and float(cupy.linalg.norm(2 - op @ x)) <= 4e-8 * 60
    x, info = linalg.cg(linalg.aslinearoperator(op), b, **tolerance(linalg.cg))
    assert info == 0 and float(cupy.linalg.norm(b - op @ x)) <= 1e-5 * 60
    G = sparseop.gallery("rmat,scale=10,values=pattern")
    ranks, info = sparseop.pagerank(cupy_matrices(cupy, G)["csr"])
    assert isinstance(ranks, cupy.ndarray) and info == 0
    close(ranks.get(), sparseop.pagerank(G)[0], "float32")


def tolerance(solver):
    """The argument for the tolerance, whose name depends on the version."""
    import inspect

    names = inspect.signature(solver).parameters
    return {"rtol" if "rtol" in names else "tol": 1e-8}


def torch_matrix(torch, A, columns="int64"):
    parts = (A.indptr.astype(columns), A.indices.astype(columns), A.data)
    parts = (torch.from_numpy(part).cuda() for part in parts)
    return torch.sparse_csr_tensor(*parts, size=A.shape)


def test_torch_products():
    torch = need("torch")
    for spec in SPECS:
        for dtype in ("float32", "float64"):
            A = sparseop.gallery(spec, dtype)
            for columns in ("int32", "int64"):
                B = torch_matrix(torch, A, columns)
                op = sparseop.auto(B, updatable=True)
                x = torch.linspace(-1, 1, A.shape[1], dtype=getattr(torch, dtype), device="cuda")
                y = op @ x
                assert y.is_cuda and y.dtype == x.dtype
                expected = A @ x.cpu().numpy()
                close(y.cpu(), expected, dtype)
                out = torch.full_like(y, float("nan"))
                assert op(x, out=out) is out
                close(out.cpu(), expected, dtype)
                X = torch.stack([x, 2 * x, 3 * x], dim=1)
                close((op @ X)[:, 2].cpu(), 3 * expected, dtype)
                close((op @ X.t().contiguous().t())[:, 1].cpu(), 2 * expected, dtype)
                op.update_values(2 * B.values())
                close((op @ x).cpu(), 2 * expected, dtype)


def test_torch_gradients():
    torch = need("torch")
    A = sparseop.gallery("uniform,rows=60")[:, :40].tocsr()
    op = sparseop.auto(torch_matrix(torch, A))
    for shape in ((40,), (40, 3)):
        x = torch.randn(shape, dtype=torch.float64, device="cuda", requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: op @ x, x)
        (op @ x).sum().backward()
        close(x.grad.cpu(), A.T @ np.ones((60,) + shape[1:]), "float64")


def test_torch_streams_and_zero_copies():
    torch = need("torch")
    A = sparseop.gallery("uniform,rows=50k")
    op = sparseop.auto(torch_matrix(torch, A))
    one = A @ np.ones(50_000)
    for number in range(8):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x = torch.full((50_000,), float(number), dtype=torch.float64, device="cuda")
            y = 2 * (op @ x)
        stream.synchronize()
        close(y.cpu(), 2 * number * one, "float64")
    x = torch.ones(50_000, dtype=torch.float64, device="cuda")
    out = torch.empty_like(x)
    op(x, out=out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        op(x, out=out)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before
    y = op @ x
    assert torch.cuda.max_memory_allocated() - before <= y.nbytes + 1024


def test_torch_graphs():
    torch = need("torch")
    A = sparseop.gallery("uniform,rows=50k")
    op = sparseop.auto(torch_matrix(torch, A))
    x = torch.ones(50_000, dtype=torch.float64, device="cuda")
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        op(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        op(x, out=out)
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    close(out.cpu(), 5 * (A @ np.ones(50_000)), "float64")


def test_torch_solvers():
    torch = need("torch")
    A = sparseop.gallery("poisson2d,n=60,values=laplacian")
    op = sparseop.auto(torch_matrix(torch, A))
    b = torch.ones(3600, dtype=torch.float64, device="cuda")
    x, info = sparseop.cg(op, b, M="jacobi")
    assert x.is_cuda and info == 0 and float(torch.linalg.norm(b - op @ x)) <= 2e-8 * 60


def test_jax_products():
    jax = need("jax")
    from jax.experimental import sparse

    for spec in SPECS:
        for dtype in ("float32", "float64"):
            A = sparseop.gallery(spec, dtype)
            for kind in (sparse.BCSR, sparse.BCOO):
                op = sparseop.auto(kind.from_scipy_sparse(A))
                assert op.device.startswith("cuda")
                x = jax.numpy.linspace(-1, 1, A.shape[1], dtype=dtype)
                y = op @ x
                assert isinstance(y, jax.Array) and y.device == x.device and y.dtype == dtype
                close(y, A @ np.asarray(x), dtype)
                X = jax.numpy.stack([x, 2 * x, 3 * x], axis=1)
                close((op @ X)[:, 2], 3 * (A @ np.asarray(x)), dtype)
                # Work of JAX before and after the product.
                close(2 * (op @ (3 * x)), 6 * (A @ np.asarray(x)), dtype)


def test_jax_chains_of_products():
    jax = need("jax")
    A = sparseop.gallery("poisson3d,n=30,values=laplacian")
    op = sparseop.auto(A, device="cuda")
    expected = np.linspace(-1, 1, A.shape[0])
    x = jax.numpy.asarray(expected)
    # More than are kept for enqueued products. Each is the only owner of its operand. The norm of A
    # is below 12, so that rounding errors do not grow.
    for _ in range(50):
        x = jax.numpy.tanh(op @ (x / 12))
        expected = np.tanh(A @ (expected / 12))
        # Memory that was freed too early is written by these.
        jax.numpy.full_like(x, np.nan).delete()
    close(x, expected, "float64")
    # Results that are dropped unused, of vectors that are dropped at once.
    for _ in range(50):
        op @ jax.numpy.ones(A.shape[0])
    # An update is complete when it returns: its operand is freed.
    op = sparseop.auto(A, device="cuda", updatable=True)
    for factor in range(1, 20):
        op.update_values(jax.numpy.asarray(A.data) * factor)
        jax.numpy.full(A.nnz, np.nan).delete()
        close(op @ jax.numpy.ones(A.shape[0]), factor * (A @ np.ones(A.shape[0])), "float64")


def test_interrupts():
    cupy = need("cupy")
    import signal
    import time

    A = sparseop.gallery("poisson3d,n=100,values=laplacian")
    op, b = sparseop.auto(A, device="cuda"), cupy.ones(A.shape[0])
    expected = (op @ b).get()
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    for method in ("cg", "bicgstab", "gmres"):
        solve = getattr(sparseop, method)
        solve(op, b, maxiter=2)
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            # Rounding ends some solves by themselves.
            while time.perf_counter() < begin + 20:
                solve(op, b, rtol=1e-300, maxiter=10**9)
            raise AssertionError(f"{method} was not interrupted")
        except KeyboardInterrupt:
            assert time.perf_counter() - begin < 0.3 + 0.3, method
        close((op @ b).get(), expected, "float64")
    signal.signal(signal.SIGALRM, previous)


def test_torch_gradients_in_either_order():
    torch = need("torch")
    A = sparseop.gallery("uniform,rows=20k")
    op = sparseop.auto(A, device="cuda")
    X = torch.randn((20000, 3), dtype=torch.float64, device="cuda")
    for x in (X, X.t().contiguous().t()):
        leaf = x.detach().requires_grad_()
        y = op @ leaf
        assert y.stride() == x.stride()
        close(y.detach().cpu().numpy(), A @ X.cpu().numpy(), "float64")
        y.backward(x)
        close(leaf.grad.cpu().numpy(), A.T @ X.cpu().numpy(), "float64")
    negated = torch._neg_view(X[:, 0].contiguous())
    refused(sparseop.ContiguityError, "resolve_neg", lambda: op @ negated)


def test_jax_solvers():
    jax = need("jax")
    from jax.experimental import sparse

    A = sparseop.gallery("poisson2d,n=60,values=laplacian")
    op = sparseop.auto(sparse.BCSR.from_scipy_sparse(A))
    x, info = sparseop.cg(op, jax.numpy.ones(3600), M="jacobi")
    assert isinstance(x, jax.Array) and info == 0
    assert np.linalg.norm(1 - A @ np.asarray(x)) <= 2e-8 * 60


def main():
    """Runs the tests of this file."""
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print(f"ok       {name}", flush=True)
        except unittest.SkipTest as reason:
            print(f"skipped  {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED   {name}\n{traceback.format_exc()}", flush=True)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
