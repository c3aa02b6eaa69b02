"""Reading strangers' pickles: arrays, numbers, text and containers come in; anything that could run code does not."""

import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data.sources.reading import reading

MOST_STEPS = 1_000_000
"""How many instructions a pickle may have. One of a single byte can make an object of 200; CIFAR-100 has 250,000."""

# numbers, text, and lists of admitted objects; no records, whose offsets a file could forge
PLAIN_TYPE = re.compile(r"[biufSUO]\d{0,6}")


class Refused(pickle.UnpicklingError):
    """The pickle holds something that is not plain data."""


class _DType:
    """Stands in for numpy.dtype while loading, so that numpy never sees a state from the file."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        code = code.decode() if isinstance(code, bytes) else code
        if not PLAIN_TYPE.fullmatch(code):
            raise Refused(f"array type {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # of the whole state only the byte order is believed
        self.dtype = self.dtype.newbyteorder(">" if state[1] in (">", b">") else "<")


class _Array:
    """Stands in for an array while loading: numpy's own ``__setstate__`` crashes on forged states."""

    def __init__(self, *_: object) -> None:
        self.array: NDArray[Any] | None = None
        self.objects: list[object] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _DType):
            raise Refused("an array without a type")
        if not kind.dtype.hasobject:
            self.array = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")
        elif isinstance(content, list):
            self.objects = content
        else:
            raise Refused("an array of objects that are not listed")


def _scalar(kind: _DType, content: bytes) -> Any:
    if kind.dtype.kind not in "biuf":
        raise Refused(f"a single value of type {kind.dtype}")
    return np.frombuffer(content, kind.dtype)[0]


def _no_bytes() -> bytes:
    return b""


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): "ndarray",  # an argument, never called
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("__builtin__", "bytes"): _no_bytes,  # how protocol 2 spells empty bytes
}

# What CIFAR and numpy write. Sets are not among them (a file could give all members the same hash), nor protocol 5's
# buffers (they are reserved before they are read), nor further ways to call things.
_INSTRUCTIONS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT
    BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS
    GLOBAL STACK_GLOBAL REDUCE BUILD GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
"""
_STANDARD: dict[int, Callable[[Any], None]] = {
    code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _INSTRUCTIONS.split())
}
_WITH_KEYS = (pickle.DICT[0], pickle.SETITEM[0], pickle.SETITEMS[0])


class _Memo(dict[int, object]):
    """The objects that a stream has numbered. Large numbers could all be given one hash."""

    def __setitem__(self, number: int, value: object) -> None:
        if number >= 2**32:
            raise Refused("it numbers its objects in a way that no pickler does")
        super().__setitem__(number, value)


class _Plain(pickle._Unpickler):
    """Python's own unpickler, not the one in C: a forged stream cannot make it reserve or touch memory."""

    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.memo = _Memo()
        self.steps = 0
        self.left_to_encode = len(content)
        self.dispatch = self  # type: ignore[assignment, misc]  # where the base class looks every instruction up

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        """What to do for the next instruction of the stream."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Refused(f"it has more than {MOST_STEPS} instructions")
        if code not in _STANDARD:
            raise pickle.UnpicklingError(f"instruction {code:#x}, which plain data do not need")
        if code == pickle.BUILD[0] and not isinstance(self.stack[-2], _DType | _Array):
            raise Refused(f"it sets the state of a {type(self.stack[-2]).__name__}")  # a function has one, too
        if code in _WITH_KEYS:
            # Text has a hash that no file can foresee; that of tuples in tuples in tuples overflows the stack.
            keys = self.stack[-2:-1] if code == pickle.SETITEM[0] else self.stack[::2]
            if any(type(key) not in (str, bytes) for key in keys):
                raise Refused("it has a dictionary whose keys are not text")
        return _STANDARD[code]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 spells bytes
            return self._encode
        if (module, name) not in _ADMITTED:
            raise Refused(f"it names {module}.{name}, which is not plain data")
        return _ADMITTED[module, name]

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise Refused(f"text encoding {encoding}")
        self.left_to_encode -= len(text)
        if self.left_to_encode < 0:
            raise Refused("it makes bytes of the same text again and again")
        return text.encode("latin-1")


def unpickle(content: bytes, path: object) -> Any:
    """The plain data in ``content``, arrays as ``as_array`` takes them; bytes written by Python 2 stay bytes."""
    with reading(path):  # a forged or cut stream makes the unpickler itself fail in any way there is
        try:
            return _Plain(content).load()
        except Refused as error:
            raise ComityError(f"{path}: refused: {error}") from error


def as_array(value: object, path: object, name: str) -> NDArray[Any]:
    """An array, or a list of numbers. A list of lists is refused: it may be one list, a million million times."""
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if isinstance(value, list) and all(isinstance(entry, int | float | np.number) for entry in value):
        return np.array(value) if value else np.empty(0, np.int64)
    raise ComityError(f"{path}: {name} is not an array and not a list of numbers")


def unpickle_object(content: bytes, path: object) -> Any:
    """The one object in a pickled array of objects, which is how numpy saves what is not an array."""
    array = unpickle(content, path)
    if not isinstance(array, _Array) or len(array.objects) != 1:
        count = len(array.objects) if isinstance(array, _Array) else 0
        raise ComityError(f"{path}: holds {count} Python objects; expected one")
    return array.objects[0]
