"""The result of a run."""

import math
import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from comity.compare import transfer as transfer
from comity.engine._evaluation import by_client
from comity.metrics import DECIDING, LOSS, VALIDATED
from comity.results import FALL, FALLEN_TESTS, Best, Columns, Evaluation, Result, Seconds, Traffic

if TYPE_CHECKING:
    from comity.engine._run import Run


def result_of(run: "Run") -> Result:
    """Build the result: last and best round, gains and harm, cost, and machine."""
    records = run.records
    evaluated = [record for record in records if record.metrics]
    last = evaluated[-1]
    metric = VALIDATED[run.site.metric]
    validated = [record for record in evaluated if metric.key in record.metrics]
    metric = metric if validated else DECIDING[run.site.metric]
    known = validated or [record for record in evaluated if metric.key in record.metrics]
    best = max(known, key=lambda record: metric.sign * record.metrics[metric.key].mean)
    rates = [record.conflict.rate for record in records if record.conflict is not None]
    against = [record.against for record in records if record.against is not None and record.against.clients]
    return Result(
        last=Evaluation(round=last.round, metrics=last.metrics, general_error=last.general_error),
        best=Best(
            round=best.round,
            metrics=best.metrics,
            general_error=best.general_error,
            chosen_by="validation" if validated else "test",
        ),
        transfer=None if run.local is None else transfer(run.columns, run.local, run.control, run.config),
        clients=run.columns,
        malicious=run.excluded,
        conflict_rate=sum(rates) / len(rates) if rates else None,
        conflict_error=max((record.conflict.error for record in records if record.conflict is not None), default=0.0),
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
        unstable=sorted({cid for record in records for cid in record.fell}),
        epsilon=max((record.epsilon for record in records if record.epsilon is not None), default=None),
        mean_against=sum(each.mean / each.clients for each in against) / len(against) if against else None,
        rule_against=sum(each.rule / each.clients for each in against) / len(against) if against else None,
    )


def _diverged(run: "Run") -> list[int]:
    rejected = {cid for cid, why in run.records[-1].failed.items() if "finite" in why}
    infinite = {cid for cid, loss in by_client(run.columns, LOSS.key).items() if not math.isfinite(loss)}
    return sorted((rejected | infinite) - set(run.excluded))


def accuracy_drops(before: dict[int, float], columns: Columns) -> dict[int, float]:
    """Drop in accuracy since the previous evaluation, for clients where it is too large to be chance."""
    tests = dict(zip(by_client(columns), columns["n_test"], strict=True))
    fell = {cid: before.get(cid, accuracy) - accuracy for cid, accuracy in by_client(columns).items()}
    return {cid: by for cid, by in fell.items() if by > FALL and round(by * tests[cid]) >= FALLEN_TESTS}
