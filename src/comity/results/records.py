"""Records as JSON. Reading checks the type and range of each field."""

import json
import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from comity._errors import ComityError, one_line

T = TypeVar("T")

_NAN = "null is NaN"


def _number(**bounds: Any) -> Any:
    return Annotated[Annotated[float, Meta(**bounds)] | None, _NAN]


if TYPE_CHECKING:
    Real = float
    Size = float
    Share = float
    Cosine = float
else:  # as in files, with tolerance for rounding
    Real, Size, Share, Cosine = _number(), _number(ge=0), _number(ge=-1e-9, le=1 + 1e-9), _number(ge=-1.001, le=1.001)
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Cost = Annotated[float, Meta(ge=0, lt=1e18)]


def require(true: bool, otherwise: str) -> None:
    """Raise an error if a condition does not hold; msgspec and ``LoadedRun`` add the file name."""
    if not true:
        raise ValueError(otherwise)


class _WithNaN:
    """JSON null becomes NaN in records. Texts are made printable, because they will be shown."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, optional in _numbers(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, name)
            if (known := value if value is None and optional else _with_nan(value)) is not value:
                msgspec.structs.force_setattr(self, name, known)  # type: ignore[arg-type]
        for name in _texts(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if (shown := _shown(value)) is not value:
                msgspec.structs.force_setattr(self, name, shown)  # type: ignore[arg-type]


class Record(_WithNaN, Struct, kw_only=True, forbid_unknown_fields=True):
    """A mutable record of a file."""


class Fixed(_WithNaN, Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """An immutable record of a file."""


@cache
def _numbers(record: type) -> dict[str, bool]:
    """Fields with numbers that are null in a file if not finite, and whether the field itself may be None."""
    hints = get_type_hints(record, include_extras=True)
    return {name: type(None) in get_args(hint) for name, hint in hints.items() if _NAN in str(hint)}


@cache
def _texts(record: type) -> list[str]:
    """Text fields that are shown."""
    return [name for name, hint in get_type_hints(record).items() if "str" in str(hint) and name != "traceback"]


def _shown(value: Any) -> Any:
    """The same value with all texts printable."""
    if isinstance(value, str):
        return value if value.isprintable() else one_line(value, len(value))
    if isinstance(value, list):
        known = [_shown(inner) for inner in value]
        return value if all(map(operator.is_, known, value)) else known
    if isinstance(value, dict):
        pairs = {_shown(key): _shown(inner) for key, inner in value.items()}
        return (
            value if pairs.keys() == value.keys() and all(map(operator.is_, pairs.values(), value.values())) else pairs
        )
    return value


def _with_nan(value: Any) -> Any:
    if value is None:
        return math.nan
    if isinstance(value, list):
        nested = bool(value) and isinstance(value[0], list)
        return [_with_nan(inner) for inner in value] if nested or None in value else value
    if isinstance(value, dict):
        return {key: _with_nan(inner) for key, inner in value.items()}
    return value


def to_json(record: Any, indent: int | None = None) -> str:
    """JSON, with null for numbers that are not finite."""
    return json.dumps(plain(record), indent=indent)


def plain(record: Any) -> Any:
    """A record as dictionaries, lists, texts and numbers."""
    return json.loads(msgspec.json.encode(record, enc_hook=_basic))


def _basic(item: Any) -> Any:
    """Convert NumPy floats and subclasses of JSON types."""
    kinds: tuple[tuple[type, Any], ...] = ((float, float), (int, int), (str, str), (list, list), (Mapping, dict))
    for base, kind in kinds:
        if isinstance(item, base):
            return kind(item)
    raise TypeError(f"{type(item).__name__} cannot be written as JSON")


def from_json(record: type[T], content: bytes, where: str) -> T:
    """Parse a record, or a list of records, from JSON; ``where`` names the file in errors."""
    try:
        return msgspec.json.decode(content, type=record)
    except msgspec.ValidationError as error:
        raise ComityError(f"{where}: {one_line(error, 200)}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ComityError(f"{where} is not JSON: {one_line(error, 200)}") from error
