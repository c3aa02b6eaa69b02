"""What there is to choose from: methods, rules, models, partitions and data sets, without importing them.

Their classes import torch, which takes a second. ``catalogue.json`` holds all that help pages, lists and checks need of
them. ``python docs/make_catalogue.py`` writes it from the classes themselves; a test compares the two.
"""

import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from comity._errors import ComityError, unknown
from comity._options import REQUIRED, Option, Range, options

FILE = Path(__file__).with_name("catalogue.json")

KINDS = {
    "data": ("comity.data", "DATASETS"),
    "partition": ("comity.data", "PARTITIONS"),
    "model": ("comity.nn", "MODELS"),
    "method": ("comity.methods", "METHODS"),
    "rule": ("comity.rules", "RULES"),
}
"""Every kind of component, and where the room that holds them lists them."""

BASES = {
    "partition": ("comity.data", "Partition"),
    "model": ("torch.nn", "Module"),
    "method": ("comity.methods", "Method"),
    "rule": ("comity.rules", "Rule"),
}
"""What a class of the user's must be a subclass of, by kind."""

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

    def load(self) -> Callable[..., Any]:
        module, _, attribute = self.path.rpartition(".")
        component: Callable[..., Any] = getattr(import_module(module), attribute)
        return component


def imported(kind: str, name: str, base: tuple[str, str]) -> type:
    """The class of the user's with this dotted path, which must be a subclass of ``base``; nothing is called.

    The working directory comes last among the places where it is looked for, so that no file there stands in for a
    library's.
    """
    module, _, attribute = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise ComityError(f"{kind} {name!r} could not be imported: this is not the dotted path of a class")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ComityError(f"{kind} {name!r} could not be imported: {error}") from error
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
    if "." not in name:
        raise unknown(kind, name, ours, hint="(or give the dotted path of your own class)")
    return describe(kind, name, imported(kind, name, BASES[kind]), name)


def spelling(name: str) -> str:
    """The same for all spellings of a name: ``LG-FedAvg`` and ``lg_fedavg``, ``FedMGDA+`` and ``fedmgdaplus``."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """A data set that is read from a file, from a folder or from the hub.

    Options:
        size: scale the images of a folder or of the hub to this many pixels a side
        centred: scale pixels to [-1, 1], otherwise to [0, 1]
    """

    size: Annotated[int, Range(least=1, most=4096)] | None = None
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
    )


def introspect() -> str:
    """What ``catalogue.json`` has to hold: JSON with a line for each component."""
    kinds = []
    for kind, (room, listed) in KINDS.items():
        lines = []
        for name, component in getattr(import_module(room), listed).items():
            if kind == "data":  # an entry of a table, which names what has the options
                description = describe(kind, name, component.options, "", str(component))
            else:
                description = describe(kind, name, component, f"{component.__module__}.{component.__qualname__}")
            lines.append(f"{json.dumps(name)}: {json.dumps(_to_json(description), ensure_ascii=False)}")
        kinds.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


# From the file.


@cache
def described(kind: str) -> Mapping[str, Description]:
    """All components of a kind that come with comity, by name."""
    return {name: _from_json(name, entry) for name, entry in _read()[kind].items()}


@cache
def _read() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def _to_json(description: Description) -> dict[str, Any]:
    listed = {
        option.name: {"type": _type_to_json(option.type), "help": option.help}
        | ({} if option.default is REQUIRED else {"default": option.default})
        for option in description.options.values()
    }
    return {"path": description.path, "about": description.about, "paper": description.paper, "options": listed}


def _from_json(name: str, entry: Mapping[str, Any]) -> Description:
    listed = {}
    for option, words in entry["options"].items():
        default = words.get("default", REQUIRED)
        default = tuple(default) if isinstance(default, list) else default
        listed[option] = Option(option, _type_from_json(words["type"]), default, words["help"])
    return Description(name, entry["path"], entry["about"], entry["paper"], listed)


_SIMPLE = {"int": int, "float": float, "bool": bool, "str": str, "Path": Path, "none": type(None)}


def _type_to_json(to: Any) -> Any:
    """``int`` as "int", ``Annotated[float, Range(above=0)]`` as {"type": "float", "above": 0}, and so on."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        (allowed,) = (item for item in arguments[1:] if isinstance(item, Range))
        bounds = {bound: number for bound, number in asdict(allowed).items() if number is not None}
        return {"type": _type_to_json(arguments[0])} | bounds
    if origin in (Union, types.UnionType):
        return {"any of": [_type_to_json(choice) for choice in arguments]}
    if origin is Literal:
        return {"one of": arguments}
    if origin is tuple:
        return {"several": _type_to_json(arguments[0])}
    return next(name for name, simple in _SIMPLE.items() if simple is to)


def _type_from_json(entry: Any) -> Any:
    if isinstance(entry, str):
        return _SIMPLE[entry]
    if "any of" in entry:
        return reduce(or_, map(_type_from_json, entry["any of"]))
    if "one of" in entry:
        return Literal[tuple(entry["one of"])]
    if "several" in entry:
        return tuple[_type_from_json(entry["several"]), ...]  # type: ignore[misc]
    bounds = {bound: number for bound, number in entry.items() if bound != "type"}
    return Annotated[_type_from_json(entry["type"]), Range(**bounds)]
