"""Statistical evidence per client: is joining worse than local training, not worse, or undecided?

Scores are compared in pairs: one pair is one test sample i in one run r, and its difference d_ir is the score of the
joined model minus that of the local one (positive: joining is better). Two kinds of luck move the sum T of all M pairs:

- *Test luck*: which samples are tested. A sample that several runs test counts once: the pairs are clustered by sample,
  with s_i the sum of its differences and c_i their number, so V1(δ) = Σᵢ (sᵢ − δcᵢ)² if the true mean difference is δ.
- *Training luck*: another training seed moves all scores of a run together. Two tests of the same run have the
  covariance τ², so V2 = τ² Σ_r n_r (n_r − 1). It shrinks with runs, not with samples. τ² comes from a control: local
  training repeated with another seed, compared with local training in the same way.

Interval: all δ with |T − δM| − κ ≤ 1.96 √(V1(δ) + κ² + V2). κ, the typical |sᵢ|, is a continuity correction and stands
for one unseen sample; hits have a ``unit``, so that equal models also get an interval. p-value of harm: z at δ = 0,
where the signs of sᵢ are symmetric, so that a small continuity correction and a term with Σsᵢ⁴ make it nearly exact.
docs/explanation/harm.md derives this and shows level, power and coverage by simulation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity.results import State

K = TypeVar("K")

LEVEL = 0.05  # false discovery rate, and 1 − the confidence level of every interval
POWER = 0.8
LUCK, LUCK_STD = 0.2, 0.2
"""Typical training luck of small networks and its uncertainty: the correlation of the signs of two d."""
LUCK_MARGIN, UNEVEN = 2.5, 1.3
"""Standard errors added to the estimated luck, and a factor for clients with more luck than others."""
PRIOR_RUNS = 3  # weight of the assumed luck of the federation's mean, in runs, against the luck seen between runs


class Moments(NamedTuple):
    """Sums over one client's tests in one run: enough for the evidence if single scores must not leave a site."""

    tests: float
    total: float  # Σ d
    squares: float  # Σ d²
    absolute: float  # Σ |d|
    fourth: float  # Σ d⁴
    least: float  # smallest |d| above 0, or 0 if all are 0


@dataclass(frozen=True, eq=False)
class Evidence:
    """One client's paired differences over all runs, as sums."""

    runs: NDArray[np.int64]  # index of each run
    sums: NDArray[np.float64]
    """(6, runs): tests, Σᵢ d_ir, Σᵢ d_ir², Σᵢ |d_ir|, Σᵢ e_ir and Σᵢ e_ir² of each run.

    e_ir, the change between runs, is d_ir minus the sample's mean over runs, times √(cᵢ/(cᵢ − 1)); 0 where cᵢ is 1."""
    clusters: tuple[float, float, float, float, float]
    """Σᵢ sᵢ², Σᵢ sᵢcᵢ and Σᵢ cᵢ² (the coefficients of V1), Σᵢ |sᵢ| and Σᵢ sᵢ⁴."""
    step: float  # smallest |sᵢ| above 0
    unit: float = 0.0  # largest possible difference of one pair; 0 if the score is unbounded
    repeats: float = 1.0  # largest cᵢ
    overlap: float = 1.0
    """Variance of the federation's mean by test luck, relative to clients that share no samples.

    Above 1 if each seed deals the same samples to other clients.
    """

    @classmethod
    def of(cls, sample: ArrayLike, run: ArrayLike, value: ArrayLike, unit: float = 0.0) -> "Evidence":
        """Evidence from arrays over all pairs. ``unit``: 1 if scores are hits, the largest class weight if hits are
        weighted by class, 0 if scores are continuous.
        """
        d = np.asarray(value, dtype=np.float64)
        _, i = np.unique(np.asarray(sample), return_inverse=True)
        runs, r = np.unique(np.asarray(run), return_inverse=True)
        c, s = np.bincount(i).astype(np.float64), np.bincount(i, d).astype(np.float64)
        e = (d - (s / c)[i]) * np.sqrt(c / np.maximum(c - 1, 1))[i]
        sums = np.array([np.bincount(r, each) for each in (np.ones_like(d), d, d * d, np.abs(d), e, e * e)])
        size = np.abs(s[s != 0])
        clusters = float(s @ s), float(s @ c), float(c @ c), float(size.sum()), float((size**4).sum())
        return cls(runs, sums, clusters, float(size.min(initial=math.inf)), unit, float(c.max(initial=0)))

    @classmethod
    def of_moments(cls, moments: Sequence[Moments], repeats: int | None = None, unit: float = 0.0) -> "Evidence":
        """Evidence from sums per run. ``repeats``: the number of runs that test the same sample (default: all).

        The samples are not identified, so V1 is an upper bound, attained if each sample has the same difference in all
        runs: ``repeats`` · Σ_r Σᵢ (d_ir − δ)².
        """
        times = float(len(moments) if repeats is None else repeats)
        table = np.array(moments, dtype=np.float64).reshape(-1, 6).T
        tests, totals, squares, size, fourth = table[:5].sum(1).tolist()
        clusters = times * squares, times * totals, times * tests, size, times**3 * fourth
        step = times * float(table[5][table[5] > 0].min(initial=math.inf))
        sums = np.concatenate([table[:4], np.zeros((2, len(moments)))])
        return cls(np.arange(len(moments)), sums, clusters, step, unit, times)

    @property
    def pairs(self) -> float:
        return float(self.sums[0].sum())

    @property
    def gain(self) -> float:
        """The mean difference."""
        return float(self.sums[1].sum()) / self.pairs if self.pairs else math.nan

    @property
    def couples(self) -> float:
        """Number of ordered pairs of different tests in the same run."""
        return float((self.sums[0] ** 2 - self.sums[0]).sum())

    @property
    def together(self) -> float:
        """Σ_r [(Σᵢ|d_ir|)² − Σᵢ d_ir²]: V2 if all differences of a run had the same sign."""
        return max(float((self.sums[3] ** 2 - self.sums[2]).sum()), 0.0)

    def training_luck(self, tau2: float) -> float:
        """V2: τ² for each pair of tests of one run, but at most the value for differences of equal sign."""
        return min(tau2 * self.couples, self.together)

    @property
    def kappa(self) -> float:
        """Weighted mean of |sᵢ|, Σsᵢ² / Σ|sᵢ|, with one unseen sample of the largest possible sᵢ in both sums."""
        unseen = self.unit * self.repeats
        squares, absolute = self.clusters[0] + unseen**2, self.clusters[3] + unseen
        return squares / absolute if absolute else 0.0

    def test_luck(self, delta: float) -> float:
        """V1(δ)."""
        squares, cross, counts = self.clusters[:3]
        return max(squares - 2 * delta * cross + delta**2 * counts, 0.0)


@dataclass(frozen=True)
class Estimate:
    """A mean difference with its 95 % interval."""

    gain: float
    low: float
    high: float
    p: float
    """One-sided p-value of "joining is not worse"; of "joining is not better" it is 1 − p for a federation's mean."""
    detectable: float  # smallest loss detected with 80 % power; infinite if no loss can be detected


def luck(controls: Sequence[Evidence], joined: Sequence[Evidence] = ()) -> float:
    """Upper limit of the covariance τ² of two tests of one run by training luck.

    ``controls``: the repeated local baseline against the local baseline. Each client's [(Σd)² − Σd²] divided by the
    number of pairs of tests is one estimate, whose standard error depends on its number of tests. The estimates are
    averaged by precision together with a typical value (a fifth of τ² if all differences of a run had the same sign);
    the upper limit is 1.3 times that plus 2.5 standard errors. If runs repeat samples, the changes e of the ``joined``
    models are further estimates. Without both, a typical value for the differences of the joined models is used.
    """
    couples, agreed = np.array([(each.couples, each.together) for each in controls or joined]).reshape(-1, 2).sum(0)
    scale = agreed / max(couples, 1.0)
    found = []
    for kind, at in ((controls, 1), (joined, 4)):
        rows = [
            (len(e.runs), e.pairs, e.couples, e.sums[at] @ e.sums[at], e.sums[at + 1].sum()) for e in kind if e.couples
        ]
        runs, tests, pairs, square, noise = np.array(rows).reshape(-1, 5).T
        if scale and noise.any():
            size = pairs * scale
            found.append(np.stack([runs, tests * noise.sum() / tests.sum() / size, (square - noise) / size]))
    rho, extra, prior = LUCK if controls else LUCK / 2, 0.0, LUCK_STD**-2
    for _ in range(3 if found else 0):
        runs, noise, moved = np.concatenate(found, axis=1)
        weight = 0.5 * runs / (noise + max(rho, LUCK)) ** 2
        precision = prior + float(weight.sum())
        rho = max((prior * LUCK + float(weight @ moved)) / precision, 0.0)
        extra = LUCK_MARGIN / math.sqrt(precision)
    return float(scale) * (UNEVEN * rho + extra)


def estimate(evidence: Evidence, tau2: float, clients: int = 1) -> Estimate:
    """Gain of one of ``clients`` clients, its interval (all δ with |z(δ)| below the quantile) and p-value of harm.

    ``detectable`` is the loss that the first step of Benjamini-Hochberg finds if no other client is harmed.
    """
    from scipy.special import ndtr, ndtri  # for which lists and errors should not wait

    pairs, gain, kappa = evidence.pairs, evidence.gain, evidence.kappa
    if not pairs:
        return Estimate(math.nan, -math.inf, math.inf, 1.0, math.inf)
    total, luck, limit = gain * pairs, evidence.training_luck(tau2), evidence.unit or math.inf
    spread = kappa**2 + luck
    squares, cross, counts, _, fourth = evidence.clusters
    q2 = float(ndtri(1 - LEVEL / 2)) ** 2

    def end(sign: int) -> float:
        """(sign (δM − T) − κ)² = q² (V1(δ) + κ² + V2), solved for δ."""
        edge = total + sign * kappa
        root = _root(pairs**2 - q2 * counts, pairs * edge - q2 * cross, edge**2 - q2 * (squares + spread), sign)
        return sign * min(sign * root, limit)

    variance, p = squares + luck, 1.0
    if total <= -evidence.step:
        z = (-total - evidence.step) / math.sqrt(variance)
        p = float(ndtr(-z - fourth / variance**2 / 12 * (z**3 - 3 * z)))
    strict, power = float(ndtri(1 - LEVEL / clients)), float(ndtri(POWER))
    noise = max(evidence.test_luck(gain), kappa**2) + luck
    edge = min(evidence.step, kappa) + power * math.sqrt(noise)
    # a loss δ also increases the variance: hits are lost in clusters of about κ, other scores are shifted
    linear, square = (kappa * pairs, 0.0) if evidence.unit else (0.0, counts)
    found = _root(pairs**2 - strict**2 * square, pairs * edge + strict**2 * linear / 2, edge**2 - strict**2 * noise, 1)
    return Estimate(gain, end(-1), end(1), p, found if found <= limit else math.inf)


def _root(a: float, b: float, c: float, sign: int) -> float:
    """The larger (``sign`` 1) or smaller root of aδ² − 2bδ + c; infinite if a is not positive."""
    return (b + sign * math.sqrt(max(b * b - a * c, 0.0))) / a if a > 0 else sign * math.inf


def mean_estimate(evidences: Sequence[Evidence], tau2: float, shared: float = 0.5) -> Estimate:
    """Mean gain over clients with equal weights, with tests clustered by client and sample.

    ``shared``: the part of training luck that all clients share. Between joined and local models it is at most a half,
    because only the joined model is common; between two joined models it is 1. The luck seen between runs gradually
    replaces that bound, or at once if it is larger, with Student's t for its few degrees of freedom (Satterthwaite).
    """
    from scipy.special import stdtr, stdtrit

    known = [each for each in evidences if each.pairs]
    if not known:
        return Estimate(math.nan, -math.inf, math.inf, 1.0, math.inf)
    number = len(known)
    gain = sum(each.gain for each in known) / number
    apart = sum((each.test_luck(each.gain) + each.kappa**2) / (each.pairs * number) ** 2 for each in known)
    tests = apart * max(each.overlap for each in known)
    trained = sum(each.training_luck(tau2) / each.pairs**2 for each in known) / number
    assumed = trained * (shared + (1 - shared) / number)
    runs, raw, noise = _between_runs(known, apart)
    share, between = runs / (runs + PRIOR_RUNS), max(raw - noise, 0.0)
    blended = (1 - share) * assumed + share * between
    weight = 1.0 if between > blended else share
    variance = tests + max(blended, between)
    if not variance:
        return Estimate(gain, gain, gain, 1.0, 0.0)
    freedom = runs * (variance / (weight * raw)) ** 2 if weight * raw > 0 else 1e9
    error, q = math.sqrt(variance), float(stdtrit(freedom, 1 - LEVEL / 2))
    detectable = error * (q + float(stdtrit(freedom, POWER)))
    return Estimate(gain, gain - q * error, gain + q * error, float(stdtr(freedom, gain / error)), detectable)


def _between_runs(known: Sequence[Evidence], apart: float) -> tuple[int, float, float]:
    """Variance of the mean gain between runs: degrees of freedom, value, and the part due to test luck.

    If runs repeat samples it comes from the changes e. If each client has one run, because each seed has its own
    clients, it comes from the means of the runs.
    """
    by_run: dict[int, list[Evidence]] = {}
    for each in known:
        for run in each.runs.tolist():
            by_run.setdefault(run, []).append(each)
    if len(by_run) > 1 and all(len(each.runs) == 1 for each in known):
        means = np.array([np.mean([each.gain for each in of_run]) for of_run in by_run.values()])
        return len(means) - 1, float(means.var(ddof=1)) / len(means), apart
    changes, noise = dict.fromkeys(by_run, 0.0), dict.fromkeys(by_run, 0.0)
    for each in known:
        scale = each.pairs * len(known)
        for run, change, squares in zip(each.runs.tolist(), *each.sums[4:].tolist(), strict=True):
            changes[run] += change / scale
            noise[run] += squares / scale**2
    seen = [run for run in by_run if noise[run] > 0]
    return max(len(seen) - 1, 0), sum(changes[run] ** 2 for run in seen), sum(noise[run] for run in seen)


def states(estimates: Mapping[K, Estimate], margin: float) -> dict[K, State]:
    """The state of each client.

    *worse*: selected by Benjamini and Hochberg's procedure at 5 %, with an interval below 0. *not worse*: the interval
    excludes a loss of ``margin``. Otherwise *undecided*.
    """
    ascending = sorted(each.p for each in estimates.values())
    named = max((p for rank, p in enumerate(ascending, 1) if p <= LEVEL * rank / len(ascending)), default=-1.0)
    return {key: _state(each, margin, each.p <= named) for key, each in estimates.items()}


def state_of_mean(estimate: Estimate, margin: float) -> State:
    """The state of a whole federation, from the interval of its mean gain."""
    return _state(estimate, margin, True)


def _state(estimate: Estimate, margin: float, named: bool) -> State:
    if named and estimate.high < 0:
        return "worse"
    return "not worse" if estimate.low > -margin else "undecided"
