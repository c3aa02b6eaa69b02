"""Search for an option's value by validation, never by test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from comity._errors import ComityError
from comity.config import ACCURACY, AUTO, Config, Entries, Overlay
from comity.metrics import VALIDATED, Metric
from comity.studies._grid import TRAINING, apart_from_seeds, has_own_rule, section

Value = Any
TuneBy = Literal["S-acc", "G-acc", "global-acc"]
"""Metrics on validation samples that values may be chosen by, instead of the deciding metric."""
MOST_STEPS = 1000  # maximum steps of a walk, if its range is much wider than its step
LEARNING_RATES = [0.003, 0.01, 0.03, 0.1, 0.3]  # values that `lr: auto` tries, for every method and Local


def spelled_out(entries: Entries) -> Entries:
    """Replace ``lr: auto`` by the search that it stands for."""
    if entries.get("lr") != AUTO:
        return entries
    tune = section(entries, "tune")
    if "lr" in tune:
        raise ComityError("lr auto and tune lr are two ways to choose lr; give one of the two")
    return {key: value for key, value in entries.items() if key != "lr"} | {"tune": tune | {"lr": LEARNING_RATES}}


@dataclass(frozen=True)
class Walk:
    """Walk from the middle in both directions while the score improves, as ConFREE (Zheng et al., 2025) tunes c."""

    low: float
    high: float
    step: float = 0.1

    @property
    def start(self) -> float:
        """0.5, or the middle of a range without it."""
        if self.low <= 0.5 <= self.high:
            return 0.5
        return round(self.low + self.step * round((self.high - self.low) / self.step / 2), 10)

    def after(self, value: float, way: int) -> float | None:
        following = round(value + way * self.step, 10)
        return following if self.low - 1e-9 <= following <= self.high + 1e-9 else None

    def __len__(self) -> int:
        return 1 + sum(int(abs(end - self.start) / self.step + 1e-9) for end in (self.low, self.high))


@dataclass(frozen=True)
class Ladder:
    """All values, then up to ``beyond`` further ones in the same ratio while the best is at the border."""

    values: list[float]
    beyond: int = 4

    def after(self, tried: Mapping[float, float], best: float) -> float | None:
        """The next value if ``best`` is at the border and better than its neighbour, which must not have failed."""
        for known in (sorted(tried), sorted(tried, reverse=True)):
            if best == known[0] and tried[best] > tried[known[1]]:
                ratio = known[1] / known[2] if len(known) > 2 else best / known[1]
                return float(f"{best * ratio:.6g}")
        return None

    def __len__(self) -> int:
        return len(self.values) + self.beyond


Candidates = Walk | Ladder | list[Value]


def candidates(key: str, given: Any) -> Candidates:
    """``0.1:0.9`` (or ``0.1:0.9:0.2`` with a step) walks; ``0.1,1,10`` and ``[0.1, 1, 10]`` are all tried.

    A list that ends in ``...`` is extended in the same ratio while the best value is at the border.
    """
    if key not in TRAINING and not key.startswith(("method.", "rule.")):
        raise ComityError(
            f"tune {key}: only options of a method or rule, such as rule.c, or of local training, such as lr, are tuned"
        )
    if isinstance(given, str) and ":" in given:
        try:
            walk = Walk(*map(float, given.split(":")))
        except (TypeError, ValueError):
            walk = Walk(1, 0)
        finite = all(map(math.isfinite, (walk.low, walk.high, walk.step)))
        if finite and walk.low < walk.high and walk.step > 0 and (walk.high - walk.low) / walk.step < MOST_STEPS:
            return walk
    elif values := given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else ():
        if values[-1] != "...":
            return list(values)
        try:
            ladder = Ladder([float(value) for value in values[:-1]])
        except (TypeError, ValueError):
            ladder = Ladder([])
        if len(set(ladder.values)) > 1 and all(0 < value < math.inf for value in ladder.values):
            return ladder
        raise ComityError(f"tune {key}: before ... there must be two or more different numbers above 0, got {given!r}")
    steps = f"low:high, low:high:step (at most {MOST_STEPS} steps)"
    raise ComityError(f"tune {key} must be {steps} or a list of values, got {given!r}")


@dataclass
class Search:
    """The search for one option, for one configuration in one setting, over all seeds."""

    key: str
    candidates: Candidates
    most: int  # maximum number of values
    tried: dict[Value, float] = field(default_factory=dict)
    """Validation score, higher is better, mean over clients and seeds; NaN if a run failed."""
    by: Metric = VALIDATED[ACCURACY]
    """The metric that the values were judged by."""

    def wanted(self) -> list[Value]:
        """The values to try next; empty if the search is finished."""
        if not isinstance(self.candidates, Walk):
            given = self.candidates.values if isinstance(self.candidates, Ladder) else self.candidates
            new = [value for value in given if value not in self.tried]
            if isinstance(self.candidates, Ladder) and not new and self.chosen is not None:
                further = self.candidates.after(self.tried, self.chosen)
                new = [] if further is None else [further]
        else:
            walk, new = self.candidates, [] if self.candidates.start in self.tried else [self.candidates.start]
            for way in (1, -1):
                here, there = walk.start, walk.after(walk.start, way)
                while there is not None and there in self.tried and self.tried[there] > self.tried[here]:
                    here, there = there, walk.after(there, way)
                if there is not None and there not in self.tried:
                    new.append(there)
        return new[: self.most - len(self.tried)]

    @property
    def chosen(self) -> Value | None:
        """The best value, the earliest one in a tie; ``None`` if every run failed."""
        known = [value for value, score in self.tried.items() if not math.isnan(score)]
        return max(known, key=lambda value: self.tried[value], default=None)


@dataclass
class Group:
    """Cells that differ only in their seed, and their searches, one after another."""

    cells: list[Config]
    searches: list[Search]
    seeds: int | None = None  # number of seeds (the first ones) that values are tried on; None: all

    @property
    def tried(self) -> list[Config]:
        """The cells that values are tried on; repeated local training takes the values of local training."""
        return [cell for cell in self.cells if not cell.repeats_local][: self.seeds]

    @property
    def current(self) -> Search | None:
        """The current search; ``None`` if all are finished, or every run of one failed."""
        for search in self.searches:
            if search.wanted():
                return search
            if search.chosen is None:
                return None
        return None

    @property
    def failed(self) -> Search | None:
        return next((search for search in self.searches if search.tried and search.chosen is None), None)

    def trials(self, search: Search, value: Value) -> list[Config]:
        """The runs by which a value is judged, with the values that earlier searches chose."""
        earlier = self.searches[: self.searches.index(search)]
        chosen = {each.key: each.chosen for each in earlier} | {search.key: value}
        tried = [config.with_(**chosen) for config in self.tried]
        # refit rounds use all samples, so none are left for validation; under a guard they follow after the search
        return [config.with_(refit=0) if config.guard is not None else config for config in tried]

    def settled(self) -> list[Config]:
        """The cells with the chosen values."""
        chosen = {search.key: search.chosen for search in self.searches}
        return [config.with_(**chosen) for config in self.cells] if chosen else self.cells


def groups(
    cells: list[Config], tune: Mapping[str, Any], budget: int | None = None, seeds: int | None = None
) -> list[Group]:
    """All cells by group, in order. A budget of runs is divided equally among the searches.

    ``seeds``: number of seeds that values are tried on; ``None`` means all.
    """
    spaces = {key: candidates(key, given) for key, given in tune.items()}
    found: dict[str, Group] = {}
    for config in cells:
        there = [key for key in spaces if key in Overlay(vars(config))]
        there = [key for key in there if not (key.startswith("rule.") and has_own_rule(config))]
        searches = [Search(key, _typed(config, key, spaces[key]), len(spaces[key])) for key in there]
        found.setdefault(apart_from_seeds(config).key, Group([], searches, seeds)).cells.append(config)
    for key in spaces:
        if not any(search.key == key for group in found.values() for search in group.searches):
            raise ComityError(f"tune {key}: no method or rule of this study has this option")
    if budget is not None:
        once = sum(len(group.tried) * len(group.searches) for group in found.values())
        if budget < once:
            raise ComityError(f"budget {budget} is too small: trying one value in every search takes {once} runs")
        for search in (search for group in found.values() for search in group.searches):
            search.most = min(search.most, budget // once)
    return list(found.values())


def _typed(config: Config, key: str, space: Candidates) -> Candidates:
    """Values in the type of the option: ``"10"`` becomes ``10.0``."""
    if not isinstance(space, list):
        return space
    return list(dict.fromkeys(Overlay(vars(config.with_(**{key: value})))[key] for value in space))
