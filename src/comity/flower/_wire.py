"""A payload as Flower's records: tensors in an ArrayRecord, plain values in a ConfigRecord or a MetricRecord.

A message holds one record of each kind and no more, because Flower's mods (clipping, local differential privacy) refuse
others. Names, shapes (0-dim and empty ones too) and bits arrive as they were sent.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from comity.methods import Payload

ROUND, RUN = "server-round", "comity-run"
"""The header: Flower's own name for the round, and which configuration this is about."""


class Question(NamedTuple):
    run: str
    round: int
    payload: Payload


class Arrays:
    """Turns tensors into arrays, each tensor once however many messages carry it: a model goes to every client."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Array]] = {}

    def __call__(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, Array(tensor)  # as long as we hold it, its id is its own
        return self._known[id(tensor)][1]

    def record(self, payload: Payload) -> ArrayRecord:
        record = ArrayRecord()
        for name, value in payload.items():
            if isinstance(value, Tensor):
                record[name] = self(value)
        return record


def question(run: str, round: int, payload: Payload, arrays: Arrays) -> RecordDict:
    """What goes to a client."""
    plain = {name: value for name, value in payload.items() if not isinstance(value, Tensor)}
    return RecordDict(
        {"arrays": arrays.record(payload), "config": ConfigRecord({RUN: run, ROUND: round, **plain})},
    )


def read_question(content: RecordDict) -> Question:
    plain = dict(content.config_records["config"])
    run, round = plain.pop(RUN), plain.pop(ROUND)
    assert isinstance(run, str)
    assert isinstance(round, int)
    return Question(run, round, tensors(content.array_records["arrays"]) | plain)


def answer(payload: Payload) -> RecordDict:
    """What a client sends back: numbers in the MetricRecord that a mod may look for, the rest in a ConfigRecord."""
    numbers, rest = MetricRecord(), ConfigRecord()
    for name, value in payload.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[name] = value
        elif not isinstance(value, Tensor):
            rest[name] = value
    return RecordDict({"arrays": Arrays().record(payload), "metrics": numbers, "config": rest})


def read_answer(content: RecordDict) -> Payload:
    payload: Payload = tensors(content.array_records["arrays"])
    for numbers in content.metric_records.values():
        payload |= dict(numbers)
    for rest in content.config_records.values():
        payload |= dict(rest)
    return payload


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
