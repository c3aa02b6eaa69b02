"""Reading strangers' pickles: arrays, numbers, text and containers come in; anything that could run code does not."""

import io
import pickle
import re
from typing import Any, BinaryIO

import numpy as np

from comity._errors import ComityError

# numbers, text, and lists of admitted objects; no records, whose offsets a file could forge
PLAIN_TYPE = re.compile(r"[biufSUO]\d{0,6}")


class Refused(pickle.UnpicklingError):
    """The pickle names something that is not plain data."""


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


class _Array(np.ndarray[Any, Any]):
    """An array whose state is checked before numpy takes it."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        checked: Any = (1, shape, kind.dtype, bool(fortran), content)
        super().__setstate__(checked)


def _reconstruct(*_: object) -> _Array:
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _from_buffer(buffer: object, kind: _DType, shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    if not isinstance(buffer, bytes | bytearray):
        raise Refused(f"array from {type(buffer).__name__}")
    return np.frombuffer(bytes(buffer), kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _scalar(kind: _DType, content: bytes) -> Any:
    return _from_buffer(content, kind, (), "C")[()]


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"text encoding {encoding}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    return b""


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,  # how protocol 2 spells bytes,
    ("__builtin__", "bytes"): _no_bytes,  # and empty ones
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Plain(pickle._Unpickler):
    """Python's own unpickler, not the one in C: a forged stream cannot make it reserve memory or touch any."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise Refused(f"it names {module}.{name}, which is not plain data")
        return _ADMITTED[module, name]


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
    array = unpickle(file, path)
    return array.item() if isinstance(array, np.ndarray) and array.size == 1 else array
