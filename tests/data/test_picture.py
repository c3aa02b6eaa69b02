"""The table in the terminal and the picture."""

import io
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from comity.data import Dataset, Dirichlet, Federation, Pathological, Synthetic, describe, draw, federate, load

SVG = "{http://www.w3.org/2000/svg}"


def printed(federation: Federation, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(describe(federation))
    return console.export_text()


def circles(path: Path) -> dict[tuple[int, int], tuple[float, int]]:
    """Client and class of every bubble, its radius and its tooltip's count."""
    found = {}
    for circle in ElementTree.parse(path).iter(f"{SVG}circle"):
        told = circle.findtext(f"{SVG}title")
        if told:
            client, label, count = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", told))
            found[client, label] = float(circle.attrib["r"]), count
    return found


def test_table_holds_the_counts_and_fits_80_columns() -> None:
    federation = federate(load("digits"), Dirichlet(), clients=20, val_share=0.2)
    text = printed(federation)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for client, row in enumerate(federation.counts):
        sizes = [len(getattr(federation.clients[client], split)) for split in ("train", "val", "test")]
        cells = [str(n) if n else "·" for n in row]
        assert " ".join([str(client), *map(str, sizes), *cells]) in re.sub(" +", " ", text)
    assert "Dirichlet(alpha=0.1, min_partition_size=10) · seed 0" in text
    assert "1,797 samples" in text


def test_clients_and_classes_by_name(tmp_path: Path) -> None:
    federation = federate(load("heart"))
    text = re.sub(" +", " ", printed(federation))
    assert "client train test no yes" in text
    assert "Long Beach 140 60 51 149" in text
    drawn = draw(federation, tmp_path / "heart.svg").read_text(encoding="utf-8")
    assert "client Switzerland, class yes: 115" in drawn
    assert ">Switzerland</text>" in drawn
    hostile = Dataset("mine", np.zeros((8, 2)), np.arange(8) // 2 % 2, columns={"client": ["[red]a", "<b>"] * 4})
    federation = federate(hostile)
    assert "[red]a" in printed(federation)
    ElementTree.parse(draw(federation, tmp_path / "mine.svg"))


def test_where_accuracy_means_little() -> None:
    assert federate(load("heart")).caveat == ""
    y, client = np.array([0] * 40 + [0, 1] * 20 + [0, 1] * 4), np.repeat(["Bern", "Basel", "Chur"], [40, 40, 8])
    federation = federate(Dataset("mine", np.zeros((88, 2)), y, columns={"client": client}))
    assert federation.caveat == (
        "Accuracy means little for clients Bern (1 of 3) which hold one class; and Chur (1 of 3) which have fewer "
        "than 10 test samples."
    )


def test_table_without_validation_has_no_such_column() -> None:
    assert "val" not in printed(federate(load("digits"), Dirichlet(), clients=5))


def test_table_is_short_with_many_classes() -> None:
    federation = federate(Synthetic(classes=50, label_shift=0.9), clients=4)
    text = re.sub(" +", " ", printed(federation))
    for client, row in enumerate(federation.counts):
        train, test = (len(getattr(federation.clients[client], split)) for split in ("train", "test"))
        assert f"{client} {train} {test} {(row > 0).sum()} class {row.argmax()} {row.max() / 100:.0%}" in text


def test_table_is_short_with_many_clients() -> None:
    text = printed(federate(Synthetic(), clients=300))
    assert "…" in text
    assert len(text.splitlines()) < 40


def test_picture_area_is_samples(tmp_path: Path) -> None:
    federation = federate(load("digits"), Dirichlet(), clients=20)
    bubbles = circles(draw(federation, tmp_path / "new" / "digits.svg"))
    counts = federation.counts
    assert {key: count for key, (_, count) in bubbles.items()} == {
        (i, c): counts[i, c] for i, c in zip(*counts.nonzero(), strict=True)
    }
    radius, count = max(bubbles.values())
    for r, n in bubbles.values():
        assert r == pytest.approx(max(0.8, radius * math.sqrt(n / count)), abs=0.01)


@pytest.mark.parametrize(("clients", "classes"), [(2, 2), (20, 10), (100, 10), (20, 102), (500, 3)])
def test_picture_stays_inside_its_frame(clients: int, classes: int, tmp_path: Path) -> None:
    federation = federate(Synthetic(classes=classes, samples=30), clients=clients)
    root = ElementTree.parse(draw(federation, tmp_path / "x.svg")).getroot()
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for circle in root.iter(f"{SVG}circle"):
        x, y, r = (float(circle.attrib[key]) for key in ("cx", "cy", "r"))
        assert r <= x <= width - r
        assert r <= y <= height - r
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"class", "client", "samples", "samples (area)"} <= words
    assert ("the first 400 clients drawn" in str(words)) == (clients > 400)


def test_picture_escapes_names(tmp_path: Path) -> None:
    federation = federate(load("digits"), Pathological(), clients=3)
    odd = Federation("<a & b>", federation.shape, 10, federation.clients, 0, "x < y")
    words = {text.text for text in ElementTree.parse(draw(odd, tmp_path / "x.svg")).iter(f"{SVG}text")}
    assert "<a & b>: 3 clients × 10 classes" in words
