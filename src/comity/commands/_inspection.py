"""Print an inspection in a terminal of 80 columns."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity._words import counted, number
from comity.files import Inspection

LAYERS = 8  # number of layers shown
PAIRS = 6
MATRIX = 9  # clients whose cosines fit next to each other
LONGEST = 34  # letters per name

MEANING = (
    "Gains are to first order: 100 % is the gain of a client from its own update; below 0 its loss increases. For "
    "comparison, each rule's step is scaled to the length of the mean's. Own step: its unscaled length as a multiple "
    "of the mean's, and the gain."
)


def percent(share: float, signed: bool = True) -> str:
    if math.isnan(share):
        return "–"
    if abs(share) >= 10:  # a short update next to a long one: percent would be noise
        return f"{number(share, 0, sign=True)}×"
    return f"{number(100 * share, 0 if abs(share) >= 0.1 else 1, sign=signed)} %"


def show(found: Inspection, console: Console) -> None:
    count = len(found.ids)
    size = f"{counted(len(found.layers), 'layer')}, {sum(found.numbers):,} numbers"
    console.print(Text(f"{counted(count, 'client')} · {size} · {found.source}", style="dim"))
    rate = f"Conflict (negative cosine): {percent(found.conflict.overall, False)} of client pairs, mean over layers."
    console.print(Text(rate if count > 1 else "There is only one client, so there is no conflict.", style="bold"))
    console.print(Text(_answer(found), style="bold red" if found.mean.harmed else "bold green"))
    _rules(found, console)
    console.print(Text(MEANING, style="dim"))
    if count > 1:
        _hurts(found, console)
        _layers(found, console)
        _cosines(found, console)


def _answer(found: Inspection) -> str:
    """The clients whose loss the plain mean would increase."""
    mean, count = found.mean, len(found.ids)
    if not mean.harmed:
        return f"The plain mean would harm 0 of the {count} clients." if count > 1 else "It is merged as it is."
    names = ", ".join(f"{found.ids[j]} ({percent(float(mean.shares[j]))})" for j in mean.harmed[:5])
    more = f" and {len(mean.harmed) - 5} more" if len(mean.harmed) > 5 else ""
    return f"The plain mean would harm {len(mean.harmed)} of the {count} clients: {names}{more}."


def _rules(found: Inspection, console: Console) -> None:
    """The effect of each rule on the worst-off client, and how many clients it would harm."""
    table = _table(console, "What each rule would do", "rule", "worst-off client", "gain", "harmed", "own step")
    for rule in found.verdicts:
        share = float(rule.shares[rule.worst])
        harmed = Text(f"{len(rule.harmed)} of {len(found.ids)}", style="red" if rule.harmed else "")
        gain = Text(percent(share), style="red" if share < -0.0005 else "")
        own_step = f"{rule.length:.2f}× {percent(share * rule.length)}"
        table.add_row(rule.rule, _short(found.ids[rule.worst], 20), gain, harmed, own_step)
    console.print(table)


def _hurts(found: Inspection, console: Console) -> None:
    """Pairs in which one client's update would raise the other's loss, worst first."""
    pairs = found.hurts()
    if not pairs:
        return
    count = len(found.ids) * (len(found.ids) - 1)
    title = f"Updates that would increase another client's loss: {len(pairs):,} of {count:,} ordered pairs"
    table = _table(console, title, "update of", "applied to", "gain")
    for i, j, share in pairs[:PAIRS]:
        table.add_row(_short(found.ids[i]), _short(found.ids[j]), Text(percent(share), style="red"))
    console.print(table)
    if len(pairs) > PAIRS:
        console.print(Text(f"and {len(pairs) - PAIRS:,} more", style="dim"))


def _layers(found: Inspection, console: Console) -> None:
    rates = found.conflict.layers.tolist()
    order = sorted(range(len(rates)), key=lambda k: -rates[k])
    table = _table(console, "Layers, most conflict first", "layer", "numbers", "of updates", "conflict", "")
    for k in order[:LAYERS]:
        name, numbers = found.layers[k], found.numbers[k]
        table.add_row(
            Text(name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"),  # a layer's number is at the end
            f"{numbers:,}" if numbers < 1e6 else f"{numbers / 1e6:,.1f} M",
            percent(float(found.weight[k]), False),
            percent(rates[k], False),
            Text("█" * round(10 * rates[k]), style="red" if rates[k] > 0.5 else "yellow"),
        )
    console.print(table)
    if (rest := len(rates) - LAYERS) > 0:
        middle = percent(rates[order[len(rates) // 2]], False)
        line = f"and {counted(rest, 'more layer')}; median over all layers {middle}"
        console.print(Text(f"{line}; {rates.count(0)} without conflict", style="dim"))


def _cosines(found: Inspection, console: Console) -> None:
    count = len(found.ids)
    if count > MATRIX:
        values = found.cosines[~found.cosines.new_ones(count, count).bool().tril()]
        low, middle, high = (number(float(value)) for value in (values.min(), values.median(), values.max()))
        spread = f"from {low} to {high}, median {middle}"
        console.print(Text(f"\nCosines of {len(values):,} pairs: {spread}.", style="dim"))
        return
    table = _table(console, "Cosines", "", *(str(j + 1) for j in range(count)))
    for i, name in enumerate(found.ids):
        row = [Text(number(x), style="red" if x < -0.005 else "") for x in found.cosines[i].tolist()]
        row[i] = Text("·", style="dim")
        table.add_row(Text(f"{i + 1} ").append(_short(name, 20)), *row)
    table.padding = (0, 1, 0, 0)
    console.print(table)


def _table(console: Console, title: str, *headings: str) -> Table:
    console.print(Text(f"\n{title}", style="bold cyan"))  # a table's own title would wrap at the table's width
    table = Table(box=None, padding=(0, 2, 0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i and heading else "left", header_style="dim", no_wrap=True)
    return table


def _short(name: str, longest: int = LONGEST) -> Text:
    """Both ends of a long name, because either may identify it."""
    return Text(name if len(name) <= longest else f"{name[: longest // 3]}…{name[-(longest - longest // 3 - 1) :]}")
