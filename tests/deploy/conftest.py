"""Models to try: of tables, with and without a guard."""

import csv
from pathlib import Path

import numpy as np
import pytest

from comity import run
from helpers import Options

QUICK: Options = {"rounds": 1, "workers": 1, "control": "none"}


@pytest.fixture(scope="session")
def heart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Cleveland's model: two models mixed, decided by balanced accuracy."""
    out = tmp_path_factory.mktemp("heart") / "run"
    run(**QUICK, data="heart", guard="mixture", out=out)
    return out / "models" / "000-cleveland"


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of three raw features, given in Python, and two classes."""
    out = tmp_path_factory.mktemp("numbers") / "run"
    random = np.random.default_rng(0)
    x = random.normal(size=(90, 3)) * [1, 10, 0.1] + 5
    y = (x[:, 0] + x[:, 1] / 10 + random.normal(size=90) > 5.5).astype(int)
    run(**QUICK, data=(x, y, np.repeat(["a", "b", "c"], 30)), out=out)
    return out / "models" / "000-a"


@pytest.fixture
def new_rows(tmp_path: Path) -> Path:
    """A table with the columns of heart, and a row that does not fit."""
    from importlib.resources import files

    text = files("comity.data.sources").joinpath("heart.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))[:5]
    for row in rows:
        del row["disease"]
    rows[1]["age"] = ""
    rows[2]["sex"] = "unknown"
    rows[3]["age"] = "=1+1"
    file = tmp_path / "new.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return file
