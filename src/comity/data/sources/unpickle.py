"""Read untrusted pickles: arrays, numbers, text and containers load; anything that could run code is rejected."""

import io
import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data.sources.reading import reading

MOST_STEPS = 1_000_000
"""Maximum instructions of a pickle. One byte can create an object of 200 bytes; CIFAR-100 has 250,000 instructions."""
MOST_TUPLES = 10_000
"""Hashing a nested tuple needs C stack per level, and a file can choose tuples with equal hashes as keys."""
PLAIN_TYPE = re.compile(r"[biufSUO]\d{0,6}")
"""Numbers, text and lists of allowed objects; no records, whose offsets a file could forge."""

# CIFAR and numpy need no other calls, no sets (a file could choose members with equal hashes) and no buffers of
# protocol 5, which are allocated before they are read.
NOT_PLAIN = "INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID EMPTY_SET ADDITEMS FROZENSET"
LAST_PROTOCOL = 4
FRAME_HEADER = 9  # bytes


class Rejected(pickle.UnpicklingError):
    """The pickle contains something other than plain data."""


class _StandIn:
    """Replaces a name in a pickle. A file cannot reach its methods: BUILD finds ``__setstate__``."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise Rejected(f"it sets the state of a {type(self).__name__}")


class _DType(_StandIn):
    """Replaces numpy.dtype while loading, so that numpy never gets a state from the file."""

    __slots__ = ("dtype",)

    def __init__(self, code: str | bytes, *_: object) -> None:
        code = code.decode() if isinstance(code, bytes) else code
        if not PLAIN_TYPE.fullmatch(code):
            raise Rejected(f"array type {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        # only the byte order of the state is trusted
        self.dtype = self.dtype.newbyteorder(">" if state[1] in (">", b">") else "<")


class _Array(_StandIn):
    """Replaces an array while loading: numpy's own ``__setstate__`` crashes on forged states."""

    __slots__ = ("array", "objects")

    def __init__(self, *_: object) -> None:
        self.array: NDArray[Any] | None = None
        self.objects: list[object] = []

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _DType):
            raise Rejected("an array without a type")
        if not kind.dtype.hasobject:
            self.array = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")
        elif isinstance(content, list):
            self.objects = content
        else:
            raise Rejected("an array of objects that are not listed")


class _Scalar(_StandIn):
    """Replaces a numpy scalar while loading."""

    def __new__(cls, kind: _DType, content: bytes) -> Any:
        if kind.dtype.kind not in "biuf":
            raise Rejected(f"a single value of type {kind.dtype}")
        return np.frombuffer(content, kind.dtype)[0]


class _Bytes(_StandIn):
    """Bytes as protocol 2 writes them: empty, or text with its encoding. ``left`` bounds the total size."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, text: str = "", encoding: str = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise Rejected(f"text encoding {encoding}")
        self.left -= len(text)
        if self.left < 0:
            raise Rejected("it makes bytes of the same text again and again")
        return text.encode("latin-1")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        encode = _Bytes(len(content))
        self.allowed: dict[tuple[str, str], object] = {
            ("numpy", "ndarray"): "ndarray",  # only an argument, never called
            ("numpy", "dtype"): _DType,
            ("_codecs", "encode"): encode,
            ("__builtin__", "bytes"): encode,
        }
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            self.allowed |= {(module, "_reconstruct"): _Array, (module, "scalar"): _Scalar}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise Rejected(f"it names {module}.{name}, which is not plain data")
        return self.allowed[module, name]


def _scan(content: bytes) -> None:
    """Check the instructions of a stream before loading it: which, how many, and their numbers."""
    not_plain = NOT_PLAIN.split()
    memo: dict[int, bool] = {}  # by memo index: whether the object is a tuple
    tuples = frame_end = before = 0
    top_is_tuple = False
    stream: Iterator[tuple[pickletools.OpcodeInfo, Any, Any]] = pickletools.genops(content)
    for steps, (code, value, place) in enumerate(stream, 1):
        name = code.name
        if steps > MOST_STEPS or tuples > MOST_TUPLES:
            raise Rejected(f"it has more than {MOST_STEPS} instructions or {MOST_TUPLES} tuples")
        if name in not_plain or code.proto > LAST_PROTOCOL:
            raise Rejected(f"instruction {name}, which plain data do not need")
        numbers = name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
        if isinstance(value, int) and not -(2**63) <= value < (MOST_STEPS if numbers else 2**64):
            raise Rejected(f"instruction {name} with a number of {value.bit_length()} bits")
        if before < frame_end < place or (name == "FRAME" and place < frame_end):
            # the unpickler would continue at another place than this loop
            raise Rejected("a frame that ends inside an instruction or inside another frame")
        before, frame_end = place, place + FRAME_HEADER + value if name == "FRAME" else frame_end
        if numbers:
            memo[len(memo) if value is None else value] = top_is_tuple
            continue
        tuples += name.startswith("TUPLE") or (name.endswith("GET") and memo.get(value, False))
        tuples -= name == "REDUCE" and top_is_tuple  # consumed: the bytes of protocol 2, numpy's scalars
        top_is_tuple = name.startswith("TUPLE")


def unpickle(content: bytes, path: object) -> Any:
    """Load the plain data in ``content``; use ``as_array`` for its arrays. Bytes written by Python 2 stay bytes."""
    with reading(path):  # a forged or truncated stream can make the unpickler raise anything
        try:
            _scan(content)
            return _Unpickler(content).load()
        except Rejected as error:
            raise ComityError(f"{path}: rejected: {error}") from error


def unpickle_object(content: bytes, path: object) -> Any:
    """The only object in a pickled array of objects, which is how numpy saves non-arrays."""
    array = unpickle(content, path)
    if not isinstance(array, _Array) or len(array.objects) != 1:
        count = len(array.objects) if isinstance(array, _Array) else 0
        raise ComityError(f"{path}: holds {count} Python objects; expected one")
    return array.objects[0]


def as_array(value: object, path: object, name: str) -> NDArray[Any]:
    """Convert to an array; accepts a list of numbers, but no list of lists, which may repeat one list many times."""
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if isinstance(value, list) and all(isinstance(entry, int | float | np.number) for entry in value):
        return np.array(value) if value else np.empty(0, np.int64)
    raise ComityError(f"{path}: {name} is not an array and not a list of numbers")


def arrays_of(data: object, path: object, *names: str) -> list[NDArray[Any]]:
    """The arrays with these names in a dictionary, whose keys are bytes if Python 2 wrote them."""
    entries = data if isinstance(data, dict) else {}
    entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in entries.items()}
    if not entries.keys() >= set(names):
        held = ", ".join(map(str, entries)) if isinstance(data, dict) else type(data).__name__
        raise ComityError(f"{path}: holds {held or 'nothing'}; expected {' and '.join(names)}")
    return [as_array(entries[name], path, name) for name in names]
