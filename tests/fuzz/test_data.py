"""Damaged and hostile data files of every format."""

import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image

from comity._errors import ComityError
from comity.data import Dataset, federate, load, read_schema, schema_text
from comity.data.sources.unpickle import unpickle
from fuzz.harness import NUMBERS, attempt, damaged, fuzz

LIMIT = "50MB"
RNG = np.random.default_rng(0)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def check(path: Path, **options: Any) -> None:
    """A whole data set comes out, or one clear line."""
    dataset = attempt(lambda: load(str(path), limit=LIMIT, **options))
    if isinstance(dataset, Dataset):
        check_dataset(dataset)
    else:
        assert isinstance(dataset, ComityError)


def check_dataset(dataset: Dataset) -> None:
    n = len(dataset)
    assert n > 0
    assert dataset.x.ndim in (2, 3, 4)
    assert dataset.x.dtype in (np.uint8, np.float32)
    assert dataset.x.shape[0] == n
    assert dataset.y.shape == (n,)
    assert not np.isinf(dataset.x).any()
    assert dataset.standardise or np.isfinite(dataset.x).all()
    assert len(dataset.class_names) == dataset.classes
    assert all(word.isprintable() for word in (*dataset.class_names, *dataset.notes))
    assert 0 <= dataset.y.min() <= dataset.y.max() < dataset.classes <= 100_000
    assert all(values.shape == (n,) for values in dataset.columns.values())
    assert dataset.name.isprintable()
    assert repr(dataset).isprintable()
    shared = attempt(lambda: federate(dataset, clients=2))
    if not isinstance(shared, ComityError):
        assert all(len(client.train) and client.test.x.isfinite().all() for client in shared.clients)
        assert all(name.isprintable() for name in shared.client_names)


# Tables.

TABLE = "id;Site ;age;sex;label\n1; A;63;m;ill\n2;B;;f;well\n3;A;4,5;?;ill\n4;B;1;m ;well\n5;B;9;f;ill\n6;A;8;f;well\n"


MESSY = Path(__file__).parents[1] / "data/messy/patients.csv"


@fuzz(
    "csv",
    damaged(TABLE.encode())
    | damaged(MESSY.read_bytes())
    | damaged(TABLE.replace(";", ",").encode())
    | st.text(max_size=60).map(str.encode),
)
def test_damaged_csv(content: bytes) -> None:
    with folder() as place:
        (place / "mine.csv").write_bytes(content)
        check(place / "mine.csv")
        by_itself = attempt(lambda: load(str(place / "mine.csv"), limit=LIMIT))
        if isinstance(by_itself, Dataset):  # by the schema that it has: the same samples
            assert by_itself.schema is not None
            (place / "s.yaml").write_text(schema_text(by_itself.schema), encoding="utf-8")
            assert read_schema(place / "s.yaml") == by_itself.schema
            again = load(str(place / "mine.csv"), schema=str(place / "s.yaml"))
            assert isinstance(again, Dataset)
            assert np.array_equal(again.x, by_itself.x, equal_nan=True)
            assert np.array_equal(again.y, by_itself.y)


PACKED = {"mine.csv.gz": gzip.compress(TABLE.encode()), "mine.csv.xz": lzma.compress(TABLE.encode())}


@fuzz(
    "packed tables",
    st.sampled_from(sorted(PACKED)).flatmap(lambda name: st.tuples(st.just(name), damaged(PACKED[name]))),
)
def test_damaged_packed_tables(given: tuple[str, bytes]) -> None:
    with folder() as place:
        (place / given[0]).write_bytes(given[1])
        check(place / given[0])


SCHEMA = """format: 1
target: label
classes: [ill, well]
columns:
  age: {kind: number, unit: years, low: 0.0, high: 99.0}
  sex: {kind: category, categories: [f, m], other: true, marked: true}
client: Site
clients: [A, B]
"""


@fuzz("schemas", damaged(SCHEMA.encode()))
def test_damaged_schemas(content: bytes) -> None:
    with folder() as place:
        (place / "s.yaml").write_bytes(content)
        (place / "mine.csv").write_text(TABLE)
        check(place / "mine.csv", schema=str(place / "s.yaml"))


# npz

ARRAYS = {
    "x_train": RNG.integers(0, 256, (6, 3, 4, 3), dtype=np.uint8),
    "y_train": np.arange(6) % 3,
    "x_test": RNG.integers(0, 256, (2, 3, 4, 3), dtype=np.uint8),
    "y_test": np.arange(2),
    "year_train": np.arange(1990, 1996),
    "year_test": np.array([2000, 2001]),
}


def npz(save: Callable[..., None], **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


@fuzz("npz, damaged", damaged(npz(np.savez, **ARRAYS)) | damaged(npz(np.savez_compressed, **ARRAYS)))
def test_damaged_npz(content: bytes) -> None:
    with folder() as place:
        (place / "mine.npz").write_bytes(content)
        check(place / "mine.npz")


TYPES = ["|u1", "<f4", "<f8", ">f4", "<f2", "<i8", "|b1", "|O", "<c8", "<U3", "|S0", "<U0", "<U999999", "<M8[s]", "|V4",
         "<f16", "f3", "", "'", "[('a', '<i4')]", "\x1b[2J", "u1" * 5000]  # fmt: skip
SIDES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 28, 1000, 10**6, 2**31, 2**63, 10**30, 10**5000]) | st.integers(-3, 40)


@st.composite
def npy_files(draw: st.DrawFn) -> bytes:
    """An npy file whose header says anything, with as many bytes as it announces, or not."""
    shape = tuple(draw(st.lists(SIDES, max_size=5)))
    kind, fortran = draw(st.sampled_from(TYPES)), draw(st.sampled_from(["True", "False", "False", "1", "()"]))
    sides = "".join(f"{hex(side) if side > 10**4000 else side}, " for side in shape)
    quote = "" if kind.startswith("[") else "'"
    header = f"{{'descr': {quote}{kind}{quote}, 'fortran_order': {fortran}, 'shape': ({sides}), }}".encode()
    if draw(st.integers(0, 9)) == 0:
        header = draw(st.sampled_from([b"(" * 9000, b"-" * 9000 + b"1", b"", b"{}", b"\xff" * 50, b"1if 1else " * 900]))
    header += b" " * draw(st.sampled_from([0, 0, 0, 64, 20_000])) + b"\n"
    version, width = draw(st.sampled_from([(1, 2), (1, 2), (2, 4), (3, 4), (9, 2)]))
    length = len(header) if draw(st.integers(0, 5)) else draw(st.sampled_from(NUMBERS))
    start = b"\x93NUMPY" + bytes([version, 0]) + (length % 256**width).to_bytes(width, "little") + header
    try:
        values = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
    except Exception:
        values = 30
    size = values if 0 <= values < 10**6 and draw(st.integers(0, 5)) else draw(st.integers(0, 3000))
    fill = draw(st.sampled_from([b"\0", b"\1", b"\xff", b"\x80\x7f"]))
    return start + (fill * size)[:size]


@st.composite
def hostile_npz(draw: st.DrawFn) -> bytes:
    """Some members replaced, renamed, left out or added; sizes and ways of compression that are not true."""
    members = {f"{key}.npy": npy(array) for key, array in ARRAYS.items()}
    for _ in range(draw(st.integers(1, 3))):
        target = draw(st.sampled_from(list(members)) | st.sampled_from(HOSTILE_NAMES).map(lambda name: f"{name}_train"))
        change = draw(st.sampled_from(["replace", "replace", "replace", "swap", "leave out", "nest"]))
        if change == "leave out":
            members.pop(target, None)
        elif change == "swap":
            members[target] = members[draw(st.sampled_from(list(members)))]
        else:
            members[target] = draw(npy_files()) if change == "replace" else npz(np.savez, **ARRAYS)
        members = members or {"nothing": b""}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw(st.sampled_from([0, 8, 8, 8, 12, 14]))) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("\udcff", "\xff"), content)
    content = bytearray(file.getvalue())
    if draw(st.booleans()):
        entries = [at for at in range(len(content)) if content[at : at + 4] == b"PK\1\2"]
        at = draw(st.sampled_from(entries))
        # in the table of contents: flags, way of compression, checksum, packed and unpacked size, place in the file
        field, width = draw(st.sampled_from([(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4)]))
        content[at + field : at + field + width] = (draw(st.sampled_from(NUMBERS)) % 256**width).to_bytes(
            width, "little"
        )
    return bytes(content)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


HOSTILE_NAMES = [
    "\x1b[2J\x1b]0;owned\x07",
    "a\nb",
    "‮gnp",
    "n" * 200,
    "..",
    "../../etc",
    "",
    "é",
    "x y",
    "\udcff",
    "__proto__",
]


@fuzz("npz, hostile", hostile_npz())
def test_hostile_npz(content: bytes) -> None:
    with folder() as place:
        (place / "mine.npz").write_bytes(content)
        check(place / "mine.npz")


ANY_ARRAY = st_numpy.arrays(
    st_numpy.scalar_dtypes(), st_numpy.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
)


@st.composite
def samples(draw: st.DrawFn) -> dict[str, Any]:
    """Images, labels and columns that go together, but for some that do not."""
    n = draw(st.integers(1, 6))
    sides = draw(st_numpy.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=4))
    integers = st_numpy.integer_dtypes() | st_numpy.unsigned_integer_dtypes()
    made = {
        "x": draw(st_numpy.arrays(st.sampled_from(["u1", "<f4", ">f4", "f8", "f2"]), (n, *sides), fill=st.just(1))),
        "y": draw(st_numpy.arrays(integers, n, elements=st.integers(0, 9)) | st_numpy.arrays(integers, n)),
        "client": draw(st_numpy.arrays(integers | st_numpy.unicode_string_dtypes(max_len=4), n)),
        "test": draw(st_numpy.arrays(st.sampled_from(["?", "i8", "f4", "U1"]), n)),
        "year": draw(st_numpy.arrays(st_numpy.scalar_dtypes(), n)),
    }
    for column in draw(st.sets(st.sampled_from(["client", "test", "year"]))):
        made.pop(column)
    for key in draw(st.sets(st.sampled_from(sorted(made)), max_size=1)):
        made[key] = draw(ANY_ARRAY)
    return made


@fuzz("npz, any arrays", samples(), samples(), st.sampled_from(["no test", "same test", "other test"]))
def test_any_arrays(train: dict[str, Any], test: dict[str, Any], split: str) -> None:
    arrays = {f"{key}_train": array for key, array in train.items()}
    if split != "no test":
        arrays |= {f"{key}_test": array for key, array in (train if split == "same test" else test).items()}
    with folder() as place:
        np.savez(place / "mine.npz", **arrays)
        check(place / "mine.npz")


# IDX


def idx(array: Any) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


IDX = {"train-images-idx3-ubyte": idx(ARRAYS["x_train"][..., 0]), "train-labels-idx1-ubyte": idx(ARRAYS["y_train"])}
IDX |= {"t10k-images-idx3-ubyte": idx(ARRAYS["x_test"][..., 0]), "t10k-labels-idx1-ubyte": idx(ARRAYS["y_test"])}


@st.composite
def damaged_files(draw: st.DrawFn, files: dict[str, bytes], pack: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """One of the files damaged before or after it is packed, or packed and left alone but for another's content."""
    files = {name: pack(content) for name, content in files.items()} if draw(st.booleans()) else dict(files)
    packed = next(iter(files.values())) != next(iter(IDX.values()))
    name = draw(st.sampled_from(list(files)))
    if draw(st.integers(0, 5)):
        files[name] = draw(damaged(files[name]))
    else:
        files[name] = files[draw(st.sampled_from(list(files)))]
    return files if packed else {name: pack(content) for name, content in files.items()}


@fuzz("IDX", damaged_files(IDX, bytes))
def test_damaged_idx(files: dict[str, bytes]) -> None:
    with folder() as place:
        for name, content in files.items():
            (place / name).write_bytes(content)
        check(place)


@fuzz("IDX, gzipped", damaged_files(IDX, lambda content: gzip.compress(content, mtime=0)))
def test_damaged_gzipped_idx(files: dict[str, bytes]) -> None:
    with folder() as place:
        for name, content in files.items():
            (place / f"{name}.gz").write_bytes(content)
        check(place)


# images

FORMATS = {"png": "PNG", "jpg": "JPEG", "ppm": "PPM", "bmp": "BMP", "gif": "GIF", "webp": "WEBP", "tif": "TIFF"}
MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16", "I;16B"]


def picture(mode: str, form: str, size: tuple[int, int] = (5, 4), **options: Any) -> bytes | None:
    file = io.BytesIO()
    try:
        Image.new(mode, size).save(file, FORMATS[form], **options)
    except (OSError, ValueError, KeyError):  # this format does not have that mode
        return None
    return file.getvalue()


PICTURES = [(form, made) for form in FORMATS for mode in MODES if (made := picture(mode, form)) is not None]
ANIMATED = [Image.new("RGB", (5, 4), (k, 0, 0)) for k in range(3)]
PICTURES += [
    (form, made)
    for form in ("gif", "webp", "png", "tif")
    if (made := picture("RGB", form, save_all=True, append_images=ANIMATED)) is not None
]
PICTURES += [("tif", picture("RGB", "tif", compression=how) or b"") for how in ("tiff_lzw", "tiff_deflate", "jpeg")]


@fuzz("images", st.sampled_from(PICTURES).flatmap(lambda made: st.tuples(st.just(made[0]), damaged(made[1]))),
      st.sampled_from(["png", "jpg", "tif"]), st.sampled_from([None, None, 8]))  # fmt: skip
def test_damaged_image(made: tuple[str, bytes], other: str, size: int | None) -> None:
    """Its name may say another format than its content."""
    form, content = made
    with folder() as place:
        for name, what in (
            ("a/good.png", picture("RGB", "png")),
            (f"b/bad.{form}", content),
            (f"c/bad.{other}", content),
        ):
            (place / name).parent.mkdir()
            (place / name).write_bytes(what or b"")
        check(place, **({} if size is None else {"size": size}))


NAMES = st.sampled_from([*HOSTILE_NAMES, "train", "test", "cat", "dog", ".hidden", "1999_a", "a" * 240]) | st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8
)
ENTRIES = st.tuples(
    st.lists(NAMES, min_size=1, max_size=4),
    st.sampled_from(["image", "image", "image", "text", "empty", "folder", "link", "loop", "pipe", "device"]),
    st.sampled_from([".png", ".PNG", ".jpg", "", ".txt"]),
)


@fuzz("image folders", st.lists(ENTRIES, min_size=1, max_size=6), st.sampled_from([None, 4]))
def test_hostile_folder(entries: list[tuple[list[str], str, str]], size: int | None) -> None:
    with folder() as place:
        root = place / "mine"
        root.mkdir()
        for names, kind, ending in entries:
            path = root.joinpath(*(name.strip("/") or "_" for name in names if name not in ("..", "../../etc")))
            path = path.with_name(path.name + ending) if path != root else root / f"stray{ending}"
            try:
                plant(path, kind, root)
            except OSError:  # the name is taken, or too long for this file system
                continue
        check(root, **({} if size is None else {"size": size}))


def plant(path: Path, kind: str, root: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):  # writing to a pipe would wait for a reader
        return
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("link", "loop", "device"):
        path.symlink_to({"link": path.parent / "nothing", "loop": root, "device": Path("/dev/zero")}[kind])
    else:
        content = {"image": picture("RGB", "png"), "text": b"not an image", "empty": b""}[kind]
        path.write_bytes(content or b"")


# pickles

CIFAR = {"data": RNG.integers(0, 256, (4, 3072), dtype=np.uint8), "labels": [0, 1, 2, 3], "filenames": [b"f"] * 4}
BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | ANY_ARRAY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=6,
)
SMALL = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}


@fuzz("CIFAR", st.integers(0, 5).flatmap(lambda protocol: damaged(pickle.dumps(SMALL, protocol)))
      | st.builds(lambda key, value, protocol: pickle.dumps(SMALL | {key: value}, protocol),
                  st.sampled_from(["data", "labels", b"data", b"labels"]), PLAIN, st.integers(0, 5))
      | PLAIN.map(pickle.dumps), st.sampled_from(BATCHES))  # fmt: skip
def test_damaged_cifar(content: bytes, batch: str) -> None:
    with folder() as place:
        for name in BATCHES:
            (place / name).write_bytes(pickle.dumps(CIFAR, 2))
        (place / batch).write_bytes(content)
        check(place)


# pieces of streams that say something, for the unpickler to stumble over in any order
STREAM = [code.code.encode("latin-1") for code in pickletools.opcodes] * 2 + [
    b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n",
    b"cnumpy.core.multiarray\nscalar\n", b"c__builtin__\nbytes\n", b"cposix\nsystem\n", b"cbuiltins\ngetattr\n",
    b"X\x02\x00\x00\x00u1", b"X\x02\x00\x00\x00O8", b"X\x06\x00\x00\x00latin1", b"U\x01b", b"C\x04abcd", b"I1\n",
    b"L9L\n", b"K\x01", b"K\x00\x85", b"q\x00", b"h\x00", b"Vtext\n", b"S'text'\n", b"p99999999999999999999\n", b"g0\n",
    b"\x8b\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 8, b"\x95" + b"\xff" * 8, b"\x96" + b"\xff" * 7 + b"\0",
    b"B\xff\xff\xff\xff", b"i__main__\nX\n", b"P1\n", b"\x82\x01", b"F1e999\n",
]  # fmt: skip


@fuzz("pickles", st.lists(st.sampled_from(STREAM), max_size=60).map(b"".join))
def test_any_stream(content: bytes) -> None:
    attempt(lambda: unpickle(content + b".", "a file"))


# PFLlib

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
COUNTS = JSON | st.sampled_from([0, -1, 1, 2, 3, 10**9, 10**400, 1.5, "2", True, float("inf"), float("nan")])
CONFIGS = (
    st.builds(lambda clients, classes: json.dumps({"num_clients": clients, "num_classes": classes}), COUNTS, COUNTS)
    | JSON.map(json.dumps)
    | st.sampled_from(["", "{", "[" * 100_000, '{"num_clients": 1e999, "num_classes": 3}', "\0", '{"a": ' * 50_000])
).map(str.encode) | st.binary(max_size=20)
CLIENT = {"x": RNG.random((3, 1, 4, 5), dtype=np.float32), "y": np.arange(3)}


def client_npz(data: Any) -> bytes:
    array = np.empty((), object)
    array[()] = data
    return npz(np.savez_compressed, data=array)


@fuzz("PFLlib", CONFIGS, st.sampled_from(["train/0", "train/1", "test/1"]),
      damaged(client_npz(CLIENT)) | damaged(npz(np.savez, data=np.array(CLIENT, object)))
      | st.builds(lambda key, value: client_npz(CLIENT | {key: value}), st.sampled_from(["x", "y"]), PLAIN)
      | PLAIN.map(client_npz) | ANY_ARRAY.map(lambda array: npz(np.savez, data=array)) | hostile_npz(),
      st.sampled_from(["config", "client", "client"]))  # fmt: skip
def test_damaged_pfllib(config: bytes, client: str, content: bytes, target: str) -> None:
    with folder() as place:
        for split in ("train", "test"):
            (place / split).mkdir()
            for k in range(2):
                (place / split / f"{k}.npz").write_bytes(client_npz(CLIENT))
        (place / "config.json").write_text('{"num_clients": 2, "num_classes": 3}')
        if target == "config":
            (place / "config.json").write_bytes(config)
        else:
            (place / f"{client}.npz").write_bytes(content)
        check(place)


# the files that are damaged above, whole


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"mine.npz": npz(np.savez, **ARRAYS)}, 8),
        ({"mine.npz": npz(np.savez_compressed, **ARRAYS)}, 8),
        (IDX, 8),
        ({f"{name}.gz": gzip.compress(content) for name, content in IDX.items()}, 8),
        ({f"{k}/1.{form}": picture("RGB", form) for k, form in enumerate(FORMATS)}, 7),
        ({batch: pickle.dumps(SMALL, 2) for batch in BATCHES}, 12),
        ({f"{split}/{k}.npz": client_npz(CLIENT) for split in ("train", "test") for k in range(2)}
         | {"config.json": b'{"num_clients": 2, "num_classes": 3}'}, 12),
    ],
)  # fmt: skip
def test_undamaged_files_are_read(files: dict[str, bytes], expected: int, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    dataset = load(str(tmp_path / name if name == "mine.npz" else tmp_path), limit=LIMIT)
    assert isinstance(dataset, Dataset)
    assert len(dataset) == expected


# samples given in Python


@fuzz("samples", samples(), st.lists(st.tuples(st.sampled_from(["x", "y", "year"]), PLAIN), max_size=1),
      st.just(0) | st.integers(-3, 12) | st.just(10**12), st.text(max_size=300))  # fmt: skip
def test_any_samples(made: dict[str, Any], changes: list[tuple[str, Any]], classes: int, name: str) -> None:
    made |= dict(changes)
    x, y = made.pop("x"), made.pop("y")
    dataset = attempt(lambda: Dataset(name, x, y, classes, made))
    if isinstance(dataset, Dataset):
        check_dataset(dataset)
