"""Run folders as the engine writes them, without any training: the numbers are the test's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comity.compare import transfer
from comity.config import Config
from comity.metrics import ALL, DECIDING, EVIDENCE, LOSS, METRICS, OWN, SOME, VALIDATION
from comity.results import (
    SCHEMA,
    TEST_SAMPLES,
    TRAINING_SAMPLES,
    Against,
    Best,
    ClientScores,
    Columns,
    Conflict,
    Cosines,
    Evaluation,
    Metrics,
    PartitionTable,
    Result,
    RoundRecord,
    RuleNote,
    RunFolder,
    RunInfo,
    Seconds,
    Summary,
    Traffic,
    Verdict,
    Weights,
)

CONFIG: dict[str, Any] = {
    "data": {"name": "digits"},
    "data_dir": None,
    "partition": {"name": "Dirichlet", "alpha": 0.1},
    "clients": 20,
    "test_share": 0.3,
    "val_share": 0.0,
    "model": {"name": "cnn"},
    "method": {"name": "FedRep", "head_epochs": 1},
    "rule": {"name": "Mean", "by": "size"},
    "rounds": 50,
    "participation": 1.0,
    "epochs": 1,
    "lr": 0.05,
    "eval_point": None,
    "reference": "auto",
    "seed": 0,
    "workers": 2,
    "out": None,
}
RULES: dict[str, dict[str, Any]] = {"Mean": {"by": "size"}, "ConFREE": {"c": 0.5}, "CALM": {"C": 10.0, "eps": 0.1}}
METHODS: dict[str, dict[str, Any]] = {"FedRep": {"head_epochs": 1}, "Ditto": {"lam": 1.0}}
JUDGED = ("metric", "margin")  # options that a client is judged by
COST = {"bytes": Traffic(down=1_000_000, up=500_000), "seconds": Seconds(train=0.5, aggregate=0.25, evaluate=0.1)}
"""Of a round."""


def make(
    path: Path,
    accuracy: Sequence[float],
    *,
    alone: Sequence[float] | None = None,
    method: str = "FedRep",
    rule: str = "Mean",
    seed: int = 0,
    rounds: int = 5,
    done: int | None = None,
    layers: Sequence[str] = ("body.conv1.weight", "body.conv1.bias", "head.weight"),
    tests: int = 20,
    same_partition: bool = False,
    options: Mapping[str, Any] | None = None,
    own_rule: bool = False,
    thorough: bool = True,
    validation: float | None = None,
    only: tuple[Sequence[int], Sequence[int]] | None = None,
    metrics_too: Mapping[str, float] | None = None,
    info: Mapping[str, Any] | None = None,
    samples: Mapping[int, ClientScores] | None = None,
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
    columns_too: Mapping[str, Sequence[float]] | None = None,
    control: Columns | None = None,
) -> Path:
    """A run whose clients end with ``accuracy``; ``alone`` is what they reach without the others.

    ``done`` rounds of ``rounds``: the run is still under way. ``thorough``: with weights, cosines and partition.
    ``validation``: accuracy in a validation split, which then chose the best round. ``only``: how many tests of each
    client only Local, and only the run's model, got right. ``metrics_too``: further metrics of every client. ``info``:
    more of ``run.json``. ``samples``: the score of each test. ``names`` of clients and classes. ``columns_too``:
    further columns of the last evaluation, such as the metric that decides, which ``alone`` then is of. ``control``:
    the last evaluation of local training repeated.
    """
    clients, last = len(accuracy), rounds if done is None else done
    local = method == "Local"
    config = {
        **CONFIG,
        "clients": clients,
        "method": {"name": method, **METHODS.get(method, {})},
        "rule": {"name": rule, **RULES.get(rule, {})},
        "rounds": rounds,
        "seed": seed,
        "out": str(path),
    }
    for key, value in (options or {}).items():
        part, dot, option = key.partition(".")
        config[part] = {**config[part], option: value} if dot else value
    folder = RunFolder(path)
    about = RunInfo(
        schema=SCHEMA,
        comity="0.1.0",
        title=method if local or own_rule else f"{method} + {rule}",
        key="0" * 16,
        own_rule=local or own_rule,
        eval_point="received",
        **info or {},
    )
    folder.open(about, config, resume=False, overwrite=True)
    random = np.random.default_rng(0 if same_partition else seed)
    classes = len(names[1]) or 10
    counts = (random.dirichlet([0.2] * classes, clients) * random.integers(30, 200, (clients, 1))).astype(int)
    if thorough:
        how = "Dirichlet(alpha=0.1)"
        own = {"client_names": list(names[0]), "class_names": list(names[1])}
        folder.add_partition(
            PartitionTable(name="digits", partition=how, classes=classes, counts=counts.tolist(), **own)
        )
    sizes = [int(size) for size in counts.sum(1)]
    columns = {"client": list(range(clients)), "n_train": sizes, "n_test": [tests] * clients}
    own_columns = {name: list(values) for name, values in (columns_too or {}).items()}
    columns |= {name: own_columns.pop(name) for name in (TRAINING_SAMPLES, TEST_SAMPLES) if name in own_columns}
    for number in range(1, last + 1):
        now = np.array(accuracy)
        if number < last:
            now = now * (1 - 0.5 * np.exp(-3 * number / last))
        more = {name: [value] * clients for name, value in (metrics_too or {}).items()}
        folder.add_clients(number, columns | {OWN.key: now.tolist(), LOSS.key: (1 - now).tolist()} | more)
        metrics = metrics_of(now, validation)
        if number == last or (options or {}).get("general_every") == 1:
            metrics |= {SOME.key: _summary(0.8 * now), ALL.key: _summary(0.6 * now)}
            metrics |= {name: _summary(np.full(clients, value)) for name, value in (metrics_too or {}).items()}
            metrics |= summaries_of(own_columns)
        record = RoundRecord(
            round=number,
            cohort=list(range(clients)),
            train_loss=2.0 / number,
            bytes=Traffic() if local else COST["bytes"],
            seconds=COST["seconds"],
            metrics=metrics,
        )
        weights, cosines = _sample(record, layers if not local else (), rule, random, number in (1, last))
        folder.add_round(record, weights if thorough else (), cosines if thorough else ())
    if done is None:
        joined = columns | {OWN.key: list(accuracy), LOSS.key: [1 - value for value in accuracy]} | more
        joined |= {} if alone is None else gains_of(accuracy, alone, tests, only)
        joined |= own_columns
        folder.add_result(result_of(joined, alone, rounds, metrics, local=local, config=config, control=control))
        if samples is not None:
            folder.add_samples(samples)
    return path


def _sample(
    record: RoundRecord, layers: Sequence[str], rule: str, random: np.random.Generator, with_cosines: bool
) -> tuple[list[Weights], list[Cosines]]:
    """What a rule leaves of one round: conflict in the record, coefficients and cosines beside it."""
    if not layers:
        return [], []
    ids: list[int | str] = list(record.cohort)
    rates = {layer: float(random.uniform(0.1, 0.6)) for layer in layers}
    record.conflict = Conflict(rate=sum(rates.values()) / len(rates), layers=rates)
    record.rule = RuleNote(certificate="exact", residual=1e-9)
    if rule == "Auto":  # asked in odd rounds, with another choice in the first two than later
        heavy, light = ("Mean × 1", "ConFREE × 2")[:: 1 if record.round < 3 else -1]
        record.rule.choice = {
            name: {heavy: 0.7, light: 0.2}.get(name, 0.1) for name in ("Mean × 1", "Mean × 2", "ConFREE × 2")
        }
        if record.round % 2:
            changes = {heavy: -0.25, light: -0.5}
            record.rule.verdicts = {
                name: Verdict(change=change, harmed=int(name == light)) for name, change in changes.items()
            }
    mean, step = [i for i in record.cohort if i % 3 == 0], [i for i in record.cohort if i % 4 == 0]
    step = mean if rule == "Mean" else step
    record.against = Against(clients=len(ids), mean=len(mean), rule=len(step), mean_ids=mean, rule_ids=step)
    coefficients = random.exponential(1 / len(ids), (len(layers) if rule == "CALM" else 1, len(ids)))
    weights = [Weights(round=record.round, group="", ids=ids, coefficients=coefficients.tolist())]
    if not with_cosines:
        return weights, []
    cosine = np.clip(random.normal(0, 0.3, (len(ids), len(ids))), -1, 1)
    cosine = (cosine + cosine.T) / 2
    np.fill_diagonal(cosine, 1)
    return weights, [Cosines(round=record.round, group="", ids=ids, cosines=cosine.round(4).tolist())]


def _summary(values: np.ndarray[Any, Any], lower: bool = False) -> Summary:
    worst = np.sort(values)[:: -1 if lower else 1][: max(1, -(-len(values) // 10))]
    mean = float(values.mean())
    return Summary(mean=mean, std=float(values.std()), samples=mean, worst10=float(worst.mean()))


def metrics_of(accuracy: np.ndarray[Any, Any], validation: float | None = None) -> Metrics:
    metrics = {OWN.key: _summary(accuracy), LOSS.key: _summary(1 - accuracy)}
    return metrics if validation is None else metrics | {VALIDATION.key: _summary(np.full(len(accuracy), validation))}


def summaries_of(columns: Mapping[str, Sequence[float]]) -> Metrics:
    """Of the metrics among these columns; clients without a number do not count."""
    known = {name: np.array(values)[~np.isnan(values)] for name, values in columns.items()}
    averaged = {metric.key: metric for metric in METRICS}
    return {
        name: _summary(values, averaged[name].better == "lower")
        for name, values in known.items()
        if name in averaged and len(values)
    }


def gains_of(
    accuracy: Sequence[float], alone: Sequence[float], tests: int, only: tuple[Sequence[int], Sequence[int]] | None
) -> dict[str, list[float]]:
    """What each client gains over local training, as the sums that its evaluation holds."""
    gains = [joined - local for joined, local in zip(accuracy, alone, strict=True)]
    differ = [sum(pair) / tests for pair in zip(*only, strict=True)] if only else [abs(gain) for gain in gains]
    least = [float(share > 0) for share in differ]
    columns = (gains, differ, differ, differ, least, [1.0] * len(gains))  # a test gains or loses 1, or nothing
    return {metric.key: column for metric, column in zip(EVIDENCE, columns, strict=True)}


def result_of(
    columns: dict[str, list[Any]],
    alone: Sequence[float] | None,
    rounds: int,
    metrics: Metrics,
    *,
    local: bool = False,
    config: Mapping[str, Any] | None = None,
    control: Columns | None = None,
) -> Result:
    decided = Config(**{"metric": "accuracy"} | {key: (config or {})[key] for key in JUDGED if key in (config or {})})
    key = DECIDING[decided.metric or ""].key
    baseline = {} if alone is None else {"client": columns["client"], key: list(alone)}
    return Result(
        last=Evaluation(round=rounds, metrics=metrics),
        best=Best(round=rounds, metrics=metrics, chosen_by="validation" if VALIDATION.key in metrics else "test"),
        transfer=transfer(columns, baseline, control or {}, decided),
        clients=columns,
        malicious=[],
        conflict_rate=None if local else 0.3,
        worst_residual=None if local else 1e-9,
        bytes_per_round=Traffic() if local else COST["bytes"],  # type: ignore[arg-type]
        seconds=Seconds(train=0.5 * rounds, aggregate=0.25 * rounds, evaluate=0.1 * rounds),
        failures=0,
        written="2026-11-15 12:00:00",
        versions={"comity": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "scipy": "1.17.1"},
        machine={"cores": 2, "system": "Linux", "python": "3.11.7"},
        mean_against=None if local else 0.5,
        rule_against=None if local else 0.25,
    )
