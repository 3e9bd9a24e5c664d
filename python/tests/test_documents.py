"""Examples of docstrings, of the README and of the guide."""

import doctest
import importlib
import pathlib
import re
import subprocess
import sys

import pytest
import sparseop

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["sparseop", "sparseop._solvers", "sparseop._sparseop"])
def test_docstrings(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    print(f"{found.attempted} examples")


def test_methods_have_examples():
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for kind, least in ((sparseop.Operator, 20), (sparseop.SolveInfo, 3)):
        before = runner.tries
        for test in finder.find(kind, kind.__name__, module=False):
            runner.run(test)
        assert runner.failures == 0 and runner.tries - before >= least


@pytest.mark.parametrize("file", ["README.md", "docs/guide/python.md", "python/README.md"])
def test_documents(file, tmp_path, monkeypatch):
    path = ROOT / file
    if not path.exists():
        pytest.skip(f"there is no {path}")
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks:
        needed = re.findall(r"import (cupy|torch|jax)", block)
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing or "cuda" in block:
            print(f"skipped: needs {', '.join(missing) or 'a GPU'}")
            continue
        exec(compile(block, file, "exec"), names)


@pytest.mark.parametrize("name", ["heat", "pagerank", "multigrid", "layer"])
def test_examples(name):
    path = ROOT / "examples" / "python" / f"{name}.py"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    done = subprocess.run(
        [sys.executable, str(path), "--small"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
