"""Random studies in run folders, and what their numbers must be, worked out from the scores alone."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from hypothesis import strategies as st

from comity.compare.evidence import Estimate, Evidence, Moments, estimate, mean_estimate, states
from comity.compare.harm import training_luck
from comity.metrics import CONSTANT, DECIDING, EVIDENCE, LOSS, MAJORITY, MIXED, Metric
from comity.results import TEST_SAMPLES, TRAINING_SAMPLES, ClientScores, PartitionTable, RunFolder
from run_folders import make

LOCAL, REPEATED = "Local", "Local repeated"
METHODS = ("FedRep", "Ditto", "FedCALM")
OWN_RULE = "FedCALM"
Key = tuple[int, int | None]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Spec:
    """One run: where it belongs, and what its folder holds."""

    alpha: float
    method: str
    rule: str
    guard: bool
    seed: int
    finished: bool = True
    noted: bool = True  # whether it holds the sums of its clients' gains
    sampled: bool = True  # whether it holds the score of each test

    @property
    def cell(self) -> tuple[Any, ...]:
        return self.alpha, self.method, self.rule, self.guard


@dataclass(frozen=True)
class Study:
    number: int  # decides all random numbers
    name: str  # of the metric that decides
    margin: float
    clients: int
    same_partition: bool
    specs: list[Spec]  # of all runs, Local and Local repeated included

    @property
    def metric(self) -> Metric:
        return DECIDING[self.name]

    @property
    def sign(self) -> int:
        return -1 if self.metric.better == "lower" else 1

    def random(self, *about: float | str) -> np.random.Generator:
        return np.random.default_rng([self.number, *"/".join(map(str, about)).encode()])

    def tests(self, spec: Spec, client: int) -> tuple[Floats, Floats]:
        """Ids and labels of a client's tests. The seeds of one partition draw them from the same samples."""
        pool = self.random(spec.alpha, client, "pool" if self.same_partition else spec.seed)
        size, share = int(pool.integers(4, 40)), pool.choice([0.0, 0.5, 0.8])
        labels = (pool.uniform(size=size) < share).astype(int)
        draw = self.random(spec.alpha, client, spec.seed, "draw")
        chosen = np.sort(draw.permutation(size)[: int(draw.integers(3, size + 1))])
        return np.asarray(100 * client + chosen), labels[chosen]

    def truth(self, spec: Spec, client: int) -> Floats:
        """The probability that a run's model gives the true class of each test."""
        ids, _ = self.tests(spec, client)
        skill = self.random(spec.cell, client).choice([-0.45, 0.0, 0.1, 0.45])
        luck = self.random(spec.cell, client, spec.seed).normal(0, 0.05)
        hard = self.random(spec.alpha, client, "hard").uniform(0.1, 0.9, 40)[ids - 100 * client]
        return np.clip(hard + skill + luck, 0.02, 0.98)

    def score(self, truth: Floats, labels: Floats) -> Floats | None:
        """Higher is better, in the precision of a run folder; ``None`` where the metric is undefined."""
        hits = (truth > 0.5).astype(float)
        if self.name == "accuracy":
            return hits
        if self.name == "log-loss":
            return np.float32(np.log(truth)).astype(float)
        counts = [int((labels == label).sum()) for label in sorted(set(labels.tolist()))]
        if len(counts) < 2:
            return None
        weight = {label: len(labels) / (2 * counts[place]) for place, label in enumerate(sorted(set(labels.tolist())))}
        return np.float32([hit * weight[label] for hit, label in zip(hits, labels.tolist(), strict=True)]).astype(float)

    def scores(self, spec: Spec, client: int) -> Floats | None:
        return self.score(self.truth(spec, client), self.tests(spec, client)[1])

    def mixed(self, spec: Spec, client: int) -> Floats | None:
        both = (self.truth(spec, client) + self.truth(self.run(spec, LOCAL), client)) / 2
        return self.score(both, self.tests(spec, client)[1])

    def unit(self, spec: Spec, client: int) -> float:
        """The largest difference that a test can make."""
        labels = self.tests(spec, client)[1].tolist()
        largest = max(len(labels) / (2 * labels.count(label)) for label in set(labels))
        return {"accuracy": 1.0, "balanced": largest, "log-loss": 0.0}[self.name]

    def value(self, spec: Spec, client: int) -> float:
        scores = self.scores(spec, client)
        return math.nan if scores is None else self.of(scores)

    def of(self, scores: Floats) -> float:
        """The metric; rounded scores of a perfect model exceed it."""
        return min(self.sign * float(scores.mean()), self.metric.high)

    def differences(self, spec: Spec, client: int, than: str) -> Floats | None:
        mine, theirs = self.scores(spec, client), self.scores(self.run(spec, than), client)
        return None if mine is None or theirs is None else mine - theirs

    def run(self, spec: Spec, method: str, rule: str = "") -> Spec:
        """A run of another cell under the same conditions, whether it is there or not."""
        there = (s for s in self.specs if s.cell == (spec.alpha, method, rule, False) and s.seed == spec.seed)
        return next(there, Spec(spec.alpha, method, rule, False, spec.seed, finished=False))

    def of_cell(self, *cell: Any) -> list[Spec]:
        return sorted((s for s in self.specs if s.cell == cell and s.finished), key=lambda s: s.seed)


@st.composite
def studies(draw: st.DrawFn) -> Study:
    mostly = st.sampled_from([True, True, True, True, False])
    alphas, seeds = draw(st.sampled_from([(0.1,), (0.1, 1.0)])), range(draw(st.integers(1, 4)))
    cells = [(m, rule, guard) for m in METHODS[:2] for rule in ("Mean", "ConFREE") for guard in (False, True)]
    chosen = draw(st.lists(st.sampled_from([*cells, (OWN_RULE, "Mean", False)]), min_size=1, max_size=4, unique=True))
    noted, sampled = draw(mostly), draw(mostly)
    specs = [
        Spec(alpha, *cell, seed, draw(mostly), noted and draw(mostly), sampled and draw(mostly))
        for alpha in alphas
        for cell in chosen
        for seed in seeds
        if draw(mostly)
    ]
    repeats = draw(st.booleans())
    for alpha in alphas:
        for seed in seeds:
            if not specs or draw(mostly):
                specs.append(Spec(alpha, LOCAL, "", False, seed, noted=False, sampled=sampled))
                specs += [Spec(alpha, REPEATED, "", False, seed, noted=noted, sampled=sampled)] if repeats else []
    name, margin = draw(st.sampled_from(["accuracy", "balanced", "log-loss"])), draw(st.sampled_from([0.02, 0.3]))
    return Study(draw(st.integers(0, 10**6)), name, margin, draw(st.integers(1, 5)), draw(st.booleans()), specs)


# Run folders.


def sums_of(d: Floats) -> list[float]:
    """Of squares, absolute values and fourth powers."""
    return [float((d**2).sum()), float(np.abs(d).sum()), float((d**4).sum())]


def least(d: Floats) -> float:
    """The smallest absolute difference that is not 0."""
    return min((abs(each) for each in d.tolist() if each), default=0.0)


def columns_of(study: Study, spec: Spec) -> dict[str, list[float]]:
    """The last evaluation of a run, as its ``result.json`` has it."""
    clients = range(study.clients)
    columns = {
        TRAINING_SAMPLES: [float(10 + client + 3 * spec.seed) for client in clients],
        TEST_SAMPLES: [float(len(study.tests(spec, client)[0])) for client in clients],
        LOSS.key: [float(-np.log(study.truth(spec, client)).mean()) for client in clients],
        CONSTANT.key: [float(study.random(spec.cell, client, "constant").uniform() < 0.2) for client in clients],
    }
    if study.name == "balanced":
        columns[study.metric.key] = [study.value(spec, client) for client in clients]
    if study.name == "log-loss":
        columns[LOSS.key] = [study.value(spec, client) for client in clients]
    if spec.method == LOCAL:
        columns[MAJORITY.key] = [0.25 + client / 100 for client in clients]
    if spec.noted:
        found = [study.differences(spec, client, LOCAL) for client in clients]
        sums = [[math.nan] * 5 if d is None else [d.mean(), *(m / len(d) for m in sums_of(d)), least(d)] for d in found]
        rows = [
            [*map(float, row), math.nan if d is None else study.unit(spec, client)]
            for client, (row, d) in enumerate(zip(sums, found, strict=True))
        ]
        columns |= {each.key: [row[place] for row in rows] for place, each in enumerate(EVIDENCE)}
    if spec.method == REPEATED:
        mixed = [study.mixed(spec, client) for client in clients]
        columns[MIXED.key] = [math.nan if m is None else study.of(m) for m in mixed]
    return columns


def samples_of(study: Study, spec: Spec) -> dict[int, ClientScores]:
    found = {}
    for client in range(study.clients):
        scores = study.scores(spec, client)
        if scores is not None:
            mixed = study.mixed(spec, client) if spec.method == REPEATED else None
            found[client] = ClientScores(*study.tests(spec, client), scores, mixed)
    return found


def write(study: Study, folder: Path) -> None:
    for i, spec in enumerate(study.specs):
        path, clients = folder / f"{i:03d}", range(study.clients)
        options: dict[str, Any] = {"partition.alpha": spec.alpha, "metric": study.name, "margin": study.margin}
        options |= {"training_seed": 1000 + spec.seed} if spec.method == REPEATED else {}
        options |= {"guard": {"name": "mixture"}} if spec.guard else {}
        repeated = study.run(spec, REPEATED)
        samples = samples_of(study, spec) if spec.sampled else {}
        make(
            path,
            [float((study.truth(spec, client) > 0.5).mean()) for client in clients],
            alone=[study.value(study.run(spec, LOCAL), c) for c in clients] if spec.noted else None,
            method=LOCAL if spec.method == REPEATED else spec.method,
            rule=spec.rule or "Mean",
            seed=spec.seed,
            rounds=2,
            done=None if spec.finished else 1,
            options=options,
            own_rule=spec.method == OWN_RULE,
            thorough=False,
            samples=samples or None,
            columns_too=columns_of(study, spec),
            control={"client": list(clients)} | columns_of(study, repeated) if repeated.finished else None,
        )
        counts = [[1 + (0 if study.same_partition else spec.seed), client] for client in clients]
        RunFolder(path).add_partition(PartitionTable(name="x", partition="y", classes=2, counts=counts))


# What the numbers must be, worked out from the scores alone.


@dataclass(frozen=True)
class Expected:
    """What is known of one comparison: a list of runs, and the mean difference of each client."""

    seeds: list[int]
    evidence: dict[Key, Evidence]
    gains: dict[Key, float]


NOBODY = Expected([], {}, {})


def pooled(study: Study, alpha: float) -> bool:
    seeds = {spec.seed for spec in study.specs if spec.alpha == alpha and spec.method != REPEATED}
    return not study.same_partition and len(seeds) > 1


def from_samples(study: Study, runs: list[Spec], than: tuple[str, str], mixed: bool = False) -> Expected | None:
    """By the scores of single tests; ``None`` where one of the runs that both have is without them."""
    pairs = [(spec, other) for spec in runs if (other := study.run(spec, *than)) in study.specs and other.finished]
    if not pairs or not all(has_samples(study, spec) for pair in pairs for spec in pair):
        return None
    parts: dict[Key, list[tuple[Spec, Floats]]] = {}
    for spec, other in pairs:
        for client in range(study.clients):
            mine = study.mixed(spec, client) if mixed else study.scores(spec, client)
            theirs = study.scores(other, client)
            if mine is not None and theirs is not None:
                key = client, spec.seed if pooled(study, spec.alpha) else None
                parts.setdefault(key, []).append((spec, mine - theirs))
    evidence = {}
    for key, each in parts.items():
        size = fmean(len(d) for _, d in each)
        evidence[key] = Evidence.of(
            np.concatenate([study.tests(spec, key[0])[0] for spec, _ in each]),
            np.concatenate([np.full(len(d), spec.seed) for spec, d in each]),
            np.concatenate([d * size / len(d) for _, d in each]),
            max(study.unit(spec, key[0]) * size / len(d) for spec, d in each),
        )
    gains = {key: fmean(float(d.mean()) for _, d in each) for key, each in parts.items()}
    if pooled(study, runs[0].alpha):
        by_sample: dict[int, list[float]] = {}
        for key, each in parts.items():
            for spec, d in each:
                for sample, part in zip(study.tests(spec, key[0])[0].tolist(), (d - d.mean()) / len(d), strict=True):
                    by_sample.setdefault(sample, []).append(float(part))
        apart = sum(part**2 for each in by_sample.values() for part in each)
        together = sum(sum(each) ** 2 for each in by_sample.values())
        overlap = max(1.0, together / apart) if apart else 1.0
        evidence = {key: replace(each, overlap=overlap) for key, each in evidence.items()}
    ordered = sorted(evidence, key=lambda key: (key[1] or 0, key[0]))
    return Expected([spec.seed for spec, _ in pairs], {key: evidence[key] for key in ordered}, gains)


def has_samples(study: Study, spec: Spec) -> bool:
    return spec.sampled and bool(samples_of(study, spec))


def from_sums(study: Study, runs: list[Spec], *, alone: bool = False) -> Expected:
    """By what each run notes; which sample is which is not known. ``alone``: nothing else is known of other seeds."""
    noted = [spec for spec in runs if spec.noted and spec.finished]
    parts: dict[Key, list[tuple[Floats, float]]] = {}
    for spec in noted:
        for client in range(study.clients):
            if (d := study.differences(spec, client, LOCAL)) is not None:
                key = client, spec.seed if pooled(study, spec.alpha) and not alone else None
                parts.setdefault(key, []).append((d, study.unit(spec, client)))
    evidence = {}
    for key, each in parts.items():
        size = fmean(len(d) for d, _ in each)
        scaled = [d * size / len(d) for d, _ in each]
        moments = [Moments._make((len(d), float(d.sum()), *sums_of(d), least(d))) for d in scaled]
        unit = max(unit * size / len(d) for d, unit in each)
        evidence[key] = Evidence.of_moments(moments, 1 if key[1] is not None else len(noted), unit)
    gains = {key: fmean(float(d.mean()) for d, _ in each) for key, each in parts.items()}
    return Expected([spec.seed for spec in noted], evidence, gains)


def against_local(study: Study, runs: list[Spec]) -> Expected:
    shared = {spec.seed for spec in runs if spec.noted or study.run(spec, LOCAL) in study.specs}
    found = from_samples(study, runs, (LOCAL, ""))
    if found is not None and found.evidence and (len(shared) > 1 or not any(spec.noted for spec in runs)):
        return found
    return from_sums(study, runs)


def mean(control: dict[Key, Evidence], known: Expected, shared: float = 0.5) -> Estimate:
    return mean_estimate(list(known.evidence.values()), training_luck(control, known.evidence), shared)


def clients_of(study: Study, known: Expected, control: dict[Key, Evidence]) -> dict[Key, tuple[Estimate, str]]:
    """Estimate and state of each client."""
    common, found = training_luck(control, known.evidence), {}
    for key, each in known.evidence.items():
        made = estimate(each, common, len(known.evidence))
        if study.metric.unit == "%":
            detectable = made.detectable if made.detectable <= 1 else math.inf
            made = Estimate(made.gain, max(made.low, -1), min(made.high, 1), made.p, detectable)
        found[key] = made
    state = states(found, study.margin)
    return {key: (found[key], state[key]) for key in found}
