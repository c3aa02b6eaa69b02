"""``comity join``: a study of one table with sensible defaults, up to each client's model."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from comity._errors import ComityError
from comity._write import locked
from comity.compare import LoadedStudy
from comity.config import ACCURACY, Config, Entries, Overlay, read_yaml
from comity.metrics import VALIDATED
from comity.results import Columns, schema
from comity.studies._show import Show
from comity.studies._study import study
from comity.studies._tune import LEARNING_RATES

GRID = [{"method": ["FedAvg", "APFL"]}, {"method": "FedAvg", "guard": "mixture"}]
"""Default comparison with local training: global, personal and guarded models."""
SEEDS = 6
"""Two repetitions of three folds: each row is tested twice."""
ROUNDS = 30
CHOSEN_HERE = ("method", "rule", "guard")


@dataclass(frozen=True)
class Joined:
    """The result of ``join``."""

    study: LoadedStudy
    learning_rate: float
    models: Path
    """One model folder per client, of the recommended configuration or of local training."""
    models_of: str
    """The configuration that the models come from."""


def join(
    table: str | Path,
    *,
    out: str | Path = "joined",
    seeds: int = SEEDS,
    overwrite: bool = False,
    show: Show | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Joined:
    """Compare joining with local training on a table of all clients' rows, and save each client's model.

    ``join("patients.csv", out="joined", **{"data.target": "outcome", "data.client": "hospital"})``. The learning rate
    is the one of ``LEARNING_RATES`` with the best mean validation score of local training and FedAvg. Any option of a
    run may be given; ``method``, ``rule`` or ``guard`` replace the default comparison.
    """
    show, out = show or Show(), Path(out)
    entries: Entries = {"data": str(table), "rounds": ROUNDS, "save_models": True} | options
    if not any(name.partition(".")[0] in CHOSEN_HERE for name in options):
        entries["grid"] = GRID
    if "lr" not in options:
        entries["lr"] = _known_rate(out) or _choose_rate(entries, show)
    done = study(entries, out=out, seeds=seeds, overwrite=overwrite, show=show, stop=stop)
    models, of = _keep_models(done) if done.over and not done.failed else (out, "")
    return Joined(done, float(entries["lr"]), models, of)


def _known_rate(out: Path) -> float | None:
    """The learning rate that was chosen before a study was stopped."""
    if not (out / schema.STUDY).is_file():
        return None
    found = read_yaml(out / schema.STUDY).get("lr")
    return float(found) if isinstance(found, (int, float)) else None


def _choose_rate(entries: Entries, show: Show) -> float:
    """The learning rate with the best validation score, averaged over local training and FedAvg on one fold."""
    from comity.engine import RunPlan, run  # with torch, for which help and errors do not wait

    plain = {name: value for name, value in entries.items() if name.partition(".")[0] not in (*CHOSEN_HERE, "grid")}
    quick = {"method": "FedAvg", "val_share": 0.2, "local_on": "train", "control": "none", "save_models": False}
    plan = RunPlan(Config.of(Overlay(plain, quick)))
    for note in plan.everyone.notes:
        show.say(note)
    metric = VALIDATED[plan.config.metric or ACCURACY]

    def score(rate: float) -> float:
        done = run(plan=RunPlan(plan.config.with_(lr=rate), plan.everyone))
        both = fmean(_mean(each, metric.key) for each in (done.columns, done.local or {}))
        show.say(f"Learning rate {rate:g}: {metric.label} {both:.3f}")
        return metric.gain(both, 0.0)

    scores = {rate: score(rate) for rate in LEARNING_RATES}
    finite = {rate: value for rate, value in scores.items() if isfinite(value)}
    if not finite:
        raise ComityError("training diverges at every learning rate that was tried; give --lr")
    return max(finite, key=lambda rate: finite[rate])


def _mean(columns: Columns, key: str) -> float:
    """Mean over the clients that have the metric."""
    known = [value for value in columns.get(key, []) if isfinite(value)]
    return fmean(known) if known else nan


def _keep_models(done: LoadedStudy) -> tuple[Path, str]:
    """Copy the models of the verdict's configuration (first seed) to the study's own folder."""
    verdict, out = done.verdict, done.paths[0]
    local = next(cell for cell in done.cells if cell.local)
    chosen = verdict.cell if verdict.cell is not None and verdict.title.startswith("Join") else local
    source = min(chosen.finished, key=lambda run: run.seed)
    with locked(out / schema.LOCK, f"another study is running in {out}"):
        shutil.rmtree(out / schema.MODELS, ignore_errors=True)
        shutil.copytree(source.path / schema.MODELS, out / schema.MODELS)
        if (known := source.path / "schema.yaml").is_file():
            shutil.copy(known, out / known.name)
    return out / schema.MODELS, "local training" if chosen is local else chosen.label
