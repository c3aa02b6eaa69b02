"""Files that hold a table: the same cells from each format, and no more memory than is allowed."""

import bz2
import gzip
import io
import lzma
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from comity import ComityError
from comity.data import Dataset, load, read_columns

TABLE = "hospital,age,sex,label\nnorth,63,m,0\nnorth,41.5,f,1\nsouth,,m,1\nsouth,50,f,0\n"


def zipped(content: bytes, **more: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, held in {"mine.csv": content, **more}.items():
            archive.writestr(name, held)
    return stream.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "mine.csv": bytes,
    "mine.tsv": lambda content: content.replace(b",", b"\t"),
    "mine.csv.gz": gzip.compress,
    "MINE.CSV.BZ2": bz2.compress,
    "mine.tsv.xz": lzma.compress,
    "mine.zip": zipped,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PACKED[name](TABLE.encode()))
    columns = read_columns(path)
    assert columns["age"] == ["63", "41.5", "", "50"]
    assert columns.lines == [2, 3, 4, 5]
    assert load(str(path)).name.lower() == "mine"
    assert len(load("mine", data_dir=tmp_path)) == 4  # by its name alone
    path.write_bytes(path.read_bytes()[:-9])
    if name not in ("mine.csv", "mine.tsv"):
        with pytest.raises(ComityError, match=r"(?i)mine.*corrupt or truncated"):
            read_columns(path)


@pytest.mark.parametrize("name", PACKED)
def test_a_bomb_is_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PACKED[name](b"a,label\n" + b"1,0\n" * 200_000))
    with pytest.raises(ComityError, match=r"needs .* of memory or more; the limit is 5\.0 MB"):
        read_columns(path, "5MB")


def test_a_zip_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "mine.zip").write_bytes(zipped(b"a,label\n1,0\n", other=b"b"))
    with pytest.raises(ComityError, match="must hold one table, got 2 files"):
        read_columns(tmp_path / "mine.zip")


def test_unicode_text_of_excel(tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_bytes("Größe\tlabel\n1\tja\n".encode("utf-16"))
    assert read_columns(tmp_path / "mine.tsv") == {"Größe": ["1"], "label": ["ja"]}


def test_a_short_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text('a,b\n"1\n2",3\n\n4\n')
    with pytest.raises(ComityError, match=r"mine\.csv, line 5: 1 cells; the header has 2"):
        read_columns(tmp_path / "mine.csv")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    sheet = made.active
    sheet.title = "Patients"
    for row in (
        [],
        ["hospital", "age", "seen", "ill", "note", "label", None],
        ["north", 63, datetime(2024, 5, 31), True, "1,5", 0],
        ["north", 41.5, datetime(2024, 6, 1), False, "2,25", 1],
        [],
        ["south", None, datetime(2024, 6, 3), True, "3", 1],
        [" south ", 50, "04.06.2024", False, "4", 0],
    ):
        sheet.append(row)
    made.create_sheet("Other").append(["a", "label"])
    made["Other"].append([1, 0])
    made.save(tmp_path / "mine.xlsx")
    return tmp_path / "mine.xlsx"


def test_a_sheet(book: Path) -> None:
    dataset = load(str(book))
    assert isinstance(dataset, Dataset)
    assert dataset.schema is not None
    assert [column.kind for column in dataset.schema.columns.values()] == ["number", "date", "boolean", "number"]
    assert dataset.x[:, 1:].tolist() == [[8917, 1, 1.5], [8918, 0, 2.25], [8920, 1, 3], [8921, 0, 4]]
    assert read_columns(book).lines == [3, 4, 6, 7]
    assert "of 2 sheets the first, Patients; --data.sheet names another" in dataset.notes[0]
    assert read_columns(book, sheet="Other") == {"a": [1], "label": [0]}
    with pytest.raises(ComityError, match=r"unknown sheet 'Othr' \(data\.sheet\); did you mean Other"):
        load(str(book), sheet="Othr")


def test_a_sheet_is_held_to_the_limit(book: Path) -> None:
    with pytest.raises(ComityError, match="the limit is"):
        read_columns(book, "10kB")


def test_a_sheet_with_entities_is_rejected(book: Path) -> None:
    laughs = b'<!DOCTYPE x [<!ENTITY a "ha">' + b"".join(
        b'<!ENTITY %c "%s">' % (98 + k, b"&%c;" % (97 + k) * 10) for k in range(9)
    )
    with zipfile.ZipFile(book) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    sheet = held["xl/worksheets/sheet1.xml"]
    held["xl/worksheets/sheet1.xml"] = laughs + b"]>" + sheet.replace(b"<v>63</v>", b"<v>&j;</v>")
    with zipfile.ZipFile(book, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    with pytest.raises(ComityError, match=r"mine\.xlsx: corrupt or truncated"):
        read_columns(book)


def test_a_far_cell_makes_no_large_table(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    made.active.append(["a", "label"])
    made.active.append([1, 0])
    made.active.cell(100_000, 2, 1)
    made.save(tmp_path / "mine.xlsx")
    columns = read_columns(tmp_path / "mine.xlsx")
    assert columns == {"a": [1, None], "label": [0, 1]}
    assert columns.lines == [2, 100_000]


def test_cells_far_to_the_right_are_held_to_the_limit(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    for row in range(1, 101):
        made.active.cell(row, 1, row)
        made.active.cell(row, 16_384, row)
    made.save(tmp_path / "mine.xlsx")
    with pytest.raises(ComityError, match=r"needs 5\..* MB of memory or more; the limit is 5\.0 MB"):
        read_columns(tmp_path / "mine.xlsx", "5MB")


def test_names_of_columns_are_made_unique(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,a (3),a,a,,a\n1,2,3,4,5,6\n")
    assert list(read_columns(tmp_path / "mine.csv")) == ["a", "a (3)", "a (2)", "a (4)", "column 5", "a (5)"]


def test_a_sheet_without_openpyxl(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ComityError, match=r"\.xlsx needs openpyxl: .*\[tables\]"):
        read_columns(book)


def test_data_frames_and_their_blanks() -> None:
    pandas = pytest.importorskip("pandas")
    from comity.data import dataset_of

    frame = pandas.DataFrame(
        {
            "age": pandas.array([63, None, 41, 50], "Int64"),
            "seen": pandas.to_datetime(["2024-05-31", None, "2024-06-01", "2024-06-02"]),
            "ill": pandas.array([True, False, None, True], "boolean"),
            "grade": [1.0, np.nan, 1.0, "x"],
            "label": [0, 1, 0, 1],
        }
    )
    dataset = dataset_of(frame, {"target": "label"})
    assert isinstance(dataset, Dataset)
    assert dataset.schema is not None
    assert dataset.schema.columns["grade"].categories == ("1", "x")
    nan = np.nan
    known = [[63, 8917, 1, 1, 0], [nan, nan, 0, nan, nan], [41, 8918, nan, 1, 0], [50, 8919, 1, 0, 1]]
    assert np.array_equal(dataset.x, np.array(known, np.float32), equal_nan=True)
