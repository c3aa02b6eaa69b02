"""Reading strangers' pickles: arrays, numbers, text and containers come in; anything that could run code does not."""

import io
import pickle
import re
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError

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
    """Stands in for an array: ``np.asarray`` makes it one. numpy's own ``__setstate__`` crashes on forged states."""

    def __init__(self, *_: object) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if kind.dtype.hasobject:
            if not isinstance(content, list):
                raise Refused("an array of objects that are not listed")
            flat = np.fromiter(content, dtype=object, count=len(content))
        else:
            flat = np.frombuffer(content, kind.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype, copy=copy)


def _scalar(kind: _DType, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype)[0]


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"text encoding {encoding}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    return b""


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): "ndarray",  # an argument, never called
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,  # how protocol 2 spells bytes,
    ("__builtin__", "bytes"): _no_bytes,  # and empty ones
}


class _Plain(pickle._Unpickler):
    """Python's own unpickler, not the one in C: a forged stream cannot make it reserve or touch memory.

    Protocol 5's buffers are left out (they are reserved before they are read); neither CIFAR nor numpy's npz has them.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in (pickle.BYTEARRAY8[0], pickle.NEXT_BUFFER[0], pickle.READONLY_BUFFER[0])
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise Refused(f"it names {module}.{name}, which is not plain data")
        return _ADMITTED[module, name]

    def _build(self) -> None:
        target = self.stack[-2]  # type: ignore[attr-defined]
        if not isinstance(target, _DType | _Array):  # the functions above have attributes to set, too
            raise Refused(f"it sets the state of {target}")
        build: Callable[[Any], None] = pickle._Unpickler.dispatch[pickle.BUILD[0]]
        build(self)

    dispatch[pickle.BUILD[0]] = _build


def unpickle(file: BinaryIO, path: object) -> Any:
    """The plain data in ``file``; bytes written by Python 2 stay bytes."""
    try:
        return _Plain(io.BytesIO(file.read()), encoding="bytes").load()
    except Refused as error:
        raise ComityError(f"{path}: refused: {error}") from error
    # no stranger's code has run, but a forged or cut stream makes the unpickler itself fail in any way there is
    except Exception as error:
        raise ComityError(f"{path}: corrupt or truncated: {error}") from error


def unpickle_object_array(content: bytes, path: object) -> Any:
    """What an ``.npy`` of one Python object holds, without numpy's ``allow_pickle``."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        _, _, dtype = header(file)
    except (ValueError, KeyError, EOFError) as error:
        raise ComityError(f"{path}: corrupt or truncated: {error}") from error
    if not dtype.hasobject:
        raise ComityError(f"{path}: holds an array of {dtype}; expected one Python object")
    # numpy pickles the array of objects itself
    array = np.asarray(unpickle(file, path))
    if array.shape != ():
        raise ComityError(f"{path}: holds {array.size} Python objects; expected one")
    return array.item()
