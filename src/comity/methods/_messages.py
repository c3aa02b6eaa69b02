"""Messages between server and clients: dataclasses that hold exactly their declared fields."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

KINDS = (Tensor, bool, int, float, str)  # allowed types of a field, also with `| None`


@dataclass_transform(kw_only_default=True)
class Payload:
    """Base class of messages: tensors, whose bytes are counted, and plain values, which travel in the header.

    A subclass is automatically a dataclass. Each field is declared as ``Tensor``, ``int``, ``float``, ``bool`` or
    ``str``, or as one of these ``| None``. A field that is ``None`` is not sent.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False)(cls)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build from received values by name; reject undeclared, missing and wrongly typed ones."""
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
        """Every field that is sent, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.values().items() if isinstance(value, Tensor)}

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


class Question(Payload):
    """The message that goes to a client with a verb."""

    general: bool = False
    """For evaluation, set by the engine: whether to measure on other clients' test sets too."""
    by_class: bool = False
    """For evaluation, set by the engine: whether to measure balanced accuracy and AUC too, which takes longer."""
    factors: Tensor | None = None
    """For a trial, set by the engine: factors by which each step is multiplied. A step leads from the client's starting
    point to a row of ``theta``."""


class Message(Question):
    """The message that a client gets before it fits or is evaluated; subclass it to send more."""

    theta: Tensor
    """The shared part: parameters first, then buffers."""


class Reply(Payload):
    """The message that a client sends after fitting; subclass it to send more."""

    theta: Tensor
    size: int
    """Number of training samples."""
    train_loss: float = math.nan
    """Mean batch loss of the client's last training; set by the engine."""
    loss: float | None = None
    """Training loss of the model as received, if the rule needs it; set by the engine."""


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
    """Whether a value has this type. An int is accepted as a float; a bool is accepted as neither."""
    if isinstance(value, bool):
        return declared is bool
    return isinstance(value, (float, int) if declared is float else declared)


def verb(function: F) -> F:
    """Declare a client-side function that the server half may call: ``server.ask(self.basis, questions)``.

    Its annotations declare the message and the reply: ``def basis(self, client: Client, received: Question) -> Basis``.
    """
    function.is_verb = True  # type: ignore[attr-defined]
    return function
