"""Options: name, type, range, default and help, each declared once.

An option is an annotated field of a dataclass (a configuration, a method, a rule, a partition) or an annotated argument
of a constructor (a model). Its range is part of its annotation, its help is under ``Options:`` in the docstring, and a
subclass inherits both::

    class Ditto(Method):
        '''…

        Options:
            lam: strength of the pull towards the global model
        '''

        lam: NonNegative = 1.0

The command line, YAML files and Python all use ``convert``, so a value is rejected with the same message everywhere.
"""

import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from comity._errors import ComityError

REQUIRED = inspect.Parameter.empty
"""The default of a required option."""
SAME = object()
"""Marks an option for which the local baseline uses the run's own value."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Allowed range of a number; NaN and infinity are never allowed."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        """“at least 0 and below 1”."""
        words = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {bound:g}" for word, bound in words if math.isfinite(bound)) or "a finite number"


Share = Annotated[float, Range(least=0, most=1)]
ShareBelowOne = Annotated[float, Range(least=0, below=1)]
ShareAboveZero = Annotated[float, Range(above=0, most=1)]
ShareBetween = Annotated[float, Range(above=0, below=1)]
NonNegative = Annotated[float, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
Count = Annotated[int, Range(least=1)]
CountOrZero = Annotated[int, Range(least=0)]


@dataclass(frozen=True)
class Option:
    """One option of a run, a component or a command."""

    name: str
    type: Any
    default: Any
    help: str
    section: str = ""
    """Section of the help page."""
    decides: bool = True
    """Whether another value may change the results, and so makes another run."""
    local: Any = SAME
    """Value that the local baseline uses instead of the run's own."""
    silent: bool = False
    """Whether the default is omitted from files and keys, which were written before the option existed."""
    hashed: str = ""
    """Its earlier name, if it was renamed: the key of a run is hashed with it, so that keys do not change."""

    @property
    def kind(self) -> str:
        """Type and range in words, for a help page."""
        return type_name(self.type)


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field that declares an option; ``more`` are further fields of ``Option``."""
    return field(default=default, metadata={"option": {"help": help, **more}})


@cache
def options(component: Callable[..., Any], supplied: tuple[str, ...] = ()) -> Mapping[str, Option]:
    """The options of a component, by name; ``supplied`` arguments are passed by comity and are no options."""
    help, hints, declared, sections = _help(component), {}, {}, {}
    if is_dataclass(component) and isinstance(component, type):
        hints = get_type_hints(component, include_extras=True)
        declared = {f.name: f.metadata.get("option", {}) for f in fields(component)}
        owners = [(inspect.get_annotations(owner), vars(owner).get("section")) for owner in component.__mro__]
        sections = {name: section for names, section in owners if isinstance(section, str) for name in names}
    # a dataclass with its own constructor takes the constructor's arguments
    parameters = inspect.signature(component, eval_str=True).parameters
    found = {}
    for name, parameter in parameters.items():
        if name not in supplied and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            about = {"help": help.get(name, ""), "section": sections.get(name, "")} | declared.get(name, {})
            found[name] = Option(name, hints.get(name, parameter.annotation), parameter.default, **about)
    return found


_SECTION = re.compile(r"^Options:\n((?:[ ]+.*\n|\n)*)", flags=re.MULTILINE)
"""Everything indented under ``Options:``."""

_HELP = re.compile(r"^[ ]+(\w+): (.+(?:\n[ ]++(?!\w+: ).+)*)", flags=re.MULTILINE)
"""The line of an option there, ``    lam: strength of the pull``, with its continuation lines."""


def _help(component: Callable[..., Any]) -> dict[str, str]:
    """Help by option, from the docstrings of a class and its bases; the most derived class wins."""
    lineage = reversed(component.__mro__) if isinstance(component, type) else (component,)
    help: dict[str, str] = {}
    for owner in lineage:
        constructor = vars(owner).get("__init__") if isinstance(owner, type) else None
        for text in (owner.__doc__, getattr(constructor, "__doc__", None)):
            section = _SECTION.search(inspect.cleandoc(text or "") + "\n")
            if section:
                help |= {name: " ".join(words.split()) for name, words in _HELP.findall(section[1])}
    return help


def check(component: Any, kind: str) -> None:
    """Convert every option of a dataclass instance to its declared type; reject values that do not fit.

    For ``__post_init__``: ``Ditto(lam=-1)`` is rejected like ``--method.lam -1``.
    """
    for name, option in options(type(component)).items():  # type: ignore[arg-type]
        if name in vars(component):  # a constructor may set the others afterwards
            object.__setattr__(component, name, convert(getattr(component, name), option.type, f"{kind}.{name}"))


def check_arguments(function: Callable[..., Any], prefix: str, /, **values: Any) -> None:
    """Check arguments of a function or constructor against their annotations."""
    for name, value in values.items():
        convert(value, options(function)[name].type, prefix + name)


class _OutOfRange(ComityError):
    """A number of the right type out of range: “must be at least 1” is clearer than “a whole number or none”."""


def convert(value: Any, to: Any, key: str) -> Any:
    """Convert ``value`` (text from the command line, or a YAML or Python value) to type ``to``, or raise an error."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        converted = convert(value, arguments[0], key)
        for allowed in arguments[1:]:
            if isinstance(allowed, Range) and converted not in allowed:
                raise _OutOfRange(f"{key} must be {allowed}, got {converted}")
        return converted
    if to is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(value, to, key)
    if origin is Literal:
        for choice in arguments:
            if value == choice or str(value) == str(choice):
                return choice
        raise _wrong(value, to, key)
    if origin in (tuple, list):
        items = value.strip("()[]").split(",") if isinstance(value, str) else value
        items = items if isinstance(items, (list, tuple)) else [items]
        return origin(convert(i.strip() if isinstance(i, str) else i, arguments[0], key) for i in items if i != "")
    if to is bool:
        word = str(value).lower() if isinstance(value, (bool, str, int)) else ""
        if word not in (*_YES, *_NO):
            raise _wrong(value, to, key)
        return word in _YES
    if to in (int, float):
        return _number(value, to, key)
    if to in (str, Path):
        if not isinstance(value, (str, int, float, Path)):
            raise _wrong(value, to, key)
        if to is Path and "\0" in str(value):
            raise ComityError(f"{key} must be a path, got one with a NUL in it")
        return to(str(value))
    return value


_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _one_of(value: Any, to: Any, key: str) -> Any:
    choices = [choice for choice in get_args(to) if choice is not type(None)]
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        if type(None) in get_args(to):
            return None
        raise _wrong(value, to, key)
    for choice in choices:
        try:
            return convert(value, choice, key)
        except _OutOfRange:
            raise
        except ComityError:
            if len(choices) == 1:
                raise
    raise _wrong(value, to, key)


def _number(value: Any, to: type[int] | type[float], key: str) -> int | float:
    try:
        number = to(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(value, to, key) from None
    if isinstance(value, bool) or (to is int and isinstance(value, float) and number != value):  # 2.5 is not an integer
        raise _wrong(value, to, key)
    if isinstance(number, int) and number.bit_length() > 63:
        raise ComityError(f"{key} must be a whole number of at most 63 bits, got one of {number.bit_length()}")
    if not math.isfinite(number):
        raise ComityError(f"{key} must be a finite number, got {value}")
    return number


def _wrong(value: Any, to: Any, key: str) -> ComityError:
    return ComityError(f"{key} must be {type_name(to)}, got {value!r}")


def type_name(to: Any) -> str:
    """A type in words, for an error or a help page."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        ranges = " and ".join(str(allowed) for allowed in arguments[1:] if isinstance(allowed, Range))
        return f"{type_name(arguments[0])}, {ranges}" if ranges else type_name(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(choice) for choice in arguments)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (tuple, list):
        return f"{type_name(arguments[0])}, or several with commas"
    return _NAMES.get(to, getattr(to, "__name__", str(to)))


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a name", Path: "a path"}
_NAMES |= {type(None): "none"}
