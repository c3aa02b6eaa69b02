"""The findings of an inspection in words and tables, for the terminal and the page."""

import math
from typing import NamedTuple

from comity.files._inspect import Inspection

MEANING = (
    "To first order: 100 % is what a client's own update would bring to its own loss, below 0 its loss rises. All are "
    "judged by a step as long as the mean's; the last column says how long the rule's own is, and what it would bring."
)


class Harmful(str):
    """A cell that is shown in the colour of harm."""


class Listing(NamedTuple):
    """One table of findings."""

    title: str
    intro: str
    headings: list[str]
    rows: list[list[str]]
    names: int = 1
    """How many columns, from the left, are names and not numbers."""
    bars: list[float] | None = None
    """A share for each row, which is drawn as a bar."""


def percent(share: float, signed: bool = True) -> str:
    """With a true minus; what rounds to nothing has no sign."""
    if math.isnan(share):
        return "–"
    if abs(share) >= 10:
        return f"{share:+.0f}×".replace("-", "−")  # a short update beside a long one: percent would be noise
    text = f"{100 * share:{'+' if signed else ''}.{0 if abs(share) >= 0.1 else 1}f} %"
    return text.replace("+0.0 %", "0 %").replace("-0.0 %", "0 %").replace("-", "−")


def gain(share: float) -> str:
    return Harmful(percent(share)) if share < -0.0005 else percent(share)


def loss(change: float | None) -> list[str]:
    """A cell for the change of a loss, where it is known."""
    return [] if change is None else [f"{change:+.3g}".replace("-", "−")]


def compact(count: int) -> str:
    """4,096 as it is, then 16.8 M."""
    for unit, size in ((" G", 1e9), (" M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:,}"


def several(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def numbers(found: Inspection) -> str:
    size = f"{sum(found.numbers):,} numbers"
    return f"{several(len(found.ids), 'client')} · {several(len(found.layers), 'layer')}, {size}"


def conflict(found: Inspection) -> str:
    if len(found.ids) == 1:
        return "There is one client; conflict takes two."
    rate = percent(found.conflict.overall, False)
    if found.error:
        rate += f" (± {percent(found.conflict.error, False)}; cosines come from sketches, ± {found.error:.3f})"
    return f"{rate} of pairs and layers are in conflict."


def answer(found: Inspection) -> str:
    """Whom the plain mean would harm."""
    mean, count = found.mean, len(found.ids)
    if not mean.harmed:
        return f"The plain mean would harm none of the {count} clients." if count > 1 else "It is merged as it is."
    names = ", ".join(f"{found.ids[j]} ({percent(float(mean.shares[j]))})" for j in mean.harmed[:5])
    more = f" and {len(mean.harmed) - 5} more" if len(mean.harmed) > 5 else ""
    return f"The plain mean would harm {len(mean.harmed)} of the {count} clients: {names}{more}."


# Tables.


def rules(found: Inspection) -> Listing:
    """What each rule would do to the worst-off client, and how many it would harm."""
    rows = []
    for rule in found.verdicts:
        j = rule.worst
        share = float(rule.shares[j])
        harmed = Harmful(f"{len(rule.harmed)} of {len(found.ids)}") if rule.harmed else "nobody"
        own_step = f"{rule.length:.2f}× {percent(share * rule.length)}"
        rows.append([rule.rule, found.ids[j], gain(share), *loss(found.loss(j, share)), harmed, own_step])
    heads = ["rule", "worst off", "gain", *_loss_heading(found), "harmed", "own step"]
    return Listing("What each rule would do", MEANING, heads, rows, names=2)


def clients(found: Inspection) -> Listing:
    """What each rule would do to each client, whom the mean harms most first."""
    order = sorted(range(len(found.ids)), key=lambda j: float(found.mean.shares[j].nan_to_num(math.inf)))
    rows = [
        [found.ids[j], f"{float(found.lengths[j]):.3g}", *(gain(float(rule.shares[j])) for rule in found.verdicts)]
        for j in order
    ]
    heads = ["client", "length of its update", *(f"gain under {rule.rule}" for rule in found.verdicts)]
    return Listing("Every client", "", heads, rows)


def hurts(found: Inspection) -> Listing:
    """Whose update alone would raise whose loss, the worst first."""
    rows = [
        [found.ids[i], found.ids[j], *loss(found.loss(j, share)), Harmful(percent(share))]
        for i, j, share in found.hurts()
    ]
    title = f"Who would hurt whom: {len(rows):,} of {len(found.ids) * (len(found.ids) - 1):,} ordered pairs"
    intro = "What one client's update alone would do to another, over what that one's own update would do."
    intro = intro if rows else "Nobody's update alone would raise another client's loss."
    return Listing(title, intro, ["the update of", "alone, to", *_loss_heading(found), "gain"], rows, names=2)


def layers(found: Inspection) -> Listing:
    rates = found.conflict.layers.tolist()
    order = sorted(range(len(rates)), key=lambda k: -rates[k])
    shares = found.weight.tolist()
    rows = [
        [found.layers[k], compact(found.numbers[k]), percent(shares[k], False), percent(rates[k], False)] for k in order
    ]
    intro = "The share of pairs of clients whose updates point against each other in a layer."
    heads = ["layer", "numbers", "of updates", "conflict"]
    return Listing("Layers, most conflict first", intro, heads, rows, bars=[rates[k] for k in order])


def _loss_heading(found: Inspection) -> list[str]:
    return [] if found.lr is None else ["its loss"]
