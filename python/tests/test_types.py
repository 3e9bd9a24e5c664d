"""The stubs have the names, the arguments and the defaults of the package."""

import ast
import importlib.util
import inspect
import pathlib
import subprocess
import sys

import pytest
import sparseop


def test_the_stubs():
    tree = ast.parse(pathlib.Path(sparseop.__file__).with_suffix(".pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(sparseop.__all__) <= set(classes) | set(functions)
    for name, node in functions.items():
        try:
            found = inspect.signature(getattr(sparseop, name))
        except ValueError:
            continue
        arguments = node.args
        stated = [argument.arg for argument in arguments.posonlyargs + arguments.args]
        stated += [arguments.vararg.arg] if arguments.vararg else []
        stated += [argument.arg for argument in arguments.kwonlyargs]
        assert stated == list(found.parameters), name
        defaults = [ast.literal_eval(value) for value in arguments.defaults]
        defaults += [ast.literal_eval(value) for value in arguments.kw_defaults if value]
        own = [p.default for p in found.parameters.values() if p.default is not p.empty]
        assert defaults == own, name
    for name in ("Operator", "Profile"):
        stated = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        stated |= {n.target.id for n in classes[name].body if isinstance(n, ast.AnnAssign)}
        own = {n for n in vars(getattr(sparseop, name)) if not n.startswith("_")}
        assert own == {n for n in stated if not n.startswith("_")}, name


def test_everything_is_documented():
    things = [getattr(sparseop, name) for name in sparseop.__all__]
    for kind in (sparseop.Operator, sparseop.Profile):
        things += [getattr(kind, name) for name in vars(kind) if not name.startswith("_")]
    for thing in things:
        if not isinstance(thing, int):
            assert thing.__doc__, thing


def test_names_of_the_package():
    assert set(sparseop.__all__) <= set(dir(sparseop)) and "torch" in dir(sparseop)
    for name in ("Operator", "Profile", "Progress", "SolveInfo", "Error"):
        assert name in sparseop.__all__
    for name in ("Operator", "Profile", "Progress", "SolveInfo"):
        assert getattr(sparseop, name).__module__ == "sparseop"


PROGRAM = """
import copy

import numpy
import sparseop

A = sparseop.gallery("small", dtype=float)
op = sparseop.auto(A, dtype=numpy.float32)
x = numpy.ones(op.shape[1], "float32")
y: numpy.typing.NDArray[numpy.float32] = op @ x
own: sparseop.Operator = copy.deepcopy(op.copy())
scaled = 2 * op + op @ op - op**2
page: str = op._repr_html_()
info: sparseop.SolveInfo = sparseop.cg(op, x, callback=lambda p: print(p.residual))[1]
op.copies = True  # type: ignore[misc]
"""

LAYER = """
import sparseop.torch
import torch

single = sparseop.auto(A, dtype=torch.float32)
layer = sparseop.torch.SparseLinear(single)
z: torch.Tensor = layer.forward(torch.ones(op.shape[1]))
w: torch.Tensor = sparseop.torch.matmul(single, z)
layer.forward(x)  # type: ignore[arg-type]
"""


def test_programs_with_types(tmp_path):
    """By mypy, to which an error that is ignored and does not occur is an error."""
    pytest.importorskip("mypy")
    with_torch = importlib.util.find_spec("torch") is not None
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + LAYER * with_torch)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
