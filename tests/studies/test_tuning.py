"""Options that validation chooses: by which metric, on which seeds, within which budget."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from study_parts import OTHER, SMALL

import comity
from comity import ComityError, Config
from comity.__main__ import main
from comity.compare import LoadedStudy
from comity.metrics import DECIDING, OWN, VALIDATED, VALIDATION
from comity.results import SCHEMA, RunFolder, RunInfo, Summary
from comity.studies import Show, _study, study
from comity.studies._crew import Job, Message
from comity.studies._grid import expand
from comity.studies._tune import LEARNING_RATES, Ladder, Search, Walk, candidates, groups
from helpers import Patch
from run_folders import result_of

Scores = Callable[[Config], tuple[float, float]]
Plant = Callable[[Scores], list[Config]]


@pytest.fixture
def plant(monkeypatch: Patch) -> Plant:
    """Replace runs by ``scores``, the metric in validation and test accuracy; returns the list of those done."""
    done: list[Config] = []

    def execute(
        scores: Scores, jobs: Sequence[Job], _: int, hear: Callable[[Job, Message], None], *__: Any
    ) -> dict[Job, Message]:
        done.extend(job.config for job in jobs)
        ends = {}
        for job in jobs:
            local = job.config.method.name == "Local"
            info = RunInfo(
                schema=SCHEMA,
                comity=comity.__version__,
                title="Local" if local else f"{job.config.method} + {job.config.rule}",
                key=job.config.key,
                own_rule=local,
                eval_point="received",
            )
            folder = RunFolder(job.config.out)
            folder.open(info, job.config.plain(), resume=False, overwrite=False)
            validation, test = scores(job.config)
            deciding = str(job.config.metric)
            values = {VALIDATED[deciding].key: validation, OWN.key: test, DECIDING[deciding].key: test}
            metrics = {
                name: Summary(mean=value, std=0.0, samples=value, worst10=value) for name, value in values.items()
            }
            folder.add_result(result_of({"client": [0], "n_test": [9], OWN.key: [test]}, None, 2, metrics, local=local))
            ends[job] = {"end": "done"}
            hear(job, ends[job])
        return ends

    def with_scores(scores: Scores) -> list[Config]:
        monkeypatch.setattr(_study, "execute", partial(execute, scores))
        return done

    return with_scores


def test_tuning_goes_by_validation_where_test_says_the_opposite(tmp_path: Path, plant: Plant) -> None:
    """Validation is best at 0.7, test at 0.3; one seed alone would choose 0.6."""

    def scores(config: Config) -> tuple[float, float]:
        c = config.rule.options.get("strength", 0.5)
        return 0.9 - (c - (0.6 if config.seed == 0 else 0.79)) ** 2, 0.9 - abs(c - 0.3)

    ran = plant(scores)
    out = tmp_path / "x"
    console = Console(file=StringIO(), width=200)
    options = SMALL | {"rule": ["Mean", OTHER], "seeds": 2, "tune": {"rule.strength": "0.1:0.9"}, "out": out}
    result = study(**options, show=Show(console))
    (search,) = result.tuning
    assert search.chosen == 0.7
    assert search.seeds == [0, 1]
    assert [trial.value for trial in search.tried] == [0.5, 0.6, 0.4, 0.7, 0.8]
    assert search.tried[0].validation == pytest.approx(0.9 - (0.1**2 + 0.29**2) / 2)
    assert "1 searches, at most 18 runs" in console.file.getvalue()  # type: ignore[attr-defined]
    other = OTHER.lower().replace("_", "-")
    assert {run.path.name for run in result.runs} == {
        f"{name}-s{seed}" for name in ("local", "local-repeated", "fedavg-mean", f"fedavg-{other}") for seed in (0, 1)
    }
    for run in result.runs:
        assert run.options["val_share"] == (0.0 if run.local else 0.2)  # alone, nobody needs to hold samples out
        assert run.options["rule"].get("strength", 0.7) == 0.7
        assert Path(run.options["out"]) == run.path
    assert len(list((out / ".tuning").iterdir())) == 8
    assert f"+ {OTHER}" in result.table().markdown()
    assert "strength" not in result.table().markdown()
    ran.clear()
    assert study(**options).tuning == result.tuning
    assert ran == []


@pytest.mark.parametrize(("metric", "chosen"), [("accuracy", 0.9), ("balanced", 0.9), ("log-loss", 0.1)])
def test_tuning_goes_by_the_metric_that_decides(tmp_path: Path, plant: Plant, metric: str, chosen: float) -> None:
    """The score grows with the value, which is good of an accuracy and bad of a loss."""
    plant(lambda config: (config.rule.options["strength"], 0.5))
    options = SMALL | {"rule": OTHER, "reference": "none", "metric": metric, "tune": {"rule.strength": [0.1, 0.5, 0.9]}}
    result = study(**options, out=tmp_path / "x")
    (search,) = result.tuning
    assert search.chosen == chosen
    assert search.chosen_by.startswith(f"validation {DECIDING[metric].label} in the last round")
    assert [(trial.value, trial.validation) for trial in search.tried] == [(v, v) for v in (0.1, 0.5, 0.9)]
    assert search.unit == DECIDING[metric].unit
    assert result.verdict.title == "Undecided"
    assert result.verdict.evidence.startswith("Without a local baseline, the runs do not show whether joining helps.")


@pytest.mark.parametrize("metric", ["balanced", "log-loss"])
def test_a_real_search_by_another_metric(tmp_path: Path, metric: str) -> None:
    options = SMALL | {"metric": metric, "tune": {"lr": [0.01, 0.3]}, "val_share": 0.3}
    result = study(**options, out=tmp_path / "x")
    assert result.failed == {}
    for search in result.tuning:
        scores = {trial.value: trial.validation for trial in search.tried}
        assert scores[search.chosen] == (min if metric == "log-loss" else max)(scores.values())
    (setting,) = result.settings
    local, joined = setting.cells
    assert [search.cell for search in result.tuning] == ["Local", joined.label]
    (repeated,) = setting.repeated.values()
    assert repeated.options["lr"] == local.runs[0].options["lr"]  # or it would not be the same training again
    assert joined.clients
    assert setting.control.keys() == joined.evidence.keys()


def test_a_real_search(tmp_path: Path) -> None:
    options = SMALL | {"method": "Ditto", "tune": {"method.lam": [0.1, "10"]}, "val_share": 0.3}
    result = study(**options, out=tmp_path / "x")
    (search,) = result.tuning
    scores = {trial.value: trial.validation for trial in search.tried}
    assert set(scores) == {0.1, 10.0}
    assert scores[search.chosen] == max(scores.values())
    (ditto,) = (run for run in result.runs if not run.local)
    assert ditto.options["method"]["lam"] == search.chosen
    assert ditto.metric(VALIDATION.key) == scores[search.chosen]
    assert ditto.result.transfer is not None
    assert "best round" in result.table().only(["best"]).markdown()


def test_tuning_keeps_to_its_budget(tmp_path: Path, plant: Plant) -> None:
    ran = plant(lambda config: (config.rule.options.get("strength", 0.5), 0.5))
    options = SMALL | {"method": "FedAvg,FedRep", "rule": OTHER, "seeds": 2, "reference": "none"}
    options["tune"] = {"rule.strength": "0.1,0.2,0.9,0.3"}
    result = study(**options, budget=13, out=tmp_path / "x")
    # two searches over two seeds: 13 // 4 values each
    assert [[trial.value for trial in search.tried] for search in result.tuning] == [[0.1, 0.2, 0.9]] * 2
    assert len(ran) == 12
    assert {run.options["rule"]["strength"] for run in result.runs} == {0.9}
    with pytest.raises(ComityError, match="budget 3 is too small: trying one value in every search takes 4 runs"):
        study(**options, budget=3, out=tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_values_may_be_tried_on_some_seeds_and_all_seeds_have_the_chosen_one(tmp_path: Path, plant: Plant) -> None:
    def scores(config: Config) -> tuple[float, float]:
        value = config.rule.options["strength"]
        return value if config.seed < 2 else 1 - value, 0.5  # the other seeds would choose otherwise

    ran = plant(scores)
    options = SMALL | {"method": "FedAvg", "rule": OTHER, "seeds": 4, "reference": "none"}
    result = study(**options, tune={"rule.strength": "0.1,0.9"}, tune_seeds=2, out=tmp_path / "x")
    assert result.tuning[0].seeds == [0, 1]
    tried = sorted((config.seed, config.rule.options["strength"]) for config in ran)
    assert tried == [(0, 0.1), (0, 0.9), (1, 0.1), (1, 0.9), (2, 0.9), (3, 0.9)]
    assert [run.options["rule"]["strength"] for run in result.runs] == [0.9] * 4


def test_the_learning_rate_of_each_method_and_of_local(tmp_path: Path, plant: Plant, monkeypatch: Patch) -> None:
    """Each at its own best, all in one table, and all against the best Local."""
    best = {"Local": 0.01, "FedAvg": 0.1, "FedRep": 0.05}
    plant(lambda config: (0.9 - abs(config.lr - best[config.method.name]), 0.4 + config.lr))
    options = SMALL | {"method": "FedAvg,FedRep", "seeds": 2, "tune": {"lr": [0.01, 0.05, 0.1]}, "out": tmp_path / "x"}
    result = study(**options)
    chosen = {"Local": 0.01, "FedAvg + Mean": 0.1, "FedRep + Mean": 0.05}
    assert {search.cell: search.chosen for search in result.tuning} == chosen
    assert sorted(run.options["lr"] for run in result.runs) == [0.01] * 4 + [0.05] * 2 + [0.1] * 2  # Local twice
    (setting,) = result.settings
    local, fedavg, fedrep = setting.cells
    assert local.local
    for cell in (fedavg, fedrep):
        assert cell.mean_gain.mean == pytest.approx(
            100 * (best[cell.method] - 0.01)
        )  # 0.4 + rate, against Local's 0.41
    told = "lr was chosen by validation: Local 0.01, FedAvg + Mean 0.1, FedRep + Mean 0.05."
    assert told in result.table().markdown()
    monkeypatch.setattr("comity.compare.table.MOST_LISTED", 2)
    assert result.table().remarks[-2:] == [
        "lr was chosen by validation: 0.01 for 1 configuration, 0.1 for 1 configuration, 0.05 for 1 configuration; "
        "tuning.json has each.",
        "A better lr may lie beyond those that were tried for 2 of 3 configurations.",
    ]


def test_a_learning_rate_that_is_left_to_validation(tmp_path: Path, plant: Plant) -> None:
    """The same values for every method and Local, chosen by validation where the tests say the contrary; resumable."""
    best = {"Local": 0.01, "FedAvg": 0.3}

    def scores(config: Config) -> tuple[float, float]:
        error = abs(config.lr - best[config.method.name])
        return 0.9 - error, 0.4 + error

    done = plant(scores)
    options = SMALL | {"method": "FedAvg", "lr": "auto", "out": tmp_path / "x"}
    result = study(**options)
    chosen = {"Local": 0.01, "FedAvg + Mean": 0.3}
    assert {search.cell: search.chosen for search in result.tuning} == chosen
    assert [[trial.value for trial in search.tried] for search in result.tuning] == 2 * [LEARNING_RATES]
    runs = 2 * len(LEARNING_RATES) + 1  # and local training repeated, with what was chosen for local training
    assert len(done) == runs
    assert "A better lr may lie beyond those that were tried for FedAvg + Mean." in result.table().remarks
    again = study(tmp_path / "x" / "study.yaml")
    assert len(done) == runs
    assert again.table().markdown() == result.table().markdown()
    with pytest.raises(ComityError, match="two ways to choose lr"):
        study(**options, tune={"lr": [0.1, 0.2]})
    with pytest.raises(ComityError, match="lr must be"):
        Config(lr="auto")
    arguments = ["--lr", "auto", "--rounds", "2", "--out", str(tmp_path / "one"), "--quiet"]
    assert main(["run", *arguments]) == 0
    assert {search.cell: search.chosen for search in LoadedStudy(tmp_path / "one").tuning} == chosen


def test_walks() -> None:
    def goes(walk: Walk, best: float) -> list[float]:
        search = Search("rule.c", walk, len(walk))
        while values := search.wanted():
            for value in values:
                search.tried[value] = -abs(value - best)
        return [*search.tried, search.chosen]

    assert goes(Walk(0.1, 0.9), 0.5) == [0.5, 0.6, 0.4, 0.5]
    assert goes(Walk(0.1, 0.9), 0.1) == [0.5, 0.6, 0.4, 0.3, 0.2, 0.1, 0.1]
    assert goes(Walk(0.1, 0.9), 2.0)[-1] == 0.9
    assert Walk(2, 10, 2).start == 6
    assert [len(Walk(0.1, 0.9)), len(Walk(2, 10, 2)), len(Walk(0.5, 0.9))] == [9, 5, 5]
    failed = Search("rule.c", [1, 2], 2, {1: float("nan"), 2: float("nan")})
    assert failed.chosen is None


def test_a_ladder_goes_on_while_the_best_is_at_an_end() -> None:
    def goes(given: str, score: Callable[[float], float]) -> list[float]:
        ladder = candidates("lr", given)
        assert isinstance(ladder, Ladder)
        search = Search("lr", ladder, len(ladder))
        while values := search.wanted():
            search.tried |= {value: score(value) for value in values}
        return list(search.tried)

    def peak(at: float) -> Callable[[float], float]:
        return lambda value: -abs(math.log(value / at))

    assert goes("0.01,0.03,0.1,...", peak(0.03)) == [0.01, 0.03, 0.1]
    assert goes("0.01,0.03,0.1,...", peak(1.0)) == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    assert goes("0.01,0.03,0.1,...", peak(0.003)) == [0.01, 0.03, 0.1, 0.003, 0.001]
    assert len(goes("0.1,0.2,...", peak(1e9))) == 6  # four more, then no further
    assert goes("0.1,0.2,...", lambda value: math.nan if value > 0.3 else value) == [0.1, 0.2, 0.4]  # 0.4 diverges
    assert goes("0.1,0.2,...", lambda _: 1.0) == [0.1, 0.2]  # nothing suggests that further values are better
    for wrong in ("0.1,...", "0.1,x,...", "0,0.1,...", [0.1, 0.1, "..."]):
        with pytest.raises(ComityError, match="two or more different numbers above 0"):
            candidates("lr", wrong)


def test_one_search_follows_another() -> None:
    (group,) = groups(expand({"method": "Ditto", "rule": OTHER}), {"method.lam": [1, 2], "rule.strength": [3, 4]}, None)
    first, second = group.searches
    assert group.current is first
    first.tried |= {1.0: 0.1, 2.0: 0.9}
    assert group.current is second
    assert [c.method.options["lam"] for c in group.trials(second, 3)] == [2.0]
    second.tried |= {3.0: 0.8, 4.0: 0.2}
    assert group.current is None
    assert [(c.method.options["lam"], c.rule.options["strength"]) for c in group.settled()] == [(2.0, 3.0)]
