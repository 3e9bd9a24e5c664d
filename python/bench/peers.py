"""Products against other libraries of Python: `op @ x` and `A @ x` in turns, medians of rounds.

    python peers.py cpu                  SciPy, on this CPU
    python peers.py gpu                  CuPy and PyTorch, on this GPU, and CG
    python peers.py overhead             the time of a call with out= beyond that of the product

`--only NAME` takes matrices whose name contains NAME, `--rounds N` sets the number of rounds.
The overhead on a GPU is that of enqueuing: many calls are enqueued behind a long kernel, so that
none waits. The Rust call is measured by `sparseop bench` and its benchmark.
"""

import argparse
import gc
import importlib
import inspect
import math
import os
import statistics
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np  # noqa: E402
import sparseop  # noqa: E402

# 1 to 10 million entries, regular and irregular.
CPU = [
    "poisson3d,n=100",
    "poisson2d,n=1000",
    "fem3d,n=30",
    "banded,rows=200k",
    "uniform,rows=200k",
    "circuit,rows=400k",
    "webbase,rows=500k",
    "rmat,scale=18",
]

# Up to 30 million entries.
GPU = [
    "poisson3d,n=20",
    "poisson3d,n=160",
    "poisson2d,n=1500",
    "fem3d,n=40",
    "banded,rows=500k",
    "uniform,rows=500k",
    "circuit,rows=1M",
    "webbase,rows=1M",
    "rmat,scale=20",
]


def wait_nothing():
    pass


def timed(call, wait, calls):
    """Seconds of a call, of several together."""
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - begin) / calls


def compare(contestants, wait, rounds, seconds=0.02):
    """Median seconds of each, measured in turns."""
    calls = {}
    for name, call in contestants.items():
        call()
        one = min(timed(call, wait, 1) for _ in range(3))
        calls[name] = max(1, min(2000, int(seconds / one)))
    times = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants) if number % 2 == 0 else list(contestants)[::-1]
        for name in order:
            times[name].append(timed(contestants[name], wait, calls[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def check(found, expected, dtype):
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= (1e-4 if dtype == "float32" else 1e-11) * scale


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def report(name, ratios):
    if ratios:
        print(f"{name}: geometric mean {mean(ratios):.2f}, least {min(ratios):.2f}")


def cpu(specs, rounds):
    print(f"{'matrix':<22}{'dtype':<9}{'entries':>10}{'SciPy µs':>10}{'op µs':>9}{'ratio':>7}  plan")
    for dtype in ("float32", "float64"):
        ratios = []
        for spec in specs:
            A = sparseop.gallery(spec, dtype)
            op = sparseop.auto(A, copy=False)
            x = np.random.default_rng(1).standard_normal(A.shape[1]).astype(dtype)
            check(op @ x, A @ x, dtype)
            found = compare({"op": lambda: op @ x, "scipy": lambda: A @ x}, wait_nothing, rounds)
            ratio = found["scipy"] / found["op"]
            ratios.append(ratio)
            print(
                f"{spec:<22}{dtype:<9}{A.nnz:>10}{found['scipy'] * 1e6:>10.0f}"
                f"{found['op'] * 1e6:>9.0f}{ratio:>7.2f}  {op.plan}",
                flush=True,
            )
        report(f"SciPy over op @ x, {dtype}", ratios)


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"without {name}: {error}")
        return None


def gpu(specs, rounds):
    cupy, torch = optional("cupy"), optional("torch")
    if sparseop.why_no_gpu() or cupy is None:
        print(f"skipped: {sparseop.why_no_gpu() or 'no CuPy'}")
        return
    from cupyx.scipy import sparse

    wait = cupy.cuda.Device().synchronize
    head = ("CuPy", "PyTorch", "op, CuPy", "op, torch", "op, out=")
    print(f"{'matrix':<20}{'dtype':<9}{'entries':>10}" + "".join(f"{n:>11}" for n in head) + "  plan")
    for dtype in ("float32", "float64"):
        ratios = {"CuPy": [], "PyTorch": []}
        for spec in specs:
            host = sparseop.gallery(spec, dtype)
            A = sparse.csr_matrix(host)
            op = sparseop.auto(A)
            x = cupy.asarray(np.random.default_rng(1).standard_normal(host.shape[1]).astype(dtype))
            out = cupy.empty(host.shape[0], dtype)
            expected = host @ x.get()
            check((op @ x).get(), expected, dtype)
            runs = {"CuPy": lambda: A @ x, "op": lambda: op @ x, "out": lambda: op(x, out=out)}
            if torch is not None:
                parts = (torch.from_dlpack(part) for part in (A.indptr, A.indices, A.data))
                B = torch.sparse_csr_tensor(*parts, size=A.shape)
                z = torch.from_dlpack(x)
                check((op @ z).cpu().numpy(), expected, dtype)
                runs |= {"PyTorch": lambda: B @ z, "op torch": lambda: op @ z}
            found = compare(runs, wait, rounds)
            us = {name: f"{found[name] * 1e6:11.1f}" if name in found else f"{'-':>11}"
                  for name in ("CuPy", "PyTorch", "op", "op torch", "out")}
            print(f"{spec:<20}{dtype:<9}{host.nnz:>10}" + "".join(us.values()) + f"  {op.plan}",
                  flush=True)
            ratios["CuPy"].append(found["CuPy"] / found["op"])
            if torch is not None:
                ratios["PyTorch"].append(found["PyTorch"] / found["op torch"])
            del A, op, x, out, runs
            gc.collect()
            cupy.get_default_memory_pool().free_all_blocks()
        for name, values in ratios.items():
            report(f"{name} over op @ x, {dtype}", values)
    conjugate_gradients(cupy)


def conjugate_gradients(cupy):
    """CG of CuPy and of this package: microseconds an iteration, whole calls."""
    from cupyx.scipy import sparse
    from cupyx.scipy.sparse import linalg

    names = inspect.signature(linalg.cg).parameters
    tolerance = {"rtol" if "rtol" in names else "tol": 1e-8}
    print(f"\n{'CG, poisson3d':<16}{'CuPy µs/it':>12}{'op µs/it':>10}{'ratio':>7}  iterations")
    for n in (20, 60, 160):
        A = sparse.csr_matrix(sparseop.gallery(f"poisson3d,n={n},values=laplacian"))
        b, count = cupy.ones(A.shape[0]), [0]
        op = sparseop.auto(A)

        def step(_):
            count[0] += 1

        def theirs():
            count[0] = 0
            linalg.cg(A, b, callback=step, **tolerance)
            cupy.cuda.Device().synchronize()
            return count[0]

        def own():
            return sparseop.cg(op, b, rtol=1e-8)[1].iterations

        times = {"theirs": [], "own": []}
        theirs(), own()
        for _ in range(5):
            for name, solve in (("theirs", theirs), ("own", own)):
                begin = time.perf_counter()
                iterations = solve()
                times[name].append((time.perf_counter() - begin) / iterations)
        one, two = (statistics.median(times[name]) * 1e6 for name in ("theirs", "own"))
        print(f"{'n=' + str(n):<16}{one:>12.1f}{two:>10.1f}{one / two:>7.2f}  {own()}", flush=True)


def overhead(rounds):
    """Microseconds of a call with out= on the smallest matrix, where it is nearly all overhead."""
    import scipy.sparse

    A = scipy.sparse.csr_array(np.ones((1, 1)))
    op, x, y = sparseop.auto(A, plan="csr(scalar)"), np.ones(1), np.ones(1)
    runs = {"op(x, out=y)": lambda: op(x, out=y), "op @ x": lambda: op @ x, "A @ x": lambda: A @ x}
    runs["np.negative(x, out=y)"] = lambda: np.negative(x, out=y)
    for name, seconds in compare(runs, wait_nothing, rounds).items():
        print(f"CPU   {name:<28}{seconds * 1e6:7.2f} µs")
    if sparseop.why_no_gpu():
        return
    cupy, torch = optional("cupy"), optional("torch")
    host = sparseop.gallery("poisson3d,n=20")
    op = sparseop.auto(host, device="cuda")
    runs = {}
    if cupy is not None:
        from cupyx.scipy import sparse

        A, x = sparse.csr_matrix(host), cupy.ones(host.shape[1])
        y = cupy.empty(host.shape[0])
        runs["CuPy  op(x, out=y)"] = lambda: op(x, out=y)
        runs["CuPy  op @ x"] = lambda: op @ x
        runs["CuPy  A @ x"] = lambda: A @ x
        runs["CuPy  cupy.negative(x, out=y)"] = lambda: cupy.negative(x, out=y)
        wait = cupy.cuda.Device().synchronize
    if torch is not None:
        u = torch.ones(host.shape[1], dtype=torch.float64, device="cuda")
        v = torch.empty(host.shape[0], dtype=torch.float64, device="cuda")
        runs["torch op(x, out=y)"] = lambda: op(u, out=v)
        runs["torch op @ x"] = lambda: op @ u
        runs["torch torch.neg(x, out=y)"] = lambda: torch.neg(u, out=v)
        wait = torch.cuda.synchronize
    for name, call in runs.items():
        call()
        times = []
        for _ in range(rounds * 5):
            wait()
            begin = time.perf_counter()
            # Fewer than the driver's queue holds.
            for _ in range(200):
                call()
            times.append((time.perf_counter() - begin) / 200)
            wait()
        print(f"GPU   {name:<32}{statistics.median(times) * 1e6:7.2f} µs to enqueue")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cpu", "gpu", "overhead"])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if given.what == "overhead":
        return overhead(given.rounds)
    specs = [spec for spec in (CPU if given.what == "cpu" else GPU) if given.only in spec]
    (cpu if given.what == "cpu" else gpu)(specs, given.rounds)


if __name__ == "__main__":
    main()
