"""Fixtures of the tests."""

import pathlib

import pytest

try:
    from hypothesis import settings

    settings.register_profile("sparseop", deadline=None, max_examples=60)
    settings.load_profile("sparseop")
except ImportError:
    pass

# Real matrices beside the repository, where they are.
MATRICES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "matrices"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Tests neither read nor write the user's decisions and profiles."""
    monkeypatch.setenv("SPARSEOP_STORE", str(tmp_path / "store"))
