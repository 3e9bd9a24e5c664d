#!/usr/bin/env python3
"""Times y = A x with Intel MKL and SciPy, and optionally sparseop and sprs next to them.

Install the peers into an environment of their own (Linux, x86-64):

    python3 -m venv peers
    peers/bin/pip install mkl scipy numpy fast-matrix-market threadpoolctl zstandard

Time the peers on Matrix Market files (.mtx, .mtx.gz, .mtx.zst):

    peers/bin/python spmv.py --dtype both a.mtx b.mtx.zst

Compare with sparseop, on files or on the gallery suite, whose missing files sparseop writes into DIR:

    cargo build --release -p sparseop-cli
    peers/bin/python spmv.py --sparseop target/release/sparseop --suite DIR --markdown table.md

Tables go to stderr, one JSON object per matrix and dtype to stdout.

How it measures. MKL is its inspector-executor: a 32-bit-index CSR handle, mv hint of 10000 calls, optimize, then
mkl_sparse_?_mv. SciPy is `csr @ x`: one thread, and it allocates y, as its users have it. Every answer is first held
against a float64 product: max over rows of |error| / sum |a x|. Engines are then timed in rounds; in a round each has one untimed call
and a timed batch of calls that lasts 2 ms or more, for at least 20 rounds and 1 s an engine. The cost of reaching MKL
through ctypes, measured by a call that MKL refuses at once, is subtracted and reported as `call_us`. The whole is
repeated `--alternations` times, alternating with sparseop, because machines drift: `median_us` is the median of the
medians, `min_us` the least sample, `spread` the largest median over the smallest. `busy` is CPU time over wall time
while MKL runs: well below the number of threads, they did not get their CPUs and the figures are not to be trusted
(the kernel's clock ticks are too coarse for products below a millisecond; go by `spread` there). `kernels` is
the instruction set that MKL chose. GB/s counts the bytes of CSR with 32-bit indices, of x and of y, whatever the
plan stores.

`--threads` binds this process and sparseop alike to that many CPUs. Where huge pages have to be asked for (Linux's
transparent_hugepage = madvise), NumPy asks, and MKL, which stores its optimised matrix itself, does not;
`--huge-pages` has glibc ask in its place: MKL at its best.
"""

import argparse
import ctypes as ct
import gc
import gzip
import importlib.metadata
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import geometric_mean, median

import fast_matrix_market
import numpy as np
import scipy
import scipy.sparse as sp
import threadpoolctl
import zstandard

# The gallery at a desktop's size: 4 to 21 million nonzeros, besides `small`.
SUITE = {
    "poisson2d": "n=1400", "poisson3d": "n=120", "stencil27": "n=75", "fem3d": "n=36", "femrandom": "nodes=60000",
    "banded": "rows=600000", "road": "n=2000", "uniform": "rows=600000", "rmat": "scale=19",
    "webbase": "rows=2000000", "circuit": "rows=1500000", "lp": "", "lognormal": "rows=400000",
    "dense": "n=3000", "small": "n=100",
}
DTYPES = {"f32": np.float32, "f64": np.float64}
BATCH_S, MIN_TURNS = 2e-3, 20
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Descr(ct.Structure):
    """matrix_descr: of a general matrix, for which mode and diagonal do not matter."""

    _fields_ = [("type", ct.c_int), ("mode", ct.c_int), ("diag", ct.c_int)]


GENERAL, NON_TRANSPOSE, AGGRESSIVE = Descr(20, 0, 0), 10, 81


def check(status, what):
    names = ["not initialized", "out of memory", "invalid value", "execution failed", "internal error", "unsupported"]
    if status:
        raise SystemExit(f"mkl_sparse {what}: status {status}, {dict(enumerate(names, 1)).get(status, 'unknown')}")


def load_mkl(threads):
    """libmkl_rt of this environment, set to 32-bit indices and `threads` threads of Intel's OpenMP."""
    try:
        files = importlib.metadata.files("mkl") or []
        path = next(Path(file.locate()).resolve() for file in files if file.name.startswith("libmkl_rt.so"))
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise SystemExit("no libmkl_rt in this environment: pip install mkl") from None
    ct.CDLL(str(path.parent / "libiomp5.so"), mode=ct.RTLD_GLOBAL)
    lib = ct.CDLL(str(path), mode=ct.RTLD_GLOBAL)
    for setting in ("MKL_Set_Interface_Layer", "MKL_Set_Threading_Layer"):
        if got := getattr(lib, setting)(0):
            raise SystemExit(f"{setting}(0) answered {got}")
    lib.MKL_Set_Dynamic(0)
    lib.MKL_Set_Num_Threads(threads)
    if (got := lib.MKL_Get_Max_Threads()) != threads:
        raise SystemExit(f"MKL would use {got} threads, not {threads}")
    text = ct.create_string_buffer(256)
    lib.MKL_Get_Version_String(text, len(text))
    say(text.value.decode().strip())
    return lib


class MklProduct:
    """y = A x by MKL, optimised for many calls. Keeps the arrays alive."""

    def __init__(self, lib, a, x, y):
        letter, real = ("s", ct.c_float) if a.dtype == np.float32 else ("d", ct.c_double)
        self.kept, self.handle = (a, x, y), ct.c_void_p()
        start, end, columns, values, x, y = (
            ct.c_void_p(v.ctypes.data) for v in (a.indptr, a.indptr[1:], a.indices, a.data, x, y))
        began = time.perf_counter()
        create = getattr(lib, f"mkl_sparse_{letter}_create_csr")
        check(create(ct.byref(self.handle), 0, *a.shape, start, end, columns, values), "create_csr")
        check(lib.mkl_sparse_set_mv_hint(self.handle, NON_TRANSPOSE, GENERAL, 10000), "set_mv_hint")
        check(lib.mkl_sparse_set_memory_hint(self.handle, AGGRESSIVE), "set_memory_hint")
        check(lib.mkl_sparse_optimize(self.handle), "optimize")
        self.prepare_us = (time.perf_counter() - began) * 1e6
        mv, one, zero = getattr(lib, f"mkl_sparse_{letter}_mv"), real(1.0), real(0.0)
        mv.argtypes = [ct.c_int, real, ct.c_void_p, Descr, ct.c_void_p, real, ct.c_void_p]
        handle, nothing = self.handle, ct.c_void_p()
        self.call = lambda: mv(NON_TRANSPOSE, one, handle, GENERAL, x, zero, y)
        self.refused = lambda: mv(NON_TRANSPOSE, one, nothing, GENERAL, x, zero, y)
        check(self.call(), "mv")


def aligned(array, to=64):
    """A copy of `array` on a cache line."""
    raw = np.empty(array.nbytes + to, np.uint8)
    skip = -raw.ctypes.data % to
    out = raw[skip:skip + array.nbytes].view(array.dtype)
    out[:] = array
    return out


def read(path, cache=None):
    """The matrix at `path` as float64 CSR; `cache`, if given, is a .npz kept next to it."""
    if cache and cache.exists() and cache.stat().st_mtime >= path.stat().st_mtime:
        return sp.load_npz(cache)
    opener = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, open)
    with opener(path, "rb") as text:
        a = fast_matrix_market.mmread(text, parallelism=os.cpu_count())
    a = sp.csr_matrix(a, dtype=np.float64)
    if max(a.nnz, *a.shape) > np.iinfo(np.int32).max:
        raise SystemExit(f"{path}: too large for 32-bit indices")
    if cache:
        sp.save_npz(part := cache.with_suffix(".part.npz"), a, compressed=False)
        part.rename(cache)
    return a


def batch(call, times):
    """Seconds a call, and CPU seconds altogether, of `times` calls one after the other."""
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(times):
        call()
    wall = time.perf_counter() - start
    return wall / times, time.process_time() - cpu


def time_peers(mkl, a, x, seconds):
    """One alternation of the peers: checks their answers, then times them in rounds."""
    y = aligned(np.full(a.shape[0], np.nan, a.dtype))
    exact = (a64 := a.astype(np.float64)) @ x.astype(np.float64)
    scale = abs(a64) @ abs(x.astype(np.float64))
    bound = 2 * np.finfo(a.dtype).eps * (np.diff(a.indptr).max(initial=0) + 2)
    del a64
    product = MklProduct(mkl, a, x, y)
    calls = {"mkl": product.call, "scipy": lambda: a @ x}
    runs = {"mkl": {"prepare_us": round(product.prepare_us, 1)}, "scipy": {}}
    for engine, answer in (("mkl", y), ("scipy", a @ x)):
        error = abs(answer - exact)
        ratio = np.divide(error, scale, out=np.where(error == 0, 0.0, np.inf), where=scale > 0).max(initial=0.0)
        runs[engine]["rel_error"] = float(ratio)
        if not ratio <= bound:
            raise SystemExit(f"{engine}: wrong answer, error {ratio:.1e} > {bound:.1e}")
    call_s = min(batch(product.refused, 1000)[0] for _ in range(10))

    guess = {engine: min(batch(call, 3)[0] for _ in range(3)) for engine, call in calls.items()}
    times = {engine: math.ceil(BATCH_S / took) for engine, took in guess.items()}
    samples, cpu_s = {engine: [] for engine in calls}, 0.0
    gc.disable()
    while len(samples["mkl"]) < MIN_TURNS or min(sum(samples[e]) * times[e] for e in calls) < seconds:
        for engine, call in calls.items():
            call()
            took, cpu = batch(call, times[engine])
            samples[engine].append(took)
            cpu_s += cpu if engine == "mkl" else 0.0
    gc.enable()
    check(mkl.mkl_sparse_destroy(product.handle), "destroy")
    for engine, run in runs.items():
        less = call_s if engine == "mkl" else 0.0
        run.update({f"{of.__name__}_us": (of(samples[engine]) - less) * 1e6 for of in (median, min)})
    kernels = set(re.findall(r"libmkl_(def|mc3|avx\w*)\.so", Path("/proc/self/maps").read_text()))
    runs["mkl"].update(call_us=round(call_s * 1e6, 3), busy=round(cpu_s / (sum(samples["mkl"]) * times["mkl"]), 2),
                       kernels=" ".join(sorted(kernels)))
    return runs


def time_sparseop(binary, extra, cpus, path, dtype, nnz):
    """One alternation of sparseop and sprs, by the program's own bench."""
    command = [binary, "bench", str(path), "--device", "cpu", "--dtype", dtype, "--plans", "auto",
               "--baselines", "sprs", "--json", *extra]
    time.sleep(0.5)  # the OpenMP threads of the peers still spin for a while
    # An OpenMP that binds its threads (KMP_AFFINITY) has bound this one to a single CPU.
    env = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(command, capture_output=True, text=True, env=env,
                          preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: status {done.returncode}\n{done.stderr}")
    found = {}
    for line in filter(str.strip, done.stdout.splitlines()):
        answer = json.loads(line)
        if answer["nnz"] != nnz:
            say(f"warning: {path.name} has {answer['nnz']} nonzeros for sparseop, {nnz} for the peers")
        for run in answer["runs"]:
            chosen = run["engine"] != "sparseop" or run["plan"] in ("auto", answer["auto_plan"])
            if run.get("completed") and chosen:
                kept = ("plan", "median_us", "min_us", "rel_error")
                found[run["engine"]] = {key: run[key] for key in kept if run.get(key) is not None}
    if "sparseop" not in found:
        raise SystemExit(f"{shlex.join(command)}: no completed run of sparseop's automatic plan")
    return found


def merge(alternations):
    """One run an engine: the values of the last alternation, but the median of medians and the least of minima."""
    merged = []
    for engine in dict.fromkeys(engine for runs in alternations for engine in runs):
        runs = [runs[engine] for runs in alternations if engine in runs]
        medians = [run["median_us"] for run in runs]
        merged.append({"engine": engine, **runs[-1], "median_us": round(median(medians), 3),
                       "min_us": round(min(run["min_us"] for run in runs), 3),
                       "spread": round(max(medians) / min(medians), 3)})
        if "busy" in runs[-1]:
            merged[-1]["busy"] = min(run["busy"] for run in runs)
        if plans := dict.fromkeys(run["plan"] for run in runs if "plan" in run):
            merged[-1]["plan"] = " / ".join(plans)
    return merged


def micros(time):
    """Microseconds, to four digits or to one."""
    return f"{time:,.0f}" if time >= 1000 else f"{time:,.4g}"


def markdown(results, dtype):
    """The comparison of one dtype, ready for a README."""
    lines = [f"{dtype}: times over sparseop's, above 1 where sparseop is faster", "",
             "| class | nnz | plan | auto µs | GB/s | MKL µs | SciPy µs | sprs µs | MKL/auto | SciPy/auto "
             "| sprs/auto |",
             "|---|--:|---|" + "--:|" * 8]
    ratios = {"mkl": {}, "scipy": {}, "sprs": {}}
    for result in results:
        runs = {run["engine"]: run for run in result["runs"]}
        auto, plan = runs["sparseop"]["median_us"], runs["sparseop"]["plan"]
        for engine in ratios.keys() & runs.keys():
            ratios[engine][result["matrix"]] = runs[engine]["median_us"] / auto
        cells = [result["matrix"].split(".")[0], f"{result['nnz']:,}", f"`{plan}`", f"{micros(auto)}",
                 f"{result['csr_bytes'] / auto / 1e3:.1f}"]
        cells += [micros(runs[engine]['median_us']) if engine in runs else "–" for engine in ratios]
        cells += [f"{of[result['matrix']]:.2f}" if result["matrix"] in of else "–" for of in ratios.values()]
        lines.append(f"| {' | '.join(cells)} |")
    for label, reduce in (("geometric mean", geometric_mean), ("worst", min)):
        cells = [f"**{reduce(of.values()):.2f}**" if of else "–" for of in ratios.values()]
        lines.append(f"| **{label}** | | | | | | | | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def suite(directory, binary, names):
    """The suite's files and caches, written first where missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = directory / f"{name}.mtx"
        if not path.exists():
            if not binary:
                raise SystemExit(f"{path} is missing: give --sparseop, which writes it")
            spec = ",".join(filter(None, (f"gallery:{name}", SUITE[name])))
            say(f"writing {spec}")
            part = path.with_name(f"{name}.part.mtx")
            subprocess.run([binary, "gallery", "write", spec, str(part)], check=True, stdout=sys.stderr)
            part.rename(path)
        yield path, path.with_suffix(".npz")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Matrix Market files")
    parser.add_argument("--suite", type=Path, metavar="DIR", help="time the gallery suite, kept in DIR")
    parser.add_argument("--only", metavar="NAME,...", type=lambda text: text.split(","), help="part of the suite")
    parser.add_argument("--dtype", choices=["f32", "f64", "both"], default="both")
    parser.add_argument("--sparseop", metavar="BINARY", help="also time this sparseop, and sprs through it")
    parser.add_argument("--sparseop-args", metavar="ARGS", type=shlex.split, default="", help="more for its bench")
    parser.add_argument("--alternations", type=int, default=3, help="how often everything is repeated (3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time an engine and alternation (1)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPUs to use (all)")
    parser.add_argument("--huge-pages", action="store_true", help="let MKL's own arrays have huge pages")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the comparison to FILE too")
    args = parser.parse_args()
    if unknown := set(args.only or ()) - SUITE.keys():
        parser.error(f"not in the suite: {', '.join(sorted(unknown))}")
    if not (args.files or args.suite):
        parser.error("give files or --suite DIR")
    if args.huge_pages and os.environ.get("GLIBC_TUNABLES") != HUGE_PAGES:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES  # read once, when a program starts
        os.execv(sys.executable, [sys.executable, *sys.argv])
    cpus = sorted(os.sched_getaffinity(0))[:args.threads]
    os.sched_setaffinity(0, cpus)
    mkl = load_mkl(args.threads)
    openmp = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["prefix"] == "libiomp"]
    say(f"SciPy {scipy.__version__}, NumPy {np.__version__}; {args.threads} CPUs, OpenMP threads {openmp}; huge pages "
        f"{'for MKL too' if args.huge_pages else 'as the system gives them'}")
    say(f"{'matrix':<14}{'dtype':<6}{'engine':<10}{'median µs':>12}{'min µs':>12}{'GB/s':>8}{'spread':>8}  notes")

    matrices = [(path, None) for path in args.files]
    if args.suite:
        matrices += suite(args.suite, args.sparseop, args.only or SUITE)
    results = {}
    for path, cache in matrices:
        original = read(path, cache)
        rng = np.random.default_rng(1)
        for dtype in DTYPES if args.dtype == "both" else [args.dtype]:
            real = DTYPES[dtype]
            a = sp.csr_matrix((aligned(original.data.astype(real)), aligned(original.indices.astype(np.int32)),
                               aligned(original.indptr.astype(np.int32))), shape=original.shape, copy=False)
            x = aligned(rng.uniform(-1, 1, a.shape[1]).astype(real))
            alternations = []
            for _ in range(args.alternations):
                alternations.append(time_peers(mkl, a, x, args.seconds))
                if args.sparseop:
                    alternations[-1] |= time_sparseop(args.sparseop, args.sparseop_args, cpus, path, dtype, a.nnz)
            size = np.dtype(real).itemsize
            csr_bytes = a.nnz * (4 + size) + (a.shape[0] + 1) * 4 + sum(a.shape) * size
            result = {"matrix": path.name, "dtype": dtype, "nrows": a.shape[0], "ncols": a.shape[1], "nnz": a.nnz,
                      "csr_bytes": csr_bytes, "threads": args.threads, "huge_pages": args.huge_pages,
                      "runs": merge(alternations)}
            print(json.dumps(result), flush=True)
            results.setdefault(dtype, []).append(result)
            for run in result["runs"]:
                notes = [f"{key} {run[key]}" for key in ("plan", "busy", "call_us", "kernels") if key in run]
                say(f"{path.name.split('.')[0]:<14}{dtype:<6}{run['engine']:<10}{run['median_us']:>12,.2f}"
                    f"{run['min_us']:>12,.2f}{csr_bytes / run['median_us'] / 1e3:>8.1f}{run['spread']:>8.2f}"
                    f"  {', '.join(notes)}")
    if args.sparseop:
        text = "\n".join(markdown(rows, dtype) for dtype, rows in results.items())
        say("\n" + text)
        if args.markdown:
            args.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
