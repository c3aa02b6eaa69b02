"""What a run comes to."""

import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from comity.results import transfer
from comity.results.schema import (
    FALL,
    FALLEN_TESTS,
    OWN,
    TEST_SAMPLES,
    VALIDATION,
    Best,
    Columns,
    Evaluation,
    Result,
    Seconds,
    Traffic,
)

if TYPE_CHECKING:
    from comity.engine._run import Run


def result_of(run: "Run") -> Result:
    """Last and best round, who gained and who was harmed, what it cost, and on what it ran."""
    records = run.records
    evaluated = [record for record in records if record.metrics]
    last = evaluated[-1]
    validated = VALIDATION in last.metrics
    best = max(evaluated, key=lambda record: record.metrics[VALIDATION if validated else OWN].mean)
    rates = [record.conflict.rate for record in records if record.conflict is not None]
    return Result(
        last=Evaluation(round=last.round, metrics=last.metrics, general_error=last.general_error),
        best=Best(
            round=best.round,
            metrics=best.metrics,
            general_error=best.general_error,
            chosen_by="validation" if validated else "test",
        ),
        transfer=None if run.local is None else transfer(by_client(run.columns), run.local),
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
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        versions={name: version(name) for name in ("comity", "torch", "numpy", "scipy")},
        machine={"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        unstable=sorted({cid for record in records for cid in record.fell}),
    )


def by_client(columns: Columns) -> dict[int, float]:
    """Each client's accuracy on its own tests."""
    return {int(cid): accuracy for cid, accuracy in zip(columns["client"], columns[OWN], strict=True)}


def falls(before: dict[int, float], columns: Columns) -> dict[int, float]:
    """By how much accuracy fell since the evaluation before, for clients where so large a fall is no chance."""
    tests = dict(zip(by_client(columns), columns[TEST_SAMPLES], strict=True))
    fell = {cid: before.get(cid, accuracy) - accuracy for cid, accuracy in by_client(columns).items()}
    return {cid: by for cid, by in fell.items() if by > FALL and round(by * tests[cid]) >= FALLEN_TESTS}
