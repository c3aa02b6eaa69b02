"""The effect of joining on each client: its gain over local training, with an interval and a state."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeVar

from comity._words import MOST_NAMED, listed
from comity.config import ACCURACY, Config
from comity.metrics import DECIDING, EVIDENCE
from comity.results import TEST_SAMPLES, ZERO, Columns, Gain, LoadedRun, State, Transfer, schema

if TYPE_CHECKING:  # numpy, which lists and errors should not wait for
    import numpy as np
    from numpy.typing import NDArray

    from comity.compare.evidence import Estimate, Evidence

    Part = tuple[int, np.ndarray, np.ndarray, float]
    """One run of one client: seed, ids of its tests, differences of scores, the largest difference of one test."""

K = TypeVar("K")
Key = tuple[int, int | None]  # a client, and its seed if each seed has its own partition
SUMS, MOST = 6, 1e30  # numbers of `Evidence` per run, and the largest accepted from other machines
STATES: tuple[State, ...] = ("worse", "undecided", "not worse")


@dataclass(frozen=True)
class ClientRow:
    """One client under one configuration, over all repetitions."""

    client: int
    seed: int | None
    """The seed, if each seed has other clients; otherwise ``None``."""
    name: str
    train: float
    """Number of training samples, mean over runs."""
    tests: int
    """Number of test samples, each counted once."""
    value: float
    local: float
    """Metric that decides, of the client's local model, mean over runs; ``value`` is that of its joined model."""
    gain: float
    """Positive if joining is better."""
    low: float
    high: float
    state: State
    detectable: float
    """Smallest loss that would be detected with 80 % power, in the unit of the metric."""
    constant: bool
    """Whether the model predicts the same class for all tests in every run."""

    @property
    def place(self) -> tuple[bool, float, int, int]:
        """Sort key: clients with a significant loss first, then by gain."""
        return self.state != "worse", self.gain, self.seed or 0, self.client

    def __str__(self) -> str:
        return (self.name or f"{self.client}") + ("" if self.seed is None else f" of seed {self.seed}")


def by_client(columns: Columns, name: str) -> dict[int, float]:
    """A column of an evaluation by client, without missing values; empty if it was not measured."""
    clients = map(int, columns.get(schema.CLIENT, ()))
    return {client: v for client, v in zip(clients, columns.get(name, ()), strict=False) if not math.isnan(v)}


def transfer(joined: Columns, local: Columns, control: Columns, config: Config) -> Transfer | None:
    """The effect of joining in one run, from the evaluations of the run, its local baseline and the repeated one."""
    from comity.compare.evidence import Estimate, estimate, state_of_mean, states

    name, margin = config.metric or ACCURACY, config.margin
    metric = DECIDING[name]
    mine, theirs = by_client(joined, metric.key), by_client(local, metric.key)
    gains = {client: metric.gain(mine[client], theirs[client]) for client in mine if client in theirs}
    if not gains:
        return None
    known = {client: each for client, each in of_columns([joined]).items() if client in gains}
    luck = training_luck(of_columns([control]), known)
    unknown = {client: Estimate(gain, math.nan, math.nan, 1.0, math.inf) for client, gain in gains.items()}
    estimates = unknown | {client: bounded(estimate(each, luck, len(known)), name) for client, each in known.items()}
    mean = Estimate(fmean(gains.values()), math.nan, math.nan, 1.0, math.inf)
    if len(known) == len(gains):
        mean = mean_gain(known, luck)
    state = states(estimates, margin)
    relative = [gain / theirs[client] for client, gain in gains.items() if theirs[client] > 0]
    return Transfer(
        metric=name,  # type: ignore[arg-type]
        margin=margin,
        local=fmean(theirs[client] for client in gains),
        relative_accuracy=fmean(relative) if relative and metric.unit == "%" else math.nan,
        positive_transfer=sum(gain > ZERO for gain in gains.values()) / len(gains),
        mean=_record(mean, state_of_mean(mean, margin)),
        clients={client: _record(each, state[client]) for client, each in estimates.items()},
        local_on=config.local_on,
    )


def bounded(estimate: "Estimate", name: str) -> "Estimate":
    """Clip to the range of the metric: a share changes by at most 100 points."""
    if DECIDING[name].unit != "%":
        return estimate
    detectable = estimate.detectable if estimate.detectable <= 1 else math.inf
    return replace(estimate, low=max(estimate.low, -1.0), high=min(estimate.high, 1.0), detectable=detectable)


def _record(estimate: "Estimate", state: State) -> Gain:
    numbers = (estimate.gain, estimate.low, estimate.high, estimate.detectable)
    gain, low, high, detectable = (number if math.isfinite(number) else math.nan for number in numbers)
    return Gain(gain=gain, low=low, high=high, state=state, detectable=detectable)


def of_columns(runs: Sequence[Columns], repetitions: int | None = None) -> "dict[int, Evidence]":
    """Evidence of each client from the sums in its evaluations, for the same clients in all runs.

    ``repetitions``: number of runs that test the same sample (default: all). Runs have equal weight, whatever their
    number of tests.
    """
    from comity.compare.evidence import Evidence, Moments

    found: dict[int, list[tuple[float, ...]]] = {}
    for columns in runs:
        tests, *parts = (by_client(columns, key) for key in (TEST_SAMPLES, *(metric.key for metric in EVIDENCE)))
        for client in (client for client in tests if all(client in part for part in parts)):
            found.setdefault(client, []).append((tests[client], *(part[client] for part in parts)))
    evidence = {}
    for client, rows in found.items():
        size = fmean(count for count, *_ in rows)  # runs have equal weight, whatever their number of tests
        moments, units = [], []
        for count, gain, squares, absolute, fourth, least, unit in rows:
            k = size / count
            sums = count * k * gain, count * k**2 * squares, count * k * absolute, count * k**4 * fourth
            moments.append(Moments(count, *sums, k * least))
            units.append(k * unit)
        evidence[client] = Evidence.of_moments(moments, repetitions, max(units))
    return evidence


def training_luck(control: "Mapping[K, Evidence]", joined: "Mapping[K, Evidence]") -> float:
    """Covariance of two tests of one run by training luck, estimated from the repeated local baseline."""
    from comity.compare.evidence import luck

    return luck(list(control.values()), list(joined.values()))


def mean_gain(joined: "Mapping[K, Evidence]", luck: float, shared: float = 0.5) -> "Estimate":
    """Mean gain over clients; ``shared``: the part of training luck that all clients share."""
    from comity.compare.evidence import mean_estimate

    return mean_estimate(list(joined.values()), luck, shared)


def of_samples(
    first: Mapping[int, LoadedRun],
    second: Mapping[int, LoadedRun],
    *,
    pooled: bool,
    column: Literal["score", "mixed"] = "score",
) -> "dict[Key, Evidence] | None":
    """Evidence of each client from scores of single tests, with runs paired by seed; ``None`` if scores are missing.

    ``pooled``: each seed has its own clients, which share samples with those of other seeds. Runs have equal weight,
    whatever their number of tests.
    """
    import numpy as np

    from comity.metrics import unit

    found: dict[Key, list[Part]] = {}
    for seed in sorted(first.keys() & second.keys()):
        mine, theirs = first[seed].samples, second[seed].samples
        if mine is None or theirs is None:
            return None
        name = first[seed].deciding
        for client in mine.keys() & theirs.keys():
            one, other = mine[client], theirs[client]
            scores = getattr(one, column)
            if scores is None or not np.array_equal(one.id, other.id):
                continue
            part = seed, one.id, scores.astype(float) - other.score.astype(float), unit(name, one.label)
            found.setdefault((client, seed if pooled else None), []).append(part)
    evidence = {
        key: _of_parts(parts) for key, parts in sorted(found.items(), key=lambda item: (item[0][1] or 0, item[0][0]))
    }
    if pooled and evidence:
        ids = np.concatenate([ids for parts in found.values() for _, ids, _, _ in parts])
        own = [(values - values.mean()) / len(values) for parts in found.values() for _, _, values, _ in parts]
        apart, by_id = sum(float(each @ each) for each in own), np.unique(ids, return_inverse=True)[1]
        together = np.bincount(by_id, np.concatenate(own))  # sum per sample
        overlap = max(1.0, float(together @ together) / apart) if apart else 1.0
        evidence = {key: replace(each, overlap=overlap) for key, each in evidence.items()}
    return evidence or None


def _of_parts(parts: "Sequence[Part]") -> "Evidence":
    """Evidence over runs of equal weight, whatever their number of tests."""
    import numpy as np

    from comity.compare.evidence import Evidence

    size = fmean(len(ids) for _, ids, _, _ in parts)
    scales = [size / len(ids) for _, ids, _, _ in parts]
    return Evidence.of(
        np.concatenate([ids for _, ids, _, _ in parts]),
        np.concatenate([np.full(len(ids), seed) for seed, ids, _, _ in parts]),
        np.concatenate([scale * values for scale, (_, _, values, _) in zip(scales, parts, strict=True)]),
        max(scale * step for scale, (_, _, _, step) in zip(scales, parts, strict=True)),
    )


@dataclass(frozen=True, eq=False)
class Paired:
    """Scores of one client's tests by two models in one run; higher is better."""

    run: int
    train: int
    id: "NDArray[np.int64]"
    label: "NDArray[np.int64]"
    joined: "NDArray[np.float64]"
    local: "NDArray[np.float64]"
    constant: bool = False
    """Whether the joined model predicts the same class for all tests."""


@dataclass(frozen=True, eq=False)
class ClientPairs:
    """Sums over one client's pairs in all runs: enough for its row, without scores of single tests."""

    evidence: "Evidence"
    train: float
    tests: int
    value: float
    local: float
    constant: bool

    @classmethod
    def of(cls, pairs: Sequence[Paired], metric: str) -> "ClientPairs":
        from comity.metrics import unit

        sign = DECIDING[metric].sign
        return cls(
            _of_parts([(p.run, p.id, p.joined - p.local, unit(metric, p.label)) for p in pairs]),
            train=fmean(pair.train for pair in pairs),
            tests=len({i for pair in pairs for i in pair.id.tolist()}),
            value=sign * fmean(pair.joined.mean() for pair in pairs),
            local=sign * fmean(pair.local.mean() for pair in pairs),
            constant=all(pair.constant for pair in pairs),
        )

    @staticmethod
    def width(runs: int) -> int:
        """Length of ``numbers``."""
        return SUMS * runs + 13

    def numbers(self, runs: Sequence[int]) -> "NDArray[np.float64]":
        """All fields as one vector, with zeros for runs without pairs."""
        import numpy as np

        each, sums = self.evidence, np.zeros((SUMS, len(runs)))
        sums[:, np.isin(runs, each.runs)] = each.sums
        rest = each.step, each.unit, each.repeats, self.train, self.tests, self.value, self.local, self.constant
        return np.concatenate([sums.ravel(), each.clusters, rest])

    @classmethod
    def of_numbers(cls, numbers: "NDArray[np.float64]", runs: Sequence[int]) -> "ClientPairs | None":
        """The inverse of ``numbers``; ``None`` without pairs. Impossible numbers raise a ValueError."""
        import numpy as np

        from comity.compare.evidence import Evidence

        if not numbers.any():
            return None
        wrong = ValueError("sent sums of differences that cannot be")
        size = SUMS * len(runs)
        if not (np.abs(np.delete(numbers, size + 5)) <= MOST).all() or not numbers[size + 5] > 0:
            raise wrong  # only the step may be infinite, if no score differs
        sums = numbers[:size].reshape(SUMS, len(runs))
        clusters, (step, unit, repeats, train, tests, value, local, constant) = np.split(numbers[size:], [5])
        count, total, squares, absolute = sums[:4]
        there, counts = count > 0, np.r_[count, tests, constant]
        least = np.r_[counts, squares, absolute, sums[5], clusters[[0, 2, 3, 4]], unit, train].min()
        if least < 0 or (counts % 1).any() or constant > 1:
            raise wrong
        if not 0 < tests <= count.sum() or not 0 < repeats <= len(runs):
            raise wrong
        bounds = np.r_[np.minimum(absolute, np.sqrt(count * squares)), np.sqrt(tests * clusters[[0, 2]])]
        if (np.abs(np.r_[total, total.sum(), count.sum()]) > 1.000001 * bounds).any():  # Cauchy-Schwarz
            raise wrong
        evidence = Evidence(np.array(runs)[there], sums[:, there], tuple(clusters.tolist()), step, unit, repeats)
        return cls(evidence, float(train), int(tests), float(value), float(local), bool(constant))


def paired_rows(
    clients: Mapping[int, ClientPairs], metric: str, margin: float, names: Sequence[str]
) -> tuple[list[ClientRow], Gain]:
    """One row per client, and the mean over clients, for models without training luck."""
    from comity.compare.evidence import estimate, state_of_mean, states

    evidence = {client: each.evidence for client, each in sorted(clients.items())}
    known = {client: bounded(estimate(each, 0.0, len(evidence)), metric) for client, each in evidence.items()}
    state = states(known, margin)
    rows = [
        ClientRow(
            client=client,
            seed=None,
            name=names[client],
            train=clients[client].train,
            tests=clients[client].tests,
            value=clients[client].value,
            local=clients[client].local,
            gain=each.gain,
            low=each.low,
            high=each.high,
            state=state[client],
            detectable=each.detectable,
            constant=clients[client].constant,
        )
        for client, each in known.items()
    ]
    mean = bounded(mean_gain(evidence, 0.0), metric)
    return sorted(rows, key=lambda row: row.place), _record(mean, state_of_mean(mean, margin))


def named(rows: Iterable[ClientRow], most: int = MOST_NAMED) -> str:
    """“ (Zurich and Basel)”, or “ (clients 0 and 3)” without names; empty if there are none or too many to name."""
    rows = list(rows)
    numbers = all(row.name in ("", f"{row.client}") for row in rows)
    noun = f"client{'s' * (len(rows) > 1)} " if numbers else ""
    return f" ({noun}{listed(map(str, rows))})" if 0 < len(rows) <= most else ""
