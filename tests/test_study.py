"""Studies: the right cells, each run once, whatever happens on the way."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

import comity
from comity import ComityError, Config
from comity.__main__ import main
from comity.compare import LoadedStudy
from comity.engine import Callback, Run, RunPlan, _plan
from comity.methods import Client, Method, Payload, Reply
from comity.metrics import DECIDING, EVIDENCE, OWN, VALIDATED, VALIDATION
from comity.results import CHECKPOINT, SCHEMA, RunFolder, RunInfo, Summary
from comity.rules import Mean, Rule
from comity.studies import Show, _study, study
from comity.studies._crew import Job, Message
from comity.studies._grid import Names, at_scale, expand, local_of, override, seeds_of
from comity.studies._tune import LEARNING_RATES, Search, Walk, groups
from run_folders import result_of


@pytest.fixture
def small(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"reference": "auto", "jobs": 1, "rounds": 2}


# The grid.


class Own(Method):
    """A method that brings its rule along."""

    def own_rule(self) -> Rule:
        return Mean()


class Title(Callback):
    """Leaves each run's title in its folder."""

    def on_end(self, run: Run) -> None:
        assert run.folder is not None
        (run.folder / "title.txt").write_text(run.title)


class Broken(Method):
    def fit(self, client: Client, received: Payload) -> Reply:
        raise ZeroDivisionError("my [own] mistake")


class OtherRule(Mean):
    """A rule with an option."""

    def __init__(self, strength: float = 0.5) -> None:
        super().__init__()
        self.strength = strength


OTHER, BRINGS_A_RULE, BROKEN = (f"{__name__}.{name}" for name in ("OtherRule", "Own", "Broken"))


@pytest.mark.parametrize(
    ("entries", "cells"),
    [
        (
            {"method": "FedAvg,FedRep", "rule": ["Mean", OTHER], "seeds": 2},  # every method with every rule and seed
            [f"{m} {r} {seed}" for m in ("FedAvg", "FedRep") for r in ("Mean", OTHER) for seed in (0, 1)],
        ),
        (
            {"method": ["Local", BRINGS_A_RULE, "FedAvg"], "rule": ["Mean", OTHER]},  # two have no rule to choose
            ["Local Mean 0", f"{BRINGS_A_RULE} Mean 0", "FedAvg Mean 0", f"FedAvg {OTHER} 0"],
        ),
        (
            {"method": [{"name": "FedAvg", "rule": OTHER}, "FedRep", {"name": "Ditto", "rule": ["Mean", OTHER]}]},
            [f"FedAvg {OTHER} 0", "FedRep Mean 0", "Ditto Mean 0", f"Ditto {OTHER} 0"],
        ),
    ],
)
def test_a_grid_has_each_cell_once(entries: dict[str, Any], cells: list[str]) -> None:
    assert [f"{c.method} {c.rule} {c.seed}" for c in expand(entries)] == cells


def test_options_go_to_the_components_that_know_them() -> None:
    entries = {"method": ["FedAvg", "Ditto", {"name": "FedProx", "mu": 0.3}], "method.lam": "0.25", "rounds": 7}
    cells = expand(entries)
    assert [dict(c.method.options).get("lam") for c in cells] == [None, 0.25, None]
    assert cells[2].method.options["mu"] == 0.3
    assert {c.rounds for c in cells} == {7}
    with pytest.raises(ComityError, match="unknown option of method 'lamm'; did you mean lam"):
        expand(entries | {"method.lamm": 1})


def test_sweeps_make_a_product_and_what_they_do_not_touch_runs_once() -> None:
    sweep = {"rule.strength": [0.1, 0.9], "participation": [0.5, 1.0]}
    cells = expand({"method": "FedAvg", "rule": ["Mean", OTHER], "sweep": sweep})
    told = [(c.participation, str(c.rule), c.rule.options.get("strength")) for c in cells]
    first = [(share, *rule) for share in (0.5, 1.0) for rule in (("Mean", None), (OTHER, 0.1))]
    assert told == [*first, (0.5, OTHER, 0.9), (1.0, OTHER, 0.9)]
    by_name = expand({"sweep": {"partition": ["iid", {"name": "dirichlet", "alpha": 3}]}, "partition.alpha": 0.7})
    assert [c.partition.name for c in by_name] == ["iid", "dirichlet"]
    assert by_name[1].partition.options["alpha"] == 3
    (kept,) = expand({"sweep": {"partition": ["dirichlet"]}, "partition.alpha": 0.7})
    assert kept.partition.options["alpha"] == 0.7


def test_a_grid_of_grids_is_their_union() -> None:
    grid = [{"method": "FedAvg"}, {"method": "FedRep", "rule": ["Mean", OTHER], "sweep": {"lr": [0.1, 0.2]}}]
    cells = expand({"grid": grid, "lr": 0.1})
    both = [("FedRep", rule, lr) for lr in (0.1, 0.2) for rule in ("Mean", OTHER)]
    assert [(str(c.method), str(c.rule), c.lr) for c in cells] == [("FedAvg", "Mean", 0.1), *both]


def test_scales_and_layers() -> None:
    entries = {"rounds": 1, "rule": OTHER, "rule.strength": 1, "desk": {"lr": 0.5}}
    entries["paper"] = {"rounds": 500, "rule": "Mean"}
    assert at_scale(entries, None) == {"rounds": 1, "rule": OTHER, "rule.strength": 1, "lr": 0.5}
    assert at_scale(entries, "paper") == {"rounds": 500, "rule": "Mean"}  # the option went with its rule
    with pytest.raises(ComityError, match="unknown scale 'des'; did you mean desk"):
        at_scale(entries, "des")
    with pytest.raises(ComityError, match="no scales"):
        at_scale({"rounds": 1}, "paper")


def test_what_is_given_beside_a_file_wins_over_its_grids_and_sweeps_too() -> None:
    sweep = {"data": ["mnist", "digits"], "lr": [0.1, 0.2], "model.widths": [1]}
    methods = ["FedRep", {"name": "Ditto", "lam": 1, "rule": OTHER}]
    grid = [{"method": "FedAvg", "lr": 1}, {"sweep": sweep}]
    entries = {"grid": grid, "sweep": sweep, "method": methods, "rounds": 1}
    given, kept = {"data": "digits", "model": "cnn"}, {"sweep": {"lr": [0.1, 0.2]}}
    assert override(entries, given) == entries | kept | {"grid": [grid[0], kept]} | given
    over = override(entries, {"rule": "Mean", "sweep": {"clients": [3]}, "lr": 7})
    assert over["grid"] == [{"method": "FedAvg"}, {}]
    assert over["sweep"] == {"clients": [3]}
    assert over["method"] == ["FedRep", {"name": "Ditto", "lam": 1}]


@pytest.mark.parametrize(
    ("given", "seeds"), [(3, [0, 1, 2]), ("2", [0, 1]), ("0,4,7", [0, 4, 7]), ("5,", [5]), ([3, 1], [3, 1])]
)
def test_seeds(given: Any, seeds: list[int]) -> None:
    assert seeds_of({"seeds": given}) == seeds
    assert seeds_of({"seed": 4}) == [4]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"sweep": ["lr"]}, "sweep must hold `option: value` lines"),
        ({"sweep": {"lr": 0.1}}, "sweep lr must be a list of values, got 0.1"),
        ({"grid": {"lr": 0.1}}, "grid must be a list of entries"),
        ({"desk": 3}, "desk must hold"),
        ({"tune": "rule.c"}, "tune must hold"),
        ({"sweeps": {"lr": [1]}}, "unknown option 'sweeps'"),
        ({"method": []}, "method must name at least one"),
        ({"tune": {"rule.c": []}, "rule": "ConFREE"}, "tune rule.c must be low:high"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(entries: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ComityError, match=re.escape(told)):
        study(entries, out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_names_say_what_varies_and_nothing_else() -> None:
    entries = {"method": [{"name": "Ditto", "lam": 0.5}, {"name": "Ditto", "lam": 1}], "rule": ["Mean", OTHER]}
    cells = expand(
        entries | {"sweep": {"partition": ["iid", "dirichlet"], "model.widths": [[8], [8, 4]]}, "model": "mlp"}
    )
    names = Names([*map(local_of, cells), *cells])
    assert names.slug(cells[0]) == "ditto-mean-lam0.5-iid-widths8-s0"
    assert names.title(cells[0]) == "Ditto (lam=0.5) + Mean, iid, widths=8, seed 0"
    assert names.slug(local_of(cells[0])) == "local-iid-widths8-s0"
    slugs = [names.slug(cell) for cell in cells]
    assert len(set(slugs)) == len(slugs) == 16


def test_a_seed_has_one_partition_and_one_initial_model_whatever_the_method(small: dict[str, Any]) -> None:
    options = {key: value for key, value in small.items() if key != "jobs"}
    entries = options | {"data": "digits", "method": ["Local", "FedAvg", "FedRep", "Ditto"], "rule": ["Mean", OTHER]}
    sites = [RunPlan(cell).site for cell in expand(entries | {"seeds": 2})]
    first = {seed: next(site for site in sites if site.seed == seed) for seed in (0, 1)}
    assert not torch.equal(first[0].initial, first[1].initial)
    for site in sites:
        assert torch.equal(site.initial, first[site.seed].initial)
        for client, other in zip(site.federation.clients, first[site.seed].federation.clients, strict=True):
            assert torch.equal(client.train.x, other.train.x)
            assert torch.equal(client.test.x, other.test.x)


# Running.


def numbers(out: Path) -> dict[str, Any]:
    """Everything that two studies must agree on: all but times."""
    found: dict[str, Any] = {}
    for folder in sorted((out / "runs").iterdir()):
        result = json.loads((folder / "result.json").read_text())
        found[folder.name] = {k: v for k, v in result.items() if k not in ("seconds", "written")}
        found[f"{folder.name}/clients"] = (folder / "clients.csv").read_text()
        found[f"{folder.name}/samples"] = (folder / "samples.safetensors").read_bytes()
    with (out / "table.csv").open() as file:
        rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]
    return found | {"table": rows}


def record_begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of all runs that are begun from now on."""
    began: list[str] = []
    do = _study.execute

    def execute(jobs: Sequence[Job], *rest: Any) -> Any:
        began.extend(job.config.out.name for job in jobs if job.config.out is not None)
        return do(jobs, *rest)

    monkeypatch.setattr(_study, "execute", execute)
    return began


def written(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.glob("runs/*/*") if path.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A study of two methods, two rules and two seeds."""
    from helpers import TINY

    out = tmp_path_factory.mktemp("study") / "x"
    options = TINY | {"reference": "auto", "jobs": 1, "rounds": 2, "method": "FedAvg,FedRep", "seeds": 2, "out": out}
    options |= {"rule": ["Mean", OTHER]}
    assert study(**options).failed == {}
    return options, out


def test_a_study_leaves_ordinary_runs_with_local_once_a_seed(done: tuple[dict[str, Any], Path]) -> None:
    _, out = done
    other = OTHER.lower().replace("_", "-")
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(
        f"{name}-s{seed}"
        for seed in (0, 1)
        for name in ("local", "local-repeated", "fedavg-mean", "fedrep-mean", f"fedavg-{other}", f"fedrep-{other}")
    )
    files = {"study.yaml", "cells.json", "runs", "table.md", "table.tex", "table.csv"}
    assert {path.name for path in out.iterdir()} == files
    for seed in (0, 1):
        local = RunFolder(out / "runs" / f"local-s{seed}").result()
        joined = RunFolder(out / "runs" / f"fedrep-mean-s{seed}").result()
        assert joined.transfer is not None
        assert joined.transfer.local == pytest.approx(local.last.metrics[OWN.key].mean)
    folder = out / "runs" / "fedrep-mean-s1"
    alone = comity.run(Config.load(folder / "config.yaml").with_(out=None, reference="none"))
    kept = RunFolder(folder).result().clients
    assert alone.columns == {name: kept[name] for name in alone.columns}
    assert kept.keys() - alone.columns.keys() == {each.key for each in EVIDENCE}  # which need a Local to compare with


def test_local_training_is_repeated_once_a_seed_and_compared_with_local_training(
    done: tuple[dict[str, Any], Path],
) -> None:
    _, out = done
    (setting,) = LoadedStudy(out).settings
    local = setting.local
    assert local is not None
    assert {seed: run.path.name for seed, run in setting.repeated.items()} == {
        seed: f"local-repeated-s{seed}" for seed in (0, 1)
    }
    for seed, repeated in setting.repeated.items():
        mine, first = repeated.samples, local.runs[seed].samples
        assert mine is not None
        assert first is not None
        assert all(np.array_equal(mine[client].id, first[client].id) for client in first)  # the same tests
        assert any(not np.array_equal(mine[client].score, first[client].score) for client in first)
        assert repeated.metric("mixed") == pytest.approx(fmean(repeated.by_client("mixed").values()))
    names = [line.name for line in LoadedStudy(out).table().lines]
    assert names[:3] == ["Local", "majority class", "Local, repeated"]
    assert "two local models mixed" not in names  # which stands beside a guard


def test_what_is_done_is_not_done_again_and_a_study_may_grow(
    done: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, out = done
    began = record_begun(monkeypatch)
    before, table = written(out), (out / "table.csv").read_text()
    study(**options)
    assert (began, written(out), (out / "table.csv").read_text()) == ([], before, table)

    grown = {"method": "FedAvg,FedRep,FedPer", "rule": "Mean", "sweep": {"participation": [1.0, 0.6]}, "seeds": 1}
    study(**options | grown)
    # cells that had another name before are known by their configuration
    new = ["fedavg-mean", "fedper-mean", "fedrep-mean", "local", "local-repeated"]
    assert sorted(began) == sorted(
        ["fedper-mean-participation1.0-s0", *(f"{name}-participation0.6-s0" for name in new)]
    )
    assert before.items() <= written(out).items()

    with pytest.raises(ComityError, match=r"local-s0 holds a run of another configuration \(lr differ\)"):
        study(**options | {"lr": 0.2})
    study(**options | {"lr": 0.2, "method": "FedAvg", "rule": "Mean", "seeds": 1}, overwrite=True)
    assert RunFolder(out / "runs" / "fedavg-mean-s0").options()["lr"] == 0.2


DYING = """
import os, signal
from comity.methods import Method

class Dying(Method):
    def fit(self, client, received):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_side_by_side_gives_the_same_numbers_and_a_failing_cell_does_not_stop_the_others(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = study(**small, method=["FedAvg", BROKEN, "FedRep"], seeds=2, out=tmp_path / "one")
    mistakes = {f"{BROKEN} + Mean, seed {seed}": "ZeroDivisionError: my [own] mistake" for seed in (0, 1)}
    assert one.failed == mistakes
    assert "2 of 10 runs are not finished" in one.table().markdown()
    assert any("in fit" in run.traceback for run in one.planned.values())

    methods = ["FedAvg", BROKEN, "dying.Dying", "FedRep"]
    two = study(**small | {"jobs": 2}, method=methods, seeds=2, out=tmp_path / "two")
    killed = "the process ended with code -9 (killed; out of memory?)"
    assert two.failed == mistakes | {f"dying.Dying + Mean, seed {seed}": killed for seed in (0, 1)}
    for folder in (*tmp_path.glob("*/runs/*broken*"), *tmp_path.glob("*/runs/*dying*")):
        shutil.rmtree(folder)
    assert len(list((tmp_path / "two" / "runs").iterdir())) == 8
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_studys_process_reads_each_data_set_once(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Planning, checking, trying a round, the runs of this process, and the fingerprint when the study is resumed."""
    read: list[str] = []
    load = _plan.load

    def counted(name: str, *rest: Any, **options: Any) -> Any:
        read.append(name)
        return load(name, *rest, **options)

    monkeypatch.setattr(_plan, "load", counted)
    monkeypatch.setattr(_study, "LONG", 1)
    if jobs > 1:
        monkeypatch.setattr(_study, "execute", lambda *_: {})
    options = small | {"data": "heart", "model": None, "clients": None, "partition": None, "jobs": jobs}
    options |= {"sweep": {"data": ["heart", "digits"]}, "method": "FedAvg,Ditto", "seeds": 2, "out": tmp_path / "x"}
    for _ in range(2):
        study(**options)
        assert sorted(read) == ["digits", "heart"]
        read.clear()


def test_a_folder_with_something_else_in_it_is_left_alone(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for out in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(ComityError, match="is not empty and holds no study"):
            study(**small, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ComityError, match="needs out"):
        study(**small)


def test_without_its_local_a_run_is_not_begun(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comity.methods import Local

    def fail(*_: Any) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr(Local, "fit", fail, raising=False)
    result = study(**small, out=tmp_path / "x")
    assert result.failed["FedAvg + Mean, seed 0"] == "its local baseline failed: MemoryError: too large"
    monkeypatch.undo()
    assert study(**small, out=tmp_path / "x").failed == {}


@pytest.mark.slow
def test_a_killed_study_goes_on_to_the_same_numbers(small: dict[str, Any], tmp_path: Path) -> None:
    options = small | {"rounds": 400, "checkpoint_every": 7, "eval_every": 100, "method": "FedAvg,FedRep"}
    options["model"] = {"name": "mlp", "widths": [16]}
    out = tmp_path / "killed"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(options | {"out": str(out), "jobs": 2}))
    command = [sys.executable, "-m", "comity", "study", "--config", str(tmp_path / "study.yaml"), "--quiet"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: len(RunFolder(out / "runs" / "fedavg-mean-s0").rounds()) > 9)
        with pytest.raises(ComityError, match="another study is running"):
            study(**options, out=out)
    finally:
        process.kill()
        process.wait()
    assert not RunFolder(out / "runs" / "fedavg-mean-s0").finished
    local = (out / "runs" / "local-s0" / "result.json").stat().st_mtime_ns
    wait_for(lambda: not in_use(out))  # the workers end by themselves
    assert main(["study", "--config", str(out / "study.yaml"), "--jobs", "1", "--quiet"]) == 0
    assert (out / "runs" / "local-s0" / "result.json").stat().st_mtime_ns == local
    study(**options, out=tmp_path / "unbroken")
    assert numbers(out) == numbers(tmp_path / "unbroken")


def in_use(out: Path) -> bool:
    """Whether a process has a file of the study open: each worker has its log."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(link).startswith(str(out)) for link in (process / "fd").iterdir()):
                return True
    return False


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


# Tuning.


Scores = Callable[[Config], tuple[float, float]]
Plant = Callable[[Scores], list[Config]]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Replace runs by ``scores``, the metric in validation and test accuracy; returns the list of those done."""
    done: list[Config] = []

    def execute(
        scores: Scores, jobs: Sequence[Job], _: int, hear: Callable[[Job, Message], None], *__: Any
    ) -> dict[Job, Message]:
        done.extend(job.config for job in jobs)
        ends = {}
        for job in jobs:
            assert job.config.out is not None
            local = job.config.method.name == "Local"
            info = RunInfo(
                schema=SCHEMA,
                comity=comity.__version__,
                title="Local" if local else f"{job.config.method} + {job.config.rule}",
                key=job.config.key,
                own_rule=local,
                moment="received",
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


def test_tuning_goes_by_validation_where_test_says_the_opposite(
    small: dict[str, Any], tmp_path: Path, plant: Plant
) -> None:
    """Validation is best at 0.7, test at 0.3; one seed alone would choose 0.6."""

    def scores(config: Config) -> tuple[float, float]:
        c = config.rule.options.get("strength", 0.5)
        return 0.9 - (c - (0.6 if config.seed == 0 else 0.79)) ** 2, 0.9 - abs(c - 0.3)

    ran = plant(scores)
    out = tmp_path / "x"
    console = Console(file=StringIO(), width=200)
    options = small | {"rule": ["Mean", OTHER], "seeds": 2, "tune": {"rule.strength": "0.1:0.9"}, "out": out}
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
def test_tuning_goes_by_the_metric_that_decides(
    small: dict[str, Any], tmp_path: Path, plant: Plant, metric: str, chosen: float
) -> None:
    """The score grows with the value, which is good of an accuracy and bad of a loss."""
    plant(lambda config: (config.rule.options["strength"], 0.5))
    options = small | {"rule": OTHER, "reference": "none", "metric": metric, "tune": {"rule.strength": [0.1, 0.5, 0.9]}}
    result = study(**options, out=tmp_path / "x")
    (search,) = result.tuning
    assert search.chosen == chosen
    assert search.chosen_by.startswith(f"validation {DECIDING[metric].label} in the last round")
    assert [(trial.value, trial.validation) for trial in search.tried] == [(v, v) for v in (0.1, 0.5, 0.9)]
    assert search.unit == DECIDING[metric].unit
    assert result.verdict.title == "Undecided"
    assert result.verdict.evidence.startswith("Without a local baseline nobody can say whether joining helps.")


@pytest.mark.parametrize("metric", ["balanced", "log-loss"])
def test_a_real_search_by_another_metric(small: dict[str, Any], tmp_path: Path, metric: str) -> None:
    options = small | {"metric": metric, "tune": {"lr": [0.01, 0.3]}, "val_share": 0.3}
    result = study(**options, out=tmp_path / "x")
    assert result.failed == {}
    validated = VALIDATED[metric]
    for search in result.tuning:
        scores = {trial.value: trial.validation for trial in search.tried}
        best = (min if validated.better == "lower" else max)(scores.values())
        assert scores[search.chosen] == best
    (setting,) = result.settings
    local, joined = setting.cells
    assert [search.cell for search in result.tuning] == ["Local", joined.label]
    (repeated,) = setting.repeated.values()
    assert repeated.options["lr"] == local.runs[0].options["lr"]  # or it would not be the same training again
    assert joined.clients
    assert setting.control.keys() == joined.evidence.keys()


def test_tuning_keeps_to_its_budget(small: dict[str, Any], tmp_path: Path, plant: Plant) -> None:
    ran = plant(lambda config: (config.rule.options.get("strength", 0.5), 0.5))
    options = small | {"method": "FedAvg,FedRep", "rule": OTHER, "seeds": 2, "reference": "none"}
    options["tune"] = {"rule.strength": "0.1,0.2,0.9,0.3"}
    result = study(**options, budget=13, out=tmp_path / "x")
    # two searches over two seeds: 13 // 4 values each
    assert [[trial.value for trial in search.tried] for search in result.tuning] == [[0.1, 0.2, 0.9]] * 2
    assert len(ran) == 12
    assert {run.options["rule"]["strength"] for run in result.runs} == {0.9}
    with pytest.raises(ComityError, match="budget 3 is too small: trying one value in every search takes 4 runs"):
        study(**options, budget=3, out=tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_values_may_be_tried_on_some_seeds_and_all_seeds_have_the_chosen_one(
    small: dict[str, Any], tmp_path: Path, plant: Plant
) -> None:
    def scores(config: Config) -> tuple[float, float]:
        value = config.rule.options["strength"]
        return value if config.seed < 2 else 1 - value, 0.5  # the other seeds would choose otherwise

    ran = plant(scores)
    options = small | {"method": "FedAvg", "rule": OTHER, "seeds": 4, "reference": "none"}
    result = study(**options, tune={"rule.strength": "0.1,0.9"}, tune_seeds=2, out=tmp_path / "x")
    assert result.tuning[0].seeds == [0, 1]
    tried = sorted((config.seed, config.rule.options["strength"]) for config in ran)
    assert tried == [(0, 0.1), (0, 0.9), (1, 0.1), (1, 0.9), (2, 0.9), (3, 0.9)]
    assert [run.options["rule"]["strength"] for run in result.runs] == [0.9] * 4


def test_a_real_search(small: dict[str, Any], tmp_path: Path) -> None:
    options = small | {"method": "Ditto", "tune": {"method.lam": [0.1, "10"]}, "val_share": 0.3}
    result = study(**options, out=tmp_path / "x")
    (search,) = result.tuning
    scores = {trial.value: trial.validation for trial in search.tried}
    assert set(scores) == {0.1, 10.0}
    assert scores[search.chosen] == max(scores.values())
    (ditto,) = (run for run in result.runs if not run.local)
    assert ditto.options["method"]["lam"] == search.chosen
    assert ditto.metric(VALIDATION.key) == scores[search.chosen]
    assert ditto.result is not None
    assert ditto.result.transfer is not None
    assert "best round" in result.table().only(["best"]).markdown()


def test_the_learning_rate_of_each_method_and_of_local(
    small: dict[str, Any], tmp_path: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each at its own best, all in one table, and all against the best Local."""
    best = {"Local": 0.01, "FedAvg": 0.1, "FedRep": 0.05}
    plant(lambda config: (0.9 - abs(config.lr - best[config.method.name]), 0.4 + config.lr))
    options = small | {"method": "FedAvg,FedRep", "seeds": 2, "tune": {"lr": [0.01, 0.05, 0.1]}, "out": tmp_path / "x"}
    result = study(**options)
    chosen = {"Local": 0.01, "FedAvg + Mean": 0.1, "FedRep + Mean": 0.05}
    assert {search.cell: search.chosen for search in result.tuning} == chosen
    assert sorted(run.options["lr"] for run in result.runs) == [0.01] * 4 + [0.05] * 2 + [0.1] * 2  # Local twice
    (setting,) = result.settings
    local, fedavg, fedrep = setting.cells
    assert local.local
    for cell in (fedavg, fedrep):
        assert cell.mean_gain is not None
        assert cell.mean_gain.mean == pytest.approx(
            100 * (best[cell.method] - 0.01)
        )  # 0.4 + rate, against Local's 0.41
    told = "lr was chosen by validation: Local 0.01, FedAvg + Mean 0.1, FedRep + Mean 0.05."
    assert told in result.table().markdown()
    monkeypatch.setattr("comity.compare.table.MOST_LISTED", 2)
    assert result.table().remarks[-2:] == [
        "lr was chosen by validation: 0.01 for 1 line, 0.1 for 1 line, 0.05 for 1 line; tuning.json has each.",
        "A better lr may lie beyond those that were tried for 2 of 3 lines.",
    ]


def test_a_learning_rate_that_is_left_to_validation(small: dict[str, Any], tmp_path: Path, plant: Plant) -> None:
    """The same values for every method and Local, chosen by validation where the tests say the contrary; resumable."""
    best = {"Local": 0.01, "FedAvg": 0.3}

    def scores(config: Config) -> tuple[float, float]:
        error = abs(config.lr - best[config.method.name])
        return 0.9 - error, 0.4 + error

    done = plant(scores)
    options = small | {"method": "FedAvg", "lr": "auto", "out": tmp_path / "x"}
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
        assert search.chosen is not None
        return [*search.tried, search.chosen]

    assert goes(Walk(0.1, 0.9), 0.5) == [0.5, 0.6, 0.4, 0.5]
    assert goes(Walk(0.1, 0.9), 0.1) == [0.5, 0.6, 0.4, 0.3, 0.2, 0.1, 0.1]
    assert goes(Walk(0.1, 0.9), 2.0)[-1] == 0.9
    assert Walk(2, 10, 2).start == 6
    assert [len(Walk(0.1, 0.9)), len(Walk(2, 10, 2)), len(Walk(0.5, 0.9))] == [9, 5, 5]
    failed = Search("rule.c", [1, 2], 2, {1: float("nan"), 2: float("nan")})
    assert failed.chosen is None


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


# The command line.


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = [
    *("--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--model.widths", "16"),
    *("--clients", "4", "--rounds", "2", "--batch-size", "8", "--jobs", "1"),
]


@pytest.mark.usefixtures("elsewhere")
def test_a_study_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--method", "FedAvg,Ditto", "--method.lam", "0.5", "--rule", f"Mean,{OTHER}", "--seeds", "0,3"]
    assert main(["study", *arguments, "--sweep", "data.classes=3,4", "--out", "x"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "24/24" in out
    assert out.count(f"+ {OTHER}") >= 4
    assert "x, with table.md" in out
    assert len(list(Path("x/runs").iterdir())) == 24
    assert main(["table", "x", "--format", "csv"]) == 0
    assert capsys.readouterr().out == Path("x/table.csv").read_text()
    assert main(["table", "x/runs/local-classes3-s0", "x/runs/fedavg-mean-classes3-s0"]) == 0
    assert "One seed (0)" in capsys.readouterr().out


@pytest.mark.usefixtures("elsewhere")
def test_a_failing_cell_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"--method {BROKEN},FedAvg --reference none --quiet --out x --callbacks {__name__}.Title"
    assert main(["study", *SMALL, *arguments.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "my [own] mistake" in err
    assert "1 runs failed; x/cells.json has the tracebacks" in err
    assert RunFolder(Path("x/runs/fedavg-mean-s0")).finished
    assert Path("x/runs/fedavg-mean-s0/title.txt").read_text() == "FedAvg + Mean"


BAD: list[tuple[list[str], str]] = [
    (["--method", "FedAvg,FedRap"], "unknown method 'FedRap'; did you mean FedRep"),
    (["--method", "FedAvg,"], "method must name at least one"),
    (["--seeds", "x"], "seeds must be a number of seeds (3) or different seeds (0,4,7), got 'x'"),
    (["--seeds", "1,1"], "seeds must be"),
    (["--seed", "x"], "seed must be a whole number, got 'x'"),
    (["--sweep", "rule.c"], "--sweep takes key=values"),
    (["--sweep", "rule.nothing=1,2"], "unknown option of rule 'nothing'"),
    (["--sweep", "seed=1,2"], "sweep seed: cannot be swept; use seeds"),
    (["--sweep", "workers=1,2"], "sweep workers: cannot be swept"),
    (["--sweep", "rounds=1,two"], "rounds must be a whole number, got 'two'"),
    (
        ["--sweep", "clients=4,90000", "--data", "digits"],
        "clients must be at most 898, got 90000: digits has 1797 samples",
    ),
    (["--sweep", "data=synthetic,nothing"], "unknown data set 'nothing'"),
    (
        ["--tune", "clients=10,20"],
        "tune clients: only options of a method or rule, such as rule.c, or of local training",
    ),
    (["--tune", "rule.c=0.9:0.1"], "tune rule.c must be low:high"),
    (["--tune", "rule.c=a:b"], "tune rule.c must be low:high"),
    (["--tune", "rule.nothing=1,2"], "tune rule.nothing: no method or rule of this study has this option"),
    (["--budget", "none at all"], "budget must be"),
    (["--jobs", "0"], "jobs must be at least 1, got 0"),
    (["--reference", "runs/x"], "reference must be auto or none in a study"),
    (["--scale", "paper"], "scale paper: this study has no scales"),
    (["--config", "missing.yaml"], "config missing.yaml could not be read"),
    (["--sweeps", "lr=1"], "unknown option '--sweeps'; did you mean --sweep"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, arguments: list[str], told: str
) -> None:
    common = [] if "digits" in arguments else SMALL
    assert main(["study", *common, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_rounds_and_says_how_to_go_on(elsewhere: Path) -> None:
    arguments = [*SMALL[:-2], "--jobs", "2", "--rounds", "100000", "--eval-every", "1000", "--checkpoint-every", "1"]
    arguments += ["--reference", "none"]
    command = [sys.executable, "-m", "comity", "study", *arguments, "--method", "FedAvg,FedRep", "--out", "x"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folders = [RunFolder(elsewhere / "x" / "runs" / f"{name}-mean-s0") for name in ("fedavg", "fedrep")]
    try:
        wait_for(lambda: all(len(folder.rounds()) > 1 for folder in folders))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "comity study --config x/study.yaml" in out
    assert all((folder / CHECKPOINT).exists() and not folder.finished for folder in folders)


@pytest.mark.usefixtures("elsewhere")
def test_examples_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "examples"]) == 0
    assert {"demo", "confree-table1"} <= set(capsys.readouterr().out.split())
    assert main(["reproduce", "dmeo"]) == 2
    assert "did you mean demo" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert "takes the name of an example: confree-figure2, confree-table1, " in capsys.readouterr().err


def test_the_demo_at_a_smaller_scale(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert main(["reproduce", "demo", "--rounds", "1", "--seeds", "1", "--jobs", "1"]) == 0
    assert {path.name for path in (elsewhere / "studies" / "demo-desk" / "runs").iterdir() if path.name[0] != "."} == {
        *("local-s0", "local-repeated-s0", "fedavg-mean-s0", "fedavg-confree-s0", "fedcalm-s0", "fedora-s0"),
        *("fedpg-s0", "fedavg-mean-mixture-s0", "fedrep-mean-mixture-s0"),
    }
    assert "FedAvg, guarded" in capsys.readouterr().out


def test_help_teaches_the_options_of_all_that_were_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--method", "Ditto,FedProx", "--help"]) == 0
    out = capsys.readouterr().out
    for told in ("--method.lam", "--method.mu", "--sweep", "--tune", "--seeds", "--participation"):
        assert told in out


def test_progress_on_a_terminal() -> None:
    file = StringIO()
    show = Show(Console(file=file, force_terminal=True, width=100))
    jobs = [Job(Config(rounds=4, method=name), f"{name}, seed 0") for name in ("FedAvg", "FedRep", "Ditto")]
    show.begin(jobs, 2)
    for round in (1, 2, 3, 4):
        show.hear(jobs[0], {"round": round, "accuracy": 0.5 if round > 1 else None})
    show.hear(jobs[1], {"round": 3, "accuracy": None})  # goes on where it was
    show.hear(jobs[0], {"end": "done"})
    show.hear(jobs[2], {"end": "failed", "error": "no [memory]"})
    assert (show.done, show.total, show.rounds, sum(show.left.values())) == (3, 5, 5, 1)
    show.end()
    assert "Ditto, seed 0: failed: no [memory]" in file.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert "3/5 runs" in file.getvalue()
