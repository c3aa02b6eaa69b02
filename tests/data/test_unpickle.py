"""Strangers' pickles: plain data comes in, code does not run."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from comity._errors import ComityError
from comity.data.sources.unpickle import unpickle, unpickle_object_array


def load(content: bytes) -> object:
    return unpickle(io.BytesIO(content), "a file")


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5, dtype=">i4"),
        np.array(["a", "bc"]),
        np.array([True, False]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_back_in_every_protocol(array: np.ndarray, protocol: int) -> None:
    got = np.asarray(load(pickle.dumps(array, protocol)))
    assert np.array_equal(got, array)
    assert got.shape == array.shape


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_containers_and_numbers_come_back(protocol: int) -> None:
    data = {"x": [1, 2.5, None, True], "y": (b"bytes\xff", b"", "text"), "z": np.float64(3.5), "s": {1, 2}}
    if protocol < 4:
        data.pop("s")  # a set is spelt as a call there
    assert load(pickle.dumps(data, protocol)) == data


class Malice:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        function, *arguments = self.call
        return function, tuple(arguments)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    for function, argument in (
        (os.system, f"touch {mark}"),
        (eval, f"open({str(mark)!r}, 'w')"),
        (os.mkdir, str(mark)),
    ):
        content = pickle.dumps({"data": Malice(function, argument)}, protocol)
        with pytest.raises(ComityError, match=r"a file: refused: it names \w+\.\w+, which is not plain data"):
            load(content)
        assert not mark.exists()
    pickle.loads(content)  # the last of them does run when it is let
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\ngetattr\n.",
        b"cbuiltins\nbytes\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"cnumpy\nndarray.tofile\n.",
        pickle.dumps(Path("x")),
        pickle.dumps(np.zeros(2, [("a", "i4"), ("b", "f8")])),
        pickle.dumps(np.zeros(2, "datetime64[s]")),
        pickle.dumps(np.zeros(2, "datetime64[s]"), 2),
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        pickle.dumps(np.ma.masked_array([1, 2])),
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ComityError, match="a file: refused"):
        load(content)


def test_forged_array_state_is_not_trusted() -> None:
    """A stream that announces more bytes than it holds, or a type with fields, must not reach memory."""
    good = pickle.dumps(np.arange(8, dtype=np.uint8), 2)
    for forged in (
        good.replace(b"K\x08\x85", b"K\x7f\x85"),
        good.replace(b"u1", b"O8"),
        good.replace(b"u1", b"V1"),
        good.replace(b"X\x02\x00\x00\x00u1", b"X\x03\x00\x00\x002i4"),
    ):
        assert forged != good
        with pytest.raises(ComityError, match=r"a file: (corrupt|refused)"):
            load(forged)


def test_buffers_that_are_reserved_before_they_are_read_are_not() -> None:
    with pytest.raises(ComityError, match="a file: corrupt"):
        load(b"\x80\x05" + pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little") + b".")
    with pytest.raises(ComityError, match=r"a file: refused: it names numpy._core.numeric._frombuffer"):
        load(pickle.dumps(np.arange(3), 5))


def test_the_loaders_own_functions_cannot_be_changed() -> None:
    with pytest.raises(ComityError, match="a file: refused: it sets the state of <function _encode"):
        load(b"c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__N)s\x86b.".replace(b"N)s", b")s"))


def test_truncated_at_every_byte_is_one_clear_line() -> None:
    content = pickle.dumps({b"data": np.arange(12, dtype=np.uint8), b"labels": [1, 2, 3]}, 2)
    for cut in range(len(content)):
        with pytest.raises(ComityError, match="a file: "):
            load(content[:cut])


def test_python_2_pickle() -> None:
    """The spelling of the real CIFAR archives: byte strings throughout, numpy's old module names."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x02\x80\xfe\xfftb"
    )
    got = load(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x07K\x08eu.")
    assert got[b"labels"] == [7, 8]
    assert np.asarray(got[b"data"]).tolist() == [[0, 1, 2], [128, 254, 255]]


def test_object_array() -> None:
    file = io.BytesIO()
    np.save(file, np.array({"x": np.arange(4.0), "y": np.array([0, 1])}, dtype=object), allow_pickle=True)
    got = unpickle_object_array(file.getvalue(), "a file")
    assert np.array_equal(got["x"], np.arange(4.0))
    plain = io.BytesIO()
    np.save(plain, np.arange(3))
    with pytest.raises(ComityError, match="holds an array of int64; expected one Python object"):
        unpickle_object_array(plain.getvalue(), "a file")
    with pytest.raises(ComityError, match="a file: corrupt"):
        unpickle_object_array(b"not numpy at all", "a file")
