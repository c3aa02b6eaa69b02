"""Every source, from files made here; the real ones where COMITY_DATA says they are."""

import copy
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import struct
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comity._errors import LONGEST, ComityError, install
from comity.config import Config
from comity.data import DATASETS, ByColumn, Dataset, federate, load, natural
from comity.data.sources.embedded import DIGITS
from comity.engine import RunPlan

RNG = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path, ending: str = ".gz") -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    x, y = RNG.integers(0, 256, (50, 6, 7), dtype=np.uint8), np.arange(50) % 10
    for part, rows in (("train", slice(0, 40)), ("t10k", slice(40, 50))):
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", x[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", y[rows])
    return x, y


def check(dataset: object, x: np.ndarray, y: np.ndarray) -> Dataset:
    assert isinstance(dataset, Dataset)
    assert np.array_equal(dataset.x, x if x.ndim == 4 else x[..., None])
    assert np.array_equal(dataset.y, y)
    return dataset


def fails(line: str, name: str, *folder: Path, **options: object) -> str:
    """The error of loading a data set, which matches ``line``."""
    with pytest.raises(ComityError, match=line) as caught:
        load(name, *folder, **options)  # type: ignore[arg-type]
    return str(caught.value)


class Malice:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_digits_are_those_of_scikit_learn_to_the_bit(tmp_path: Path) -> None:
    digits = load("digits", tmp_path)
    assert (len(digits), digits.shape, digits.classes, digits.x.dtype) == (1797, (1, 8, 8), 10, np.uint8)
    assert load("Digits").name == "digits"
    assert "CC BY 4.0" in DIGITS.with_suffix(".txt").read_text()
    content = hashlib.sha256(digits.x.tobytes() + digits.y.astype("<i8").tobytes()).hexdigest()
    assert content == "0b7e9c3202d7bcd255d6a19a238d3743bf5e320ba74812a6679958a017c55382"
    x, y = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    assert np.array_equal(digits.x.reshape(-1, 64), np.round(x * (255 / 16)).astype(np.uint8))
    assert np.array_equal(digits.y, y)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "MNIST"])
def test_idx(tmp_path: Path, place: str, ending: str) -> None:
    x, y = write_mnist(tmp_path / place, ending)
    dataset = check(load("mnist", tmp_path), x, y)
    assert (dataset.name, dataset.shape, dataset.classes) == ("mnist", (1, 6, 7), 10)


def spoil(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("file", "change", "line"),
    [
        ("train-images-idx3-ubyte", lambda b: b[:-1], r"announces \(40, 6, 7\), 1680 bytes, and holds 1679"),
        ("train-images-idx3-ubyte", lambda b: b + b"x", "and holds more"),
        ("train-images-idx3-ubyte", lambda b: b[:3], "not an IDX file"),
        ("train-images-idx3-ubyte", lambda b: b[:9], "corrupt or truncated"),
        ("train-images-idx3-ubyte", lambda b: b[:4] + b"\xff" * 12 + b[16:], "announces .* give --data-limit"),
        ("train-labels-idx1-ubyte", lambda b: b"\0\0\x0d\1" + b[4:], "not an IDX file of 1 dimensions"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:7] + b"\x09" + b[8:-1], "holds 10 images; .* holds 9 labels"),
        ("train-images-idx3-ubyte.gz", lambda b: b[:-12], "corrupt or truncated"),
    ],
)
def test_spoilt_idx_is_named(tmp_path: Path, file: str, change: Callable[[bytes], bytes], line: str) -> None:
    write_mnist(tmp_path / "mnist", ".gz" if file.endswith(".gz") else "")
    spoil(tmp_path / "mnist" / file, change)
    assert str(tmp_path / "mnist") in fails(line, "mnist", tmp_path)


def test_idx_labels_missing(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    fails("lacks train-labels", "mnist", tmp_path)


def arrays(channels: tuple[int, ...] = (3,)) -> dict[str, np.ndarray]:
    x, y = RNG.integers(0, 256, (30, 4, 5, *channels), dtype=np.uint8), (np.arange(30) % 6).astype(np.uint8)
    return {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:]}


@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_npz(tmp_path: Path, channels: tuple[int, ...]) -> None:
    made = arrays(channels)
    np.savez(tmp_path / "gtsrb.npz", **made)
    x, y = (np.concatenate([made[f"{key}_train"], made[f"{key}_test"]]) for key in "xy")
    dataset = check(load("gtsrb", tmp_path), x, y)
    assert (dataset.shape, dataset.classes) == ((channels[0] if channels else 1, 4, 5), 6)
    check(load(str(tmp_path / "gtsrb.npz")), x, y)


def test_npz_columns_and_owners(tmp_path: Path) -> None:
    years = np.arange(1950, 1980)
    np.savez(tmp_path / "yearbook.npz", **arrays(), year_train=years[:20], year_test=years[20:])
    dataset = load("yearbook", tmp_path)
    assert np.array_equal(dataset.columns["year"], years)
    assert len(federate(dataset, ByColumn(column="year"), clients=5)) == 5
    owners = np.array(["ann", "bob"])[np.arange(30) % 2]
    np.savez(tmp_path / "owned.npz", **arrays(), client_train=owners[:20], client_test=owners[20:])
    assert federate(load("owned", tmp_path), clients=2).partition == "Natural()"


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({"x_train": None}, "no x_train; it holds"),
        ({"y_train": None}, "no y_train; it holds"),
        ({"x_test": np.zeros((10, 9, 9, 3), np.uint8)}, "x_train and x_test have shapes"),
        ({"y_test": np.zeros(3, np.uint8)}, "got 30 samples and 23 labels"),
        ({"x_train": np.array([object()])}, "not an npz file of plain arrays"),
        ({"x_train": np.float32(3)}, "x_train or x_test holds a single value"),
        ({"y_train": np.int64(3)}, "y_train or y_test holds a single value"),
        ({"x_train": np.zeros((20, 4, 5, 3), np.float32)}, "x_train and x_test have types float32 and uint8"),
        ({"x_train": np.zeros((20, 4, 5, 3), complex)}, r"x_train.npy is of type <c16; allowed: numbers and text"),
        ({"x_train": np.zeros(20, [("a", "f4"), ("b", "i4")])}, r"x_train\.npy is of type \|V8; allowed: numbers"),
        ({"y_train": np.zeros(20, "datetime64[s]")}, r"y_train\.npy is of type <M8\[s\]"),
        ({"y_train": np.full(20, np.nan), "y_test": np.zeros(10)}, r"got labels of shape \(30,\), type float64"),
        ({"y_train": np.full(20, 10**12)}, r"got labels up to 1000000000000; allowed: 1 to 100000 classes"),
        ({"client_train": np.arange(3)}, r"column 'client' has 3 values for 30 samples"),
    ],
)
def test_bad_npz_is_named(tmp_path: Path, made: dict[str, np.ndarray | None], line: str) -> None:
    kept = {key: value for key, value in (arrays() | made).items() if value is not None}
    np.savez(tmp_path / "gtsrb.npz", **kept)  # type: ignore[arg-type]
    fails(line, "gtsrb", tmp_path)


def test_npz_members_nobody_uses_are_not_read(tmp_path: Path) -> None:
    """The content of one is spoilt, which would show."""
    more = {"features_train": np.ones((20, 700)), "mean_train": np.array(3.5), "x_valid": np.ones(9)}
    np.savez(tmp_path / "gtsrb.npz", **arrays(), **more, note=np.ones(9))
    spoil(tmp_path / "gtsrb.npz", lambda b: b.replace(np.float64(1).tobytes() * 9, b"8bytes!!" * 9))
    with zipfile.ZipFile(tmp_path / "gtsrb.npz") as archive:
        assert archive.testzip() == "features_train.npy"
    assert load("gtsrb", tmp_path).columns == {}


SHAPE = b"(20, 4, 5, 3)"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda b: b + b"x", r"x_train\.npy announces .* takes 1328 bytes, and has 1329"),
        (lambda b: b[:-1], r"takes 1328 bytes, and has 1327"),
        (lambda b: b.replace(SHAPE, b"(20, -4,5,-3)"), r"shape \(20, -4, 5, -3\)"),
        (lambda b: b.replace(SHAPE, b"(9**99, 1, 1)"), "has no readable npy header"),
        (lambda b: b.replace(SHAPE, b"(9999999999,)"), "takes 10000000127 bytes"),
        (lambda b: b.replace(b"'|u1'", b"'|V1'"), r"is of type \|V1; allowed: numbers and text"),
        (lambda b: b.replace(b"'|u1', ", b"'|O',  "), "holds Python objects, which are not"),
        (lambda b: b.replace(b"'|u1'", b"'<c8'"), r"is of type <c8; allowed: numbers"),
        (lambda _: b"PK\3\4 a zip in a zip", r"x_train\.npy has no readable npy header: the magic string"),
    ],
)
def test_forged_npz_is_named(tmp_path: Path, change: Callable[[bytes], bytes], line: str) -> None:
    file = tmp_path / "gtsrb.npz"
    np.savez(file, **arrays())
    with zipfile.ZipFile(file) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, change(content) if member == "x_train.npy" else content)
    assert fails(line, "gtsrb", tmp_path).startswith(str(file))


def test_npz_that_numpy_does_not_write_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gtsrb.npz"
    np.savez(file, **arrays())
    start, *entries = file.read_bytes().split(b"PK\1\2")
    file.write_bytes(b"PK\1\2".join([start, *(entry[:4] + b"\1" + entry[5:] for entry in entries)]))
    fails(r"_train\.npy is encrypted", "gtsrb", tmp_path)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        for key in arrays():
            archive.writestr(f"{key}.npy", b"")
    fails(r"_train\.npy is compressed in a way that numpy does not", "gtsrb", tmp_path)
    file.write_bytes(b"")
    fails(r"gtsrb\.npz: corrupt", "gtsrb", tmp_path)


def test_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels count five times, as bytes and as the floats that clients train on; labels of 8 bits likewise."""
    np.savez_compressed(tmp_path / "mine.npz", **arrays())
    needed = 5 * (30 * 4 * 5 * 3 + 30)
    assert len(load("mine", tmp_path, limit=needed)) == 30
    fails(r"mine\.npz: y_test\.npy: .* 9 kB .* limit is 9 kB: give --data-limit", "mine", tmp_path, limit=needed - 1)
    assert len(load("mine", tmp_path, limit="1MB")) == 30
    for text in ("much", "", "-1GB", "nan"):
        fails("the limit must be an amount such as 2GB", "mine", tmp_path, limit=text)
        with pytest.raises(ComityError, match="data_limit must be an amount such as 2GB"):
            Config(data_limit=text)
    assert len(RunPlan(Config(data="mine", data_dir=tmp_path, data_limit="1MB", clients=2)).everyone) == 2
    with pytest.raises(ComityError, match="the limit is 5 kB: give --data-limit to raise it"):
        assert RunPlan(Config(data="mine", data_dir=tmp_path, data_limit="5kB")).everyone
    monkeypatch.setattr("comity.data.sources.reading.installed", lambda: 4 * needed // 3)
    assert len(load("mine", tmp_path)) == 30
    monkeypatch.setattr("comity.data.sources.reading.installed", lambda: 4 * needed // 3 - 2)
    fails("give --data-limit to raise it", "mine", tmp_path)


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;owned\x07", "one\ntwo", "\udcff\udcfe", "\u202egnp"])
def test_hostile_names_are_printed_harmlessly(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.npz").write_bytes(b"not a zip file")
    (tmp_path / name / ("long" * 60)).mkdir(parents=True)
    (tmp_path / name / ("long" * 60) / "bad.png").write_bytes(b"not an image")
    for place in (tmp_path / f"{name}.npz", tmp_path / name):
        line = fails("corrupt", str(place))
        assert line.isprintable()
        assert len(line) <= LONGEST
    np.savez(tmp_path / f"{name}.npz", **arrays())
    assert load(str(tmp_path / f"{name}.npz")).name.isprintable()


def test_what_the_system_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())

    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zipfile.is_zipfile", forbidden)
    fails(r"mine\.npz: Permission denied$", "mine", tmp_path)
    fails(r"/xxx.*: File name too long", "/" + "x" * 5000)


def test_npz_with_a_pickle_is_rejected_without_running_it(tmp_path: Path) -> None:
    extra = np.array(Malice(tmp_path / "run"), dtype=object)
    np.savez(tmp_path / "gtsrb.npz", **arrays() | {"extra_train": extra})
    fails(r"gtsrb\.npz: corrupt or not an npz file of plain arrays", "gtsrb", tmp_path)
    assert not (tmp_path / "run").exists()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\nshowpage\n%%EOF\n"


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (5, 4), mode: str = "RGB") -> None:
    for k, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, 10 * k if mode == "L" else (10 * k, 0, 255)).save(path)


def image_file(folder: Path, name: str) -> Path:
    """The place of the one image of the data set ``mine``."""
    (folder / "mine" / "a").mkdir(parents=True)
    return folder / "mine" / "a" / name


def test_image_folder(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", ["cat/a.png", "cat/b.png", "dog/a.png", "eel/deep/a.png", ".git/x/a.png"])
    for name in ("cat/._a.png", "cat/.DS_Store", "dog/Thumbs.db", "labels.csv", "cat/readme.txt"):
        (tmp_path / "mine" / name).write_bytes(b"not an image")
    dataset = load("mine", tmp_path)
    assert (dataset.name, dataset.shape, dataset.classes) == ("mine", (3, 4, 5), 3)
    assert dataset.y.tolist() == [0, 0, 1, 2]
    assert dataset.x[:, 0, 0].tolist() == [[10 * k, 0, 255] for k in range(4)]
    assert dataset.columns == {}


def test_image_folder_with_splits_is_pooled(tmp_path: Path) -> None:
    write_images(tmp_path / "cinic10", ["test/a/1.png", "train/a/1.png", "train/b/1.png", "valid/b/1.png"], mode="L")
    dataset = load("cinic10", tmp_path)
    assert (dataset.shape, dataset.y.tolist()) == ((1, 4, 5), [0, 0, 1, 1])
    write_images(tmp_path / "cinic10", ["valid/images/1.png"])
    fails("class folder 'images' is not under train", "cinic10", tmp_path)


def test_image_folder_with_years(tmp_path: Path) -> None:
    write_images(tmp_path / "yearbook", ["F/1905_Ohio.png", "F/1999_a.png", "M/1931_b.png"], size=(9, 9), mode="L")
    dataset = load("yearbook", tmp_path)
    assert dataset.columns["year"].tolist() == [1905, 1999, 1931]
    assert dataset.shape == (1, 32, 32)  # the customary size of that data set


def test_image_sizes(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", ["a/1.png"], mode="L")
    write_images(tmp_path / "mine", ["a/2.png"])
    assert load("mine", tmp_path).shape == (3, 4, 5)  # grey and colour mix to colour
    write_images(tmp_path / "mine", ["b/1.png"], size=(8, 8))
    fails(r"images differ in size, \(4, 5\) and \(8, 8\): set data.size", "mine", tmp_path)
    assert load("mine", tmp_path, size=6).shape == (3, 6, 6)
    fails(r"data\.size must be at least 1 and at most 4096, got 0", "mine", tmp_path, size=0)


def test_spoilt_images_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", ["a/1.png", "b/1.png"])
    spoil(tmp_path / "mine/b/1.png", lambda b: b[: len(b) // 2])
    fails(r"b/1\.png: corrupt, truncated or not", "mine", tmp_path)
    write_images(tmp_path / "mine", ["b/1.png", "stray.png"])
    fails(r"stray\.png: an image outside any class folder", "mine", tmp_path)


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_not_cut(tmp_path: Path, kind: str) -> None:
    values = np.array([[0, 255, 256], [32768, 65280, 65535]], np.uint16)
    Image.fromarray(values).save(image_file(tmp_path, f"1.{kind}"))
    assert load("mine", tmp_path).x[0, :, :, 0].tolist() == [[0, 0, 1], [128, 255, 255]]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_of_unknown_range_are_rejected(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (5, 4), 3).save(image_file(tmp_path, "1.tif"))
    fails(r"a/1\.tif: an image of 32 bits a pixel", "mine", tmp_path)


@pytest.mark.parametrize(
    ("mode", "colour", "ending", "expected"),
    [
        ("1", 1, "png", [255]),
        ("LA", (7, 0), "png", [7]),
        ("P", 0, "png", [0, 0, 0]),
        ("RGBA", (1, 2, 3, 0), "png", [1, 2, 3]),
        ("CMYK", (0, 0, 0, 255), "tif", [0, 0, 0]),
        ("CMYK", (0, 0, 0, 0), "tif", [255, 255, 255]),
    ],
)
def test_image_modes(tmp_path: Path, mode: str, colour: object, ending: str, expected: list[int]) -> None:
    Image.new(mode, (5, 4), colour).save(image_file(tmp_path, f"1.{ending}"))
    assert load("mine", tmp_path).x[0, 0, 0].tolist() == expected


def test_first_image_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), (k, k, k)) for k in (10, 20, 30)]
    frames[0].save(image_file(tmp_path, "1.png"), save_all=True, append_images=frames[1:])
    assert load("mine", tmp_path).x.max() == 10


def test_a_format_is_known_by_its_content(tmp_path: Path) -> None:
    """Pillow would hand PostScript to Ghostscript whatever the file's name."""
    image_file(tmp_path, "2.png").write_bytes(EPS)
    fails(r"a/2\.png: corrupt, truncated or not one of PNG, JPEG", "mine", tmp_path)


def test_links_in_image_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "elsewhere", ["cat/a.png"])
    write_images(tmp_path / "mine", ["dog/a.png"])
    (tmp_path / "mine" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    (tmp_path / "mine" / "dog" / "b.png").symlink_to(tmp_path / "elsewhere" / "cat" / "a.png")
    assert load("mine", tmp_path).y.tolist() == [0, 1, 1]
    for name, target, line in (
        ("dog/c.png", tmp_path / "gone.png", r"dog/c\.png: No such file"),
        ("dog/c.png", tmp_path / "mine" / "dog" / "c.png", r"dog/c\.png: Too many levels of symbolic links"),
        ("dog/c.png", Path("/dev/zero"), r"dog/c\.png: a folder, pipe or device"),
        ("kitten", tmp_path / "mine" / "cat", "a link to a folder that is part of the data set already"),
        ("dog/again", tmp_path / "mine", "dog/again: a link to a folder that is part of the data set already"),
    ):
        link = tmp_path / "mine" / name
        link.symlink_to(target)
        fails(line, "mine", tmp_path)
        link.unlink()


def test_images_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "mine", ["a/1.png", "b/1.png"])
    monkeypatch.setitem(sys.modules, "PIL", None)
    fails(re.escape(f"image folders need Pillow: {install('hub')}"), "mine", tmp_path)


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    x, y = RNG.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8), np.arange(24) % 10
    for k, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = slice(4 * k, 4 * k + 4)
        batch = {b"batch_label": b"", b"labels": y[rows].tolist(), b"data": x[rows].reshape(4, -1)}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    return x.transpose(0, 2, 3, 1), y


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, place: str) -> None:
    x, y = write_cifar10(tmp_path / place)
    dataset = check(load("cifar10", tmp_path), x, y)
    assert (dataset.name, dataset.classes, dataset.shape) == ("cifar10", 10, (3, 32, 32))


def test_cifar100(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    x = RNG.integers(0, 256, (6, 3072), dtype=np.uint8)
    for name, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        batch = {"data": x[rows], "fine_labels": list(range(6))[rows], "coarse_labels": [0] * 6}
        (folder / name).write_bytes(pickle.dumps(batch))
    dataset = check(load("cifar100", tmp_path), x.reshape(6, 3, 32, 32).transpose(0, 2, 3, 1), np.arange(6))
    assert dataset.classes == 100


def test_bad_cifar_is_named(tmp_path: Path) -> None:
    folder, malice = tmp_path / "cifar10", Malice(tmp_path / "run")
    write_cifar10(folder)
    for content, line in (
        (pickle.dumps({b"data": malice, b"labels": [1]}), "data_batch_3: rejected: it names posix.mkdir"),
        (pickle.dumps([1, 2]), "data_batch_3: holds list; expected data and labels"),
        (pickle.dumps({b"data": np.zeros((4, 9), np.uint8), b"labels": [0] * 4}), r"got data of shape \(4, 9\)"),
        ((folder / "data_batch_3").read_bytes()[:-50], "data_batch_3: corrupt or truncated"),
        (b"", "data_batch_3: corrupt or truncated"),
        (pickle.dumps({b"data": [[1], [2, 3]], b"labels": [0]}), "data_batch_3: data is not an array and not a list"),
        (pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 3}), r"got labels of shape \(3,\)"),
    ):
        (folder / "data_batch_3").write_bytes(content)
        fails(line, "cifar10", tmp_path)
    assert not (tmp_path / "run").exists()
    (folder / "data_batch_3").unlink()
    fails("data_batch_3: No such file", "cifar10", tmp_path)


def write_pfllib(folder: Path, clients: int = 3) -> None:
    """As PFLlib writes it: one pickled dictionary in an array of objects in an npz."""
    for split, n in (("train", 6), ("test", 2)):
        (folder / split).mkdir(parents=True)
        for client in range(clients):
            x = np.full((n, 3, 4, 5), client, np.float32) + np.arange(3, dtype=np.float32)[:, None, None] / 10
            y = np.full(n, client, np.int64)
            np.savez_compressed(folder / split / f"{client}.npz", data={"x": x, "y": y})
    (folder / "config.json").write_text(json.dumps({"num_clients": clients, "num_classes": 5, "alpha": 0.1}))


def test_pfllib_keeps_its_partition_and_its_split(tmp_path: Path) -> None:
    write_pfllib(tmp_path / "Cifar10")
    dataset = load("Cifar10", tmp_path)
    federation = federate(dataset, clients=3, test_share=0.9, val_share=0.5)
    assert (federation.shape, federation.classes, federation.partition) == ((3, 4, 5), 5, "Natural()")
    for client in federation.clients:
        assert (len(client.train), len(client.val), len(client.test)) == (3, 3, 2)
        for split in (client.train, client.val, client.test):
            assert (split.y == client.id).all()
            assert split.x[:, :, 1, 2].tolist() == [pytest.approx([client.id + c / 10 for c in range(3)])] * len(split)


def test_pfllib_sets_the_number_of_clients_of_a_known_data_set_too(tmp_path: Path) -> None:
    write_pfllib(tmp_path / "MNIST")
    plan = RunPlan(Config.of({"data": "MNIST", "data_dir": tmp_path}))
    assert plan.config.clients == 3
    assert plan.everyone.partition == "Natural()"


def test_bad_pfllib_is_named(tmp_path: Path) -> None:
    folder, malice = tmp_path / "Mine", Malice(tmp_path / "run")
    write_pfllib(folder)
    file = folder / "test" / "1.npz"
    good = file.read_bytes()
    for data, line in (
        ({"x": malice, "y": np.zeros(2)}, r"1\.npz: rejected: it names posix.mkdir"),
        ({"x": np.zeros((2, 3, 4, 5))}, r"1\.npz: holds x; expected x and y"),
        ({"x": np.zeros((2, 7)), "y": np.zeros(2, int)}, r"1\.npz: got x of shape \(2, 7\)"),
        ({"x": np.zeros((2, 1, 4, 5)), "y": np.zeros(2, int)}, "the clients' images have shapes"),
        ({"x": np.zeros((2, 3, 4, 5), np.uint8), "y": np.zeros(2, int)}, "images have types float32 and uint8"),
        ([1, 2], r"1\.npz: holds"),
    ):
        np.savez(file, data=np.array(data, dtype=object))
        fails(line, "mine", tmp_path)
    assert not (tmp_path / "run").exists()
    np.savez(file, data=np.arange(3))
    fails(r"1\.npz: holds an array of <i8; expected one Python object", "mine", tmp_path)
    np.savez(file, other=np.arange(3))
    fails(r"1\.npz: .*no item named 'data\.npy'", "mine", tmp_path)
    file.write_bytes(good[:-30])
    fails(r"1\.npz: corrupt, truncated", "mine", tmp_path)
    file.unlink()
    fails(r"1\.npz: No such file", "mine", tmp_path)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("[1, 2]", r"config\.json: corrupt or truncated: Expected `object`"),
        ('{"num_clients": 3', r"config\.json: corrupt or truncated"),
        ('{"num_clients": 3}', r"config\.json: .* missing required field `num_classes`"),
        *(
            (f'{{"num_clients": {clients}, "num_classes": 5}}', r"config\.json: corrupt or truncated")
            for clients in (0, "true", '"3"', 3.5, "NaN", "1e999")
        ),
        ('{"num_clients": 3, "num_classes": 2}', "got label 2; with 2 classes"),
        ('{"num_clients": 2, "num_classes": 5}', "config.json says 2 clients; there are more in train"),
        ('{"num_clients": 4, "num_classes": 5}', r"train/3\.npz: No such file"),
    ],
)
def test_bad_pfllib_config_is_named(tmp_path: Path, config: str, line: str) -> None:
    write_pfllib(tmp_path / "Mine")
    (tmp_path / "Mine" / "config.json").write_text(config)
    fails(line, "mine", tmp_path)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"x": np.zeros((0, 4, 4))}, r"got samples of shape \(0, 4, 4\)"),
        ({"x": [[[1]], [[1, 2]]]}, "the samples are no array"),
        ({"x": np.zeros(3, np.uint8)}, r"got samples of shape \(3,\); allowed: vectors \(n, features\)"),
        ({"x": np.zeros((3, 4, 4), complex)}, "got samples of type complex128; allowed: uint8 or float"),
        ({"x": np.zeros((3, 4, 4), np.int64)}, "got samples of type int64; allowed: uint8 or float"),
        ({"x": np.full((3, 4, 4), np.nan)}, "not finite"),
        ({"x": np.full((3, 4, 4), np.inf)}, "not finite"),
        ({"x": np.full((3, 4, 4), 1e300)}, "not finite"),
        ({"x": np.float64(1)}, r"got samples of shape \(\)"),
        ({"y": 3}, r"got labels of shape \(\)"),
        ({"y": [0, 1]}, "got 3 samples and 2 labels"),
        ({"y": np.zeros(3)}, r"got labels of shape \(3,\), type float64; allowed"),
        ({"y": [0, 1, -1]}, "got label -1; labels count from 0"),
        ({"y": np.array([0, 1, 2**63 + 1], np.uint64)}, "got labels up to 9223372036854775809; allowed: 1 to 100000"),
        ({"y": [0, 1, 100_000]}, "got labels up to 100000; allowed: 1 to 100000 classes"),
        ({"y": np.array([0, 1, "NaT"], "timedelta64[s]")}, r"type timedelta64\[s\]; allowed: \(n,\) integers or text"),
        ({"classes": -1}, "allowed: 1 to 100000 classes"),
        ({"classes": 2}, "got label 2; with 2 classes"),
        ({"columns": {"year": range(5)}}, "column 'year' has 5 values for 3 samples"),
        ({"columns": {"year": 3}}, r"column 'year' has shape \(\) for 3 samples"),
        ({"columns": {"year": np.ones((3, 2))}}, r"column 'year' has shape \(3, 2\) for 3 samples"),
        ({"columns": {"year": [1, None, 2]}}, "column 'year' is of type object; allowed: numbers or text"),
        ({"columns": {"test": ["no", "yes", "no"]}}, "column 'test' .* allowed: 0 and 1"),
        ({"columns": {"test": [0, 1, 2]}}, "column 'test' .* allowed: 0 and 1"),
    ],
)
def test_bad_samples_are_named(changed: dict[str, object], line: str) -> None:
    good = {"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1, 2]}
    assert repr(Dataset("mine", **good)) == "Dataset(mine, 3 samples, 1×4×4, 3 classes)"  # type: ignore[arg-type]
    assert Dataset("mine", good["x"], np.array([[0], [1], [2]])).y.shape == (3,)  # type: ignore[arg-type]
    with pytest.raises(ComityError, match=f"data mine: .*{line}"):
        Dataset("mine", **good | changed)  # type: ignore[arg-type]


class FakeImage:
    """Has the name that the hub's feature for images has."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


FakeImage.__name__ = "Image"


class FakeSplit:
    """As much of the hub's data sets as is used. Images come as they are stored, and only if that was asked for."""

    def __init__(self, n: int, label: str, first: int = 0) -> None:
        self.rows: list[dict[str, object]] = [
            {
                "img": {"bytes": png(Image.new("L", (4, 4), first + k)), "path": None},
                label: k % 3,
                "year": 1990 + k,
                "text": "long " * 100 if k == n - 1 else "short",
            }
            for k in range(n)
        ]
        kinds = {label: "int64", "year": "int32", "text": "string"}
        self.features = {"img": FakeImage()} | {key: types.SimpleNamespace(dtype=kind) for key, kind in kinds.items()}

    def select_columns(self, keys: list[str]) -> "FakeSplit":
        selected = copy.copy(self)
        selected.features = {key: self.features[key] for key in keys}
        return selected

    def cast_column(self, key: str, kind: object) -> "FakeSplit":
        cast = copy.copy(self)
        cast.features = self.features | {key: kind}
        return cast

    def __iter__(self) -> Iterator[dict[str, object]]:
        assert not any(isinstance(kind, FakeImage) and kind.decode for kind in self.features.values())
        return ({key: row[key] for key in self.features} for row in self.rows)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A module ``datasets`` with two data sets, and the list of what was asked of it."""
    asked: list[str] = []

    def load_dataset(name: str) -> dict[str, FakeSplit]:
        asked.append(name)
        if name == "uoft-cs/cifar100":
            sizes = {"train": (6, 0), "test": (3, 100), "fog": (2, 0)}
            return {split: FakeSplit(n, "fine_label", first) for split, (n, first) in sizes.items()}
        if name == "some/thing":
            raise ConnectionError("no route to the hub\nand a long trace")
        split = FakeSplit(6, "caption" if name == "no/label" else "label")
        if name in ("some/eps", "no/image"):
            split.rows[3]["img"] = {"bytes": EPS, "path": None} if name == "some/eps" else None
        return {"train": split}

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.Image = FakeImage  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="datasets")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("comity._datasets.hub_installed", lambda: True)
    return asked


def test_hub_when_asked_for(hub: list[str]) -> None:
    dataset = load("hub:uoft-cs/cifar100")
    assert hub == ["uoft-cs/cifar100"]
    assert len(dataset) == 9  # train and test; "fog" is no split of the data set
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 100, 101, 102]
    assert dataset.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert dataset.columns["year"].tolist() == [*range(1990, 1996), 1990, 1991, 1992]
    assert set(dataset.columns) == {"year"}  # a column of long texts is no column to share out along


def test_hub_when_nothing_is_found_here(hub: list[str], tmp_path: Path) -> None:
    assert load("cifar100", tmp_path).name == "cifar100"
    assert hub == ["uoft-cs/cifar100"]
    np.savez(tmp_path / "cifar100.npz", **arrays())
    assert len(load("cifar100", tmp_path)) == 30
    assert hub == ["uoft-cs/cifar100"]


def test_hub_errors(hub: list[str]) -> None:
    fails(r"could not be loaded: ConnectionError: no route to the hub$", "hub:some/thing")
    fails("needs an image and a label column; it has img, caption, year", "hub:no/label")
    fails(r"data hub:some/eps, image 3: corrupt, truncated or not one of PNG, JPEG", "hub:some/eps")
    fails("data hub:no/image: row 3 has no image", "hub:no/image")
    fails(r"data hub:uoft-cs/cifar100: .* give --data-limit to raise it", "hub:uoft-cs/cifar100", limit=600)
    assert hub == ["some/thing", "no/label", "some/eps", "no/image", "uoft-cs/cifar100"]


def test_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity._datasets.find_spec", lambda _: None)
    fails(re.escape(f"the hub needs the package datasets: {install('hub')}"), "hub:uoft-cs/cifar10")


@pytest.mark.parametrize(
    "name", [name for name in DATASETS if name not in ("digits", "heart", "synthetic", *natural())]
)
def test_missing_known_set_says_where_and_how(name: str, tmp_path: Path) -> None:
    line = fails("to get it: ", name, tmp_path)
    assert "\n" not in line
    way = DATASETS[name].hub or (install("watch") if name == "watch" else "https://")
    for part in (f"{name}.npz", str(tmp_path), "COMITY_DATA", way):
        assert part in line


def test_unknown_name_is_told_the_nearest(tmp_path: Path) -> None:
    fails(r"unknown data set 'fasion-mnist'; did you mean fashion-mnist", "fasion-mnist", tmp_path)
    fails(r"data /nowhere/x\.npz: no such file or folder", "/nowhere/x.npz")
    (tmp_path / "empty").mkdir()
    fails("empty: no data set in it; looked for IDX", "empty", tmp_path)


def test_where_data_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    np.savez(tmp_path / "mnist.npz", **arrays())  # which goes before the folder
    monkeypatch.setenv("COMITY_DATA", str(tmp_path))
    assert len(load("mnist")) == 30
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "digits", "")
    assert len(load("./digits")) == 50  # a path is never taken for a name
    assert len(load("digits")) == 1797
    assert Config(data="./digits").data.name == "./digits"
    np.savez(tmp_path / "mine.npz", **arrays())
    fails("unknown data set 'mine'", "mine", tmp_path / "elsewhere")


def test_options_nobody_has_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    fails(r"unknown option 'size' of data digits; there are none", "digits", size=32)
    known = "centred, client, missing, schema, sheet, size, target"
    fails(f"unknown option 'colour' of data mine; known: {known}", "mine", tmp_path, colour=1)
    fails(r"data\.size is 9, but .*mine.npz holds 3×4×5; only folders", "mine", tmp_path, size=9)
    np.savez(tmp_path / "square.npz", x=np.zeros((4, 6, 6, 3), np.uint8), y=[0, 1, 0, 1])
    assert load("square", tmp_path, size=6).shape == (3, 6, 6)
    fails(r"unknown option 'shift' of data synthetic; did you mean", "synthetic", shift=1)


@pytest.mark.parametrize(
    ("name", "n", "shape", "classes"),
    [
        ("mnist", 70_000, (1, 28, 28), 10),
        ("fashion-mnist", 70_000, (1, 28, 28), 10),
        ("cifar10", None, (3, 32, 32), 10),
        ("flowers102", 8_189, (3, 32, 32), 102),
        ("tiny-imagenet", None, None, 200),
    ],
)
def test_real_data(real_data: Path, name: str, n: int | None, shape: tuple[int, int, int] | None, classes: int) -> None:
    if not any((real_data / place).exists() for place in (name, f"{name}.npz")):
        pytest.skip(f"COMITY_DATA holds no {name}")
    dataset = load(name)
    assert n is None or len(dataset) == n
    assert shape is None or dataset.shape == shape
    assert dataset.classes == classes
    assert (np.bincount(dataset.y, minlength=classes) > 0).all()
