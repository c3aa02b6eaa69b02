"""What there is to choose from: methods, rules, guards, models, partitions and data sets, without importing them.

Their classes import torch, which takes a second. ``catalogue.json`` holds all that help pages, lists and checks need of
them. ``python docs/make_catalogue.py`` writes it from the classes themselves; a test compares the two.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from comity._errors import ComityError, one_line, unknown
from comity._options import REQUIRED, Option, Range, options

FILE = Path(__file__).with_name("catalogue.json")

KINDS = {
    "data": ("comity.data", "DATASETS"),
    "partition": ("comity.data", "PARTITIONS"),
    "model": ("comity.nn", "MODELS"),
    "method": ("comity.methods", "METHODS"),
    "rule": ("comity.rules", "RULES"),
    "guard": ("comity.guard", "GUARDS"),
}
"""Every kind of component, and where the room that holds them lists them."""

BASES = {
    "partition": ("comity.data", "Partition"),
    "model": ("torch.nn", "Module"),
    "method": ("comity.methods", "Method"),
    "rule": ("comity.rules", "Rule"),
    "guard": ("comity.guard", "Guard"),
}
"""What a class of the user's must be a subclass of, by kind."""

TRAITS = ("validation", "refits", "brings_rule")
"""What a configuration must know of a method's or guard's class."""

SUPPLIED = {"model": ("shape", "classes")}
"""Arguments that comity itself hands to a component of a kind."""


@dataclass(frozen=True)
class Description:
    """One component, without its class."""

    name: str
    path: str
    """Where its class is, with dots."""
    about: str
    paper: str
    options: Mapping[str, Option]
    traits: Mapping[str, Any] = field(default_factory=dict)
    """What its class says of those TRAITS that it has."""

    def load(self) -> Callable[..., Any]:
        if not self.path:
            return partial(import_module("comity.nn").foreign, self.name)
        module, _, attribute = self.path.rpartition(".")
        component: Callable[..., Any] = getattr(import_module(module), attribute)
        return component


def user_code(kind: str, name: str, separator: str) -> Any:
    """What is called so in a module of the user's; the separator stands before the last name.

    The working directory comes last among the places where it is looked for, so that no file there stands in for a
    library's.
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


def imported(kind: str, name: str, base: tuple[str, str]) -> type:
    """The class of the user's with this dotted path, which must be a subclass of ``base``; nothing is called."""
    found = user_code(kind, name, ".")
    wanted = getattr(import_module(base[0]), base[1])
    if not (isinstance(found, type) and issubclass(found, wanted)):
        raise ComityError(f"{kind} {name!r} is not a subclass of {'.'.join(base)}")
    return found


def find(kind: str, name: str) -> Description:
    """The component called ``name``: one of ours in any spelling, or a class of the user's by its dotted path."""
    ours = described(kind)
    elsewhere = kind == "data" and re.search(r"[./\\:]", name)  # a path, or a name on the hub
    for description in ours.values():
        if spelling(description.name) == spelling(name) and not elsewhere:
            return description
    if kind == "data":
        return describe(kind, name, DataFiles, "")
    if kind == "model" and ":" in name:
        return _describe_foreign(name)
    if "." not in name:
        raise unknown(kind, name, ours, hint="(or give the dotted path of your own class)")
    return describe(kind, name, imported(kind, name, BASES[kind]), name)


def describe_given(kind: str, given: Any) -> tuple[Description, dict[str, Any]]:
    """A class of the user's, or an object, and the options that the object has."""
    component = given if isinstance(given, type) else type(given)
    if kind == "model" and is_foreign(given):
        maker = given if isinstance(given, type) or inspect.isroutine(given) else component
        return _describe_foreign(f"{maker.__module__}:{maker.__qualname__}"), {}
    room, base = BASES.get(kind, ("", ""))
    if not base or not issubclass(component, getattr(import_module(room), base)):
        wanted = f", a subclass of {room}.{base} or an object of one" if base else ""
        raise ComityError(f"{kind} must be a name or a mapping with `name`{wanted}, got {one_line(repr(given), 80)}")
    path = f"{component.__module__}.{component.__qualname__}"
    ours = next((each for each in described(kind).values() if each.path == path), None)
    description = ours or describe(kind, path, component, path)
    own = {} if given is component else {key: getattr(given, key) for key in description.options}
    return description, own


def is_foreign(given: Any) -> bool:
    """Whether a model that Python gave is no class that takes the shape of a sample and the number of classes."""
    return not (isinstance(given, type) and set(SUPPLIED["model"]) <= inspect.signature(given).parameters.keys())


def _describe_foreign(name: str) -> Description:
    make = import_module("comity.nn").foreign
    about = describe("model", name, make, "comity.nn.foreign")
    return Description(name, "", about.about, "", {key: about.options[key] for key in ("head",)})


def spelling(name: str) -> str:
    """The same for all spellings of a name: ``LG-FedAvg`` and ``lg_fedavg``, ``FedMGDA+`` and ``fedmgdaplus``."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """A data set that is read from a file, from a folder or from the hub.

    Options:
        size: scale the images of a folder or of the hub to this many pixels a side
        target: the column of a table that is to be predicted; by default one that is called target, label, outcome, …
        client: the column that says whose a row is; by default one that is called client, hospital, site, …
        missing: blank cells stand at the mean of the training samples; `marked` adds a feature that says so
        centred: scale pixels to [-1, 1], otherwise to [0, 1]
    """

    size: Annotated[int, Range(least=1, most=4096)] | None = None
    target: str | None = None
    client: str | None = None
    missing: Literal["mean", "marked"] = "mean"
    centred: bool = True


# From the classes.

_PAPER = re.compile(r"^Paper: (.+(?:\n(?!\w+:).+)*)", flags=re.MULTILINE)
_PAPER_IN_PROSE = re.compile(r"[A-Z][\w\-’' ]+(?: et al\.|, [A-Z][\w ]+ and [A-Z]\w+)?,(?: [A-Z][\w\-’' ]*)? \d{4}")


def describe(kind: str, name: str, component: Callable[..., Any], path: str, about: str = "") -> Description:
    """A component by its class: the first paragraph and the paper in its docstring, and its annotated options."""
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


# From the file.


@cache
def described(kind: str) -> Mapping[str, Description]:
    """All components of a kind that come with comity, by name."""
    return {name: _from_json(name, entry) for name, entry in _read()[kind].items()}


@cache
def _read() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def _from_json(name: str, entry: Mapping[str, Any]) -> Description:
    listed = {}
    for option, words in entry["options"].items():
        default = words.get("default", REQUIRED)
        default = tuple(default) if isinstance(default, list) else default
        listed[option] = Option(option, _type_from_json(words["type"]), default, words["help"])
    return Description(name, entry["path"], entry["about"], entry["paper"], listed, entry.get("traits", {}))


SIMPLE = {"int": int, "float": float, "bool": bool, "str": str, "Path": Path, "none": type(None)}


def _type_from_json(entry: Any) -> Any:
    if isinstance(entry, str):
        return SIMPLE[entry]
    if "any of" in entry:
        return reduce(or_, map(_type_from_json, entry["any of"]))
    if "one of" in entry:
        return Literal[tuple(entry["one of"])]
    if "several" in entry:
        return tuple[_type_from_json(entry["several"]), ...]  # type: ignore[misc]
    bounds = {bound: number for bound, number in entry.items() if bound != "type"}
    return Annotated[_type_from_json(entry["type"]), Range(**bounds)]
