"""Messages as Flower's records: tensors in an ArrayRecord, plain values in a ConfigRecord or a MetricRecord.

The type of a message (``comity.methods.Payload``) declares its fields, and it is read back as that type. A message has
exactly one record of each kind, because Flower's mods (clipping, local differential privacy) reject others. Names,
shapes (also 0-dim and empty ones) and bits arrive as they were sent.
"""

import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from torch import Tensor

from comity._errors import one_line
from comity.methods import Payload, field_types

P = TypeVar("P", bound=Payload)

ROUND, RUN, ID, PLACE = "server-round", "comity-run", "comity-id", "comity-place"
"""The header: Flower's own name for the round, the configuration's key, the run's id and the question's place."""
ALONG = "comity-along"
"""Numbers in the header that all clients need: means and standard deviations of tables."""

FACTOR, FLOOR = 4, 64_000_000
"""Maximum size of a reply: ``FACTOR`` times the size of what was sent, but at least ``FLOOR`` bytes."""

NUMBERS = {np.dtype(code).name for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}
"""Accepted types: plain numbers."""

MOST_AXES, MOST_NUMBERS = 32, 2**48


class Place(NamedTuple):
    """The place of a question within a run."""

    run: str = ""
    """The run's id, which stays the same when the server resumes it."""
    step: int = 1
    """The question's number."""
    saved: int = 0
    """The last question before the newest checkpoint."""
    starts: tuple[int, ...] = (0,)
    """Times of the server's starts; the last start asks this question."""
    begun: tuple[int, ...] = (0,)
    """For each start, the last question before the checkpoint that it resumed from."""

    def follows(self, start: int, step: int) -> bool:
        """Whether question ``step`` of the server's ``start`` is part of this question's history.

        For an earlier start, only questions before the checkpoint from which the next start resumed are.
        """
        if start not in self.starts:
            return False
        later = self.starts.index(start) + 1
        return step < self.step if later == len(self.starts) else step <= self.begun[later]


class Header(NamedTuple):
    run: str
    round: int
    place: Place = Place()
    along: tuple[float, ...] = ()


class Arrays:
    """Converts tensors to arrays, each tensor once however many messages carry it: a model goes to every client."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Array]] = {}

    def __call__(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, Array(tensor)  # its id is unique while we hold it
        return self._made[id(tensor)][1]

    def record(self, tensors: Mapping[str, Tensor]) -> ArrayRecord:
        record = ArrayRecord()
        for name, tensor in tensors.items():
            record[name] = self(tensor)
        return record


def question(header: Header, payload: Payload, arrays: Arrays) -> RecordDict:
    """The content of a message to a client."""
    tensors = payload.tensors()
    plain = {name: value for name, value in payload.values().items() if name not in tensors}
    config = ConfigRecord({RUN: header.run, ROUND: header.round, ID: header.place.run, **plain})
    config[PLACE] = [*header.place[1:3], *header.place.starts, *header.place.begun]
    if header.along:
        config[ALONG] = list(header.along)
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
    along = config.get(ALONG, [])
    known = [number for number in along if type(number) is float] if isinstance(along, list) else []
    if known != along or not all(map(math.isfinite, known)):
        raise ValueError(f"the header has {_short(along)} along; it must be finite numbers")
    return Header(run, round, Place(id, step, saved, tuple(starts[:half]), tuple(starts[half:])), tuple(known))


def read_question(content: RecordDict, declared: type[P]) -> P:
    config = content.config_records["config"]
    plain = {name: value for name, value in config.items() if name not in (RUN, ROUND, ID, PLACE, ALONG)}
    return declared.of(tensors(content.array_records["arrays"]) | plain)


def answer(payload: Payload) -> RecordDict:
    """The content of a reply: numbers in the MetricRecord that a mod may look for, the rest in a ConfigRecord."""
    numbers, rest = MetricRecord(), ConfigRecord()
    tensors = payload.tensors()
    for name, value in payload.values().items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[name] = value
        elif name not in tensors:
            rest[name] = value
    return RecordDict({"arrays": Arrays().record(tensors), "metrics": numbers, "config": rest})


def read_answer(content: RecordDict, declared: type[P], most: int | None = None) -> P:
    """The answer as its declared type. More than ``most`` bytes are rejected before anything is built."""
    for kind in (content.array_records, content.metric_records, content.config_records):
        if len(kind) > 1:
            raise ValueError(f"{len(kind)} records of one kind, not one")
    if not content.array_records:
        raise ValueError("no record of arrays")
    (arrays,) = content.array_records.values()
    check_bytes(arrays, most)
    numbers = next(iter(content.metric_records.values()), MetricRecord())
    rest = next(iter(content.config_records.values()), ConfigRecord())
    if twice := (numbers.keys() & rest.keys()) | ((numbers.keys() | rest.keys()) & arrays.keys()):
        raise ValueError(f"{min(twice)} twice")
    known = field_types(declared)
    if unknown := sorted(arrays.keys() - known.keys()):
        raise ValueError(f"{declared.__name__} has no field {', '.join(unknown[:3])}")
    wanted = {name: value for name, value in (*numbers.items(), *rest.items()) if name in known}
    return declared.of(tensors(arrays) | wanted)  # without numbers that a mod may add


def split_theta(content: RecordDict, size: int) -> Tensor:
    """Keep the first ``size`` numbers of ``theta`` in a message and return the others (the buffers)."""
    (key,) = content.array_records
    theta = tensor(content.array_records[key]["theta"])
    content[key] = Arrays().record(tensors(content.array_records[key]) | {"theta": theta[:size]})
    return theta[size:]


def join_theta(content: RecordDict, buffers: Tensor) -> None:
    """Append what ``split_theta`` removed."""
    (key,) = content.array_records
    every = tensors(content.array_records[key])
    content[key] = Arrays().record(every | {"theta": torch.cat([every["theta"], buffers])})


def most_bytes(sent: int) -> int:
    """Maximum bytes of a reply to a message with ``sent`` bytes."""
    return max(FACTOR * sent, FLOOR)


def check_bytes(record: ArrayRecord, most: int | None) -> None:
    total = sum(len(array.data) for array in record.values())
    if most is not None and total > most:
        raise ValueError(f"{total:,} bytes; {most:,} are the most that is taken")


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: tensor(array) for name, array in record.items()}


def tensor(array: Array) -> Tensor:
    """Read an untrusted array, or raise a ValueError.

    The npy header must be the one that NumPy writes for the array's own type and shape, and the numbers must have
    exactly the bytes that these imply; nothing is built before. (NumPy's own reader parses the header with ``ast``,
    which in CPython 3.11 now and then raises SystemError when two threads use it, gh-106905.)
    """
    data = array.data
    if array.stype != SType.NUMPY or not isinstance(data, bytes):
        raise ValueError(f"an array of type {_short(array.stype)}, not {SType.NUMPY!r} with an npy header")
    if array.dtype not in NUMBERS:
        raise ValueError(f"an array of {_short(array.dtype)}; it must be of plain numbers")
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    sides = [max(1, side) for side in shape if isinstance(side, int) and side >= 0]
    if len(sides) != len(shape) or len(shape) > MOST_AXES or math.prod(sides) > MOST_NUMBERS:
        raise ValueError(f"an array of shape {_short(shape)}")
    headers = {fortran: _npy_header(dtype, shape, fortran) for fortran in (False, True)}
    fortran = next((fortran for fortran, header in headers.items() if data.startswith(header)), None)
    if fortran is None:
        raise ValueError(f"an npy header that is not that of {dtype} of shape {_short(shape)}")
    start = len(headers[fortran])
    size = len(data) - start
    if size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{size:,} bytes for an array of {dtype} of shape {_short(shape)}")
    numbers = np.frombuffer(data, dtype, offset=start) if size else np.empty(0, dtype)
    if dtype == np.bool_ and numbers.view(np.uint8).max(initial=0) > 1:
        raise ValueError("an array of booleans with bytes that are neither 0 nor 1")
    return torch.from_numpy(numbers.reshape(shape, order="F" if fortran else "C").copy(order="K"))


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


def _short(value: object) -> str:
    return one_line(repr(value), 60)
