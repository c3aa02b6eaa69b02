"""Detect columns and classes that sites use with different meanings, from summaries; no row leaves a site.

*Columns.* A site reports the quartiles of each column. A column is compared with the same column of the other sites: z
is the distance of its median and of its log interquartile range from the other sites' medians of both, in units of
their spread among sites. A site is reported if its column is far from the others' (z ≥ ``FAR``) and one of these
changes brings it close (z ≤ ``NEAR``): another unit, a constant shift, or the exchange of two columns. A site that is
far in many columns is reported once, for it differs as a whole.

*Classes.* A logistic regression of the other sites is applied to a site's rows, and the site reports the mean
log-probability of each class over its rows of each class. Their average over rows is subtracted, so that a class that
is merely more frequent here does not count. The best assignment of this site's classes to the others' is compared with
the identity; a site is reported if another assignment is better by more than ``SURE`` standard errors, better for every
class that it moves, and makes the model correct for a tenth more of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity._words import listed
from comity.probe._logistic import Array, Rows, common, log_probabilities

FAR, NEAR, SURE = 6.0, 2.0, 4.0
OFF = 3.0
"""z of each of two exchanged columns, which together reach ``FAR``."""
NEAR_BOTH = 4.0
"""Instead of ``NEAR`` for an exchange, if both columns reach ``FAR``: one exchange explains two strange columns."""
CLOSER = 8.0
"""A unit also explains a column if z becomes so many times as small."""
MANY, SHARE = 4, 0.25
"""Number and share of a site's columns that must be far for one line about the site instead of one per column."""
LEAST_ROWS = 20
"""Minimum rows, or known values, for a site to report a summary."""
LEAST_VALUES = 8
"""Minimum different values of a column: quartiles of fewer are steps."""
LEAST_SITES = 3
USUAL_SHIFT, USUAL_RATIO = 0.25, 0.15
"""Minimum assumed spread among sites: of medians in interquartile ranges, and of log interquartile ranges."""
MOST_COLUMNS = 300
"""Maximum columns for the search for exchanged columns, which compares all pairs."""
GROUPS = 10
"""Maximum number of groups in which sites are left out."""
LEAST_GAIN = 0.1
"""Minimum increase of the share of a site's rows that a model of the others gets right once labels are matched."""
LEAST_OF_CLASS, LEAST_LOG = 5, -20.0
"""Minimum rows of a class for a mean, and the smallest log-probability that counts in it."""
UNITS: dict[str, tuple[float, float]] = {
    "in units 10 times as small": (10, 0),
    "in units 100 times as small, such as per cent instead of shares or cm instead of m": (100, 0),
    "in units 1,000 times as small, such as g instead of kg": (1000, 0),
    "in °F instead of °C": (1.8, 32),
    "in K instead of °C": (1, 273.15),
    "in cm instead of inches": (2.54, 0),
    "in pounds instead of kg": (2.20462, 0),
    "in feet instead of m": (3.28084, 0),
    "in km instead of miles": (1.609344, 0),
    "in units 12 times as small, such as months instead of years": (12, 0),
    "in units 60 times as small, such as minutes instead of hours": (60, 0),
    "in mmHg instead of kPa": (7.50062, 0),
    "in mg/dL instead of mmol/L (glucose)": (18.0182, 0),
    "in mg/dL instead of mmol/L (cholesterol)": (38.67, 0),
    "in µmol/L instead of mg/dL (creatinine)": (88.42, 0),
    "with the opposite sign": (-1, 0),
}
"""Factor and offset that convert values to the unit named first."""

Kind = Literal["labels", "unit", "shift", "exchange", "site"]


@dataclass(frozen=True)
class Finding:
    """Something that one site probably uses with a different meaning."""

    client: str
    kind: Kind
    what: tuple[str, ...]
    """Columns or classes."""
    evidence: str

    def __str__(self) -> str:
        if self.kind == "site":
            return f"{self.client}, {len(self.what)} columns ({', '.join(self.what[:3])}, …): {self.evidence}"
        return f"{self.client}, {'class' if self.kind == 'labels' else 'column'} {listed(self.what)}: {self.evidence}"


class Summary(NamedTuple):
    """A site's summary of its columns."""

    known: Array
    quartiles: Array
    """(3, columns); NaN if there are too few values, or too few different ones."""

    @classmethod
    def of(cls, x: Array, least: int = LEAST_ROWS) -> "Summary":
        """Summary of raw samples (n, columns); NaN is missing. ``least``: least known values, if above the default."""
        known = (~np.isnan(x)).sum(0)
        values = np.array([len(np.unique(column[~np.isnan(column)])) for column in x.T])
        enough = (known >= max(least, LEAST_ROWS)) & (values >= LEAST_VALUES)
        quartiles = np.full((3, x.shape[1]), np.nan)
        quartiles[:, enough] = np.nanquantile(x[:, enough], [0.25, 0.5, 0.75], axis=0)
        return cls(known.astype(float), quartiles)


class _Others(NamedTuple):
    """The other sites' columns: medians over sites, and the expected deviation of a site."""

    centre: Array
    spread: Array
    centre_error: Array
    ratio_error: Array

    def z(self, centre: Array, spread: Array) -> Array:
        """Distance of columns with these medians and interquartile ranges from the others'; they broadcast."""
        with np.errstate(all="ignore"):
            shift = (centre - self.centre) / (self.spread * self.centre_error)
            return np.hypot(shift, np.log(spread / self.spread) / self.ratio_error)


def columns(
    sites: Sequence[Summary], clients: Sequence[str], names: Sequence[str], only: int | None = None
) -> Iterator[Finding]:
    """Columns in other units, shifted or exchanged, by site; ``only``: check one site."""
    if len(sites) < LEAST_SITES:
        return
    centre = np.stack([site.quartiles[1] for site in sites])
    spread = np.stack([site.quartiles[2] - site.quartiles[0] for site in sites])
    known = np.stack([site.known for site in sites])
    usable = spread > 0
    centre, spread = np.where(usable, centre, np.nan), np.where(usable, spread, np.nan)
    for c, client in enumerate(clients):
        if only not in (None, c):
            continue
        others = np.arange(len(sites)) != c
        use = np.flatnonzero(usable[c] & (usable[others].sum(0) >= LEAST_SITES - 1))
        if not len(use):
            continue
        them = _others(centre[others][:, use], spread[others][:, use], known[c, use])
        mine, width, labels = centre[c, use], spread[c, use], [names[j] for j in use.tolist()]
        yield from _named(client, labels, mine, width, them)


def _others(centre: Array, spread: Array, rows: Array) -> _Others:
    """``rows``: number of values of the site that is compared with them."""

    def deviation(values: Array) -> Array:
        return np.asarray(1.4826 * np.nanmedian(np.abs(values - np.nanmedian(values, 0)), 0))

    middle, width = np.nanmedian(centre, 0), np.nanmedian(spread, 0)
    # for a normal distribution the standard error of a median is 0.93/√n, of a log interquartile range 1.17/√n
    shift = np.sqrt((deviation(centre) / width) ** 2 + 0.93**2 / rows + USUAL_SHIFT**2)
    ratio = np.sqrt(deviation(np.log(spread)) ** 2 + 1.17**2 / rows + USUAL_RATIO**2)
    return _Others(middle, width, shift, ratio)


def _named(client: str, names: list[str], centre: Array, spread: Array, them: _Others) -> Iterator[Finding]:
    far = them.z(centre, spread)
    left = set(np.flatnonzero(far >= FAR).tolist())
    few = len(names) <= MOST_COLUMNS
    for i, j in _exchanged(far, them.z(centre[:, None], spread[:, None])) if few else ():
        left -= {i, j}
        here, there = (
            (_seen(c[i], s[i]), _seen(c[j], s[j])) for c, s in ((centre, spread), (them.centre, them.spread))
        )
        words = f"probably exchanged: {here[0]} and {here[1]}; at the other sites {there[0]} and {there[1]}"
        yield Finding(client, "exchange", (names[i], names[j]), words)
    if len(left) >= max(MANY, SHARE * len(names)):
        j = max(left, key=lambda column: far[column])
        words = "far from those of all other sites: probably another population, device or preparation; "
        words += f"{names[j]}: {_compared(centre[j], spread[j], them, j)}"
        yield Finding(client, "site", tuple(names[column] for column in sorted(left)), words)
        return
    for j in sorted(left):
        seen = _compared(centre[j], spread[j], them, j)
        one = _Others(*(each[j] for each in them))
        found = []
        for unit, (factor, offset) in UNITS.items():
            found.append((float(one.z((centre[j] - offset) / factor, spread[j] / abs(factor))), unit))
            back = _reversed(unit)
            if back:
                found.append((float(one.z(centre[j] * factor + offset, spread[j] * abs(factor))), back))
        z, unit = min(found)
        if z <= max(NEAR, far[j] / CLOSER):
            yield Finding(client, "unit", (names[j],), f"probably {unit}: {seen}")
        elif one.z(one.centre, spread[j]) <= NEAR:
            shift = _short(centre[j] - one.centre)
            yield Finding(client, "shift", (names[j],), f"probably shifted by {shift}: {seen}")


def _exchanged(far: Array, cross: Array) -> Iterator[tuple[int, int]]:
    """Pairs of columns that match each other, best first; ``cross``: column i compared with column k."""
    off = far >= OFF
    together = np.hypot(far[:, None], far) >= FAR
    both = np.minimum(far[:, None], far) >= FAR
    fits = np.maximum(cross, cross.T) <= np.where(both, NEAR_BOTH, NEAR)
    pairs = np.argwhere(np.triu(off[:, None] & off & together & fits, 1)).tolist()
    taken: set[int] = set()
    for i, j in sorted(pairs, key=lambda pair: cross[pair[0], pair[1]] + cross[pair[1], pair[0]]):
        if not {i, j} & taken:
            taken |= {i, j}
            yield i, j


def _reversed(unit: str) -> str:
    if " instead of " in unit and not unit.startswith("in units"):
        first, second = unit.removeprefix("in ").split(" instead of ")
        second, bracket, rest = second.partition(" (")
        return f"in {second} instead of {first}{bracket}{rest}"
    if unit.startswith("in units"):
        return unit.partition(" as small")[0] + " as large"
    return ""


def _short(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _compared(centre: float, spread: float, them: _Others, column: int) -> str:
    return f"{_seen(centre, spread)}; at the other sites {_seen(them.centre[column], them.spread[column])}"


def _seen(centre: float, spread: float) -> str:
    return f"median {_short(centre)}, interquartile range {_short(spread)}"


# Classes.


def classes(
    sites: Sequence[Rows], clients: Sequence[str], names: Sequence[str], only: int | None = None
) -> Iterator[Finding]:
    """Classes that a site numbers or names differently; ``only``: check one site and those left out with it."""
    if len(sites) < LEAST_SITES or len(names) < 2:
        return
    everybody, held = common(sites, len(names)), np.stack([classes_of(rows, len(names)) for rows in sites])
    groups = groups_of(len(sites))
    for group in range(groups.max() + 1):
        left_out = groups == group
        if only is not None and not left_out[only]:
            continue
        others = common([sites[c] for c in np.flatnonzero(~left_out).tolist()], len(names), everybody)
        for c in np.flatnonzero(left_out).tolist():
            yield from relabelled(sites[c], others, held[~left_out].any(0)).finding(clients[c], names)


def classes_of(rows: Rows, classes: int) -> NDArray[np.bool]:
    """Which classes a site has."""
    return np.bincount(rows.y, minlength=classes) > 0


def groups_of(sites: int) -> NDArray[np.int64]:
    """The group with which each site is left out."""
    return np.arange(sites) % min(GROUPS, sites)


class Relabelled(NamedTuple):
    """A site's classes as seen by a model of other sites."""

    new: NDArray[np.int64]
    """For each class the matching class there; itself if nothing is wrong."""
    before: float
    after: float
    """Share of the site's rows that the model predicts correctly with the new classes (``before``: the old ones)."""

    def finding(self, client: str, names: Sequence[str]) -> Iterator[Finding]:
        moved = {k: to for k, to in enumerate(self.new.tolist()) if k != to}
        if moved and self.after - self.before >= LEAST_GAIN:
            pairs = listed(f"its {names[k]} is {names[to]}" for k, to in moved.items())
            words = f"probably named differently: for a model of the other sites {pairs}; that model is right for "
            words += f"{100 * self.before:.0f} % of its rows, and for {100 * self.after:.0f} % with the labels matched"
            yield Finding(client, "labels", tuple(names[k] for k in moved), words)


def relabelled(rows: Rows, others: Array, elsewhere: NDArray[np.bool]) -> Relabelled:
    """``others``: the model of the other sites; ``elsewhere``: which classes they have."""
    predicted = np.maximum(log_probabilities(others, rows.x), LEAST_LOG)
    decided = predicted - predicted.mean(0)
    moved = _moved(rows.y, decided, elsewhere)
    new = np.array([moved.get(k, k) for k in range(len(elsewhere))])
    before, after = (float((decided.argmax(1) == labels).mean()) for labels in (rows.y, new[rows.y]))
    return Relabelled(new, before, after)


def _moved(y: NDArray[np.int64], decided: Array, elsewhere: NDArray[np.bool]) -> dict[int, int]:
    """The classes that match others; empty if each matches itself.

    ``decided`` (n, classes): log-probabilities minus their mean over rows. ``elsewhere``: classes of the other sites.
    """
    from scipy.optimize import linear_sum_assignment

    held = [k for k in range(decided.shape[1]) if (y == k).sum() >= LEAST_OF_CLASS]
    if len(held) < 2:
        return {}
    mean = np.stack([decided[y == k].mean(0) for k in held])
    assigned = zip(*linear_sum_assignment(-mean), strict=True)
    moved = {held[i]: int(to) for i, to in assigned if held[i] != to}
    if any(elsewhere[k] for k in moved.keys() - moved.values()):
        return {}  # not an exchange: one class resembles another, as often between sites
    better = [decided[y == k, to] - decided[y == k, k] for k, to in moved.items()]
    gains, errors = [each.mean() for each in better], [each.var(ddof=1) / len(each) for each in better]
    return moved if sum(gains) > SURE * np.sqrt(sum(errors)) and min(gains, default=0) > 0 else {}
