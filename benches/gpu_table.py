#!/usr/bin/env python3
"""Tables of docs/performance.md from `sparseop bench --plans all --baselines cusparse --json`.

    benches/gpu_table.py suite-f32.jsonl suite-f64.jsonl          one line per matrix
    benches/gpu_table.py --summary real-f32.jsonl real-f64.jsonl  by number of entries
"""

import argparse
import json
import math

SIZES = [(0, "below 100 thousand"), (10**5, "100 thousand to a million"), (10**6, "a million or more")]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def best(runs, *prefixes):
    """The fastest of the runs whose plan begins with a prefix: (plan, µs), or None."""
    fitting = [(us, plan) for plan, us in runs.items() if plan.startswith(prefixes or "")]
    return min(fitting)[::-1] if fitting else None


class Result:
    """One line of `bench --json`, taken apart."""

    def __init__(self, line):
        report = json.loads(line)
        self.matrix = report["matrix"].removeprefix("gallery:").removesuffix(".mtx.zst")
        self.nnz, self.dtype, self.auto_plan = report["nnz"], report["dtype"], report["auto_plan"]
        times = lambda engine: {
            run["plan"]: run["median_us"] for run in report["runs"] if run["engine"] == engine and run["completed"]
        }
        self.own, self.peer = times("sparseop"), times("cusparse")
        self.wrong = [run for run in report["runs"] if "wrong answer" in run.get("error", "")]
        self.bandwidth = {
            run["plan"]: run["gbps"] for run in report["runs"] if run["engine"] == "sparseop" and run["completed"]
        }
        self.auto = self.own[self.auto_plan]
        self.oracle = best(self.own)

    @property
    def speed_up(self):
        return best(self.peer)[1] / self.auto

    @property
    def regret(self):
        return self.auto / self.oracle[1]


def cell(found, unit=""):
    return f"{found[1]:.1f}{unit} `{found[0]}`" if found else "–"


def number(us):
    return f"{us:.1f}" if us else "–"


def table(results):
    print("| matrix | cuSPARSE CSR | COO | SELL | our CSR | over theirs | our SELL | over theirs | best plan | `auto` | speed-up |")
    print("|---|--:|--:|--:|---|--:|---|--:|---|---|--:|")
    for r in results:
        theirs = {name: best(r.peer, prefix) for name, prefix in (("csr", "csr"), ("coo", "coo"), ("sell", "sell"))}
        csr, sell = best(r.own, "csr"), best(r.own, "sell")
        ratio = lambda ours, name: f"{ours[1] / theirs[name][1]:.2f}" if ours and theirs[name] else "–"
        us = lambda found: number(found and found[1])
        chosen = f"{r.auto:.1f} `{r.auto_plan}`, {r.bandwidth[r.auto_plan]:.0f} GB/s"
        print(
            f"| {r.matrix} | {us(theirs['csr'])} | {us(theirs['coo'])} | {us(theirs['sell'])} | {cell(csr)} | {ratio(csr, 'csr')} "
            f"| {cell(sell)} | {ratio(sell, 'sell')} | {cell(r.oracle)} | {chosen} | {r.speed_up:.2f} |"
        )
    speed_ups = [r.speed_up for r in results]
    regret = geometric_mean([r.regret for r in results])
    print(
        f"\nSpeed-up of `auto` over the best of cuSPARSE: geometric mean {geometric_mean(speed_ups):.2f}, worst {min(speed_ups):.2f}; "
        f"`auto` over the best of our plans: geometric mean {regret:.3f}, worst {max(r.regret for r in results):.2f}.\n"
    )


def summary(results):
    print("| entries | matrices | speed-up of `auto` | worst | of the best plan | `auto` over the best plan | worst |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for i, (low, name) in enumerate(SIZES):
        high = SIZES[i + 1][0] if i + 1 < len(SIZES) else math.inf
        these = [r for r in results if low <= r.nnz < high]
        if these:
            speed_ups = [r.speed_up for r in these]
            possible = geometric_mean([r.speed_up * r.regret for r in these])
            regrets = [r.regret for r in these]
            print(
                f"| {name} | {len(these)} | {geometric_mean(speed_ups):.2f} | {min(speed_ups):.2f} | {possible:.2f} "
                f"| {geometric_mean(regrets):.3f} | {max(regrets):.2f} |"
            )
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--summary", action="store_true", help="by number of entries instead of by matrix")
    args = parser.parse_args()
    results = [Result(line) for path in args.files for line in open(path)]
    for dtype in ("f32", "f64"):
        these = [r for r in results if r.dtype == dtype]
        if these:
            print(f"### {dtype}\n")
            (summary if args.summary else table)(these)
    answers = sum(len(r.own) + len(r.peer) for r in results)
    wrong = sum(len(r.wrong) for r in results)
    print(f"{answers} answers checked before they were timed, {wrong} wrong.")


if __name__ == "__main__":
    main()
