"""What travels between the server and a client: dataclasses, whose declared fields are all that a message holds."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

KINDS = (Tensor, bool, int, float, str)  # what a field may be, with or without `None`


@dataclass_transform(kw_only_default=True)
class Payload:
    """Tensors, whose bytes are counted, and plain values, which ride in a message's header.

    A subclass is a dataclass by itself. Each field is declared as ``Tensor``, ``int``, ``float``, ``bool`` or ``str``,
    or as one of these ``| None``. A field that is ``None`` does not travel.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False)(cls)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From values by name, as they arrived: what is not declared, missing or of another type is rejected."""
        declared = field_types(cls)
        if unknown := sorted(values.keys() - declared.keys()):
            raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
        for name, value in values.items():
            if not _fits(value, declared[name]):
                raise ValueError(f"{name} is {type(value).__name__}, not {declared[name].__name__}")
        try:
            return cls(**values)
        except TypeError as missing:
            raise ValueError(f"{cls.__name__} is incomplete: {str(missing).rpartition('missing ')[2]}") from None

    def values(self) -> dict[str, Any]:
        """Every field that travels, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.values().items() if isinstance(value, Tensor)}

    @property
    def bytes(self) -> int:
        """Of its tensors alone."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


class Question(Payload):
    """What goes to a client along with a verb."""

    general: bool = False
    """For evaluation, set by the engine: whether to measure on other clients' tests too."""
    by_class: bool = False
    """For evaluation, set by the engine: whether to measure balanced accuracy and AUC too, which takes a while."""
    factors: Tensor | None = None
    """For a trial of steps, set by the engine: multiples of the ways from where the client started to each row of
    ``theta``."""


class Message(Question):
    """What a client gets before it fits or is evaluated. A method that sends more subclasses it."""

    theta: Tensor
    """The shared part: parameters first, then buffers."""


class Reply(Payload):
    """What a client sends after it fitted. A method that sends more subclasses it."""

    theta: Tensor
    size: int
    """Number of training samples."""
    train_loss: float = math.nan
    """Mean loss of a batch in the client's last training; set by the engine."""
    loss: float | None = None
    """Training loss of the model as received, where the rule needs it; set by the engine."""


def field_types(payload: type[Payload]) -> Mapping[str, type]:
    """The declared type of each field, without ``None``."""
    return _field_types(payload)  # type: ignore[arg-type]  # mypy takes a class for one of its instances


@cache
def _field_types(payload: type[Payload]) -> Mapping[str, type]:
    hints = get_type_hints(payload)
    found = {}
    for field in fields(payload):  # type: ignore[arg-type]
        if hasattr(Payload, field.name):
            raise TypeError(
                f"{payload.__name__}.{field.name} needs another name: every message has {field.name} already"
            )
        to = hints[field.name]
        if get_origin(to) in (Union, types.UnionType):
            (to, *more) = [choice for choice in get_args(to) if choice is not type(None)]
            to = object if more else to
        if to not in KINDS:
            allowed = ", ".join(kind.__name__ for kind in KINDS)
            raise TypeError(f"{payload.__name__}.{field.name} must be declared as one of {allowed}")
        found[field.name] = to
    return found


def _fits(value: Any, declared: type) -> bool:
    """Whether a value is of this type. A whole number may stand for a number, but not a truth for either."""
    if isinstance(value, bool):
        return declared is bool
    return isinstance(value, (float, int) if declared is float else declared)


def verb(function: F) -> F:
    """Declare a client-side function as one that the server half may ask for: ``server.ask(self.basis, questions)``.

    Its annotations say what travels: ``def basis(self, client: Client, received: Question) -> Basis``.
    """
    function.is_verb = True  # type: ignore[attr-defined]
    return function
