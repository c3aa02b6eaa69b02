"""Untrusted pickles: plain data loads, code does not run."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from comity._errors import LONGEST, ComityError
from comity.data.sources.unpickle import MOST_STEPS, MOST_TUPLES, as_array, unpickle, unpickle_object

NEW_DEFAULTS = b"N}X\x0c\0\0\0__defaults__)s\x86b."
"""Sets an attribute of the object before it."""


def load(content: bytes) -> object:
    return unpickle(content, "a file")


def load_array(content: bytes) -> np.ndarray:
    return as_array(load(content), "a file", "it")


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
    got = load_array(pickle.dumps(array, protocol))
    assert np.array_equal(got, array)
    assert got.shape == array.shape


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_containers_and_numbers_come_back(protocol: int) -> None:
    data = {"x": [1, 2.5, None, True], "y": (b"bytes\xff", b"", "text"), "z": np.float64(3.5)}
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
        with pytest.raises(ComityError, match=r"a file: rejected: it names \w+\.\w+, which is not plain data"):
            load(content)
        assert not mark.exists()
    pickle.loads(content)  # the last of them does run when it is let
    assert mark.exists()


@pytest.mark.parametrize(
    ("line", "content"),
    [
        *(
            ("it names", content)
            for content in (
                b"cbuiltins\ngetattr\n.",
                b"cbuiltins\nbytes\n.",
                b"cnumpy\nload\n.",
                b"cnumpy.core.multiarray\nfromfile\n.",
                b"cnumpy\nndarray.tofile\n.",
                pickle.dumps(Path("x")),
                pickle.dumps(np.ma.masked_array([1, 2])),
            )
        ),
        ("array type V12", pickle.dumps(np.zeros(2, [("a", "i4"), ("b", "f8")]))),
        ("array type M8", pickle.dumps(np.zeros(2, "datetime64[s]"))),
        ("array type M8", pickle.dumps(np.zeros(2, "datetime64[s]"), 2)),
        ("text encoding rot13", b"c_codecs\nencode\n(Vx\nVrot13\ntR."),
        ("instruction EMPTY_SET", pickle.dumps({1, 2}, 4)),
        ("instruction FROZENSET", pickle.dumps(frozenset("a"), 4)),
        ("instruction BYTEARRAY8", pickle.dumps(bytearray(3), 5)),
        ("instruction BYTEARRAY8", pickle.dumps(np.arange(3), 5)),
        ("instruction NEWOBJ", b"\x80\x02cnumpy\ndtype\n)\x81."),
        ("instruction INST", b"(icopy_reg\n_reconstructor\n."),
        ("instruction EXT1", b"\x80\x02\x82\x01."),
        ("instruction PERSID", b"Pid\n."),
        ("it has more than", b"N" * MOST_STEPS + b"."),
        ("it has more than", b"N" + b"\x94" * MOST_STEPS + b"."),
        ("it has more than", b"}N" + b"\x85" * (MOST_TUPLES + 2) + b"Ns."),  # its hash would overflow the stack
        ("it has more than", b"}N" + b"\x85q\0cnumpy.core.multiarray\n_reconstruct\nh\0R0h\0" * MOST_TUPLES + b"Ns."),
        ("instruction LONG1 with a number of 122 bits", b"}" + pickle.dumps(2**122 - 1)[2:-1] + b"Ns."),  # of any hash
        ("instruction PUT with a number of 20 bits", b"Np1000000\n."),
        ("a frame that ends inside", b"\x80\x04\x95\x03" + bytes(7) + b"X\x05\0\0\0abcde."),
        ("a frame that ends inside", b"\x80\x04\x95\x13" + bytes(7) + b"N\x95\x30" + bytes(7) + b"N" * 60 + b"."),
        ("it sets the state of a _Bytes", b"c_codecs\nencode\n" + NEW_DEFAULTS),
    ],
)
def test_anything_else_is_rejected(line: str, content: bytes) -> None:
    with pytest.raises(ComityError, match=f"a file: rejected: {line}"):
        load(content)


@pytest.mark.parametrize("name", [b"numpy\ndtype", b"numpy.core.multiarray\nscalar"])
def test_the_loaders_own_classes_cannot_be_changed(name: bytes) -> None:
    with pytest.raises(ComityError, match=r"a file: corrupt or truncated: .*__setstate__\(\) missing"):
        load(b"c" + name + b"\n" + NEW_DEFAULTS)


@pytest.mark.parametrize(
    ("good", "forged"),
    [(b"K\x08\x85", b"K\x7f\x85"), (b"u1", b"O8"), (b"u1", b"V1"), (b"X\x02\0\0\0u1", b"X\x03\0\0\x002i4")],
)
def test_forged_array_state_is_not_trusted(good: bytes, forged: bytes) -> None:
    """A stream that announces more bytes than it holds, or a type with fields, must not reach memory."""
    content = pickle.dumps(np.arange(8, dtype=np.uint8), 2)
    assert good in content
    with pytest.raises(ComityError, match=r"a file: (corrupt|rejected)"):
        load(content.replace(good, forged))


def test_python_2_pickle() -> None:
    """The spelling of the real CIFAR archives: byte strings throughout, numpy's old module names."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x02\x80\xfe\xfftb"
    )
    got = load(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x07K\x08eu.")
    assert got[b"labels"] == [7, 8]
    assert as_array(got[b"data"], "a file", "data").tolist() == [[0, 1, 2], [128, 254, 255]]


def test_one_object() -> None:
    content = pickle.dumps(np.array({"x": np.arange(4.0), "y": np.array([0, 1])}, dtype=object), 3)
    got = unpickle_object(content, "a file")
    assert np.array_equal(as_array(got["x"], "a file", "x"), np.arange(4.0))
    with pytest.raises(ComityError, match="a file: holds 2 Python objects; expected one"):
        unpickle_object(pickle.dumps(np.array(["a", None], dtype=object), 3), "a file")
    with pytest.raises(ComityError, match="a file: holds 0 Python objects; expected one"):
        unpickle_object(pickle.dumps(np.arange(3), 3), "a file")
    with pytest.raises(ComityError, match="a file: corrupt"):
        unpickle_object(b"not a pickle at all", "a file")


def test_arrays_are_arrays_or_lists_of_numbers() -> None:
    assert as_array([3, 1, 2], "a file", "labels").tolist() == [3, 1, 2]
    assert as_array([np.int64(3), True], "a file", "labels").tolist() == [3, 1]
    assert as_array([], "a file", "labels").dtype == np.int64
    for value in ([[1], [2]], "12", None, {"a": 1}, (1, 2), [np.arange(2)]):
        with pytest.raises(ComityError, match="a file: labels is not an array and not a list of numbers"):
            as_array(value, "a file", "labels")


def test_limits_leave_room_for_real_files() -> None:
    assert load(b"N" * (MOST_STEPS - 1) + b".") is None
    assert len(load(b"}N" + b"\x85" * MOST_TUPLES + b"Ns.")) == 1
    names = [b"%d.png" % k for k in range(2 * MOST_TUPLES)]  # which Python 3 writes as calls in protocol 2
    assert load(pickle.dumps({b"filenames": names}, 2)) == {b"filenames": names}


def test_long_names_are_cut_and_printable() -> None:
    with pytest.raises(ComityError, match=r"a file: rejected: it names \?\[2J") as caught:
        load(b"c\x1b[2J\n" + b"x" * 100_000 + b"\n.")
    assert len(str(caught.value)) <= LONGEST
    assert str(caught.value).isprintable()
