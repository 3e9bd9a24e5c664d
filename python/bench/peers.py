"""Products against other libraries of Python: `op @ x` and `A @ x` alternating, medians of rounds.

    python peers.py cpu                  SciPy, on this CPU
    python peers.py gpu                  CuPy and PyTorch, on this GPU, and CG
    python peers.py classes              the same over regular and irregular classes of matrices
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


# 4 to 24 million entries.
CLASSES = {
    "regular": [
        "poisson2d,n=1000",
        "poisson2d,n=2000",
        "poisson3d,n=90",
        "poisson3d,n=140",
        "stencil27,n=60",
        "stencil27,n=90",
        "fem3d,n=30",
        "fem3d,n=44",
        "banded,rows=300k",
        "banded,rows=1200k",
    ],
    "irregular": [
        "femrandom,nodes=25k",
        "femrandom,nodes=100k",
        "road,n=1500",
        "road,n=2800",
        "uniform,rows=300k",
        "uniform,rows=1300k",
        "circuit,rows=1M",
        "circuit,rows=4M",
        "webbase,rows=1M",
        "webbase,rows=4M",
        "lognormal,rows=200k",
        "lognormal,rows=800k",
        "lp,rows=2000",
        "rmat,scale=19",
        "rmat,scale=20",
    ],
}


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


def compare(candidates, wait, rounds, seconds=0.02):
    """Median seconds of each, measured alternating."""
    calls = {}
    for name, call in candidates.items():
        call()
        one = min(timed(call, wait, 1) for _ in range(3))
        calls[name] = max(1, min(2000, int(seconds / one)))
    times = {name: [] for name in candidates}
    for number in range(rounds):
        order = list(candidates) if number % 2 == 0 else list(candidates)[::-1]
        for name in order:
            times[name].append(timed(candidates[name], wait, calls[name]))
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


HEAD = ("CuPy", "PyTorch", "op, CuPy", "op, torch", "op, out=")


class Gpu:
    """Products of the libraries on this GPU, with a line of a table for each matrix."""

    def __init__(self, rounds):
        self.cupy, self.torch = optional("cupy"), optional("torch")
        self.rounds = rounds
        self.missing = sparseop.why_no_gpu() or ("no CuPy" if self.cupy is None else None)
        if self.missing:
            print(f"skipped: {self.missing}")
        else:
            head = "".join(f"{name:>11}" for name in HEAD)
            print(f"{'matrix':<22}{'dtype':<9}{'entries':>10}{head}  plan")

    def ratios(self, spec, dtype):
        """Times of the other libraries over those of an operator with their arrays."""
        from cupyx.scipy import sparse

        cupy, torch = self.cupy, self.torch
        host = sparseop.gallery(spec, dtype)
        A = sparse.csr_matrix(host)
        op = sparseop.auto(A)
        x = cupy.asarray(np.random.default_rng(1).standard_normal(host.shape[1]).astype(dtype))
        out = cupy.empty(host.shape[0], dtype)
        expected = host @ x.get()
        check((op @ x).get(), expected, dtype)
        runs = {"CuPy": lambda: A @ x, "op, CuPy": lambda: op @ x}
        runs["op, out="] = lambda: op(x, out=out)
        if torch is not None:
            parts = (torch.from_dlpack(part) for part in (A.indptr, A.indices, A.data))
            B = torch.sparse_csr_tensor(*parts, size=A.shape)
            z = torch.from_dlpack(x)
            check((op @ z).cpu().numpy(), expected, dtype)
            runs |= {"PyTorch": lambda: B @ z, "op, torch": lambda: op @ z}
        found = compare(runs, cupy.cuda.Device().synchronize, self.rounds)
        line = "".join(
            f"{found[name] * 1e6:11.1f}" if name in found else f"{'-':>11}" for name in HEAD
        )
        print(f"{spec:<22}{dtype:<9}{host.nnz:>10}{line}  {op.plan}", flush=True)
        ratios = {"CuPy": found["CuPy"] / found["op, CuPy"]}
        if torch is not None:
            ratios["PyTorch"] = found["PyTorch"] / found["op, torch"]
        del A, op, x, out, runs
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        return ratios


def summary(name, dtype, found):
    """Prints geometric mean and least of the ratios of each library, from (matrix, ratios)."""
    for library in ("CuPy", "PyTorch"):
        ratios = {spec: ratios[library] for spec, ratios in found if library in ratios}
        if ratios:
            least = min(ratios, key=ratios.get)
            print(
                f"{library} over op @ x, {name}{dtype}: "
                f"geometric mean {mean(ratios.values()):.2f}, least {ratios[least]:.2f} ({least})"
            )


def gpu(specs, rounds):
    device = Gpu(rounds)
    if device.missing:
        return
    for dtype in ("float32", "float64"):
        summary("", dtype, [(spec, device.ratios(spec, dtype)) for spec in specs])
    conjugate_gradients(device.cupy)


def classes(only, rounds):
    """Classes of matrices with 4 to 24 million entries, at two sizes each."""
    device = Gpu(rounds)
    if device.missing:
        return
    for dtype in ("float32", "float64"):
        every = []
        for name, specs in CLASSES.items():
            found = [(spec, device.ratios(spec, dtype)) for spec in specs if only in spec]
            summary(f"{name}, ", dtype, found)
            every += found
        summary("all, ", dtype, every)


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
    parser.add_argument("what", choices=["cpu", "gpu", "classes", "overhead"])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if given.what == "overhead":
        return overhead(given.rounds)
    if given.what == "classes":
        return classes(given.only, given.rounds)
    specs = [spec for spec in (CPU if given.what == "cpu" else GPU) if given.only in spec]
    (cpu if given.what == "cpu" else gpu)(specs, given.rounds)


if __name__ == "__main__":
    main()
