"""Estimate within seconds whether joining pays, before any network is trained."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from comity._errors import ComityError
from comity._words import counted, listed, number
from comity.compare import ClientPairs, ClientRow, ClientTable, Paired, paired_rows
from comity.config import ACCURACY, Config, Overlay
from comity.data import ClientData, Dataset, Federation, federate
from comity.engine import RunPlan
from comity.metrics import DECIDING, scores
from comity.probe import _disagreement as disagreement
from comity.probe._calibration import Similar, calibration, reference, similar
from comity.probe._disagreement import Finding
from comity.probe._logistic import Array, Rows, common, log_probabilities
from comity.results import Gain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SEEDS = 6
"""Two repetitions of three folds: each row is tested twice."""
SIMILAR = "similar gained"


@dataclass(frozen=True)
class Answer:
    """An estimate of whether joining pays, by logistic regression."""

    rows: Sequence[ClientRow]
    """One row per client: global against own logistic regression, by the metric that decides."""
    mean: Gain
    similar: dict[int, Similar]
    """By client: clients of natural federations with a similar gain, and how many of them gained."""
    findings: tuple[Finding, ...]
    """Columns and classes that sites probably use with different meanings."""
    metric: str
    seconds: float

    @property
    def table(self) -> ClientTable:
        words = {client: str(each) for client, each in self.similar.items()}
        return ClientTable("", self.rows, DECIDING[self.metric], {SIMILAR: words})

    @cached_property
    def chances(self) -> float:
        """Expected share of clients that gain by joining."""
        return sum(each.share for each in self.similar.values()) / max(len(self.similar), 1)

    @property
    def title(self) -> str:
        """The headline, such as “Joining probably pays: …”."""
        expected, count = round(self.chances * len(self.similar)), len(self.similar)
        words = "Joining probably pays" if self.chances > 0.6 else "Joining probably does not pay"
        words = "Joining may pay for some" if 0.4 <= self.chances <= 0.6 else words
        return f"{words}: judging by similar clients, about {expected} of {counted(count, 'client')} would gain."

    @property
    def evidence(self) -> str:
        metric, mean = DECIDING[self.metric], self.mean
        digits = 1 if metric.unit == "%" else metric.digits
        gain, low, high = (number(metric.points * each, digits, sign=True) for each in (mean.gain, mean.low, mean.high))
        unit = " points" if metric.unit == "%" else ""
        worse = sum(row.state == "worse" for row in self.rows)
        return (
            f"One logistic regression for all clients has a mean gain of {gain}{unit} in {metric.label} over one per "
            f"client (95 % CI {low} to {high}); {worse} of {counted(len(self.rows), 'client')} "
            f"{'is' if worse == 1 else 'are'} significantly worse."
        )

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Print the expectation, the evidence, one row per client, and what to check first."""
        from rich.text import Text

        yield Text(self.title, style="bold")
        yield Text(self.evidence)
        if self.findings:
            who = list(dict.fromkeys(finding.client for finding in self.findings))
            verb = "means" if len(who) == 1 else "mean"
            yield Text(f"→ Check first what {listed(who)} {verb} by the columns or classes named above.")
        yield Text()
        yield self.table
        yield Text(
            f"Similar gained: how many similar clients of {len(calibration()['federations'])} natural federations "
            "gained by joining, with FedAvg, a small network and a tuned learning rate. Similar: with a similar gain "
            f"in this comparison of two logistic regressions (docs/how-to/ask.md). Took {self.seconds:.1f} s.",
            style="dim",
        )


def ask(
    data: str | Path | Dataset,
    *,
    seeds: int = SEEDS,
    say: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Answer:
    """Compare a global logistic regression with each client's own, and look for disagreement between sites.

    ``ask("patients.csv", **{"data.target": "outcome", "data.client": "hospital"})``. Only options about the data,
    ``metric`` and ``margin`` have an effect. ``say`` is called with each line of output.
    """
    began = time.perf_counter()
    given = data if isinstance(data, Dataset) else None
    config = Config.of(Overlay({} if given is not None else {"data": str(data)}, options))
    plan = _plan(config, given)
    federation = plan.everyone
    check(federation)
    for line in (*federation.notes, *federation.warnings):
        say(line)
    found = []
    dataset = given or plan.dataset
    for finding in findings(federation, dataset if isinstance(dataset, Dataset) else None):
        found.append(finding)
        say(f"Check: {finding}")
    metric = plan.config.metric or ACCURACY
    pairs: dict[str, dict[int, list[Paired]]] = {metric: {}, reference(metric): {}}
    for seed in range(plan.config.seed, plan.config.seed + (seeds if federation.folds else 1)):
        fold = federation
        if seed != plan.config.seed:
            fold = _plan(plan.config.with_(seed=seed), given, plan).everyone
        for name, client, pair in compared(fold, list(pairs)):
            pairs[name].setdefault(client, []).append(pair)
    sums = {name: {c: ClientPairs.of(each, name) for c, each in of.items()} for name, of in pairs.items()}
    return answered(sums, plan.config, federation.client_names, found, began)


def check(federation: Federation) -> None:
    """Reject a federation with one client or one class."""
    if len(federation) < 2:
        raise ComityError(f"{federation.name} has only one client, so there is no federation to join")
    if federation.classes < 2:
        raise ComityError(f"{federation.name} has one class: there is nothing to predict")


def answered(
    sums: Mapping[str, Mapping[int, ClientPairs]],
    config: Config,
    names: Sequence[str],
    found: Sequence[Finding],
    began: float,
) -> Answer:
    """The answer from each client's sums, by metric and client; ``began``: start time of the question."""
    metric = config.metric or ACCURACY
    rows, mean = paired_rows(sums[metric], metric, config.margin, names)
    known = reference(metric)
    compared_rows = rows if known == metric else paired_rows(sums[known], known, 0.0, names)[0]
    similar_clients = {row.client: similar(100 * row.gain) for row in compared_rows if not isnan(row.gain)}
    return Answer(rows, mean, similar_clients, tuple(found), metric, time.perf_counter() - began)


def _plan(config: Config, given: Dataset | None, before: RunPlan | None = None) -> RunPlan:
    """The plan of one seed; ``before``: the plan of another seed with the same data."""
    if given is not None:
        return RunPlan(config, federate(given, seed=config.seed, test_share=config.test_share))
    return RunPlan(config, dataset=None if before is None else before.dataset)


def findings(federation: Federation, dataset: Dataset | None) -> Iterator[Finding]:
    """Disagreements between the clients that a data set defines; clients made by a partition have none."""
    if dataset is None or dataset.owner is None or not federation.folds:
        return
    names = federation.client_names
    if dataset.x.ndim == 2:
        owner = dataset.owner.astype(str)
        columns = dataset.schema.features if dataset.schema else [f"{j}" for j in range(dataset.x.shape[1])]
        least = dataset.schema.min_count if dataset.schema else 0
        sites = [disagreement.Summary.of(dataset.x[owner == name].astype(np.float64), least) for name in names]
        yield from disagreement.columns(sites, names, columns)
    rows = [Rows.of(client.train, client.val, client.test) for client in federation.clients]
    yield from disagreement.classes(rows, names, federation.class_names)


def compared(federation: Federation, metrics: Sequence[str]) -> Iterator[tuple[str, int, Paired]]:
    """Scores of the global model and of each client's own on its tests, if the metric is defined."""
    sites = [Rows.of(client.train, client.val) for client in federation.clients]
    together = common(sites, federation.classes)
    for client in federation.clients:
        for name, pair in compared_at(client, together, federation.seed, metrics):
            yield name, client.id, pair


def compared_at(client: ClientData, together: Array, seed: int, metrics: Sequence[str]) -> Iterator[tuple[str, Paired]]:
    """The same for one client, whose own model is fitted here; ``together``: the global model."""
    rows, tests, classes = Rows.of(client.train, client.val), Rows.of(client.test), together.shape[1]
    models = together, common([rows], classes)
    predicted = [log_probabilities(model, tests.x) for model in models]
    shares = [np.exp(log_probabilities(model, rows.x)).mean(0) for model in models]
    constant = len(np.unique(tests.y)) > 1 == len(np.unique(predicted[0].argmax(1)))
    for name in metrics:
        mine, own = (scores(name, each, tests.y, share) for each, share in zip(predicted, shares, strict=True))
        if mine is not None and own is not None:
            yield name, Paired(seed, len(rows.y), client.test_ids, tests.y, mine, own, constant)
