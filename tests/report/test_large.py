"""A study of 200 runs stays small and quick to open."""

import os
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from headless import browser, find
from test_page import data_of

from comity.compare import LoadedStudy
from comity.report import write
from comity.report._maps import COSINES, CosineMaps
from run_folders import make

MOST_BYTES, MOST_SECONDS = 15e6, 3.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """204 runs of 20 clients and 18 layers: 17 methods × 3 rules × 4 seeds."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    layers = [f"body.layer{i // 2}.{'weight' if i % 2 == 0 else 'bias'}" for i in range(18)]
    for rule in ("Mean", "ConFREE", "CALM"):
        accuracy = random.uniform(0.5, 0.9, 20).tolist()
        model = make(folder / "models" / rule, accuracy, alone=[0.6] * 20, rule=rule, rounds=60, layers=layers)
        config = yaml.safe_load((model / "config.yaml").read_text())
        for method, seed in product(range(17), range(4)):
            run = folder / "study" / f"{method}-{rule}-{seed}"
            shutil.copytree(model, run, copy_function=os.link, ignore=shutil.ignore_patterns("config.yaml"))
            changed = config | {"method": {"name": f"Method{method}"}, "seed": seed}
            (run / "config.yaml").write_text(yaml.safe_dump(changed))
    return write([folder / "study"], folder / "report.html")


def test_size(large: Path) -> None:
    assert large.stat().st_size < MOST_BYTES
    data = data_of(large.read_text())
    assert len(data["runs"]) == 204
    assert len(data["cells"]) == 51
    assert all(len(run["ids"]) == 20 for run in data["runs"])
    kept = [run["w"] for run in data["runs"] if run["w"]]
    assert len(kept) >= 51  # at least one seed of each cell shows its weights


def test_many_clients_leave_out_cosines_not_runs(tmp_path: Path) -> None:
    """400 clients: a matrix is 160 kB, 200 of them are too many for a page."""
    for method, seed in product(range(67), range(3)):
        more = {"method": f"M{method}", "seed": seed, "options": {"clients": 400}, "done": 0, "thorough": False}
        make(tmp_path / str(method) / str(seed), [0.5], **more)
    maps = CosineMaps(LoadedStudy(tmp_path))
    assert 0 < len(maps.held) * 400**2 <= COSINES
    assert maps.single_rounds == 0
    assert len(CosineMaps(LoadedStudy(*(tmp_path / str(method) for method in range(3)))).held) == 9


@pytest.mark.skipif(find() is None, reason="no browser: neither chromium nor google-chrome is installed")
def test_it_opens_quickly(large: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open(large)  # the first page pays for the start of the browser
        seconds = min(tab.open(large) for _ in range(2))
        assert tab.problems == []
        assert tab.js("document.querySelectorAll('#plot-convergence [data-of]').length") > 0
    assert seconds < MOST_SECONDS
