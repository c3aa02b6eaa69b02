"""How much each client's updates went with the step: over rounds, in the result, and through a stop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comity
from comity.data import Dataset, federate
from comity.engine._result import contributions_of
from comity.results import LoadedRun
from comity.results.schema import RoundRecord


def rounds(*cosines: dict[int, float]) -> list[RoundRecord]:
    return [RoundRecord(round=number, step_cosines=each) for number, each in enumerate(cosines, 1)]


def test_the_moving_average_by_hand() -> None:
    one, two = {0: 0.5, 1: -0.25}, {0: 0.1, 1: 0.75, 2: 0.5}
    late = [(0.95 * 0.05 * a + 0.05 * b) / (0.95 * 0.05 + 0.05) for a, b in ((0.5, 0.1), (-0.25, 0.75))]
    size = sum(map(abs, late)) + 0.5
    found = contributions_of(rounds(one, two))
    assert [found[cid] for cid in (0, 1, 2)] == pytest.approx([late[0] / size, late[1] / size, 0.5 / size])


def test_what_it_comes_to_in_simple_cases() -> None:
    assert contributions_of(rounds({}, {})) == {}
    assert contributions_of(rounds({3: 1.0})) == {3: 1.0}
    assert contributions_of(rounds({0: 0.4, 1: 0.4}, {0: 0.2, 1: 0.2})) == pytest.approx({0: 0.5, 1: 0.5})
    assert contributions_of(rounds({0: 1.0, 1: 1.0}, {0: 0.5, 1: -0.5}), memory=0.0) == pytest.approx({0: 0.5, 1: -0.5})
    assert contributions_of(rounds({0: 0.0})) == {}  # nobody moved


def test_in_a_run_and_back_from_its_folder(tmp_path: Path) -> None:
    """Two of four clients hold the same samples, one has its labels at random."""
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 5))
    y = (x @ np.array([2.0, -1.0, 1.0, 0.0, 0.5]) > 0).astype(int)
    x[60:120], y[60:120] = x[:60], y[:60]
    y[180:] = random.integers(0, 2, 60)
    test = np.tile(np.arange(60) % 5 == 0, 4)
    data = Dataset("planted", x, y, columns={"client": np.repeat(range(4), 60), "test": test})
    options: dict[str, Any] = {"rounds": 6, "workers": 1, "reference": "none", "batch_size": 48, "lr": 0.1}
    run = comity.run(federation=federate(data), out=tmp_path / "a", **options)
    parts = run.result.contributions
    assert sum(map(abs, parts.values())) == pytest.approx(1)
    assert parts[0] == pytest.approx(parts[1], rel=1e-5)
    assert min(parts, key=parts.__getitem__) == 3
    assert LoadedRun(tmp_path / "a").result.contributions == parts  # type: ignore[union-attr]

    stops = iter([False, False, True])
    comity.run(federation=federate(data), out=tmp_path / "b", stop=lambda: next(stops), **options)
    resumed = comity.run(federation=federate(data), out=tmp_path / "b", resume=True, **options)
    assert resumed.result.contributions == parts
    assert comity.run(federation=federate(data), method="Local", **options).result.contributions == {}
