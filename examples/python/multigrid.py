"""Algebraic multigrid of PyAMG, with the products of every level by operators.

    python multigrid.py [--small]
"""

import sys
import time

import numpy as np
import sparseop


def main(n):
    try:
        import pyamg
    except ImportError:
        print("skipped: needs pyamg")
        return
    from scipy.sparse.linalg import cg

    A = sparseop.gallery(f"poisson2d,n={n},values=laplacian")
    b = np.random.default_rng(1).standard_normal(A.shape[0])
    levels = pyamg.smoothed_aggregation_solver(
        A,
        presmoother=("chebyshev", {"degree": 2}),
        postsmoother=("chebyshev", {"degree": 2}),
    )
    operators = 0
    seconds = []
    for packed in (False, True):
        if packed:
            for level in levels.levels[:-1]:
                # Smoothers and cycles only multiply with these.
                level.A, level.P, level.R = map(sparseop.auto, (level.A, level.P, level.R))
                operators += 3
        begin = time.perf_counter()
        x, info = cg(sparseop.auto(A), b, M=levels.aspreconditioner(), rtol=1e-8)
        seconds.append(time.perf_counter() - begin)
        assert info == 0 and np.linalg.norm(b - A @ x) <= 1e-7 * np.linalg.norm(b)
    print(f"SciPy's products: {seconds[0]:.2f} s; {operators} operators: {seconds[1]:.2f} s")


if __name__ == "__main__":
    main(100 if "--small" in sys.argv else 1000)
