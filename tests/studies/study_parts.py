"""What tests of studies share: small options, components of a user's own, and the numbers of a study."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comity.engine import Callback, Run
from comity.methods import Client, Method, Payload, Reply
from comity.rules import Mean, Rule
from comity.studies import _study
from comity.studies._crew import Job
from helpers import TINY, Options, Patch

SMALL: Options = TINY | {"reference": "auto", "jobs": 1, "rounds": 2}


class Own(Method):
    """A method that brings its rule along."""

    def own_rule(self) -> Rule:
        return Mean()


class Title(Callback):
    """Leaves each run's title in its folder."""

    def on_end(self, run: Run) -> None:
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


def numbers(out: Path) -> Options:
    """Everything that two studies must agree on: all but times."""
    found: Options = {}
    for folder in sorted((out / "runs").iterdir()):
        result = json.loads((folder / "result.json").read_text())
        found[folder.name] = {k: v for k, v in result.items() if k not in ("seconds", "written")}
        found[f"{folder.name}/clients"] = (folder / "clients.csv").read_text()
        found[f"{folder.name}/samples"] = (folder / "samples.safetensors").read_bytes()
    with (out / "table.csv").open() as file:
        rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]
    return found | {"table": rows}


def record_begun(monkeypatch: Patch) -> list[str]:
    """The folders of all runs that are begun from now on."""
    began: list[str] = []
    do = _study.execute

    def execute(jobs: Sequence[Job], *rest: Any) -> Any:
        began.extend(job.config.out.name for job in jobs if job.config.out is not None)
        return do(jobs, *rest)

    monkeypatch.setattr(_study, "execute", execute)
    return began
