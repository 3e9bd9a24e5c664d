"""Heat equation: implicit steps in a square, each a linear system solved by CG.

    python heat.py [--small]             NumPy; with CuPy and a GPU, in its memory
"""

import sys
import time

import numpy as np
import scipy.sparse as sp
import sparseop


def arrays():
    """CuPy, if there are it and a GPU; NumPy otherwise."""
    if sparseop.why_no_gpu() is None:
        try:
            import cupy

            return cupy
        except ImportError:
            pass
    return np


def main(n, steps):
    xp = arrays()
    # u' = Δu on n x n points with u = 0 at the edges: (1 + dt L) u_next = u.
    dt, h = 1e-4, 1 / (n + 1)
    laplacian = sparseop.gallery(f"poisson2d,n={n},values=laplacian")
    A = (sp.eye_array(n * n) + dt / h**2 * laplacian).tocsr()
    op = sparseop.auto(A, device="cpu" if xp is np else "cuda")
    print(op)

    def mode(k):
        wave = xp.sin(k * np.pi * xp.linspace(h, 1 - h, n))
        return (wave[:, None] * wave).ravel()

    # Modes decay by exp(-2 k² π² t).
    u = mode(1) + mode(4) + mode(7)
    begin, iterations = time.perf_counter(), 0
    for _ in range(steps):
        u, info = sparseop.cg(op, u, x0=u, rtol=1e-10)
        iterations += info.converged().iterations
    seconds = time.perf_counter() - begin
    exact = sum(np.exp(-2 * k**2 * np.pi**2 * dt * steps) * mode(k) for k in (1, 4, 7))
    error = float(abs(u - exact).max() / abs(exact).max())
    print(f"{steps} steps, {iterations} iterations, {seconds:.2f} s; error {error:.1e}")
    assert error < 0.05


if __name__ == "__main__":
    main(*((50, 10) if "--small" in sys.argv else (500, 100)))
