"""Typed classes as command-line options and configuration entries.

A component is a class chosen by name (a method, a rule, a model, a partition, a data set) with options that are the
typed arguments of its constructor. Nothing is registered: the name is looked up in its room, or imported when it has a
dot (``mypkg.mymod.MyMethod``).
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity._errors import ComityError, unknown
from comity._options import Option, convert, options, type_name

__all__ = ["Component", "Option", "choices", "convert", "find", "options", "plain", "type_name"]

ROOMS = {
    "method": ("comity.methods", "METHODS"),
    "rule": ("comity.rules", "RULES"),
    "model": ("comity.nn", "MODELS"),
    "partition": ("comity.data", "PARTITIONS"),
    "data": ("comity.data", "DATASETS"),
}
"""Where the components of each kind are listed."""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


def choices(kind: str) -> dict[str, Any]:
    """All components of a kind that come with comity, by name."""
    module, listed = ROOMS[kind]
    found: dict[str, Any] = getattr(importlib.import_module(module), listed)
    return found


def find(kind: str, name: str) -> tuple[str, Callable[..., Any]]:
    """The component called ``name`` and its spelling: one of ours, whatever its case and hyphens, or a dotted path."""
    ours = choices(kind)
    for known, component in ours.items():
        if _plain(known) == _plain(name):
            return known, component
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise unknown(kind, name, ours, hint="(or give the dotted path of your own class)")
    try:
        return name, getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ComityError(f"{kind} {name!r} could not be imported: {error}") from error


SUPPLIED = {"model": ("shape", "classes")}
"""What comity itself hands to a component of a kind."""


@dataclass(frozen=True)
class Component:
    """A choice by name with its options, checked and complete."""

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, kind: str, value: Any) -> "Component":
        """From ``"Ditto"``, ``{"name": "Ditto", "lam": 0.5}`` or a component."""
        if isinstance(value, Component):
            return value
        entry = {"name": value} if isinstance(value, str) else value
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ComityError(f"{kind} must be a name or a mapping with `name`, got {value!r}")
        name, component = _data(entry["name"]) if kind == "data" else find(kind, entry["name"])
        known_options = options(component, SUPPLIED.get(kind, ()))
        filled = {}
        for key in entry.keys() - {"name"}:
            if key not in known_options:
                raise unknown(f"option of {kind} {name}", key, known_options)
        for key, option in known_options.items():
            if key in entry:
                filled[key] = convert(entry[key], option.type, f"{kind}.{key}")
            elif option.default is inspect.Parameter.empty:
                raise ComityError(f"{kind} {name} needs {kind}.{key}")
            else:
                filled[key] = option.default
        return cls(kind, name, filled)

    def build(self, **supplied: Any) -> Any:
        _, component = find(self.kind, self.name)
        taken = inspect.signature(component).parameters
        return component(**self.options, **{key: value for key, value in supplied.items() if key in taken})

    def plain(self) -> dict[str, Any]:
        """For YAML: nothing but plain values."""
        return {"name": self.name} | {key: plain(value) for key, value in self.options.items()}

    def __str__(self) -> str:
        return self.name


def _data(name: str) -> tuple[str, Callable[..., Any]]:
    """Data sets are found by name when they are loaded; the synthetic one has options of its own."""
    from comity.data import Synthetic

    return ("synthetic", Synthetic) if _plain(name) == "synthetic" else (name, _images)


def _images(*, size: int | None = None) -> None:
    """The options of a data set that is found by name.

    Options:
        size: scale the images of a folder or of the hub to this many pixels a side
    """


def plain(value: Any) -> Any:
    if isinstance(value, Component):
        return value.plain()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
