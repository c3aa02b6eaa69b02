"""What a run comes to."""

import math
import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from comity.results import transfer
from comity.results.schema import (
    LOSS,
    ONLY_JOINED,
    ONLY_LOCAL,
    OWN,
    VALIDATION,
    Best,
    Columns,
    Evaluation,
    Result,
    Seconds,
    Traffic,
    Transfer,
)

if TYPE_CHECKING:
    from comity.engine._run import Run


def result_of(run: "Run") -> Result:
    """Last and best round, who gained and who was harmed, what it cost, and on what it ran."""
    records = run.records
    evaluated = [record for record in records if record.metrics]
    last = evaluated[-1]
    validated = [record for record in evaluated if VALIDATION in record.metrics]
    chosen_by = VALIDATION if validated else OWN
    best = max(validated or evaluated, key=lambda record: record.metrics[chosen_by].mean)
    rates = [record.conflict.rate for record in records if record.conflict is not None]
    return Result(
        last=Evaluation(round=last.round, metrics=last.metrics, general_error=last.general_error),
        best=Best(
            round=best.round,
            metrics=best.metrics,
            general_error=best.general_error,
            chosen_by="validation" if validated else "test",
        ),
        transfer=None if run.local is None else _transfer(run, run.local),
        clients=run.columns,
        malicious=sorted(run.site.attack.malicious),
        conflict_rate=sum(rates) / len(rates) if rates else None,
        worst_residual=max((record.rule.residual for record in records if record.rule is not None), default=None),
        bytes_per_round=Traffic(
            down=sum(record.bytes.down for record in records) / len(records),
            up=sum(record.bytes.up for record in records) / len(records),
        ),
        seconds=Seconds(
            train=sum(record.seconds.train for record in records),
            aggregate=sum(record.seconds.aggregate for record in records),
            evaluate=sum(record.seconds.evaluate for record in records),
        ),
        failures=sum(len(record.failed) for record in records),
        diverged=_diverged(run),
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        versions={name: version(name) for name in ("comity", "torch", "numpy", "scipy")},
        machine={"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
    )


def _diverged(run: "Run") -> list[int]:
    refused = {cid for cid, why in run.records[-1].failed.items() if "finite" in why}
    infinite = {cid for cid, loss in by_client(run.columns, LOSS).items() if not math.isfinite(loss)}
    return sorted((refused | infinite) - run.site.attack.malicious)


def _transfer(run: "Run", local: dict[int, float]) -> Transfer | None:
    def counts(column: str) -> dict[int, int]:
        return {cid: int(n) for cid, n in by_client(run.columns, column).items()} if column in run.columns else {}

    only = counts(ONLY_LOCAL), counts(ONLY_JOINED)
    return transfer(by_client(run.columns), local, *only, local_on=run.config.local_on)


def by_client(columns: Columns, name: str = OWN) -> dict[int, float]:
    """Each client's accuracy on its own tests, or another of its numbers."""
    return {int(cid): value for cid, value in zip(columns["client"], columns[name], strict=True)}
