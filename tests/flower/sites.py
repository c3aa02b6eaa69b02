"""Four hospitals, each with its table in a folder of its own, and the schema that they agreed on."""

import csv
import re
from pathlib import Path

from comity.commands import command

HEART = Path(__file__).parents[2] / "src" / "comity" / "data" / "sources" / "heart.csv"
NAMES = ("Cleveland", "Hungary", "Long Beach", "Switzerland")


def write_tables(folder: Path) -> None:
    """``NAME/patients.csv`` for each hospital, ``pooled/patients.csv``, and ``common.yaml`` as the sites make it."""
    with HEART.open() as file:
        header, *rows = csv.reader(file)
    owner = header.index("hospital")
    for name in ("pooled", *NAMES):
        place = folder / name / "patients.csv"
        place.parent.mkdir(parents=True)
        with place.open("w", newline="") as file:
            csv.writer(file).writerows([header, *(row for row in rows if name in ("pooled", row[owner]))])
    files = [str(folder / name / "schema.yaml") for name in NAMES]
    for name, schema in zip(NAMES, files, strict=True):
        assert command("schema", [str(folder / name / "patients.csv"), "-o", schema]) == 0
    assert command("schema", [*files, "-o", str(folder / "common.yaml")]) == 0


def without(source: Path, to: Path, *columns: str) -> None:
    """A schema without some columns."""
    text = source.read_text()
    for name in columns:
        text, count = re.subn(rf"^  {name}:\n(    .*\n)+", "", text, flags=re.MULTILINE)
        assert count == 1
    to.write_text(text)
