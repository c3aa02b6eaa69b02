"""Records as JSON and back.

Everything that is written goes through ``to_json`` and everything that is read through ``from_json``, which checks each
field against its declared type.
"""

import json
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from comity._errors import ComityError

T = TypeVar("T")


def to_json(record: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: what is not a finite number becomes null."""
    return json.dumps(plain(record), indent=indent, allow_nan=False)


def plain(item: Any) -> Any:
    """A record in dictionaries, lists, texts and numbers, as JSON has them."""
    if isinstance(item, float):
        return item if math.isfinite(item) else None
    if item is None or isinstance(item, (str, int)):
        return item
    if isinstance(item, (list, tuple)):
        numbers = set(map(type, item)) == {float} and all(map(math.isfinite, item))
        return item if numbers else [plain(inner) for inner in item]
    if isinstance(item, Mapping):
        return {str(key): plain(inner) for key, inner in item.items()}
    return {f.name: plain(getattr(item, f.name)) for f in fields(item)} if is_dataclass(item) else item


def from_json(record: type[T], value: Any, where: str) -> T:
    """``value``, as ``json.loads`` gives it, as this record; ``where`` names the file in the error."""
    try:
        found: T = _reader(record)(value)  # type: ignore[arg-type]  # a class is hashable
    except _Unexpected as error:
        raise ComityError(f"{where}{''.join(reversed(error.path))} {error.words}") from None
    return found


# Reading checks hundreds of thousands of numbers, so the reader of each type is made once, and it names the place of a
# value only when that value is wrong.

_Reader = Callable[[Any], Any]


DROPPED = frozenset({"contributions", "step_cosines"})
"""Fields of earlier versions, which are skipped."""


class _Unexpected(Exception):
    """A value that does not fit its declared type; ``path`` grows from the inside out."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.path: list[str] = []


@cache
def _reader(to: Any) -> _Reader:
    origin, arguments = get_origin(to), get_args(to)
    if is_dataclass(to):
        return _record_reader(to)
    if to is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union_reader(to)
    if origin is Literal:
        return lambda value: value if value in arguments else _refuse(to, value)
    if origin is dict:
        return _mapping_reader(to)
    if origin is list:
        return _list_reader(to)
    return _number if to is float else _exactly(to)


_LARGEST = int(sys.float_info.max)


def _refuse(to: Any, value: Any) -> Any:
    raise _Unexpected(f"should be {getattr(to, '__name__', to)}, not {str(value)[:40]!r}")


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if value is None:
        return math.nan
    if type(value) is not int or abs(value) > _LARGEST:
        return float(_refuse(float, value))
    return float(value)


def _exactly(to: type) -> _Reader:
    return lambda value: value if type(value) is to else _refuse(to, value)


def _union_reader(to: Any) -> _Reader:
    choices = [_reader(choice) for choice in get_args(to) if choice is not type(None)]
    optional = type(None) in get_args(to)

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        for choice in choices[:-1]:
            try:
                return choice(value)
            except _Unexpected:
                continue
        return choices[-1](value)

    return read


def _list_reader(to: Any) -> _Reader:
    (inner,) = get_args(to)
    read_inner = _reader(inner)
    choices = get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)
    as_they_are = {choice for choice in choices if choice in (int, float, str)}

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return _refuse(list, value)
        return value if set(map(type, value)) <= as_they_are else [read_inner(item) for item in value]

    return read


def _mapping_reader(to: Any) -> _Reader:
    key_type, inner = get_args(to)
    read_inner = _reader(inner)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return _refuse(dict, value)
        if inner is float and key_type is str and set(map(type, value.values())) <= {float}:
            return value
        found = {}
        for key, item in value.items():
            try:
                found[int(key) if key_type is int else key] = read_inner(item)
            except _Unexpected as error:
                error.path.append(f".{key}")
                raise
            except ValueError:
                raise _Unexpected(f"has the name {key[:40]!r}, which should be a number") from None
        return found

    return read


def _record_reader(record: Any) -> _Reader:
    hints = get_type_hints(record)
    readers = {f.name: _reader(hints[f.name]) for f in fields(record)}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unexpected(f"should hold named values, not {str(value)[:40]!r}")
        found = {}
        for name, inner in value.items():
            if name in DROPPED:
                continue
            if name not in readers:
                raise _Unexpected(f"has {name[:40]!r}, which is not known here")
            try:
                found[name] = readers[name](inner)
            except _Unexpected as error:
                error.path.append(f".{name}")
                raise
        try:
            return record(**found)
        except TypeError as missing:
            raise _Unexpected(f"is incomplete: {str(missing).rpartition('missing ')[2]}") from None

    return read
