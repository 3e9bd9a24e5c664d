"""PageRank of a graph: by the solver, and written with products. In the memory of a GPU with
CuPy, otherwise with SciPy.

    python pagerank.py [--small]
"""

import sys

import numpy as np
import scipy.sparse as sp
import sparseop


def main(scale):
    xp, graph = np, sparseop.gallery(f"rmat,scale={scale},values=pattern")
    if sparseop.why_no_gpu() is None:
        try:
            import cupy as xp
            from cupyx.scipy import sparse

            graph = sparse.csr_matrix(graph)
        except ImportError:
            pass
    ranks, info = sparseop.pagerank(graph, rtol=1e-10)
    print(f"{info}; the highest ranks are those of {xp.argsort(-ranks)[:5].tolist()}")

    # The same with products: columns of the transposed graph that add up to 1.
    n = graph.shape[0]
    links = graph.sum(axis=1).ravel()
    weights = xp.where(links > 0, 1 / xp.maximum(links, 1), 0)
    passed = graph.T.tocsr() @ (sp.diags_array(weights) if xp is np else sparse.diags(weights))
    op = sparseop.auto(passed.tocsr())
    rank, out = xp.full(n, 1 / n), xp.empty(n)
    for _ in range(100):
        op(rank, out=out, alpha=0.85)
        out += (1 - out.sum()) / n
        rank, out = out, rank
    difference = float(abs(rank - ranks).sum())
    print(f"the two differ by {difference:.1e}")
    assert difference < 1e-6


if __name__ == "__main__":
    main(10 if "--small" in sys.argv else 18)
