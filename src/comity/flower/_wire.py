"""Messages as Flower's records: tensors in an ArrayRecord, plain values in a ConfigRecord or a MetricRecord.

What a message consists of is declared by its type (``comity.methods.Payload``), and it is read back as that type. A
message holds one record of each kind and no more, because Flower's mods (clipping, local differential privacy) refuse
others. Names, shapes (0-dim and empty ones too) and bits arrive as they were sent.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from comity.methods import Payload, field_types

P = TypeVar("P", bound=Payload)

ROUND, RUN = "server-round", "comity-run"
"""The header: Flower's own name for the round, and which configuration this is about."""


class Header(NamedTuple):
    run: str
    round: int


class Arrays:
    """Turns tensors into arrays, each tensor once however many messages carry it: a model goes to every client."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Array]] = {}

    def __call__(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, Array(tensor)  # as long as we hold it, its id is its own
        return self._made[id(tensor)][1]

    def record(self, tensors: Mapping[str, Tensor]) -> ArrayRecord:
        record = ArrayRecord()
        for name, tensor in tensors.items():
            record[name] = self(tensor)
        return record


def question(header: Header, payload: Payload, arrays: Arrays) -> RecordDict:
    """What goes to a client."""
    tensors = payload.tensors()
    plain = {name: value for name, value in payload.values().items() if name not in tensors}
    config = ConfigRecord({RUN: header.run, ROUND: header.round, **plain})
    return RecordDict({"arrays": arrays.record(tensors), "config": config})


def read_header(content: RecordDict) -> Header:
    config = content.config_records["config"]
    run, round = config[RUN], config[ROUND]
    assert isinstance(run, str)
    assert isinstance(round, int)
    return Header(run, round)


def read_question(content: RecordDict, declared: type[P]) -> P:
    config = content.config_records["config"]
    plain = {name: value for name, value in config.items() if name not in (RUN, ROUND)}
    return declared.of(tensors(content.array_records["arrays"]) | plain)


def answer(payload: Payload) -> RecordDict:
    """What a client sends back: numbers in the MetricRecord that a mod may look for, the rest in a ConfigRecord."""
    numbers, rest = MetricRecord(), ConfigRecord()
    tensors = payload.tensors()
    for name, value in payload.values().items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[name] = value
        elif name not in tensors:
            rest[name] = value
    return RecordDict({"arrays": Arrays().record(tensors), "metrics": numbers, "config": rest})


def read_answer(content: RecordDict, declared: type[P]) -> P:
    """The reply of a client. Numbers that are not declared are left out: a mod may have added some of its own."""
    plain: dict[str, object] = {}
    for numbers in content.metric_records.values():
        plain |= dict(numbers)
    for rest in content.config_records.values():
        plain |= dict(rest)
    known = field_types(declared)
    wanted = {name: value for name, value in plain.items() if name in known}
    return declared.of(tensors(content.array_records["arrays"]) | wanted)


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: tensor(array) for name, array in record.items()}


def tensor(array: Array) -> Tensor:
    """What ``array.numpy()`` holds, read without ``np.load``.

    That one parses the header with ``ast``, which in CPython 3.11 raises SystemError now and then when two threads are
    at it (gh-106905); a client's thread and the server's would be. The array says its type and shape itself.
    """
    data = array.data
    if array.stype != SType.NUMPY or data[:6] != b"\x93NUMPY":
        raise ValueError(f"an array of type {array.stype!r}, not {SType.NUMPY!r}")
    start = 10 + int.from_bytes(data[8:10], "little") if data[6] == 1 else 12 + int.from_bytes(data[8:12], "little")
    order: Literal["F", "C"] = "F" if b"'fortran_order': True" in data[:start] else "C"
    view = np.ndarray(array.shape, np.dtype(array.dtype), buffer=data, offset=start, order=order)
    return torch.from_numpy(view.copy(order="K"))
