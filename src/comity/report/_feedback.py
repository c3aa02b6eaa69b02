"""The page of a deployed model: weights, evidence and losses over the labels so far, without a script."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from comity import __version__
from comity._words import capital, counted, number
from comity.metrics import DECIDING
from comity.report._assets import styles, themes
from comity.report._page import templates

if TYPE_CHECKING:
    from comity.guard import OnlineGuard, OnlineState

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 500, 250, 46, 14, 30
LOWEST, HIGHEST = -6.0, 9.0
"""Decades of the e-values that are drawn."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass
class Panel:
    """One chart: lines over the number of labels."""

    title: str
    caption: str
    span: tuple[float, float]
    """Values at the bottom and at the top."""
    last: int
    """Number of labels at the right edge."""
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    """Kind, name and points."""
    ticks: list[tuple[float, str]] = field(default_factory=list)
    """Height and text."""
    limit: float | None = None
    """Height of a threshold line."""

    def y(self, value: float) -> float:
        low, high = self.span
        share = (min(max(value, low), high) - low) / (high - low)
        return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)

    def x(self, samples: float) -> float:
        return round(LEFT + samples / max(self.last, 1) * (WIDTH - LEFT - 8), 1)

    def draw(self, kind: str, name: str, places: Sequence[int], values: Sequence[float]) -> None:
        points = " ".join(f"{self.x(place)},{self.y(value)}" for place, value in zip(places, values, strict=True))
        self.lines.append((kind, name, points))

    @property
    def below(self) -> list[tuple[float, str, str]]:
        """Ticks of the labels: position, text, anchor."""
        step = max(1.0, _step(self.last, 4))  # no half labels
        *places, last = (k * step for k in range(int(self.last / step) + 1))
        ticks = [(self.x(place), f"{place:,.0f}", "middle" if place else "start") for place in places]
        return [*ticks, (self.x(last), f"{last:,.0f} labels", "end" if self.x(last) > WIDTH - 50 else "middle")]


def feedback_page(guard: "OnlineGuard", title: str = "Deployed model") -> str:
    """The state of a deployed model's online guard as one self-contained HTML page, light or dark."""
    state, report = guard.record, guard.report()
    first, *facts = str(report).splitlines()
    answer, _, evidence = first.partition(": ")
    return (
        templates()
        .get_template("feedback.html")
        .render(
            title=title,
            policy=POLICY,
            styles=styles(),
            colours=_colours(),
            answer=answer.capitalize(),
            evidence=capital(evidence),
            facts=facts,
            panels=_panels(guard) if state.samples else [],
            versions=_versions(state),
            events=list(_events(state)),
            size=(WIDTH, HEIGHT, LEFT, TOP, BOTTOM),
            version=__version__,
            labels=counted(state.samples, "label"),
        )
    )


def _panels(guard: "OnlineGuard") -> list[Panel]:
    state = guard.record
    history = [*state.history]
    if not history or history[-1].samples < state.samples:
        history.append(guard.point())
    places, last = [each.samples for each in history], state.samples
    others = ["federated model", *(f"model {k + 1}" for k in range(2, len(state.start)))]
    kinds = ["federated", *(["other"] * (len(others) - 1))]

    weights = Panel("Weights", "How much your own model counts in the mixture that is used.", (0, 1), last)
    weights.ticks = [(weights.y(k / 4), f"{25 * k} %") for k in range(5)]
    weights.draw("own", "own model; the rest is federated", places, [each.weights[0] for each in history])

    decades = [[value / math.log(10) for value in (each.alarm, each.certificate)] for each in history]
    limit = -math.log10(state.delta)
    ends = [value for each in decades for value in each]
    span = (max(LOWEST, math.floor(min(*ends, -1))), min(HIGHEST, math.ceil(max(*ends, limit + 0.5))))
    about = f"Betting against a margin of {number(state.margin, 3)}. Above the dashed line the evidence is enough."
    evidence = Panel("E-values", f"{about} Each version of the federated model starts at 1.", span, last)
    every = max(1, round((span[1] - span[0]) / 5))
    evidence.ticks = [(evidence.y(k), _power(k)) for k in range(int(span[0]), int(span[1]) + 1, every)]
    evidence.limit = evidence.y(limit)
    evidence.draw("harm", "for harm: alarm", places, [each[0] for each in decades])
    evidence.draw("good", "for no harm: certificate", places, [each[1] for each in decades])

    unit = "errors" if state.metric in ("accuracy", "auc") else f"loss by {DECIDING[state.metric].label}"
    above = [[value - each.losses[0] for value in each.losses[1:]] for each in history]
    low, high = min(0.0, *(min(each) for each in above)), max(0.0, *(max(each) for each in above))
    high = high if high > low else 1.0
    step = _step(high - low, 4)
    span = (math.floor(low / step) * step, math.ceil(high / step) * step)
    losses = Panel("Loss in total", f"Cumulative {unit} above those of your own model; below 0 is better.", span, last)
    count = round((span[1] - span[0]) / step)
    digits = max(0, -math.floor(math.log10(step)))
    values = [span[0] + k * step for k in range(count + 1)]
    losses.ticks = [(losses.y(value), number(value, digits, sign=abs(value) > step / 2)) for value in values]
    losses.limit = losses.y(0)
    for k, (kind, name) in enumerate([*zip(kinds, others, strict=True), ("used", "mixture in use")]):
        losses.draw(kind, name, places, [each[k] for each in above])
    losses.draw("votes", "decisions drawn by votes", places, [each[-1] for each in above])
    return [weights, evidence, losses]


def _step(length: float, most: int) -> float:
    """The smallest step of 1, 2 or 5 times a power of ten with at most ``most`` steps in a length."""
    power = 10 ** math.floor(math.log10(max(length, 1e-12) / most))
    return float(next(power * k for k in (1, 2, 5, 10) if length <= most * power * k * (1 + 1e-9)))


def _power(exponent: int) -> str:
    """Powers of ten from 0.001 to 1,000 in decimal notation, others with an exponent."""
    if abs(exponent) <= 3:
        return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:.{-exponent}f}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _events(state: "OnlineState") -> Iterator[tuple[str, int, str]]:
    """Kind, number of labels before it, and text of each event."""
    for each in state.versions:
        if each.since:
            yield "version", each.since, each.name
        if each.alarm_at is not None:
            yield "alarm", each.alarm_at, "alarm"


def _versions(state: "OnlineState") -> list[dict[str, str]]:
    ends = [*(each.since for each in state.versions[1:]), state.samples]

    def after(at: int | None, since: int) -> str:
        return "–" if at is None else f"after {counted(at - since, 'label')}"

    return [
        {"version": each.name, "labels": f"{end - each.since:,}"}
        | {"certificate": after(each.certified_at, each.since), "alarm": after(each.alarm_at, each.since)}
        for each, end in zip(state.versions, ends, strict=True)
    ][::-1]


def _colours() -> dict[str, str]:
    """CSS colours of each kind of line, light and dark."""
    light, dark = themes()["light"], themes()["dark"]
    series = [f"light-dark({a}, {b})" for a, b in zip(light["series"], dark["series"], strict=True)]
    both = {name: f"light-dark({light[name]}, {dark[name]})" for name in ("local", "harm", "line", "axis")}
    kinds = {"own": both["local"], "federated": series[1], "other": series[4], "used": series[0], "votes": series[2]}
    return kinds | {"harm": both["harm"], "good": series[2], "line": both["line"], "axis": both["axis"]}
