"""An inspection in a terminal of 80 columns."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity.files._inspect import Inspection
from comity.files._words import MEANING, answer, conflict, loss, numbers, percent, several, verdict

LAYERS = 8  # shown, of how many there may be
PAIRS = 6
MATRIX = 9  # clients whose cosines fit beside each other
LONGEST = 34


def show(found: Inspection, console: Console) -> None:
    console.print(Text(f"{numbers(found)} · {found.source}", style="dim"))
    console.print(Text(conflict(found), style="bold"))
    console.print(Text(answer(found), style="bold red" if found.mean.harmed else "bold green"))
    _rules(found, console)
    if len(found.ids) > 1:
        _hurts(found, console)
        _layers(found, console)
        _cosines(found, console)


def _table(console: Console, title: str, *headings: str) -> Table:
    console.print(Text(f"\n{title}", style="bold cyan"))  # a table's own title is broken at the table's width
    table = Table(box=None, padding=(0, 2, 0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i and heading else "left", header_style="dim", no_wrap=True)
    return table


def _rules(found: Inspection, console: Console) -> None:
    known = found.lr is not None
    heads = ("rule", "worst off", "gain", *(["its loss"] if known else []), "harmed", "own step")
    table = _table(console, "What each rule would do", *heads)
    for rule in found.verdicts:
        name, worst, gain, change, harmed, length = verdict(found, rule)
        cells = [name, short(worst, 20), gain, *([change] if known else []), harmed]
        red = "red" if rule.harmed else ""
        table.add_row(*(Text(cell, style=red if i else "") for i, cell in enumerate(cells)), length)
    console.print(table)
    console.print(Text(MEANING, style="dim"))


def _hurts(found: Inspection, console: Console) -> None:
    pairs = found.hurts()
    if not pairs:
        return
    title = f"Who would hurt whom: {len(pairs):,} of {len(found.ids) * (len(found.ids) - 1):,} ordered pairs"
    table = _table(console, title, "the update of", "alone, to", *([] if found.lr is None else ["its loss"]), "gain")
    for i, j, share in pairs[:PAIRS]:
        change = [] if found.lr is None else [loss(found.loss(j, share))]
        table.add_row(Text(short(found.ids[i])), Text(short(found.ids[j])), *change, Text(percent(share), style="red"))
    console.print(table)
    if len(pairs) > PAIRS:
        console.print(Text(f"and {len(pairs) - PAIRS:,} more", style="dim"))


def _layers(found: Inspection, console: Console) -> None:
    rates = found.conflict.layers
    order = sorted(range(len(found.layers)), key=lambda k: -float(rates[k]))
    calm = sum(float(rate) == 0 for rate in rates)
    table = _table(console, "Layers, most conflict first", "layer", "numbers", "of updates", "conflict", "")
    for k in order[:LAYERS]:
        rate = float(rates[k])
        bar = Text("█" * round(10 * rate), style="red" if rate > 0.5 else "yellow")
        part = percent(float(found.weight[k]), False)
        table.add_row(Text(tail(found.layers[k])), compact(found.numbers[k]), part, percent(rate, False), bar)
    console.print(table)
    if (rest := len(order) - LAYERS) > 0:
        middle = float(rates[order[len(order) // 2]])
        told = f"and {several(rest, 'more layer')}; half of all are at {percent(middle, False)} or less"
        console.print(Text(f"{told}, {calm} without conflict" if calm else told, style="dim"))


def _cosines(found: Inspection, console: Console) -> None:
    count = len(found.ids)
    if count > MATRIX:
        values = found.cosines[~found.cosines.new_ones(count, count).bool().tril()]
        low, middle, high = (f"{float(value):.2f}" for value in (values.min(), values.median(), values.max()))
        told = f"between {low} and {high}, half of them below {middle}".replace("-", "−")
        console.print(Text(f"\nCosines of {len(values):,} pairs: {told}. The page (--html) has them all.", style="dim"))
        return
    table = _table(console, "Cosines", "", *(str(j + 1) for j in range(count)))
    for i, name in enumerate(found.ids):
        cells = []
        for j, value in enumerate(found.cosines[i].tolist()):
            told = "·" if i == j else f"{value:.2f}".replace("-", "−")
            cells.append(Text(told, style="dim" if i == j else "red" if value < -0.005 else ""))
        table.add_row(Text(f"{i + 1} {short(name, 20)}"), *cells)
    table.padding = (0, 1, 0, 0)
    console.print(table)


def compact(count: int) -> str:
    """4,096 as it is, then 16.8 M."""
    for unit, size in ((" G", 1e9), (" M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:,}"


def tail(name: str) -> str:
    """The end of a layer's name, where its number is."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def short(name: str, longest: int = LONGEST) -> str:
    """The ends of a long name, for both tell it apart."""
    return name if len(name) <= longest else f"{name[: longest // 3]}…{name[-(longest - longest // 3 - 1) :]}"
