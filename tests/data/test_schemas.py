"""Schemas: written and read back, merged from several sites, checked at a site, and used for a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import comity
from comity import ComityError
from comity.__main__ import main
from comity.data import Column, Dataset, Schema, federate, load, merge_schemas, read_schema, schema_text, site_schema
from comity.data.schema import is_blank
from comity.data.sources.embedded import HEART
from comity.data.sources.infer import outwards

SITES = ("Cleveland", "Hungary", "Long Beach", "Switzerland")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(path: str) -> Dataset:
    dataset = load(path, schema="common.yaml")
    assert isinstance(dataset, Dataset)
    return dataset


# Files.

printable = st.characters(exclude_categories=("C", "Z")) | st.sampled_from("&*!|>'\"%@`#{}[],:-?")
names = st.one_of(
    st.text(printable, min_size=1, max_size=12),
    st.sampled_from(["yes", "no", "on", "~", "1", "1.5", "0x1F", "1e3", "2024-05-31", "<<", "=", "12:30", "a: b", "é"]),
).filter(lambda name: not is_blank(name))
limits = st.none() | st.floats(-1e9, 1e9)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    kind: Any = draw(st.sampled_from(["number", "boolean", "date", "ordered", "category", "blank"]))
    low, high = sorted(draw(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))))
    return Column(
        kind,
        tuple(draw(st.lists(names, min_size=1, unique=True))) if kind in ("ordered", "category") else (),
        other=kind == "category" and draw(st.booleans()),
        marked=draw(st.booleans()),
        unit=draw(st.just("") | names),
        low=draw(st.sampled_from([None, low])),
        high=draw(st.sampled_from([None, high])),
        day_first=draw(st.sampled_from([None, True, False])),
        constant=draw(st.booleans()),
    )


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    target, client, *own = draw(st.lists(names, min_size=4, max_size=8, unique=True))
    return Schema(
        target,
        tuple(draw(st.lists(names, min_size=1, unique=True))),
        {name: draw(columns()) for name in own},
        draw(st.sampled_from([None, client])),
        tuple(draw(st.lists(names, unique=True))),
        draw(st.none() | names),
        draw(st.dictionaries(names, names)),
    )


@settings(max_examples=50, deadline=None)
@given(schemas())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> None:
    file = tmp_path_factory.getbasetemp() / "written.yaml"
    file.write_text(schema_text(schema), encoding="utf-8")
    assert read_schema(file) == schema
    assert list(read_schema(file).columns) == list(schema.columns)


GOOD = {"format": 1, "target": "y", "classes": ["a", "b"], "columns": {"age": {"kind": "number"}}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "s.yaml has format 2; this comity reads format 1: update comity"),
        ({"format": "x"}, "has format x"),
        ({"classes": [True, False]}, r"s.yaml: Expected `str`, got `bool` - at `\$.classes\[0\]`; put text in quotes"),
        ({"classes": []}, "`classes` is empty"),
        ({"classes": ["a", "a"]}, "`classes` has the same name twice"),
        ({"classes": ["a", "NA"]}, "a name that means blank"),
        ({"colunms": {}}, "unknown field `colunms`"),
        ({"columns": {"age": {"kind": "nmber"}}}, "column age: Invalid enum value 'nmber'"),
        ({"columns": {"age": {"kind": "number", "low": 2.0, "high": 1.0}}}, "column age: `low` is above `high`"),
        ({"columns": {"age": {"kind": "number", "low": float("nan")}}}, "column age: a limit is no number"),
        ({"columns": {"sex": {"kind": "category"}}}, "column sex: a category needs `categories`"),
        ({"columns": {"sex": {"kind": "category", "categories": [""]}}}, "column sex: `categories` has an empty value"),
        ({"columns": {"sex": {"kind": "category", "categories": [1, 2]}}}, "column sex: Expected `str`, got `int`"),
        ({"columns": {"sex": {"kind": "ordered", "categories": ["a"], "other": True}}}, "`other` is for categories"),
        ({"columns": {"y": {"kind": "number"}}}, "`target` and `client` must be columns of their own"),
        ({"columns": []}, "Expected `object`, got `array`"),
    ],
)
def test_a_bad_file_is_one_line(here: Path, change: dict[str, Any], said: str) -> None:
    (here / "s.yaml").write_text(yaml.safe_dump(GOOD | change))
    with pytest.raises(ComityError, match=said) as caught:
        read_schema(here / "s.yaml")
    assert str(caught.value).startswith("schema ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: !!python/object:os.system x", "a: &a [*a]", "- 1", "a: " + "[" * 99, "\0", ""])
def test_no_other_yaml_is_read(here: Path, text: str) -> None:
    (here / "s.yaml").write_text(text)
    with pytest.raises(ComityError, match="schema "):
        read_schema(here / "s.yaml")


# The schema of a site.


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_range_holds_the_value_and_has_one_digit(value: float) -> None:
    low, high = outwards(value, -1), outwards(value, 1)
    assert low <= value <= high
    for limit in (low, high):
        digits = f"{limit:.17e}".partition("e")[0] if np.isfinite(limit) and abs(limit) > 1e-300 else "0."
        assert limit == 0 or float(f"{limit:.0e}") == limit, digits


def test_a_site_hands_on_no_small_cells(here: Path) -> None:
    rows = "".join(f"{k},{29.3 + k % 9},{'abc'[k % 3] if k > 3 else 'rare'},{k % 2}\n" for k in range(40))
    (here / "my.csv").write_text("id,age,ward,label\n" + rows)
    assert main(["schema", "my.csv", "-o", "s.yaml"]) == 0
    schema = read_schema(here / "s.yaml")
    assert schema.columns["age"] == Column("number", low=20.0, high=40.0)
    assert schema.columns["ward"] == Column("category", ("a", "b", "c"), other=True)
    assert (schema.id, schema.ignored) == ("id", {"id": "numbers the rows"})
    assert "rare" not in (here / "s.yaml").read_text()
    assert "29.3" not in (here / "s.yaml").read_text()
    assert main(["schema", "my.csv", "-o", "all.yaml", "--all-categories"]) == 0
    assert read_schema(here / "all.yaml").columns["ward"] == Column("category", ("a", "b", "c", "rare"))


# Merging.

AGE, SEX = Column("number", low=20.0, high=80.0), Column("category", ("f", "m"))
GRADE = Column("ordered", ("low", "mid", "high"))
A = Schema("y", ("0", "1"), {"age": AGE, "sex": SEX, "grade": GRADE}, "site", ("A",))
B = replace(A, clients=("B",))


def with_column(name: str, column: Column | None, schema: Schema = B) -> Schema:
    rest = {key: each for key, each in schema.columns.items() if key != name}
    return replace(schema, columns=rest if column is None else rest | {name: column})


def test_sites_that_agree() -> None:
    other = replace(B, classes=("1", "10", "2"), clients=("10",))
    other = with_column("age", Column("number", low=10.0, high=70.0), other)
    other = with_column("sex", Column("category", ("d", "f"), other=True), other)
    merged, found = merge_schemas({"a": A, "b": with_column("grade", Column("ordered", ("low", "high")), other)})
    assert [f"{each.column}: {each.words}" for each in found] == [
        "age: has different ranges: 20 to 80 (a); 10 to 70 (b); the widest is taken",
        "sex: has the category m only at a",
        "sex: has the category d only at b",
        "grade: has the category mid only at a",
    ]
    assert {each.level for each in found} == {"note"}
    assert (merged.classes, merged.clients) == (("0", "1", "2", "10"), ("10", "A"))
    assert merged.columns["age"] == Column("number", low=10.0, high=80.0)
    assert merged.columns["sex"] == Column("category", ("d", "f", "m"), other=True)
    assert merged.columns["grade"] == GRADE


@pytest.mark.parametrize(
    ("mine", "theirs", "together"),
    [
        (Column("blank"), AGE, AGE),
        (Column("blank"), Column("blank"), Column("blank")),
        (replace(AGE, constant=True), AGE, AGE),
        (replace(AGE, constant=True), replace(AGE, constant=True), AGE),  # each another constant, perhaps
        (replace(AGE, constant=True), Column("blank"), replace(AGE, constant=True)),
        (Column("category", ("f",), constant=True), SEX, SEX),
        (Column("category", ("f",), constant=True), Column("category", ("m",), constant=True), SEX),
        (*[Column("category", ("f",), constant=True)] * 2, Column("category", ("f",), constant=True)),
        (Column("date"), Column("date", day_first=True), Column("date", day_first=True)),
        (replace(AGE, unit="years"), replace(AGE, unit="years"), replace(AGE, unit="years")),
    ],
)
def test_blank_and_constant_columns_survive(mine: Column, theirs: Column, together: Column) -> None:
    for pair in ((mine, theirs), (theirs, mine)):
        sites = {name: with_column("x", each, site) for name, each, site in zip("ab", pair, (A, B), strict=True)}
        merged, found = merge_schemas(sites)
        assert merged.columns["x"] == together
        assert [each for each in found if "has the category" not in each.words] == []


@pytest.mark.parametrize(
    ("other", "words", "level"),
    [
        (with_column("age", SEX), "age: is of different kinds: number (a); category (b)", "column"),
        (with_column("sex", None), "sex: is missing at b; add it there, blank if need be", "column"),
        (with_column("more", AGE), "more: is missing at a; add it there, blank if need be", "column"),
        (
            with_column("grade", Column("ordered", ("high", "low"))),
            "grade: has its categories in different orders: low < mid < high; high < low",
            "column",
        ),
        (
            replace(with_column("sex", None), ignored={"sex": "text"}),
            "sex: is left out at b: text",
            "column",
        ),
        (with_column("sex", Column("category", ("F", "m"))), "sex: holds 'F' and 'f', which are probably", "note"),
        (with_column("sex", Column("category", ("f", "m", "mé"))), "", "note"),
        (replace(B, clients=("A",)), "client: A is the name at a and b", "table"),
        (replace(B, target="z"), "target: differs: y (a); z (b)", "table"),
        (replace(B, client="ward"), "client: is another column: site (a); ward (b)", "table"),
        (replace(B, client=None, clients=()), "client: has no column at b", "note"),
        (replace(B, classes=("ill", "Ill")), "target: 'Ill' and 'ill' are probably the same", "note"),
    ],
)
def test_a_disagreement_is_listed(other: Schema, words: str, level: str) -> None:
    merged, found = merge_schemas({"a": A, "b": other})
    said = {f"{each.column}: {each.words}": each for each in found if "has the category" not in each.words}
    assert bool(said) == bool(words)
    if words:
        (line,) = said
        assert line.startswith(words)
        assert said[line].level == level
        assert (said[line].column in merged.columns) == (level == "note" and said[line].column == "sex")


def test_units_and_dates_that_differ() -> None:
    for mine, theirs, words in (
        (replace(AGE, unit="mg"), replace(AGE, unit="g"), "has different units: mg (a); g (b)"),
        (Column("date", day_first=True), Column("date", day_first=False), "day first (a); month first (b)"),
    ):
        merged, found = merge_schemas({"a": with_column("x", mine, A), "b": with_column("x", theirs)})
        assert words in found[0].words
        assert "x" not in merged.columns
        assert merged.ignored["x"] == "the sites disagree about it"
    merged, found = merge_schemas({"a": with_column("x", replace(AGE, unit="mg"), A), "b": with_column("x", AGE)})
    assert (merged.columns["x"].unit, found[0].level) == ("mg", "note")


def test_the_command_writes_nothing_where_sites_disagree(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, schema in (("a", A), ("b", with_column("age", SEX))):
        (here / f"{name}.yaml").write_text(schema_text(schema))
    merge = ["schema", "a.yaml", "b.yaml", "-o", "common.yaml"]
    assert main(merge) == 2
    out, err = capsys.readouterr()
    assert out == "age: is of different kinds: number (a); category (b)\n"
    assert "must agree on age first; nothing is written (--drop leaves these columns out)" in err
    assert not (here / "common.yaml").exists()
    assert main([*merge, "--drop"]) == 0
    assert list(read_schema(here / "common.yaml").columns) == ["sex", "grade"]
    (here / "b.yaml").write_text(schema_text(replace(B, target="z")))
    assert main([*merge, "--drop"]) == 2
    assert main(["schema", "a.yaml", "b.yaml", "-o", "a.yaml"]) == 2
    assert main(["schema", "a.yaml", "x.csv", "-o", "c.yaml"]) == 2
    assert main(["schema", "-o", "c.yaml"]) == 2


# At a site, and in a rehearsal.


@pytest.fixture
def four(here: Path) -> dict[str, str]:
    """The table of each hospital, and common.yaml."""
    header, *rows = HEART.read_text().splitlines(keepends=True)
    found = {}
    for site in SITES:
        file = here / f"{site}.csv"
        file.write_text(header + "".join(row for row in rows if row.startswith(f"{site},")))
        (here / f"{site}.yaml").write_text(schema_text(site_schema(file, None, None)[0]))
        found[site] = str(file)
    assert main(["schema", *(f"{site}.yaml" for site in SITES), "-o", "common.yaml"]) == 0
    return found


def test_the_same_bits_alone_and_pooled(four: dict[str, str]) -> None:
    pooled = table(str(HEART))
    assert len(pooled) == 920
    assert pooled.schema == read_schema(Path("common.yaml"))
    for site, path in four.items():
        own, rows = table(path), pooled.columns["client"] == site
        assert np.array_equal(own.x.view(np.int32), pooled.x[rows].view(np.int32))
        assert np.array_equal(own.y, pooled.y[rows])
        assert own.class_names == pooled.class_names == ("no", "yes")
        assert main(["data", "--schema", "common.yaml", path]) == 0


@pytest.mark.usefixtures("four")
def test_clients_and_classes_in_the_order_of_the_schema() -> None:
    schema = read_schema(Path("common.yaml"))
    turned = replace(schema, clients=schema.clients[::-1], classes=("yes", "no"))
    Path("common.yaml").write_text(schema_text(turned))
    federation = federate(table(str(HEART)))
    assert federation.client_names == SITES[::-1]
    assert federation.class_names == ("yes", "no")
    assert federation.counts.tolist() == [[115, 8], [149, 51], [106, 188], [139, 164]]


def test_rows_that_do_not_fit_are_named(four: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path(four["Hungary"]).read_text().splitlines()
    bad = [line.replace(",male,", ",Mann,") if 9 < k < 50 else line for k, line in enumerate(lines)]
    bad[5] = bad[5].replace("Hungary", "Paris")
    Path("bad.csv").write_text("\n".join(bad))
    wrong = [k for k in range(len(bad)) if bad[k] != lines[k]]
    capsys.readouterr()
    assert main(["data", "--schema", "common.yaml", "bad.csv"]) == 2
    out, err = capsys.readouterr()
    said = out.splitlines()
    assert said[0] == "line 6, column hospital: unknown client Paris"
    assert said[1] == f"line {wrong[1] + 1}, column sex: unknown value Mann; known: female, male"
    assert (len(said), said[-1]) == (21, f"… and {len(wrong) - 20} more problems")
    assert f"{len(wrong)} of {len(lines) - 1} rows do not fit common.yaml" in err
    dataset = table("bad.csv")
    assert len(dataset) == len(lines) - 1 - len(wrong)
    named = ", ".join(f"line {k + 1}" for k in wrong[:5])
    assert f"left out: {len(wrong)} rows that do not fit common.yaml ({named}, …)" in dataset.notes[-1]


def test_columns_that_are_missing_or_new(four: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.csv").write_text(Path(four["Hungary"]).read_text().replace("cholesterol", "Cholesterin", 1))
    capsys.readouterr()
    assert main(["data", "--schema", "common.yaml", "bad.csv"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == ["missing column: cholesterol", "not in the schema, ignored: Cholesterin"]
    assert "bad.csv lacks 1 column of common.yaml" in err
    with pytest.raises(ComityError, match=r"data bad lacks cholesterol of common\.yaml"):
        table("bad.csv")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "sex"}, "data.target must be disease or left out, got sex: common.yaml names it"),
        ({"missing": "marked"}, "data.missing must be left out"),
    ],
)
def test_options_may_not_contradict_the_schema(four: dict[str, str], options: dict[str, str], said: str) -> None:
    with pytest.raises(ComityError, match=said):
        load(four["Hungary"], schema="common.yaml", **options)


def test_ordered_grades_by_hand(here: Path) -> None:
    (here / "my.csv").write_text("grade,label\n" + "mild,0\nsevere,1\nmild,0\nmoderate,1\n")
    grades = Column("ordered", ("mild", "moderate", "severe"))
    (here / "common.yaml").write_text(schema_text(Schema("label", ("0", "1"), {"grade": grades})))
    assert table("my.csv").x.tolist() == [[0], [2], [0], [1]]


def test_a_run_leaves_its_schema(here: Path) -> None:
    options: dict[str, Any] = {"rounds": 1, "reference": "none", "model": "logistic"}
    first = comity.run(data="heart", out="first", **options)
    schema = read_schema(here / "first/schema.yaml")
    assert schema.clients == SITES
    assert first.federation.preprocessing is not None
    assert schema == first.federation.preprocessing.schema
    (here / "common.yaml").write_text((here / "first/schema.yaml").read_text())
    assert np.array_equal(table(str(HEART)).x, load("heart").x, equal_nan=True)  # type: ignore[union-attr]
    comity.run(data="digits", clients=2, out="first", overwrite=True, **options)
    assert not (here / "first/schema.yaml").exists()
