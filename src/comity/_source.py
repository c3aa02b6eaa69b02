"""Read components from their source: docstring, options and traits of a class without importing it.

A component's module imports torch, which takes a second; help pages, lists and errors must not wait for it. So ``read``
takes a class from the syntax tree of its file, drops the bodies of its functions, and builds the rest: a class with the
same fields, constructor arguments, docstrings and constants, on equally reduced bases.
"""

import ast
import builtins
import copy
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = __name__.partition(".")[0]
REAL = (f"{PACKAGE}._options", f"{PACKAGE}._datasets")
"""Modules of comity that are imported for real: they declare options."""

Imported = tuple[str, str]
"""A module and a name in it; the name is empty for the module itself."""


class _Outside:
    """Replaces anything from another library, such as a tensor's type."""

    def __getattr__(self, name: str) -> Any:
        return self if not name.startswith("__") else super().__getattribute__(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    __getitem__ = __or__ = __ror__ = __call__


OUTSIDE = _Outside()


@cache
def _names(module: str) -> dict[str, Imported | ast.stmt]:
    """The names that the top level of a module defines and imports."""
    place = Path(__file__).parents[1].joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names: dict[str, Imported | ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = {each.id: ast.Assign([each], node.value) for each in targets if isinstance(each, ast.Name)}
            names |= {name: ast.copy_location(each, node) for name, each in assigned.items()}
    return names


def origin(module: str, name: str) -> Imported:
    """The module of comity that defines ``name`` in ``module``, and its name there."""
    found = _names(module).get(name)
    within = isinstance(found, tuple) and found[0].startswith(f"{PACKAGE}.") and found[0] not in REAL
    return origin(*found) if within else (module, name)  # type: ignore[misc]


def table(module: str, name: str) -> dict[str, str]:
    """A dictionary of classes, such as ``METHODS``: the dotted path of each class by name."""
    module, name = origin(module, name)
    names = _names(module)
    node = names[name]
    assert isinstance(node, ast.Assign)
    assert isinstance(node.value, ast.Dict)
    paths = {}
    for key, value in zip(node.value.keys, node.value.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Name)
        found = names[value.id]  # its own file is read later if needed
        paths[str(key.value)] = ".".join(found if isinstance(found, tuple) else (module, value.id))
    return paths


@cache
def read(module: str, name: str) -> Any:
    """The object ``name`` in a module of comity: a class or function without its body, or a constant."""
    module, name = origin(module, name)
    found = _names(module).get(name)
    if found is None:
        return getattr(builtins, name, OUTSIDE)
    if isinstance(found, tuple):
        if found[0] not in REAL and found[0].partition(".")[0] not in sys.stdlib_module_names:
            return OUTSIDE
        imported = import_module(found[0])
        return getattr(imported, found[1]) if found[1] else imported
    if isinstance(found, ast.ClassDef):
        found = _bare_class(module, found)
    elif isinstance(found, ast.FunctionDef):
        found = _bare_function(found)
    used = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)} - {name}
    namespace = {"__name__": module} | {each: read(module, each) for each in used}
    exec(compile(ast.Module([found], []), module, "exec"), namespace)  # comity's own source
    return namespace[name]


def _bare_class(module: str, node: ast.ClassDef) -> ast.ClassDef:
    """A class with fields, constants and constructor arguments; other methods keep only their names."""
    body: list[ast.stmt] = []
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name != "__init_subclass__":  # it makes subclasses dataclasses
            body.append(_bare_function(each, keep_arguments=each.name == "__init__"))
        elif isinstance(each, ast.FunctionDef) or _is_plain(each):
            body.append(each)
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    ours = [base for base in bases if isinstance(base, ast.Name) and isinstance(read(module, base.id), type)]
    ours = [base for base in ours if read(module, base.id).__module__.startswith(PACKAGE)]
    decorators = [each for each in node.decorator_list if ast.unparse(each).startswith("dataclass(")]
    bare = copy.copy(node)
    bare.bases, bare.keywords, bare.body, bare.decorator_list = [*ours], [], body or [_nothing(node)], decorators
    return bare


def _is_plain(node: ast.stmt) -> bool:
    """Whether a statement of a class is a field, a constant or a docstring."""
    if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
        return True
    return isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)) and isinstance(node.value, ast.Constant)


def _bare_function(node: ast.FunctionDef, keep_arguments: bool = True) -> ast.FunctionDef:
    bare = copy.copy(node)
    bare.args = node.args if keep_arguments else ast.arguments([], [], None, [], [], None, [])
    bare.body = node.body[:1] if keep_arguments and ast.get_docstring(node) is not None else [_nothing(node)]
    bare.decorator_list, bare.returns = [], None
    return bare


def _nothing(place: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Pass(), place)
