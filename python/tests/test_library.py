"""Files, devices, profiles, the program, and the import."""

import importlib
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.io
import sparseop
from conftest import MATRICES


def python(*arguments, **options):
    """Runs this interpreter."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_files(tmp_path):
    A = sparseop.gallery("uniform,rows=50")
    for name in ("a.mtx", "a.mtx.gz", "a.mtx.zst"):
        sparseop.write(tmp_path / name, A)
        back = sparseop.read(tmp_path / name)
        assert back.dtype == np.float64 and abs(back - A).sum() == 0
        assert sparseop.read(str(tmp_path / name), dtype="float32").dtype == np.float32
    assert abs(scipy.io.mmread(tmp_path / "a.mtx") - A).sum() == 0
    sparseop.write(tmp_path / "b.mtx", sparseop.auto(A).T)
    assert abs(sparseop.read(tmp_path / "b.mtx") - A.T).sum() == 0
    sparseop.write(tmp_path / "c.mtx", A.tocsc())
    assert abs(sparseop.read(tmp_path / "c.mtx") - A).sum() == 0
    whole = (10 * A).astype("int32")
    for kind in ("int64", "int8", "bool"):
        sparseop.write(tmp_path / "d.mtx", whole.astype(kind))
        assert abs(sparseop.read(tmp_path / "d.mtx") - whole.astype(kind)).sum() == 0
    whole = whole.astype("int64")
    whole.data[0] = 2**53 + 1
    with pytest.raises(sparseop.DtypeError, match="integers"):
        sparseop.write(tmp_path / "d.mtx", whole)


def test_real_matrices():
    files = sorted(MATRICES.glob("*.mtx.zst"))
    if not files:
        pytest.skip(f"there are no matrices in {MATRICES}")
    rng, used = np.random.default_rng(4), 0
    for file in files:
        if file.stat().st_size > 400_000:
            continue
        try:
            A = sparseop.read(file)
        except sparseop.FileError as error:
            assert "complex" in str(error)
            continue
        op, x = sparseop.auto(A, tuning="predict"), rng.standard_normal(A.shape[1])
        assert np.allclose(op @ x, A @ x, rtol=1e-9, atol=1e-9 * np.abs(A @ x).max(initial=0))
        z = rng.standard_normal(A.shape[0])
        expected = A.T @ z
        limit = 1e-9 * np.abs(expected).max(initial=0)
        assert np.allclose(op.T @ z, expected, rtol=1e-9, atol=limit), file
        used += 1
    print(f"{used} of {len(files)} matrices")
    assert used


def test_devices_and_generators():
    devices = sparseop.devices()
    assert "cpu" in devices and "threads" in devices["cpu"]
    assert (sparseop.why_no_gpu() is None) == any(name.startswith("cuda") for name in devices)
    assert all(text for text in sparseop.generators().values())


def test_profiles(tmp_path):
    source = pathlib.Path(__file__).resolve().parents[2] / "models" / "cpu.ron"
    if not source.exists():
        pytest.skip("this is no checkout of the repository")
    profile = sparseop.Profile.read(source)
    profile.write(tmp_path / "own.ron")
    assert sparseop.Profile.read(tmp_path / "own.ron").date == profile.date
    A = sparseop.gallery("small")
    for given in (profile, source, str(source)):
        op = sparseop.auto(A, profile=given, tuning="predict")
        assert profile.date in op.explain()


def test_the_program(tmp_path):
    help = python("-m", "sparseop", "--help")
    assert help.returncode == 0 and "Examples:" in help.stdout
    wrong = python("-m", "sparseop", "analyse")
    assert wrong.returncode == 2 and "analyze" in wrong.stderr
    failed = python("-m", "sparseop", "analyze", str(tmp_path / "none.mtx"))
    assert failed.returncode == 1 and "none.mtx" in failed.stderr
    analyzed = python("-m", "sparseop", "analyze", "gallery:small", "--json")
    assert analyzed.returncode == 0 and '"plan"' in analyzed.stdout


def test_nvrtc_of_a_package_is_found(tmp_path, monkeypatch):
    from sparseop import _gpu

    for version in ("12", "13", "alt.13"):
        file = tmp_path / "nvidia" / f"cu{version}" / "lib" / f"libnvrtc.so.{version}"
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    names = [file.name for file in _gpu.libraries()]
    assert "libnvrtc.so.13" in names and names.index("libnvrtc.so.12") > 0


def test_show(capsys):
    sparseop.show(sparseop.gallery("small"))
    assert "plan" in capsys.readouterr().out


def test_the_import_is_light():
    code = (
        "import sparseop, sys; print('numpy' in sys.modules, "
        "'libcuda' in open('/proc/self/maps').read())"
    )
    assert python("-c", code).stdout.split() == ["False", "False"]
    code = "import time; t = time.perf_counter(); import sparseop; print(time.perf_counter() - t)"
    seconds = min(float(python("-c", code).stdout) for _ in range(5))
    print(f"import in {seconds * 1e3:.1f} ms")
    assert seconds < 0.030


def test_a_product_on_the_cpu_needs_no_driver():
    code = (
        "import sparseop, numpy; A = sparseop.gallery('small'); op = sparseop.auto(A); "
        "op @ numpy.ones(A.shape[1]); print('libcuda' in open('/proc/self/maps').read())"
    )
    assert python("-c", code).stdout.split() == ["False"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_operators_work_after_a_fork():
    A = sparseop.gallery("uniform,rows=30k")
    op, x = sparseop.auto(A), np.ones(30_000)
    expected = op @ x
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(op @ x, expected) else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done and status == 0


def test_tuning(tmp_path):
    quick = ("--seconds", "0.01", "--no-remember")
    profile = sparseop.tune(tmp_path / "own.ron", *quick, suite="2000", device="cpu")
    assert "--suite 2000" in profile.command
    op = sparseop.auto(sparseop.gallery("small"), profile=profile, tuning="predict")
    assert profile.date in op.explain()
    with pytest.raises(sparseop.Error):
        sparseop.tune(tmp_path / "none" / "own.ron", *quick, suite="nothing")
