"""Small files that would take all memory or never end, read in a process of its own whose memory is measured."""

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comity._errors import ComityError
from comity.data import load
from comity.data.sources.parquet import read_parquet
from comity.data.sources.reading import Budget
from fuzz.harness import check_error, record
from fuzz.test_data import ARRAYS, BATCHES, CIFAR, CLIENT, IDX, client_npz, npy, picture

MB, GB = 10**6, 10**9
MOST_MEMORY = 250 * MB
MOST_SECONDS = 20  # of the processor

# Reads the data sets one after the other and prints what came of each, and what it took at its highest.
CHILD = """
import json, resource, sys, time
from pathlib import Path
from comity._errors import ComityError
from comity._memory import peak, resident
from comity.data import load

size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size * 1024 + 4 * 10**9,) * 2)  # the test must not be a bomb, either
for path in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")  # begin to count the highest anew
    before, start = resident(), time.process_time()
    try:
        outcome = repr(load(path, limit="100MB"))
        error = False
    except ComityError as caught:
        outcome, error = str(caught), True
    took = time.process_time() - start
    print(json.dumps({"outcome": outcome, "error": error, "bytes": peak() - before, "seconds": took}), flush=True)
"""


BOMBS: list[Callable[[Path], Path]] = []


def bomb(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """A function that makes a data set in an empty folder and says where it is."""
    BOMBS.append(make)
    return make


def deflated_zeros(count: int) -> bytes:
    """A stream that unpacks to ``count`` zeros, a thousand times its size, made in no time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(MB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * (count // MB) + packer.flush()


def packed(start: bytes, zeros: int) -> bytes:
    """``start`` and then zeros, deflated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH) + deflated_zeros(zeros)


def zipped(members: dict[str, tuple[bytes, int, int]]) -> bytes:
    """A zip file of members that are deflated already and claim a size and a checksum."""
    content, table = b"", b""
    for name, (data, size, checksum) in members.items():
        extra = struct.pack("<HHQ", 1, 8, size) if size >= 2**32 else b""
        sizes = len(data), min(size, 2**32 - 1), len(name), len(extra)
        entry = struct.pack("<HHHHIIIHH", 0, zipfile.ZIP_DEFLATED, 0, 0, checksum, *sizes)
        table += b"PK\1\2" + struct.pack("<HH", 45, 45) + entry + struct.pack("<HHHII", 0, 0, 0, 0, len(content))
        table += name.encode() + extra
        content += b"PK\3\4" + struct.pack("<H", 45) + entry + name.encode() + extra + data
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(table), len(content), 0)
    return content + table + b"PK\5\6" + end


def member(content: bytes) -> tuple[bytes, int, int]:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush(), len(content), zlib.crc32(content)


def header(shape: tuple[int, ...], kind: str = "|u1", padding: int = 0) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b" " * padding + b"\n"
    return b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little") + text


MEMBERS = {f"{key}.npy": member(npy(array)) for key, array in ARRAYS.items()}


@bomb
def npz_announces_100_gb(place: Path) -> Path:
    start = header((10**5, 1000, 1000))
    return write(place, zipped(MEMBERS | {"x_train.npy": (packed(start, 10 * GB), len(start) + 10**11, 0)}))


@bomb
def npz_unpacks_to_10_gb(place: Path) -> Path:
    """The table of contents and the array's header agree on 600 bytes; the stream does not."""
    start = header((10, 60))
    return write(place, zipped(MEMBERS | {"x_train.npy": (packed(start, 10 * GB), len(start) + 600, 0)}))


@bomb
def npz_header_of_2_gb(place: Path) -> Path:
    start = b"\x93NUMPY\2\0" + (2 * 10**9).to_bytes(4, "little")
    return write(place, zipped(MEMBERS | {"x_train.npy": (packed(start, 2 * GB), 2 * GB + 12, 0)}))


@bomb
def npz_of_nested_tuples(place: Path) -> Path:
    text = b"(" * 9000 + b")" * 900
    start = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
    return write(place, zipped(MEMBERS | {"x_train.npy": member(start)}))


@bomb
def npz_packed_by_lzma(place: Path) -> Path:
    """Python's zipfile unpacks whatever a piece of such a stream holds, at once."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for key, array in ARRAYS.items():
            if key == "x_train":
                array = np.zeros((50, 1000, 1000), np.uint8)
            archive.writestr(f"{key}.npy", npy(array))
    return write(place, file.getvalue())


@bomb
def npz_of_a_million_members(place: Path) -> Path:
    entry = b"PK\1\2" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    start, table = b"PK\3\4" + bytes(26), entry * 10**6
    end = struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(table), len(start), 0)
    return write(place, start + table + b"PK\5\6" + end)


@bomb
def npz_column_of_long_text(place: Path) -> Path:
    """Six names, of which one has five million letters and the others have none."""
    start = header((6,), "<U5000000")
    names = packed(start, 120 * MB), len(start) + 120 * MB, 0
    return write(place, zipped(MEMBERS | {"client_train.npy": names}))


@bomb
def npz_label_of_a_million_million(place: Path) -> Path:
    np.savez(place / "mine.npz", **ARRAYS | {"y_train": np.full(6, 10**12)})
    return place / "mine.npz"


@bomb
def npz_label_beyond_int64(place: Path) -> Path:
    np.savez(place / "mine.npz", x_train=ARRAYS["x_train"], y_train=np.full(6, 2**63 + 5, np.uint64))
    return place / "mine.npz"


@bomb
def npz_with_10_gb_nobody_uses(place: Path) -> Path:
    start = header((10**4, 1000, 1000))
    unused = {"x_extra.npy": (packed(start, 10 * GB), len(start) + 10 * GB, 0)}
    return write(place, zipped(MEMBERS | unused | {"features_train.npy": unused["x_extra.npy"]}))


def write(place: Path, content: bytes, name: str = "mine.npz") -> Path:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)
    return place / name


@bomb
def idx_announces_4_gb(place: Path) -> Path:
    return idx(place, gz(packed(IDX["train-images-idx3-ubyte"][:4] + struct.pack(">III", 4000, 1000, 1000), 4 * GB)))


@bomb
def idx_unpacks_to_10_gb(place: Path) -> Path:
    return idx(place, gz(packed(IDX["train-images-idx3-ubyte"], 10 * GB)))


@bomb
def idx_announces_more_than_it_holds(place: Path) -> Path:
    content = IDX["train-images-idx3-ubyte"]
    return idx(place, gzip.compress(content[:4] + struct.pack(">III", 15, 1000, 1000) + content[16:]))


@bomb
def idx_is_a_pipe(place: Path) -> Path:
    idx(place, b"")
    (place / "train-images-idx3-ubyte.gz").unlink()
    os.mkfifo(place / "train-images-idx3-ubyte.gz")
    return place


def gz(stream: bytes) -> bytes:
    return b"\x1f\x8b\x08" + bytes(7) + stream + bytes(8)


def idx(place: Path, images: bytes) -> Path:
    for name, content in IDX.items():
        write(place, gzip.compress(content), f"{name}.gz")
    write(place, images, "train-images-idx3-ubyte.gz")
    return place


def png(width: int, height: int, content: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", content) + chunk(b"IEND", b"")


@bomb
def png_of_3_gigapixels(place: Path) -> Path:
    write(place, png(60_000, 60_000, b"\x78\xda" + deflated_zeros(3600 * MB)), "a/bomb.png")
    return place


@bomb
def png_of_80_megapixels(place: Path) -> Path:
    write(place, png(9000, 9000, b"\x78\xda" + deflated_zeros(82 * MB)), "a/bomb.png")
    return place


@bomb
def png_with_a_long_text(place: Path) -> Path:
    content = picture("L", "png") or b""
    text = b"note\0\0" + b"\x78\xda" + deflated_zeros(2 * GB)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    write(place, content[:33] + chunk + content[33:], "a/bomb.png")
    return place


@bomb
def png_with_a_gigabyte_of_text(place: Path) -> Path:
    content = picture("L", "png") or b""
    path = write(place, content[:33] + struct.pack(">I", GB) + b"tEXt", "a/bomb.png")
    os.truncate(path, GB + 100)  # a file with a hole takes no room
    return place


@bomb
def ppm_of_a_million_million_pixels(place: Path) -> Path:
    write(place, b"P6 1000000 1000000 255\n" + bytes(100), "a/bomb.ppm")
    return place


@bomb
def bmp_of_a_billion_pixels(place: Path) -> Path:
    content = bytearray(picture("RGB", "bmp") or b"")
    content[18:26] = struct.pack("<ii", 32_000, 32_000)
    write(place, bytes(content), "a/bomb.bmp")
    return place


@bomb
def postscript_by_the_name_of_png(place: Path) -> Path:
    """Pillow would start Ghostscript on it."""
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n{} loop\n%%EOF\n"
    write(place, script, "a/bomb.png")
    return place


@bomb
def images_of_30_gb_together(place: Path) -> Path:
    file = io.BytesIO()
    Image.new("RGB", (2000, 1000)).save(file, "PNG")
    first = write(place, file.getvalue(), "a/0.png")
    for k in range(1, 1000):
        (place / "a" / f"{k}.png").hardlink_to(first)
    return place


@bomb
def links_that_double_thirty_times(place: Path) -> Path:
    for k in range(30):
        (place / "set" / f"{k}").mkdir(parents=True)
        for side in ("left", "right"):
            (place / "set" / f"{k}" / side).symlink_to(place / "set" / f"{k + 1}")
    write(place, picture("RGB", "png") or b"", "set/30/a/1.png")
    return place / "set"


@bomb
def link_to_its_own_folder(place: Path) -> Path:
    write(place, picture("RGB", "png") or b"", "a/1.png")
    (place / "a" / "again").symlink_to(place)
    return place


@bomb
def image_is_a_device(place: Path) -> Path:
    write(place, picture("RGB", "png") or b"", "a/1.png")
    (place / "a" / "2.png").symlink_to("/dev/zero")
    return place


def cifar(place: Path, content: bytes) -> Path:
    for name in BATCHES:
        write(place, pickle.dumps(CIFAR, 2), name)
    write(place, content, "data_batch_3")
    return place


@bomb
def cifar_list_of_lists_of_lists(place: Path) -> Path:
    """Ten references to a list of ten references, twelve deep: a million million numbers, written out."""
    stream = b"K\1" + b"q\0" + b"".join(b"0](" + b"h\0" * 10 + b"e" + b"q\0" for _ in range(12))
    return cifar(place, b"\x80\x02}(U\x04data" + stream + b"U\x06labels](K\1eu.")


@bomb
def cifar_labels_of_labels(place: Path) -> Path:
    stream = b"K\1" + b"q\0" + b"".join(b"0](" + b"h\0" * 10 + b"e" + b"q\0" for _ in range(12))
    data = pickle.dumps(CIFAR["data"], 2)[2:-1]
    return cifar(place, b"\x80\x02}(U\x04data" + data + b"U\x06labels" + stream + b"u.")


@bomb
def cifar_same_text_encoded_again_and_again(place: Path) -> Path:
    text = b"X" + struct.pack("<I", MB) + b"t" * MB + b"X\6\0\0\0latin1\x86q\1" + b"0"
    return cifar(place, b"\x80\x02c_codecs\nencode\nq\0" + b"0" + text + b"](" + b"h\0h\1R" * 3000 + b"e.")


@bomb
def cifar_same_list_made_an_array_again_and_again(place: Path) -> Path:
    """Each array of objects would be a copy of one long list."""
    kind = b"cnumpy\ndtype\nU\2O8K\0K\1\x87Rq\2" + b"0"
    items = b"](" + b"N" * 500_000 + b"eq\3" + b"0" + b"(K\1J\x20\xa1\x07\0\x85h\2\x89h\3tq\4" + b"0"
    made = b"cnumpy.core.multiarray\n_reconstruct\nq\5" + b"0"
    return cifar(place, b"\x80\x02" + kind + items + made + b"](" + b"h\5)Rh\4b" * 2000 + b"e.")


@bomb
def cifar_key_of_nested_tuples(place: Path) -> Path:
    """Its hash is computed in C, one call inside the other."""
    return cifar(place, b"\x80\x02}N" + b"\x85" * 500_000 + b"Ns.")


@bomb
def cifar_keys_of_one_hash(place: Path) -> Path:
    """Python's hash of a whole number is the number modulo 2**61 - 1."""
    keys = (pickle.dumps(k * (2**61 - 1), 2)[2:-1] + b"N" for k in range(1, 100_000))
    return cifar(place, b"\x80\x02}(" + b"".join(keys) + b"u.")


@bomb
def cifar_memo_of_one_hash(place: Path) -> Path:
    keys = (b"p%d\n" % (k * (2**61 - 1)) for k in range(1, 100_000))
    return cifar(place, b"\x80\x02N" + b"".join(keys) + b".")


@bomb
def cifar_of_millions_of_sets(place: Path) -> Path:
    return cifar(place, b"\x80\x04" + b"\x8f" * 20 * MB)


@bomb
def cifar_of_millions_of_dictionaries(place: Path) -> Path:
    return cifar(place, b"\x80\x04" + b"}" * 20 * MB)


@bomb
def cifar_of_millions_of_memos(place: Path) -> Path:
    return cifar(place, b"\x80\x04N" + b"\x94" * 20 * MB)


@bomb
def cifar_announces_an_exabyte(place: Path) -> Path:
    return cifar(place, b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b".")


@bomb
def cifar_frame_of_an_exabyte(place: Path) -> Path:
    return cifar(place, b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"N.")


@bomb
def cifar_object_that_was_never_made(place: Path) -> Path:
    return cifar(place, b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n)\x81U\x06labels](K\1eu.")


@bomb
def cifar_batch_is_a_pipe(place: Path) -> Path:
    cifar(place, b"")
    (place / "data_batch_3").unlink()
    os.mkfifo(place / "data_batch_3")
    return place


@bomb
def cifar_of_a_terabyte(place: Path) -> Path:
    cifar(place, b"")
    os.truncate(place / "data_batch_3", 10**12)
    return place


def pfllib(place: Path, client: bytes = b"", config: str = '{"num_clients": 2, "num_classes": 3}') -> Path:
    for name in ("train/0", "train/1", "test/0", "test/1"):
        write(place, client_npz(CLIENT), f"{name}.npz")
    if client:
        write(place, client, "test/1.npz")
    write(place, config.encode(), "config.json")
    return place


@bomb
def pfllib_announces_10_gb(place: Path) -> Path:
    start = header((), "|O")
    return pfllib(place, zipped({"data.npy": (packed(start, 10 * GB), 10 * GB, 0)}))


@bomb
def pfllib_unpacks_to_10_gb(place: Path) -> Path:
    start = header((), "|O")
    return pfllib(place, zipped({"data.npy": (packed(start, 10 * GB), 1000, 0)}))


@bomb
def pfllib_of_a_billion_clients(place: Path) -> Path:
    return pfllib(place, config='{"num_clients": 1000000000, "num_classes": 3}')


@bomb
def pfllib_of_a_billion_classes(place: Path) -> Path:
    return pfllib(place, config='{"num_clients": 2, "num_classes": 1000000000}')


@bomb
def pfllib_config_nested_deeply(place: Path) -> Path:
    return pfllib(place, config="[" * 10**6)


@bomb
def pfllib_config_of_a_terabyte(place: Path) -> Path:
    pfllib(place)
    os.truncate(place / "config.json", 10**12)
    return place


@bomb
def pfllib_client_is_a_pipe(place: Path) -> Path:
    pfllib(place)
    (place / "test" / "1.npz").unlink()
    os.mkfifo(place / "test" / "1.npz")
    return place


def test_a_small_file_that_is_many_gigabytes_unpacked(tmp_path: Path) -> None:
    """Within three quarters of the machine's memory, but nobody asked for that."""
    start = header((2 * GB // 10**6, 1000, 1000))
    path = write(tmp_path, zipped(MEMBERS | {"x_train.npy": (packed(start, 2 * GB), len(start) + 2 * GB, 0)}))
    with pytest.raises(ComityError, match=r"MB would take 10\.0 GB of memory unpacked; give --data-limit"):
        load(str(path))


def test_a_parquet_cell_is_counted_before_it_is_unpacked(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    small = {"y": [0, 1, 0], "x": [1.5, None, 2.5], "name": ["a", "b", "a"], "list": [[1], [], [2]]}
    for kind, version in (("zstd", "1.0"), ("snappy", "2.0"), ("none", "1.0")):
        parquet.write_table(pyarrow.table(small), tmp_path / "x", compression=kind, data_page_version=version)
        assert read_parquet(tmp_path / "x", Budget("1MB")) == small
    parquet.write_table(pyarrow.table({"x": ["a" * 20 * MB]}), tmp_path / "x", compression="zstd")
    with pytest.raises(ComityError, match=r"needs 160\.\d MB of memory or more"):
        read_parquet(tmp_path / "x", Budget("100MB"))


HARMLESS = [npz_with_10_gb_nobody_uses]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured through /proc")
def test_bombs(tmp_path: Path) -> None:
    places = []
    for bomb in BOMBS:
        (tmp_path / bomb.__name__).mkdir()
        places.append(str(bomb(tmp_path / bomb.__name__)))
    start = time.monotonic()
    report, complaints = tmp_path / "report", tmp_path / "complaints"
    with report.open("w") as out, complaints.open("w") as err:
        child = subprocess.Popen([sys.executable, "-c", CHILD, *places], stdout=out, stderr=err)
        try:
            ended: object = child.wait(timeout=300)
        except subprocess.TimeoutExpired:
            ended = "no end"
            child.kill()
            child.wait()
    outcomes = [json.loads(line) for line in report.read_text().splitlines()]
    reasons = [(bomb.__name__, wrong(bomb, outcome)) for bomb, outcome in zip(BOMBS, outcomes, strict=False)]
    if len(outcomes) < len(BOMBS):
        reasons.append((BOMBS[len(outcomes)].__name__, f"{ended}: {complaints.read_text()[-1500:]}"))
    failures = [f"{name}: {reason}" for name, reason in reasons if reason]
    record("bombs", "test_bombs", len(reasons), len(failures), time.monotonic() - start)
    assert not failures, "\n".join(failures)
    assert complaints.read_text() == ""


def wrong(bomb: Callable[[Path], Path], outcome: dict[str, object]) -> str:
    if outcome["bytes"] > MOST_MEMORY:  # type: ignore[operator]
        return f"took {outcome['bytes']} bytes"
    if outcome["seconds"] > MOST_SECONDS:  # type: ignore[operator]
        return f"took {outcome['seconds']} seconds"
    if outcome["error"] == (bomb in HARMLESS):
        return f"gave {outcome['outcome']}"
    if outcome["error"]:
        check_error(str(outcome["outcome"]))
    return ""
