"""Print an inspection in a terminal of 80 columns."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity.files._inspect import Inspection

LAYERS = 8  # shown, of how many there may be
PAIRS = 6
MATRIX = 9  # clients whose cosines fit beside each other
LONGEST = 34  # letters of a name

MEANING = (
    "To first order: 100 % is what a client's own update would bring to its own loss, below 0 its loss rises. All are "
    "judged by a step as long as the mean's; the last column says how long the rule's own is, and what it would bring."
)


def percent(share: float, signed: bool = True) -> str:
    """With a true minus sign. A share that rounds to 0 has no sign."""
    if math.isnan(share):
        return "–"
    if abs(share) >= 10:
        return f"{share:+.0f}×".replace("-", "−")  # a short update beside a long one: percent would be noise
    text = f"{100 * share:{'+' if signed else ''}.{0 if abs(share) >= 0.1 else 1}f} %"
    return text.replace("+0.0 %", "0 %").replace("-0.0 %", "0 %").replace("-", "−")


def several(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def show(found: Inspection, console: Console) -> None:
    size = f"{several(len(found.layers), 'layer')}, {sum(found.numbers):,} numbers"
    console.print(Text(f"{several(len(found.ids), 'client')} · {size} · {found.source}", style="dim"))
    console.print(Text(_conflict(found), style="bold"))
    console.print(Text(_answer(found), style="bold red" if found.mean.harmed else "bold green"))
    _rules(found, console)
    console.print(Text(MEANING, style="dim"))
    if len(found.ids) > 1:
        _hurts(found, console)
        _layers(found, console)
        _cosines(found, console)


def _conflict(found: Inspection) -> str:
    if len(found.ids) == 1:
        return "There is one client; conflict takes two."
    rate = percent(found.conflict.overall, False)
    if found.error:
        rate += f" (± {percent(found.conflict.error, False)}; cosines come from sketches, ± {found.error:.3f})"
    return f"{rate} of pairs and layers are in conflict."


def _answer(found: Inspection) -> str:
    """Whom the plain mean would harm."""
    mean, count = found.mean, len(found.ids)
    if not mean.harmed:
        return f"The plain mean would harm none of the {count} clients." if count > 1 else "It is merged as it is."
    names = ", ".join(f"{found.ids[j]} ({percent(float(mean.shares[j]))})" for j in mean.harmed[:5])
    more = f" and {len(mean.harmed) - 5} more" if len(mean.harmed) > 5 else ""
    return f"The plain mean would harm {len(mean.harmed)} of the {count} clients: {names}{more}."


def _rules(found: Inspection, console: Console) -> None:
    """What each rule would do to the worst-off client, and how many clients it would harm."""
    heads = ["rule", "worst off", "gain", *_loss_heading(found), "harmed", "own step"]
    table = _table(console, "What each rule would do", heads)
    for rule in found.verdicts:
        j = rule.worst
        share = float(rule.shares[j])
        harmed = _red(f"{len(rule.harmed)} of {len(found.ids)}") if rule.harmed else "nobody"
        gain = _red(percent(share)) if share < -0.0005 else percent(share)
        own_step = f"{rule.length:.2f}× {percent(share * rule.length)}"
        table.add_row(rule.rule, Text(_short(found.ids[j], 20)), gain, *_loss(found, j, share), harmed, own_step)
    console.print(table)


def _hurts(found: Inspection, console: Console) -> None:
    """Whose update alone would raise whose loss, the worst first."""
    pairs = found.hurts()
    if not pairs:
        return
    title = f"Who would hurt whom: {len(pairs):,} of {len(found.ids) * (len(found.ids) - 1):,} ordered pairs"
    table = _table(console, title, ["the update of", "alone, to", *_loss_heading(found), "gain"])
    for i, j, share in pairs[:PAIRS]:
        names = (Text(_short(found.ids[k])) for k in (i, j))
        table.add_row(*names, *_loss(found, j, share), _red(percent(share)))
    console.print(table)
    if len(pairs) > PAIRS:
        console.print(Text(f"and {len(pairs) - PAIRS:,} more", style="dim"))


def _layers(found: Inspection, console: Console) -> None:
    rates = found.conflict.layers.tolist()
    order = sorted(range(len(rates)), key=lambda k: -rates[k])
    table = _table(console, "Layers, most conflict first", ["layer", "numbers", "of updates", "conflict", ""])
    for k in order[:LAYERS]:
        name = found.layers[k]
        table.add_row(
            Text(name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"),  # a layer's number is at the end
            _compact(found.numbers[k]),
            percent(float(found.weight[k]), False),
            percent(rates[k], False),
            Text("█" * round(10 * rates[k]), style="red" if rates[k] > 0.5 else "yellow"),
        )
    console.print(table)
    if (rest := len(rates) - LAYERS) > 0:
        middle, calm = percent(rates[order[len(rates) // 2]], False), rates.count(0)
        others = f"and {several(rest, 'more layer')}; half of all are at {middle} or less"
        console.print(Text(f"{others}, {calm} without conflict" if calm else others, style="dim"))


def _cosines(found: Inspection, console: Console) -> None:
    count, off = len(found.ids), f" (each ± {found.error:.3f})" if found.error else ""
    if count > MATRIX:
        values = found.cosines[~found.cosines.new_ones(count, count).bool().tril()]
        low, middle, high = (f"{float(value):.2f}" for value in (values.min(), values.median(), values.max()))
        spread = f"between {low} and {high}, half of them below {middle}{off}".replace("-", "−")
        console.print(Text(f"\nCosines of {len(values):,} pairs: {spread}.", style="dim"))
        return
    table = _table(console, f"Cosines{off}", ["", *(str(j + 1) for j in range(count))])
    for i, name in enumerate(found.ids):
        cells = []
        for j, value in enumerate(found.cosines[i].tolist()):
            shown = "·" if i == j else f"{value:.2f}".replace("-", "−")
            cells.append(Text(shown, style="dim" if i == j else "red" if value < -0.005 else ""))
        table.add_row(Text(f"{i + 1} {_short(name, 20)}"), *cells)
    table.padding = (0, 1, 0, 0)
    console.print(table)


def _table(console: Console, title: str, headings: list[str]) -> Table:
    console.print(Text(f"\n{title}", style="bold cyan"))  # a table's own title is broken at the table's width
    table = Table(box=None, padding=(0, 2, 0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i and heading else "left", header_style="dim", no_wrap=True)
    return table


def _red(text: str) -> Text:
    return Text(text, style="red")


def _loss_heading(found: Inspection) -> list[str]:
    return [] if found.lr is None else ["its loss"]


def _loss(found: Inspection, j: int, share: float) -> list[str]:
    """A cell for the change of a loss, if it is known."""
    change = found.loss(j, share)
    return [] if change is None else [f"{change:+.3g}".replace("-", "−")]


def _short(name: str, longest: int = LONGEST) -> str:
    """Both ends of a long name, since either may distinguish it from others."""
    return name if len(name) <= longest else f"{name[: longest // 3]}…{name[-(longest - longest // 3 - 1) :]}"


def _compact(count: int) -> str:
    """4,096 as it is, then 16.8 M."""
    for unit, size in ((" G", 1e9), (" M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:,}"
