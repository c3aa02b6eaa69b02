"""CSV and Parquet as people have them, and the other forms in which samples arrive."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from comity import ComityError
from comity._datasets import DataFiles
from comity._errors import install
from comity.data import Column, Dataset, Schema, federate, load, schema_text
from comity.data.sources.reading import Budget
from comity.data.sources.table import table_of

MESSY = """patient_id;Hospital ; age;sex;blood type;country;note;outcome
101; North ;63;male;A;DE;felt fine;healthy
102;North;;female;B;DE;back pain;ill
103;South; 41,5;male;;DE;;healthy
104; South;77;female;0;DE;x;ill
105;South;55; male ;AB;DE;y;ill

106;North;48;female;A;DE;z;healthy
107;;50;male;A;DE;q;healthy
108;South;51;?;A;DE;w;
"""
# age, female, male, blood type 0, A, AB, B
CLEAN = [
    [63, 0, 1, 0, 1, 0, 0],
    [np.nan, 1, 0, 0, 0, 0, 1],
    [41.5, 0, 1, *[np.nan] * 4],
    [77, 1, 0, 1, 0, 0, 0],
    [55, 0, 1, 0, 0, 1, 0],
    [48, 1, 0, 0, 1, 0, 0],
]


def written(folder: Path, text: str | bytes, name: str = "mine.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def fails(line: str, path: str, **options: object) -> None:
    with pytest.raises(ComityError, match=line) as caught:
        load(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def read(path: str, **options: object) -> Dataset:
    dataset = load(path, **options)
    assert isinstance(dataset, Dataset)
    return dataset


def test_a_messy_table(tmp_path: Path) -> None:
    dataset = read(written(tmp_path, MESSY))
    assert np.array_equal(dataset.x, np.array(CLEAN, np.float32), equal_nan=True)
    assert dataset.y.tolist() == [0, 1, 0, 1, 1, 0]
    assert dataset.class_names == ("healthy", "ill")
    assert dataset.columns["client"].tolist() == ["North", "North", "South", "South", "South", "North"]
    said = " ".join(dataset.notes)
    for words in (
        "the target is outcome; each Hospital is a client",
        "6 rows; 1 numeric and 2 categorical columns make 7 features; 2 missing values",
        "patient_id (numbers the rows), country (always the same), note (text of 5 different values), "
        "2 rows without outcome or Hospital",
    ):
        assert words in said
    assert federate(dataset).client_names == ("North", "South")


@pytest.mark.parametrize(("wrong", "left_out"), [(6, True), (7, False)])
def test_numbers_with_a_few_other_cells(tmp_path: Path, wrong: int, left_out: bool) -> None:
    """A column of numbers with some text is not taken as categories without a word: it says which cells to mend."""
    ages = [*map(str, range(60 - wrong)), *["ill-read"] * wrong]
    table = "".join(f"{age},{i % 7},{i % 2}\n" for i, age in enumerate(ages))
    said = " ".join(read(written(tmp_path, "age,dose,outcome\n" + table)).notes)
    words = f"left out: age ({wrong} of 60 cells are no number, such as ill-read; leave them blank)"
    assert (words in said) is left_out


def test_marked_blanks(tmp_path: Path) -> None:
    x = read(written(tmp_path, MESSY), missing="marked").x
    assert x.shape == (6, 9)
    assert x[:, 1].tolist() == [0, 1, 0, 0, 0, 0]  # of age
    assert x[:, 8].tolist() == [0, 0, 1, 0, 0, 0]  # of blood type


def rows(cells: list[str], **others: list[str]) -> dict[str, list[str]]:
    return {"age": ["50", "60"] * 10, "pain": cells, "outcome": ["no", "yes"] * 10} | others


BLANK = "The column pain holds {!r} in {} of 20 rows, read as blank: is it a value? Then rename it, or list it"


@pytest.mark.parametrize(
    ("table", "asked"),
    [
        (rows(["none"] * 12 + ["mild", "strong"] * 4), BLANK.format("none", 12)),
        (rows(["-"] * 12 + ["+"] * 8), BLANK.format("-", 12)),
        (rows([" NA"] * 5 + ["EU", "APAC", "EU"] * 5), BLANK.format("NA", 5)),
        (rows(["none"] * 4 + ["mild", "strong"] * 8), ""),  # too few
        (rows(["NA"] * 12 + ["mild", "strong"] * 4, age=["NA", "63"] * 10), ""),  # it means blank in this table
        (rows(["none"] * 12 + ["1", "2"] * 4), ""),
        (rows(["?"] * 12 + ["mild", "strong"] * 4), ""),
        (
            rows(["mild", "strong"] * 10, outcome=["none", "none", "early", "late"] * 5),
            "The column outcome holds 'none' in 10 of 20 rows, which are left out: is it a value? Then rename it.",
        ),
    ],
)
def test_a_mark_of_blank_cells_that_may_be_a_value(table: dict[str, list[str]], asked: str) -> None:
    found = table_of("mine", table, DataFiles(), Budget()).warnings
    assert len(found) == bool(asked)
    assert all(each.startswith(asked) for each in found)


def test_a_schema_may_list_a_mark_of_blank_cells(tmp_path: Path) -> None:
    cells = ["none", "mild", "", "None"] * 5
    schema = Schema("outcome", ("no", "yes"), {"pain": Column("category", ("mild", "none"))})
    (tmp_path / "schema.yaml").write_text(schema_text(schema))
    dataset = table_of("mine", rows(cells), DataFiles(schema=str(tmp_path / "schema.yaml")), Budget())
    blank = [np.nan, np.nan]
    assert np.array_equal(dataset.x, np.array([[0, 1], [1, 0], blank, blank] * 5, np.float32), equal_nan=True)
    assert "10 missing values" in " ".join(dataset.notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_quotes_and_encodings(tmp_path: Path, delimiter: str) -> None:
    text = 'a,"b, and c",label\n1,x,Zürich\n2,"x",Bern\n3,y,Zürich\n1.5,y,Bern\n'.replace(",", delimiter)
    for encoded in (
        text.encode(),
        text.encode("utf-8-sig"),
        text.encode("latin-1"),
        text.replace("\n", "\r\n").encode(),
    ):
        dataset = read(written(tmp_path, encoded))
        assert dataset.x.tolist() == [[1, 1, 0], [2, 1, 0], [3, 0, 1], [1.5, 0, 1]]
        assert dataset.class_names == ("Bern", "Zürich")


def test_columns_that_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "where,score,stage\n7,1,2\n7,2,4\n9,3,2\n9,5,4\n9,4,4\n")
    dataset = read(path, target="Stage", client="where")
    assert dataset.class_names == ("2", "4")
    assert dataset.columns["client"].tolist() == [7, 7, 9, 9, 9]
    fails(r"which column is to be predicted\? Give data.target, one of where, score", path)
    fails(r"unknown column 'stag' \(data.target\); did you mean stage\?", path, target="stag")
    fails(r"data\.client must be another column than data.target", path, target="stage", client="stage")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no columns"),
        ("a,label\n", "no row has a value of label"),
        ("a,label\n1,\n2, NA\n", "no row has a value of label"),
        ("a,label\n1,0\n2\n", "line 3: 1 cells; the header has 2"),
        ("a,label,label\n1,1,0\n", "data.target: two columns are called label"),
        ("Patients of 2024,\na,label\n1,0\n2,1\n", "line 1: a title stands above the names of the columns"),
        ("a,label\n1,0.5\n2,0.25\n3,0.5\n", "label holds 2 different numbers such as 0.25, .* make a column of bins"),
        ("a,y\n" + "".join(f"{row % 7},{18 + row % 60}\n" for row in range(600)), "y holds 60 different numbers"),
        ("a,label\n1,10\n2,11\n5,12\n", "label has 3 different values in 3 rows"),
        ("a,label\n1,0\n1,1\n1,1\n1,0\n", r"no column to learn from; left out: a \(always the same\)"),
        ("a,label\ninf,0\n1,1\n1,1\n1,0\n", "line 2, column a: inf is not finite"),
        ('a,label\n"1,0\n', "line 2: corrupt or truncated: unexpected end of data"),
        ("a\0,label\n1,0\n", "not a text file"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, line: str) -> None:
    fails(line, written(tmp_path, text))


@pytest.mark.parametrize(("numbers", "questioned"), [(9, False), (10, True), (44, True)])
def test_a_target_that_looks_like_a_quantity_is_questioned(tmp_path: Path, numbers: int, questioned: bool) -> None:
    rows = "".join(f"{row % 7},{18 + row % numbers}\n" for row in range(200))
    path = written(tmp_path, "a,BMI\n" + rows)
    asked = read(path, target="BMI").warnings
    assert len(asked) == questioned
    for question in asked:
        assert (
            f"BMI holds {numbers} different numbers, 18 to {17 + numbers}: are they classes? If so, carry on"
            in question
        )
        assert "If it is a quantity, add a column of bins" in question
    words = written(tmp_path, "a,BMI\n" + rows.replace(",", ",group "))
    assert read(words, target="BMI").warnings == ()


def test_many_classes_are_classes_where_each_has_rows_enough(tmp_path: Path) -> None:
    rows = "".join(f"{row % 7},{18 + row % 60}\n" for row in range(1200))
    assert load(written(tmp_path, "a,y\n" + rows)).classes == 60


def test_a_table_is_held_to_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, "a,label\n" + "1,0\n2,1\n" * 5000)
    fails("the limit is 100", path, limit="100kB")
    wide = "a,label\n" + "".join(f"{k % 50:02}x,{k % 2}\n" for k in range(20_000))  # 50 categories a row
    fails("the limit is 2", written(tmp_path, wide), limit="2MB")


def test_options_of_tables_are_for_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    fails(r"data.client must be left out, got site: .*mine.npz is no table", str(tmp_path / "mine.npz"), client="site")
    fails(r"data.size must be left out, got 32", written(tmp_path, MESSY), size=32)


def test_parquet_is_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "age": [63, None, 41.5, 77],
        "sex": ["male", "female", None, "male "],
        "site": [1, 1, 2, 2],
        "ill": [True, False] * 2,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    text = "age,sex,site,ill\n63,male,1,1\n,female,1,0\n41.5,,2,1\n77,male,2,0\n"
    one, other = read(str(tmp_path / "mine.parquet"), target="ill"), read(written(tmp_path, text), target="ill")
    assert np.array_equal(one.x, other.x, equal_nan=True)
    assert (one.y.tolist(), one.columns["client"].tolist()) == (other.y.tolist(), other.columns["client"].tolist())
    (tmp_path / "mine.parquet").write_bytes((tmp_path / "mine.parquet").read_bytes()[:-20])
    fails(r"mine\.parquet: corrupt or truncated", str(tmp_path / "mine.parquet"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    fails(re.escape(f"Parquet needs pyarrow: {install('tables')}"), written(tmp_path, b"PAR1", "mine.parquet"))


# npz


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("data", "targets")])
def test_npz_under_other_names(tmp_path: Path, names: tuple[str, str]) -> None:
    x, y = np.arange(24.0).reshape(6, 4), np.array([1, 2, 3, 1, 2, 3])
    np.savez(tmp_path / "mine.npz", **{names[0]: x, names[1]: y, "client": ["a", "b"] * 3})
    dataset = read(str(tmp_path / "mine.npz"))
    assert dataset.x.tolist() == x.tolist()
    assert dataset.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.class_names == ("1", "2", "3")
    assert federate(dataset).client_names == ("a", "b")


def test_npz_of_medmnist(tmp_path: Path) -> None:
    parts = {
        f"{split}_{kind}": np.full((2, 8, 8), k, np.uint8) if kind == "images" else np.array([[0], [1]])
        for k, split in enumerate(("train", "val", "test"))
        for kind in ("images", "labels")
    }
    np.savez(tmp_path / "mine.npz", **parts)
    dataset = read(str(tmp_path / "mine.npz"))
    assert dataset.shape == (1, 8, 8)
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_text_labels() -> None:
    dataset = Dataset("mine", np.zeros((4, 2)), np.array([" dog", "cat", "dog", "cat"]))
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 1, 0], ("cat", "dog"))
    assert Dataset("mine", np.zeros((2, 2)), [1, 2], classes=4).y.tolist() == [1, 2]  # counted from 0 by its own word


# Folders with sites.


def test_sites_are_clients(tmp_path: Path) -> None:
    held = {"Basel": ("ill", "well"), "Bern": ("ill", "well"), "Chur": ("well",)}
    for site, classes in held.items():
        for label in classes:
            (tmp_path / site / label).mkdir(parents=True)
            for k in range(4):
                Image.new("L", (8, 8), 60 * k).save(tmp_path / site / label / f"{k}.png")
    dataset = read(f"{tmp_path}/")
    federation = federate(dataset)
    assert federation.client_names == ("Basel", "Bern", "Chur")
    assert federation.class_names == ("ill", "well")
    assert federation.counts.tolist() == [[4, 4], [4, 4], [0, 4]]
    assert "the folders Basel, Bern, Chur are sites" in federation.notes[0]
    assert torch.equal(federation.clients[2].train.y, torch.ones_like(federation.clients[2].train.y))


def test_folders_in_class_folders_are_no_sites(tmp_path: Path) -> None:
    for label in ("ill", "well"):
        (tmp_path / label / "images").mkdir(parents=True)
        for k in range(3):
            Image.new("L", (8, 8), 60 * k).save(tmp_path / label / "images" / f"{k}.png")
    assert read(f"{tmp_path}/").class_names == ("ill", "well")
