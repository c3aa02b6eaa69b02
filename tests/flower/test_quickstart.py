"""The example: Flower's own quick start, whose only changed line is the strategy."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"
SETTINGS = {"num-server-rounds": 3, "fraction-train": 0.6, "local-epochs": 1, "learning-rate": 0.1}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("try_it")
    for name in [name for name in sys.modules if name.split(".")[0] in ("quickstart", "try_it")]:
        del sys.modules[name]


def test_only_the_strategy_differs_from_flowers_own() -> None:
    changed = [
        line for line in (EXAMPLE / "quickstart" / "server_app.py").read_text().splitlines() if "# was: " in line
    ]
    assert len(changed) == 2  # where it is from, and where it is made
    for file in ("client_app.py", "task.py"):
        assert "comity" not in (EXAMPLE / "quickstart" / file).read_text()


def start(example: ModuleType, client: Any, settings: dict[str, Any]) -> None:
    grid = example.InProcessGrid(client, clients=5, run_config=settings)
    example.server(grid, Context(1, 1, {}, RecordDict(), settings))


def test_it_learns_and_flowers_history_has_the_conflict_rate(
    example: ModuleType, log: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    start(example, example.client, SETTINGS)
    told = log.text
    assert "Sampled 3 nodes (out of 5)" in told
    assert "Received 3 results and 0 failures" in told
    assert "conflict-rate" in told
    assert "eval_acc" in told
    assert Path("final_model.pt").exists()


@pytest.mark.parametrize("epsilon", [0.0, 500.0])
def test_clipping_and_local_differential_privacy(
    example: ModuleType, log: pytest.LogCaptureFixture, epsilon: float
) -> None:
    settings = SETTINGS | {"num-server-rounds": 1, "clipping-norm": 0.5, "epsilon": epsilon}
    start(example, example.private_client, settings)
    told = log.text
    assert "parameters are clipped by value: 0.5000" in told
    assert ("local DP noise" in told) == (epsilon > 0)
    assert "Received 3 results and 0 failures" in told


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_it_can_be_bundled() -> None:
    assert len(build_fab_from_disk(EXAMPLE)) < 20_000
