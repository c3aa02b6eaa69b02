"""Typed classes as command-line options and configuration entries.

A component is a class chosen by name (a method, a rule, a model, a partition, a data set) with options that are the
typed arguments of its constructor. Nothing is registered: the name is looked up in its room, or imported when it has a
dot (``mypkg.mymod.MyMethod``).
"""

import importlib
import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from comity import _options
from comity._errors import ComityError, unknown

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


@dataclass(frozen=True)
class Option:
    """One argument of a component."""

    name: str
    type: Any
    default: Any
    help: str


def options(component: Callable[..., Any], given: tuple[str, ...] = ()) -> dict[str, Option]:
    """The options of a component: its constructor's arguments, less those that comity supplies itself."""
    docs = f"{inspect.getdoc(component)}\n\n{inspect.getdoc(component.__init__)}"
    told = {name: " ".join(text.split()) for name, text in _TOLD.findall(docs)}
    if is_dataclass(component):
        told = {option.name: option.help for option in _options.options(component).values()}
    return {
        name: Option(name, parameter.annotation, parameter.default, told.get(name, ""))
        for name, parameter in inspect.signature(component, eval_str=True).parameters.items()
        if name not in given and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


_TOLD = re.compile(r"^[ ]+(\w+): (.+(?:\n[ ]++(?!\w+: ).+)*)", flags=re.MULTILINE)
"""An option's line in a docstring, ``    lam: strength of the pull``, with the lines that go on with it."""

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


def convert(value: Any, to: Any, key: str) -> Any:
    """``value`` (a string from the command line, or what YAML made of it) as the type ``to``, or a clear error."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        return _options.convert(value, to, key)
    if to is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            if type(None) in arguments:
                return None
            raise _wrong(value, to, key)
        for choice in arguments:
            if choice is not type(None):
                try:
                    return convert(value, choice, key)
                except ComityError:
                    continue
        raise _wrong(value, to, key)
    if origin is Literal:
        for choice in arguments:
            if value == choice or str(value) == str(choice):
                return choice
        raise _wrong(value, to, key)
    if origin in (tuple, list):
        items = value.strip("()[]").split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise _wrong(value, to, key)
        converted = [
            convert(item.strip() if isinstance(item, str) else item, arguments[0], key) for item in items if item != ""
        ]
        return tuple(converted) if origin is tuple else converted
    if to is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "yes", "on", "1"):
            return True
        if str(value).lower() in ("false", "no", "off", "0"):
            return False
        raise _wrong(value, to, key)
    if to in (int, float):
        try:
            number = to(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError):
            number = None
        # 2.5 is no int, and neither is True.
        if number is None or (to is int and isinstance(value, float) and number != value):
            raise _wrong(value, to, key)
        return number
    if to in (str, Path):
        return to(value)
    return value


def _wrong(value: Any, to: Any, key: str) -> ComityError:
    return ComityError(f"{key} must be {type_name(to)}, got {value!r}")


def type_name(to: Any) -> str:
    """A type in words for an error or a help page."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        return _options.type_name(to)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(choice) for choice in arguments)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (tuple, list):
        return f"{type_name(arguments[0])},…"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a name",
        Path: "a path",
        type(None): "none",
    }
    return names.get(to, getattr(to, "__name__", str(to)))
