"""The catalogue of components: methods, rules, guards, models, partitions and data sets, without importing them.

Each package lists its components in a table by name. Their descriptions come from their source (``comity._source``),
those of users' own classes from the imported class.
"""

import copy
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from comity._datasets import DATASETS, DataFiles
from comity._errors import ComityError, one_line, unknown
from comity._hints import name_hint
from comity._labels import spelling
from comity._options import Option, convert, options
from comity._source import read, table

KINDS = {
    "data": ("comity.data.DATASETS", ""),
    "partition": ("comity.data.PARTITIONS", "comity.data.Partition"),
    "model": ("comity.nn.MODELS", "torch.nn.Module"),
    "method": ("comity.methods.METHODS", "comity.methods.Method"),
    "rule": ("comity.rules.RULES", "comity.rules.Rule"),
    "guard": ("comity.guard.GUARDS", "comity.guard.Guard"),
    "extension": ("", "comity.engine.Extension"),
}
"""Kinds of components: the table that lists comity's own, and the base class of users' own."""

TRAITS = ("validation", "refits", "brings_rule")
"""Class attributes of a method or guard that a configuration needs."""

SUPPLIED = {"model": ("make", "shape", "classes")}
"""Arguments that comity passes to a component of a kind."""


@dataclass(frozen=True)
class Description:
    """Description of one component, without its class."""

    name: str
    path: str
    """Dotted path of the class; empty for data sets in files and for models not written for comity."""
    about: str
    paper: str
    options: Mapping[str, Option]
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Values of the TRAITS that the class has."""
    given: Any = field(default=None, compare=False, repr=False)
    """The class, object or function given in Python; otherwise the component is imported by its path."""

    def load(self) -> Callable[..., Any]:
        """The class, or the function that creates the component."""
        given = self.given
        if self.path:
            made: Callable[..., Any] = resolve_name(self.path) if given is None else _class_of(given)
            return made
        if given is not None and not isinstance(given, type) and not inspect.isroutine(given):
            given = partial(copy.deepcopy, given)
        return partial(resolve_name("comity.nn:foreign"), given or self.name)


def user_code(kind: str, name: str, separator: str) -> Any:
    """Import a name from a user's module; ``separator`` precedes the last part of the name.

    The working directory is searched last, so that no file there can replace a library.
    """
    module, _, attribute = name.rpartition(separator)
    if not module or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ComityError(f"{kind} {name!r} could not be imported: this is not the dotted path of a class")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ComityError(f"{kind} {name!r} could not be imported: {error}") from error


def imported(kind: str, name: str, base: str) -> type:
    """The user's class with this dotted path, which must be a subclass of ``base``; it is not called."""
    found = user_code(kind, name, ".")
    if not (isinstance(found, type) and issubclass(found, resolve_name(base))):
        raise ComityError(f"{kind} {name!r} is not a subclass of {base}")
    return found


def find(kind: str, name: Any) -> Description:
    """Find the component called ``name``: one of comity's in any spelling, or a user's class by dotted path.

    In Python it may be the class itself or an object, whose values become the defaults of its options.
    """
    if not isinstance(name, str):
        return _describe_given(kind, name)
    elsewhere = kind == "data" and re.search(r"[./\\:]", name)  # a path, or a name on the hub
    for each in paths(kind):
        if spelling(each) == spelling(name) and not elsewhere:
            return _ours(kind, each)
    if kind == "data":
        return describe(kind, name, DataFiles, "")
    if kind == "model" and ":" in name:
        return describe(kind, name, read("comity.nn", "foreign"), "")
    if "." not in name:
        raise _unknown(kind, name)
    return describe(kind, name, imported(kind, name, KINDS[kind][1]), name)


def _unknown(kind: str, name: str) -> ComityError:
    if hint := name_hint(kind, name):
        return ComityError(hint)
    if hint := option_for(name):
        return ComityError(f"unknown {kind} {name!r}; {hint}")
    return unknown(kind, name, paths(kind), hint="(or give the dotted path of your own class)")


def option_for(name: str) -> str:
    """A sentence with the option that chooses the component ``name``, or ``""``; not for data sets."""
    for kind in KINDS:
        if kind != "data" and (found := [each for each in paths(kind) if spelling(each) == spelling(name)]):
            return f"{found[0]} is a {kind}: --{kind} {found[0]}"
    return ""


def _describe_given(kind: str, given: Any) -> Description:
    component = _class_of(given)
    takes = inspect.signature(given).parameters.keys() if given is component else ()
    if kind == "model" and not {"shape", "classes"} <= set(takes):
        maker = given if inspect.isroutine(given) else component
        name = f"{maker.__module__}:{maker.__qualname__}"
        return replace(describe(kind, name, read("comity.nn", "foreign"), ""), given=given)
    base = KINDS[kind][1]
    if not base or not issubclass(component, resolve_name(base)):
        wanted = f", a subclass of {base} or an object of one" if base else ""
        raise ComityError(f"{kind} must be a name or a mapping with `name`{wanted}, got {one_line(repr(given), 80)}")
    path = f"{component.__module__}.{component.__qualname__}"
    ours = next((name for name, each in paths(kind).items() if each == path), None)
    description = describe(kind, path, component, path) if ours is None else _ours(kind, ours)
    own = dict(description.options)
    if given is not component:
        values = {key: convert(getattr(given, key), option.type, f"{kind}.{key}") for key, option in own.items()}
        own = {key: replace(option, default=values[key]) for key, option in own.items()}
    return replace(description, options=own, given=given)


def _class_of(given: Any) -> type:
    return given if isinstance(given, type) else type(given)


_PAPER = re.compile(r"^Paper: (.+(?:\n(?!\w+:).+)*)", flags=re.MULTILINE)
_PAPER_IN_PROSE = re.compile(r"[A-Z][\w\-’' ]+(?: et al\.|, [A-Z][\w ]+ and [A-Z]\w+)?,(?: [A-Z][\w\-’' ]*)? \d{4}")


def describe(kind: str, name: str, component: Callable[..., Any], path: str, about: str = "") -> Description:
    """Describe a component by its class: first paragraph and paper of its docstring, and annotated options."""
    doc = about or inspect.getdoc(component) or ""
    paper, in_prose = _PAPER.search(doc), _PAPER_IN_PROSE.search(doc)
    return Description(
        name,
        path,
        " ".join(doc.split("\n\n")[0].split()),
        " ".join(paper[1].split()).rstrip(".") if paper else in_prose[0] if in_prose else "",
        options(component, SUPPLIED.get(kind, ())),
        {name: trait for name in TRAITS if (trait := getattr(component, name, None))},
    )


@cache
def paths(kind: str) -> Mapping[str, str]:
    """Dotted path of every component of a kind in comity, by name; for data sets that of the reader."""
    if kind == "data":
        return {name: info.reader and f"comity.data.sources.{info.reader}" for name, info in DATASETS.items()}
    listed = KINDS[kind][0]
    return table(*listed.rsplit(".", 1)) if listed else {}


@cache
def _ours(kind: str, name: str) -> Description:
    path = paths(kind)[name]
    component = read(*path.rsplit(".", 1)) if path else DATASETS[name].options
    return describe(kind, name, component, path, DATASETS[name].about if kind == "data" else "")


def described(kind: str) -> Mapping[str, Description]:
    """All components of a kind in comity, by name."""
    return {name: _ours(kind, name) for name in paths(kind)}
