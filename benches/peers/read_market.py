"""Reads one Matrix Market file with sparseop and with fast_matrix_market, alternating, and compares the medians.

    pip install fast-matrix-market scipy numpy
    python benches/peers/read_market.py FILE.mtx [--rounds 7] [--threads 2]

sparseop reads into CSR. fast_matrix_market is timed twice: `read_coo`, which keeps the order of the
entries, and `mmread(...).tocsr()`, which also builds CSR. One JSON line is printed for each, with the
ratio to sparseop.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import fast_matrix_market

ROOT = pathlib.Path(__file__).resolve().parents[2]


def bench_binary():
    """Builds the Rust side and returns the path of the executable."""
    build = ["cargo", "bench", "--no-run", "--bench", "read_market", "--message-format", "json"]
    out = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    built = [m for m in messages if m.get("executable") and m["target"]["name"] == "read_market"]
    return built[-1]["executable"]


class Sparseop:
    """One long-lived process, as the Python side is one."""

    def __init__(self, file, threads):
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        self.process = subprocess.Popen(
            [bench_binary(), "--serve", file],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )

    def __call__(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        reading = json.loads(self.process.stdout.readline())
        return reading["seconds"], reading["nnz"]


def timed(read):
    def call():
        start = time.perf_counter()
        nnz = read()
        return time.perf_counter() - start, nnz
    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    file, threads = os.path.abspath(options.file), options.threads

    def read_coo():
        (values, _), _ = fast_matrix_market.read_coo(file, parallelism=threads)
        return len(values)

    def to_csr():
        return fast_matrix_market.mmread(file, parallelism=threads).tocsr().nnz

    engines = {
        "sparseop CSR": Sparseop(file, threads),
        "fast_matrix_market read_coo": timed(read_coo),
        "fast_matrix_market mmread().tocsr()": timed(to_csr),
    }
    seconds = {name: [] for name in engines}
    nnz = {}
    for engine in engines.values():  # the file into the page cache, the allocators warm
        engine()
    for _ in range(options.rounds):
        for name, engine in engines.items():
            took, nnz[name] = engine()
            seconds[name].append(took)
    ours = statistics.median(seconds["sparseop CSR"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(json.dumps({
            "engine": name, "file": options.file, "bytes": os.path.getsize(file), "nnz": nnz[name],
            "threads": threads, "rounds": options.rounds, "median_s": round(median, 4),
            "min_s": round(min(times), 4), "ratio_to_sparseop": round(median / ours, 3),
        }))


if __name__ == "__main__":
    main()
