"""A benchmark: one study per federation, rates chosen once, repetition by repetition, resumable."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from comity import ComityError
from comity.compare import LoadedStudy
from comity.methods import FedAvg
from comity.studies import BENCHMARK, Show, bench, federations
from comity.studies import _bench as room
from comity.studies._grid import at_scale, expand
from helpers import contents
from test_join import table

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "widths": [4]},
    "rounds": 1,
    "workers": 1,
    "jobs": 1,
    "general_every": "never",
    "tune": {"lr": [0.1, 0.3]},
    "tune_seeds": 1,
    "seeds": 6,
    "grid": [{"method": "FedAvg"}, {"method": "FedAvg", "guard": "mixture"}, {"method": "Ditto", "rule": "ConFREE"}],
}


class Broken(FedAvg):
    """Fails in its first round."""

    def fit(self, *_: Any) -> Any:
        raise ValueError("no such thing")


class Gentle(FedAvg):
    """A method of one's own."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, dict[str, str]]:
    """Two small federations."""
    named = {"data.target": "outcome", "data.client": "ward"}
    (tmp_path / "b").mkdir()
    return {
        "first": {"data": str(table(tmp_path)), **named},
        "second": {"data": str(table(tmp_path / "b", flipped=False)), **named},
    }


class Steps(Show):
    """Remembers what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text.strip())


@pytest.mark.slow
def test_studies_grow_repetition_by_repetition_with_rates_chosen_once(
    places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    show, out = Steps(), tmp_path / "out"
    counts: list[dict[str, int]] = []

    def after(done: room.Bench) -> None:
        counts.append({name: len(LoadedStudy(path).cells[0].finished) for name, path in done.studies.items()})

    done = bench(SMALL, federations=places, out=out, show=show, after=after)
    assert counts == [{"first": 3, "second": 3}, {"first": 6, "second": 6}], "all federations, then the next repetition"
    assert [line for line in show.said if " seeds of 6" in line] == [
        f"{name}, {count} seeds of 6" for count in (3, 6) for name in ("first", "second")
    ]
    assert not done.failed
    assert not any(done.left_out.values())
    for path in done.studies.values():
        study, rates = LoadedStudy(path), LoadedStudy(path / room.RATES)
        chosen = {search.cell: search.chosen for search in rates.tuning}
        assert chosen.keys() == {"Local", "FedAvg + Mean", "Ditto + ConFREE"}, "no search for what a guard does"
        assert len(study.settings) == 1
        cells = {cell.label: cell for cell in study.cells}
        used = {label: {run.options["lr"] for run in cell.finished} for label, cell in cells.items()}
        assert used == {label: {chosen[label.replace(", guarded", "")]} for label in used}
        assert {run.options["local_lr"] for run in cells["FedAvg, guarded + Mean"].finished} == {chosen["Local"]}
        assert all(cell.mean_gain is not None and len(cell.clients) == 3 for cell in study.cells if not cell.local)


@pytest.mark.slow
def test_a_stopped_benchmark_resumes_and_a_finished_one_is_left_as_it_is(
    places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    small = SMALL | {"seeds": 3}
    bench(small, federations=places, out=whole)
    asked = iter(range(10**6))
    bench(small, federations=places, out=out, stop=lambda: next(asked) > 60)
    runs = "*/runs/*/clients.csv"
    assert len(list(out.glob(runs))) < len(list(whole.glob(runs)))
    bench(small, federations=places, out=out)
    assert {path.relative_to(out): path.read_bytes() for path in out.glob(runs)} == {
        path.relative_to(whole): path.read_bytes() for path in whole.glob(runs)
    }
    before = contents(out)
    bench(small, federations=places, out=out)
    assert {k: v for k, v in contents(out).items() if "runs" in k.parts} == {
        k: v for k, v in before.items() if "runs" in k.parts
    }


def test_what_fails_is_left_out_and_a_method_of_ones_own_joins(
    places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    out, one = tmp_path / "out", {"first": places["first"]}
    small = SMALL | {"seeds": 3, "grid": [{"method": "FedAvg"}]}
    bench(small, federations=one, out=out)
    own = [{"method": "test_bench.Gentle"}, {"method": "test_bench.Broken"}]
    done = bench(small, federations=one, out=out, more=own)
    assert [name for name, _ in done.left_out["first"]] == ["test_bench.Broken + Mean"]
    assert "no such thing" in done.left_out["first"][0][1]
    cells = {cell.method: cell for cell in LoadedStudy(out / "first").cells}
    assert cells.keys() == {"Local", "FedAvg", "test_bench.Gentle"}
    assert cells["test_bench.Gentle"].value == cells["FedAvg"].value, "they do the same, at the same rate"
    alone = bench(small, federations=one, out=tmp_path / "x", only=own[1:])
    assert "no such thing" in alone.failed["first"], "nothing is left to run"


def test_one_federation_that_cannot_be_read_does_not_stop_the_others(
    places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("client,target\n1,2\n")
    small = SMALL | {"seeds": 3, "grid": [{"method": "FedAvg"}]}
    done = bench(small, federations={"bad": {"data": str(bad)}, "first": places["first"]}, out=tmp_path / "out")
    assert done.failed.keys() == {"bad"}
    assert done.studies.keys() == {"first"}


@pytest.mark.slow
def test_a_given_rate_is_not_searched(places: dict[str, dict[str, str]], tmp_path: Path) -> None:
    bench(SMALL, federations={"first": places["first"]}, out=tmp_path / "out", lr=0.2, seeds=3)
    study = LoadedStudy(tmp_path / "out" / "first")
    assert {run.options["lr"] for run in study.runs} == {0.2}
    assert not study.tuning
    assert json.loads((tmp_path / "out" / "first" / room.KNOWN).read_text())["left_out"] == {}
    bench(SMALL, federations={"first": places["first"]}, out=tmp_path / "out", seeds=3, overwrite=True)
    study = LoadedStudy(tmp_path / "out" / "first")
    assert {run.options["lr"] for run in study.runs} <= {0.1, 0.3}, "chosen again where they were not before"


def test_shards_share_the_federations(places: dict[str, dict[str, str]], tmp_path: Path) -> None:
    small = SMALL | {"seeds": 3, "grid": [{"method": "FedAvg"}]}
    done = [bench(small, federations=places, out=tmp_path / "out", shard=f"{k}/2") for k in (1, 2)]
    assert [list(each.studies) for each in done] == [["first"], ["second"]]
    for wrong in ("3/2", "x", "0/2"):
        with pytest.raises(ComityError, match="shard must be like 2/4"):
            bench(small, federations=places, out=tmp_path / "out", shard=wrong)


def test_federations_are_named_or_all_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMITY_DATA", str(tmp_path))
    embedded = federations()
    assert next(iter(embedded)) == "heart"
    assert len(embedded) > 1
    assert federations([str(table(tmp_path))]) == {"patients": {"data": str(tmp_path / "patients.csv")}}
    with pytest.raises(ComityError):
        federations(["nowhere"])
    with pytest.raises(ComityError, match="at least one federation"):
        bench(SMALL, federations={}, out=tmp_path / "out")


@pytest.mark.parametrize(("scale", "least"), [("quick", 7), ("desk", 24), ("night", 24)])
def test_the_benchmarks_own_file_holds_what_the_issue_lists(scale: str, least: int) -> None:
    entries = at_scale(yaml.safe_load(BENCHMARK.read_text()), scale)
    cells = expand({k: v for k, v in entries.items() if k != "tune"} | {"seeds": [0], "data": "pisa"})
    assert len(cells) >= least
    if scale != "quick":
        methods = {cell.method.name for cell in cells}
        assert methods >= {"FedAvg", "FedProx", "FedRep", "FedPer", "Ditto", "APFL", "FedALA", "FedPAC", "FedCALM"}
        assert methods >= {"FEDORA", "FedPG"}
        for rule in ("ConFREE", "CALM"):
            assert sum(str(cell.rule) == rule for cell in cells) == 3
        assert sum(cell.guard is not None and str(cell.guard) == "mixture" for cell in cells) == 3
        assert {str(cell.guard) for cell in cells if cell.guard} == {"mixture", "certified", "selection"}
        assert entries["seeds"] == 15
