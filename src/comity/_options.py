"""What an option is: a name, a type, a range, a default and a sentence of help, each said once.

An option is an annotated field of a dataclass (a configuration, a method, a rule, a partition) or an annotated argument
of a constructor (a model). Its range is part of its annotation, its help stands under ``Options:`` in the docstring,
and a subclass inherits both::

    class Ditto(Method):
        '''…

        Options:
            lam: strength of the pull towards the global model
        '''

        lam: NonNegative = 1.0

The command line, YAML files and Python all go through ``convert``, so a value is rejected with the same sentence
wherever it comes from.
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
"""The default of an option that has none."""
SAME = object()
"""What the local baseline uses of an option that says nothing else: the run's own value."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which numbers an option may be; NaN and infinity never are."""

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
    """The part of a help page that shows it."""
    decides: bool = True
    """Whether another value may give other numbers, and so makes another run."""
    local: Any = SAME
    """What the local baseline uses in place of the run's own value."""
    silent: bool = False
    """Whether its default is left out of files and keys, which were written before the option existed."""

    @property
    def kind(self) -> str:
        """Its type and range in words, for a help page."""
        return type_name(self.type)


def option(default: Any, help: str, **more: Any) -> Any:
    """The field of a dataclass that declares an option; ``more`` are ``decides``, ``local`` and ``silent``."""
    return field(default=default, metadata={"option": {"help": help, **more}})


@cache
def options(component: Callable[..., Any], supplied: tuple[str, ...] = ()) -> Mapping[str, Option]:
    """The options of a component, by name; ``supplied`` arguments are comity's own to give."""
    help, hints, declared, sections = _help(component), {}, {}, {}
    if is_dataclass(component) and isinstance(component, type):
        hints = get_type_hints(component, include_extras=True)
        declared = {f.name: f.metadata.get("option", {}) for f in fields(component)}
        owners = [(inspect.get_annotations(owner), vars(owner).get("section")) for owner in component.__mro__]
        sections = {name: section for names, section in owners if isinstance(section, str) for name in names}
    # Of a dataclass with a constructor of its own, the constructor's arguments are what can be given.
    parameters = inspect.signature(component, eval_str=True).parameters
    found = {}
    for name, parameter in parameters.items():
        if name not in supplied and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            about = {"help": help.get(name, ""), "section": sections.get(name, "")} | declared.get(name, {})
            found[name] = Option(name, hints.get(name, parameter.annotation), parameter.default, **about)
    return found


_SECTION = re.compile(r"^Options:\n((?:[ ]+.*\n|\n)*)", flags=re.MULTILINE)
"""Everything that is indented under ``Options:``."""

_HELP = re.compile(r"^[ ]+(\w+): (.+(?:\n[ ]++(?!\w+: ).+)*)", flags=re.MULTILINE)
"""An option's line in there, ``    lam: strength of the pull``, with the lines that continue it."""


def _help(component: Callable[..., Any]) -> dict[str, str]:
    """Help by option, from the docstrings of a class and of those it inherits from; the nearest one wins."""
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
    """Convert every option of a dataclass instance to its declared type; reject one that does not fit.

    For ``__post_init__``: so that ``Ditto(lam=-1)`` is rejected like ``--method.lam -1``.
    """
    for name, option in options(type(component)).items():  # type: ignore[arg-type]
        if name in vars(component):  # a constructor of its own may set the rest afterwards
            object.__setattr__(component, name, convert(getattr(component, name), option.type, f"{kind}.{name}"))


def check_arguments(function: Callable[..., Any], prefix: str, /, **values: Any) -> None:
    """The same for arguments of a function or constructor: reject a value that does not fit its annotation."""
    for name, value in values.items():
        convert(value, options(function)[name].type, prefix + name)


class _OutOfRange(ComityError):
    """A number of the right type. “must be at least 1” says more than “must be a whole number or none”."""


def convert(value: Any, to: Any, key: str) -> Any:
    """``value`` (text from the command line, or what YAML or Python gave) as the type ``to``, or one clear error."""
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
    if isinstance(value, bool) or (to is int and isinstance(value, float) and number != value):  # 2.5 is not whole
        raise _wrong(value, to, key)
    if isinstance(number, int) and number.bit_length() > 63:
        raise ComityError(f"{key} must be a whole number of at most 63 bits, got one of {number.bit_length()}")
    if not math.isfinite(number):
        raise ComityError(f"{key} must be a finite number, got {value}")
    return number


def _wrong(value: Any, to: Any, key: str) -> ComityError:
    return ComityError(f"{key} must be {type_name(to)}, got {value!r}")


def type_name(to: Any) -> str:
    """A type in words for an error or a help page."""
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
