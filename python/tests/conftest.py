"""Fixtures of the tests."""

import pathlib
import sys

import pytest

try:
    from hypothesis import settings

    settings.register_profile("sparseop", deadline=None, max_examples=60)
    settings.load_profile("sparseop")
except ImportError:
    pass

# Real matrices beside the repository, where they are.
MATRICES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "matrices"


def memory(key):
    """A size of this process in bytes, as Linux counts it: VmRSS, or its maximum VmHWM."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def growth(call):
    """The result of a call, and the bytes by which the memory of this process grew meanwhile."""
    if not sys.platform.startswith("linux"):
        pytest.skip("counts of memory are those of Linux")
    # Sets the maximum to the present size.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    result = call()
    return result, memory("VmHWM") - before


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Tests neither read nor write the user's decisions and profiles."""
    monkeypatch.setenv("SPARSEOP_STORE", str(tmp_path / "store"))
