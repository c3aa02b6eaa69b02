"""Columns of text: hashed words and letters."""

import csv
import zlib
from pathlib import Path

import numpy as np
import pytest

import comity
from comity import ComityError
from comity.data import Column, Dataset, Schema, federate, load, merge_schemas, read_schema, schema_text
from comity.data.text import TEXT_FEATURES, hashed, pieces

GOOD, BAD = (
    ("lovely and warm", "warm, lovely tune", "what a lovely day"),
    ("win CASH now", "cash prize!", "free cash $$$"),
)


@pytest.fixture
def comments(tmp_path: Path) -> Path:
    """A table in which one word decides."""
    path = tmp_path / "comments.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("client", "target", "comment", "length"))
        for k in range(60):
            text = (BAD if k % 2 else GOOD)[k % 3] + f" {k}"
            writer.writerow((f"site{k % 3}", "spam" if k % 2 else "ham", text if k > 1 else "", k % 5))
    return path


def test_pieces_are_words_signs_and_three_letters() -> None:
    assert list(pieces("Hi\n Bo!")) == ["word hi", "word bo", "word !", " hi", "hi ", "i b", " bo", "bo!", "o! "]
    assert list(pieces("")) == []


def test_features_say_which_pieces_a_text_holds() -> None:
    found = hashed(["Hi Bo!", "", "hi  BO!"], 50)
    places = {zlib.crc32(piece.encode()) % 50 for piece in pieces("hi bo!")}
    assert set(np.flatnonzero(found[0])) == places
    assert not found[1].any()
    assert (found[2] == found[0]).all()  # case and spaces do not matter
    assert set(np.unique(found)) == {0, 1}
    assert hashed(["\ud800"], 8).sum()  # what is no text in UTF-8


def test_a_column_of_text_is_learnt_from_when_it_is_named(comments: Path) -> None:
    without, found = load(str(comments)), load(str(comments), text="comment")
    assert isinstance(without, Dataset)
    assert isinstance(found, Dataset)
    assert without.x.shape == (60, 1)
    assert found.x.shape == (60, TEXT_FEATURES + 1)
    assert any("1 text and" in note and "missing" not in note for note in found.notes)
    train = federate(found).clients[0].train.x
    assert np.abs(train[:, :TEXT_FEATURES].numpy()).max() <= 1  # centred, not scaled


def test_text_decides_in_a_run_and_travels_in_the_schema(comments: Path, tmp_path: Path) -> None:
    run = comity.run(
        data={"name": str(comments), "text": "comment"}, rounds=10, workers=1, control="none", out=tmp_path / "run"
    )
    assert run.clients.frame()["value"].mean() > 0.8
    schema = read_schema(tmp_path / "run" / "schema.yaml")
    assert schema.columns["comment"] == Column("text")
    (tmp_path / "again.yaml").write_text(schema_text(schema).replace("kind: text", "kind: text\n    width: 64"))
    narrow = load(str(comments), schema=str(tmp_path / "again.yaml"))
    assert isinstance(narrow, Dataset)
    assert narrow.x.shape == (60, 65)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"text": "coment"}, r"unknown column 'coment' \(data.text\); did you mean comment"),
        ({"text": "target"}, "data.text must be another column than those of target and client, got target"),
    ],
)
def test_what_is_no_column_of_text_is_rejected(comments: Path, options: dict[str, str], line: str) -> None:
    with pytest.raises(ComityError, match=line):
        load(str(comments), **options)


def test_a_width_out_of_range_is_rejected() -> None:
    with pytest.raises(ValueError, match="`width` must be 1 to 65,536"):
        Column("text", width=0)


def test_sites_must_agree_about_the_width() -> None:
    wide, narrow = (Schema("y", ("a", "b"), {"text": Column("text", width=width)}) for width in (64, 32))
    assert merge_schemas({"one": wide, "two": wide})[0].columns == {"text": Column("text", width=64)}
    merged, found = merge_schemas({"one": wide, "two": narrow})
    assert "text" not in merged.columns
    assert [each.words for each in found if each.column == "text"] == [
        "has different numbers of features: 64 (one); 32 (two)"
    ]
