"""Messages as Flower's records: tensors in an ArrayRecord, plain values in a ConfigRecord or a MetricRecord.

What a message consists of is declared by its type (``comity.methods.Payload``), and it is read back as that type. A
message holds one record of each kind and no more, because Flower's mods (clipping, local differential privacy) refuse
others. Names, shapes (0-dim and empty ones too) and bits arrive as they were sent.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from comity.methods import Payload, field_types

P = TypeVar("P", bound=Payload)

ROUND, RUN, ID, PLACE = "server-round", "comity-run", "comity-id", "comity-place"
"""The header: Flower's own name for the round, which configuration and which of its runs this is about, and where."""


FACTOR, FLOOR = 4, 64_000_000
"""A reply may have so many times the bytes of what was sent, and so many bytes in any case."""

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
NUMBERS = {np.dtype(name).str: np.dtype(name) for name in _NAMES.split()}
"""What an array may consist of, by its name in an npy header: numbers in this machine's own order of bytes."""

MOST_AXES, MOST_NUMBERS = 32, 2**48

_NPY = re.compile(
    rb"\{'descr': '([<>|=][biuf]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,16}, ?)*(?:\d{1,16})?)\), \} *\n"
)
"""The header of an npy file as NumPy writes it; nothing else is read."""


class Place(NamedTuple):
    """Where in a run a question is asked: what a client needs to know to find the state that it starts from."""

    run: str = ""
    """The run's id, the same when it goes on after a restart of the server."""
    step: int = 1
    """The question's number."""
    saved: int = 0
    """The last question before the newest checkpoint."""
    starts: tuple[int, ...] = (0,)
    """When the server was started, and started again to go on; the last is the one that asks."""
    begun: tuple[int, ...] = (0,)
    """The last question before the checkpoint from which each of these starts went on."""


class Header(NamedTuple):
    run: str
    round: int
    place: Place = Place()


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
    config = ConfigRecord({RUN: header.run, ROUND: header.round, ID: header.place.run, **plain})
    config[PLACE] = [*header.place[1:3], *header.place.starts, *header.place.begun]
    return RecordDict({"arrays": arrays.record(tensors), "config": config})


def read_header(content: RecordDict) -> Header:
    config = content.config_records["config"]
    run, round, id, place = config[RUN], config[ROUND], config[ID], config[PLACE]
    if not isinstance(run, str) or type(round) is not int:
        raise ValueError(f"the header is {run!r}, {round!r}; it must be a configuration's key and a whole number")
    numbers = [number for number in place if type(number) is int] if isinstance(place, list) else []
    half = len(numbers) // 2 - 1
    if not isinstance(id, str) or "/" in id or half < 1 or len(numbers) % 2 or numbers != place:
        raise ValueError(f"the header has {_short(id)}, {_short(place)}; it must say which run it is, and where")
    step, saved, *starts = numbers
    return Header(run, round, Place(id, step, saved, tuple(starts[:half]), tuple(starts[half:])))


def read_question(content: RecordDict, declared: type[P]) -> P:
    config = content.config_records["config"]
    plain = {name: value for name, value in config.items() if name not in (RUN, ROUND, ID, PLACE)}
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


def read_answer(content: RecordDict, declared: type[P], most: int | None = None) -> P:
    """The answer as its declared type. One of more than ``most`` bytes is refused before anything is made of them."""
    for kind in (content.array_records, content.metric_records, content.config_records):
        if len(kind) > 1:
            raise ValueError(f"{len(kind)} records of one kind, not one")
    if not content.array_records:
        raise ValueError("no record of arrays")
    (arrays,) = content.array_records.values()
    check_bytes(arrays, most)
    values: dict[str, object] = {}
    for numbers in content.metric_records.values():
        values |= dict(numbers)
    for rest in content.config_records.values():
        if twice := values.keys() & rest.keys():
            raise ValueError(f"{min(twice)} twice")
        values |= dict(rest)
    if twice := values.keys() & arrays.keys():
        raise ValueError(f"{min(twice)} twice")
    known = field_types(declared)
    if unknown := sorted(arrays.keys() - known.keys()):
        raise ValueError(f"{declared.__name__} has no field {', '.join(unknown[:3])}")
    wanted = {name: value for name, value in values.items() if name in known}  # a mod may add numbers of its own
    return declared.of(tensors(arrays) | wanted)


def split_theta(content: RecordDict, size: int) -> Tensor:
    """Leave the first ``size`` numbers of ``theta`` in a message; the others, which lie behind them."""
    (key,) = content.array_records
    theta = tensor(content.array_records[key]["theta"])
    content[key] = Arrays().record(tensors(content.array_records[key]) | {"theta": theta[:size]})
    return theta[size:]


def join_theta(content: RecordDict, behind: Tensor) -> None:
    """Put back what ``split_theta`` took."""
    (key,) = content.array_records
    every = tensors(content.array_records[key])
    content[key] = Arrays().record(every | {"theta": torch.cat([every["theta"], behind])})


def most_bytes(sent: int) -> int:
    """How many bytes a reply may have to a message with so many."""
    return max(FACTOR * sent, FLOOR)


def check_bytes(record: ArrayRecord, most: int | None) -> None:
    total = sum(len(array.data) for array in record.values())
    if most is not None and total > most:
        raise ValueError(f"{total:,} bytes; {most:,} are the most that is taken")


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: tensor(array) for name, array in record.items()}


def tensor(array: Array) -> Tensor:
    """What an array of a stranger's holds, or a ValueError.

    The header is matched against the one form that NumPy writes, and compared with what the array says of itself; the
    numbers must be as many bytes as that comes to. Nothing is built before all of this is known to be true. (NumPy's
    own reader parses the header with ``ast``, which in CPython 3.11 raises SystemError now and then when two threads
    are at it, gh-106905.)
    """
    data = array.data
    if array.stype != SType.NUMPY or not isinstance(data, bytes) or data[:6] != b"\x93NUMPY" or len(data) < 12:
        raise ValueError(f"an array of type {_short(array.stype)}, not {SType.NUMPY!r} with an npy header")
    first = 10 if data[6] == 1 else 12
    start = first + int.from_bytes(data[8:first], "little")
    header = _NPY.fullmatch(data, first, start) if data[6] in (1, 2, 3) and start <= min(len(data), 65_536) else None
    if header is None:
        raise ValueError("an array whose npy header cannot be read")
    descr, order, sides = header[1].decode(), "F" if header[2] == b"True" else "C", re.findall(rb"\d+", header[3])
    shape = tuple(map(int, sides))
    if descr not in NUMBERS or array.dtype != str(NUMBERS[descr]):
        raise ValueError(f"an array of {_short(array.dtype)} ({descr}); it must be of plain numbers")
    if (
        tuple(array.shape) != shape
        or len(shape) > MOST_AXES
        or math.prod(max(1, side) for side in shape) > MOST_NUMBERS
    ):
        raise ValueError(f"an array of shape {_short(tuple(array.shape))} whose header has {_short(shape)}")
    dtype = NUMBERS[descr]
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - start:,} bytes for an array of {dtype} of shape {_short(shape)}")
    numbers = np.frombuffer(data, dtype, offset=start) if math.prod(shape) else np.empty(0, dtype)
    if dtype == np.bool_ and numbers.view(np.uint8).max(initial=0) > 1:
        raise ValueError("an array of truths with bytes that are neither 0 nor 1")
    return torch.from_numpy(numbers.reshape(shape, order="F" if order == "F" else "C").copy(order="K"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
