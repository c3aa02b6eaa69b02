"""The findings of an inspection in words, for the terminal and the page."""

import math
from collections.abc import Sequence

from comity.files._inspect import Inspection, Verdict


def percent(share: float, signed: bool = True) -> str:
    """With a true minus; what rounds to nothing has no sign."""
    if math.isnan(share):
        return "–"
    if abs(share) >= 10:
        return f"{share:+.0f}×".replace("-", "−")  # a short update beside a long one: percent would be noise
    text = f"{100 * share:{'+' if signed else ''}.{0 if abs(share) >= 0.1 else 1}f} %"
    return text.replace("+0.0 %", "0 %").replace("-0.0 %", "0 %").replace("-", "−")


def loss(change: float | None) -> str:
    return "" if change is None else f"{change:+.3g}".replace("-", "−")


def several(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def numbers(found: Inspection) -> str:
    return (
        f"{several(len(found.ids), 'client')} · {several(len(found.layers), 'layer')}, {sum(found.numbers):,} numbers"
    )


def conflict(found: Inspection) -> str:
    if len(found.ids) == 1:
        return "There is one client; conflict takes two."
    return f"{percent(found.conflict.overall, False)} of pairs and layers are in conflict."


def answer(found: Inspection) -> str:
    """Whom the plain mean would harm."""
    mean, count = found.mean, len(found.ids)
    if not mean.harmed:
        return f"The plain mean would harm none of the {count} clients." if count > 1 else "It is merged as it is."
    told = [f"{found.ids[j]} ({percent(float(mean.shares[j]))})" for j in mean.harmed]
    return f"The plain mean would harm {len(mean.harmed)} of the {count} clients: {some(told)}."


def verdict(found: Inspection, rule: Verdict) -> list[str]:
    """A row: the rule, the worst-off client, its share and change of loss, how many are harmed, the rule's own step."""
    j = rule.worst
    share = float(rule.shares[j])
    row = [rule.rule, found.ids[j], percent(share), loss(found.loss(j, share))]
    harmed = f"{len(rule.harmed)} of {len(found.ids)}" if rule.harmed else "nobody"
    return [*row, harmed, f"{rule.length:.2f}× {percent(share * rule.length)}"]


MEANING = (
    "To first order: 100 % is what a client's own update would bring to its own loss, below 0 its loss rises. All are "
    "judged by a step as long as the mean's; the last column says how long the rule's own is, and what it would bring."
)
