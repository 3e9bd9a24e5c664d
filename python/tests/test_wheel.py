"""Contents of a wheel: compiled kernels, and an import that does not look at them."""

import subprocess
import sys

from sparseop._sparseop import embedded_kernels

# Kernels of the plans that `auto` chooses, of their checks, and of solvers.
COMMON = """
    blocked coo csr csr_spmm dia ell hyb jds sell row_major tiles update vector scaled
    psell_pack_rows psell_pack_slices psell_window
    psell_spmv_plain psell_spmv_same psell_spmv_coded
    psell_spmm_plain psell_spmm_same psell_spmm_coded
""".split()


def test_the_common_kernels_are_compiled_for_every_architecture():
    kernels = dict(embedded_kernels())
    by_target = {}
    for name, targets in kernels.items():
        for target in targets:
            by_target.setdefault(target, []).append(name)
    for target, names in sorted(by_target.items()):
        print(f"\n{target}: {len(names)} of {len(kernels)} modules of kernels", end="")
    print("\nwithout machine code:", *(name for name in kernels if not kernels[name]))
    machine_code = [names for target, names in by_target.items() if target.startswith("sm_")]
    assert machine_code
    variants = ("", "_streamed", "_evict_first", "_shared")
    for names in machine_code:
        for common in COMMON:
            wanted = {common + variant for variant in variants} & kernels.keys()
            assert wanted and wanted <= set(names), common


def test_the_sources_of_all_kernels_are_there():
    assert set(COMMON) <= dict(embedded_kernels()).keys()


def test_an_import_is_fast():
    script = """
import numpy, time
begin = time.perf_counter()
import sparseop
print(time.perf_counter() - begin)
"""
    times = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        times.append(float(done.stdout))
    # Of the best: other tests may run meanwhile.
    assert min(times) < 0.03, times
