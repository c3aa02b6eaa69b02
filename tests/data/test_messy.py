"""What becomes of everything that people do to tables: messy/patients.csv has it all."""

from pathlib import Path

import numpy as np
import pytest

from comity.data import Dataset, federate, load, read_columns
from comity.data.sources.columns import with_decimal_points
from comity.data.sources.infer import infer_column

MESSY = Path(__file__).parent / "messy/patients.csv"
nan = np.nan


@pytest.fixture(scope="module")
def messy() -> Dataset:
    dataset = load(str(MESSY), client="Klinik")
    assert isinstance(dataset, Dataset)
    return dataset


# In Excel's German: `sep=;`, Windows' letters and line ends, blank lines, two nameless columns at the end.
BECOMES: dict[str, list[float]] = {
    "Alter": [63, 71, nan, 58, 49, 66],  # one cell is blank
    "Größe (m)": [1.75, 1.8, 1.62, 1.7, 1.69, 1.81],  # 1.69 among decimal commas
    "Kosten €": [1234.5, 980, 12000, 450.5, 77, 1e6],  # 1.234,50 and 1.000.000,00
    "Dosis": [5, 2.5, 10, 5, 7.5, 5],  # 5 mg
    "Hb": [41, 38.5, 40, nan, 39, 44],  # 41 %, and #N/A
    "Aufnahme": [8917, 8918, 8919, 8920 + 14.5 / 24, 8921, 8922],  # 2024-05-31, 01.06.2024, 2024/6/2, with a time
    "Kontrolle": [8930, 8919, 8914, 8948, 8947, 8932],  # 13/06/2024: the day is first in the whole column
    "Raucher": [1, 0, 1, 0, nan, 0],  # TRUE, false, ?
    "Schmerz = Stark": [nan, 0, 0, 1, 0, 0],  # "none" is blank
    "Schmerz = leicht": [nan, 1, 0, 0, 1, 1],
    "Schmerz = stark": [nan, 0, 1, 0, 0, 0],
    "Station = A": [1, 0, 1, 0, 1, 0],
    "Station = B": [0, 1, 0, 1, 0, 1],
    "Station (2)": [7, 8, 9, 7, 8, 9],  # the second column of that name
}


@pytest.mark.parametrize("feature", BECOMES)
def test_a_feature(messy: Dataset, feature: str) -> None:
    assert messy.schema is not None
    found = messy.x[:, messy.schema.features.index(feature)]
    assert np.array_equal(found, np.array(BECOMES[feature], np.float32), equal_nan=True)


def test_nothing_else_is_a_feature(messy: Dataset) -> None:
    assert messy.schema is not None
    assert messy.schema.features == list(BECOMES)
    assert messy.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert federate(messy).client_names == ("Nord", "Süd")  # also where blanks are around it


@pytest.mark.parametrize(
    "words",
    [
        "Station is the name of several columns; one of them is called Station (2) here",
        "left out: the last row (line 14), which begins with Summe",
        "dates count days since 2000-01-01",
        "numbers with units: Dosis in mg, Hb in %",
        "Nr (numbers the rows)",
        "Termin (dates such as 05/06/2024: day or month first? Write them as 2024-12-31)",
        "Befund vom (dates such as 31.05.24 without the century; write them as 2024-12-31)",
        "Bemerkung (text of 6 different values)",
        "Land (always the same)",
        "leer (blank)",
        "Medikament (numbers in g and mg; convert them to one unit)",
        "2 rows without outcome or Klinik",
    ],
)
def test_it_is_said(messy: Dataset, words: str) -> None:
    assert words in " ".join(messy.notes)


def test_it_is_asked(messy: Dataset) -> None:
    assert messy.warnings == ("The column Schmerz holds 'Stark' and 'stark': are they the same?",)


def test_lines_are_those_of_the_file() -> None:
    columns = read_columns(MESSY)
    assert columns.lines == [3, 4, 7, 8, 10, 11, 12, 13, 14]  # `sep=;` is line 1, and a cell goes over two lines
    file = MESSY.read_bytes().decode("cp1252").split("\n")
    assert [file[line - 1].partition(";")[0] for line in columns.lines] == columns["Nr"]
    assert "" not in columns


@pytest.mark.parametrize(
    ("cells", "delimiter", "numbers"),
    [
        (["12,5", "3"], ";", [12.5, 3]),
        (["1.234,5", "1.234"], ";", [1234.5, 1234]),
        (["1,234", "7"], ";", [1.234, 7]),
        (["1,234", "7"], ",", [1234, 7]),
        (["1,234", "1,234.5"], ";", [1234, 1234.5]),
        (["1,234,567", "1"], "\t", [1234567, 1]),
        (["1,234", "7"], "\t", None),  # nobody knows
        (["1,234", "7,5"], "\t", [1.234, 7.5]),
        (["1'234.5", "1\u202f234"], ",", [1234.5, 1234]),
        (["1.234", "2.5"], ";", [1.234, 2.5]),
        (["12,5", "13.5"], ";", [12.5, 13.5]),
        (["12,5 mg", "7 mg"], ";", [12.5, 7]),
        (["1,2,3", "4"], ",", None),
        (["1_000", "4"], ",", None),
        (["120 100", "110 100"], ",", None),
    ],
)
def test_numbers_as_people_write_them(cells: list[str], delimiter: str, numbers: list[float] | None) -> None:
    points = with_decimal_points(cells, delimiter)
    column = infer_column("a", points, False)
    if numbers is None:
        assert points == cells
        assert getattr(column, "kind", "") != "number"
    else:
        assert not isinstance(column, str)
        assert column.kind == "number"
        assert column.encode(points)[0][:, 0].tolist() == np.array(numbers, np.float32).tolist()


def test_text_with_a_number_in_it_stays_as_it_is() -> None:
    assert with_decimal_points(["1,5", "low", "high", "none of it"], ";") == ["1,5", "low", "high", "none of it"]
