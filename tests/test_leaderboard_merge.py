"""docs/make_leaderboard.py merges a benchmark of some federations into the committed leaderboard."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from comity.compare import Leaderboard, Result
from comity.report import Benchmark

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on copies of the committed files."""
    monkeypatch.syspath_prepend(str(DOCS))
    import make_leaderboard

    for name in ("LEADERBOARD", "CLIENTS", "SETUP", "PICTURE"):
        file: Path = getattr(make_leaderboard, name)
        copy = tmp_path / file.name
        copy.write_bytes(file.read_bytes())
        monkeypatch.setattr(make_leaderboard, name, copy)
    make_leaderboard.board.cache_clear()
    return make_leaderboard


def run_again(merge: ModuleType, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Merge a benchmark that holds vowels with some changes, and the same as a federation that is new."""
    results = [each for each in merge.read_results(merge.LEADERBOARD, False) if each.federation == "vowels"]
    (clients,) = merge.read_clients({"vowels": results[0].metric})
    fresh: list[Result] = [replace(each, **changes) for each in results]
    board = Leaderboard([*fresh, *(replace(each, federation="birds") for each in fresh)])
    setup = {"torch": "9.9", "core hours": "0.5", "rates at an end of those tried": "1 of 40"}
    found = Benchmark(board, [clients, replace(clients, federation="birds")], setup)
    monkeypatch.setattr(merge, "read_benchmark", lambda _: found)
    merge.keep(Path("folder"))


def by_federation(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        found.setdefault(line.split(",")[0], []).append(line)
    return found


def test_federations_of_the_folder_replace_the_committed_ones(
    merge: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (merge.LEADERBOARD, merge.CLIENTS)
    before = [by_federation(file) for file in files]
    size, setup = merge.leaderboard_size(), json.loads(merge.SETUP.read_text())
    merge.PICTURE.unlink()
    run_again(merge, monkeypatch, gain=1.25, seeds=18)
    results, clients = (by_federation(file) for file in files)
    assert list(results)[1:] == sorted([*list(before[0])[1:], "birds"])
    for old, new in zip(before, (results, clients), strict=True):
        assert {name: new[name] for name in old if name != "vowels"} == {
            name: lines for name, lines in old.items() if name != "vowels"
        }
    assert all(",1.25," in line for line in results["vowels"])
    assert clients["vowels"] == before[1]["vowels"]
    assert [line.replace("birds", "vowels", 1) for line in clients["birds"]] == clients["vowels"]
    assert merge.leaderboard_size() != size
    assert merge.PICTURE.read_bytes()[:4] == b"\x89PNG"

    counts = [each["rates at an end of those tried"].split(" of ") for each in setup]
    ends, searches = sum(int(each[0]) for each in counts) + 1, sum(int(each[1]) for each in counts) + 40
    hours = sum(float(each["core hours"]) for each in setup) + 0.5
    for _ in range(2):  # a batch that is merged once more counts once
        shown = merge.leaderboard_setup()
        assert f"{ends} of {searches} searches" in shown
        assert f"{hours:.1f} core hours" in shown
        assert "and 9.9" in shown
        run_again(merge, monkeypatch, gain=1.25, seeds=18)


def test_fewer_seeds_replace_nothing(merge: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = by_federation(merge.LEADERBOARD)
    run_again(merge, monkeypatch, gain=1.25, seeds=3)
    after = by_federation(merge.LEADERBOARD)
    assert len(after.pop("birds")) == len(before["vowels"])
    assert after == before
