"""The stubs have the names, the arguments and the defaults of the package."""

import ast
import inspect
import pathlib

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
