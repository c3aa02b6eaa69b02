"""An inspection in a terminal of 80 columns."""

from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity.files import _words as words
from comity.files._inspect import Inspection

LAYERS = 8  # shown, of how many there may be
PAIRS = 6
MATRIX = 9  # clients whose cosines fit beside each other
LONGEST = 34  # letters of a name


def tail(name: str) -> str:
    """The end of a layer's name, where its number is."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def short(name: str, longest: int = LONGEST) -> str:
    """Both ends of a long name, for either may tell it from others."""
    return name if len(name) <= longest else f"{name[: longest // 3]}…{name[-(longest - longest // 3 - 1) :]}"


def show(found: Inspection, console: Console) -> None:
    console.print(Text(f"{words.numbers(found)} · {found.source}", style="dim"))
    console.print(Text(words.conflict(found), style="bold"))
    console.print(Text(words.answer(found), style="bold red" if found.mean.harmed else "bold green"))
    _print(console, words.rules(found), shorten=partial(short, longest=20))
    console.print(Text(words.MEANING, style="dim"))
    if len(found.ids) > 1:
        pairs = words.hurts(found)
        if pairs.rows:
            _print(console, pairs, PAIRS)
        if len(pairs.rows) > PAIRS:
            console.print(Text(f"and {len(pairs.rows) - PAIRS:,} more", style="dim"))
        _layers(found, console)
        _cosines(found, console)


def _table(console: Console, title: str, headings: list[str]) -> Table:
    console.print(Text(f"\n{title}", style="bold cyan"))  # a table's own title is broken at the table's width
    table = Table(box=None, padding=(0, 2, 0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i and heading else "left", header_style="dim", no_wrap=True)
    return table


def _print(
    console: Console,
    listing: words.Listing,
    most: int | None = None,
    shorten: Callable[[str], str] = short,
) -> None:
    table = _table(console, listing.title, [*listing.headings, *([] if listing.bars is None else [""])])
    for i, row in enumerate(listing.rows[:most]):
        row = [*map(shorten, row[: listing.names]), *row[listing.names :]]
        cells = [Text(cell, style="red" if isinstance(cell, words.Harmful) else "") for cell in row]
        if listing.bars is not None:
            rate = listing.bars[i]
            cells.append(Text("█" * round(10 * rate), style="red" if rate > 0.5 else "yellow"))
        table.add_row(*cells)
    console.print(table)


def _layers(found: Inspection, console: Console) -> None:
    listing = words.layers(found)
    _print(console, listing, LAYERS, shorten=tail)
    assert listing.bars is not None
    if (rest := len(listing.rows) - LAYERS) > 0:
        middle, calm = words.percent(listing.bars[len(listing.rows) // 2], False), listing.bars.count(0)
        others = f"and {words.several(rest, 'more layer')}; half of all are at {middle} or less"
        console.print(Text(f"{others}, {calm} without conflict" if calm else others, style="dim"))


def _cosines(found: Inspection, console: Console) -> None:
    count, off = len(found.ids), f" (each ± {found.error:.3f})" if found.error else ""
    if count > MATRIX:
        values = found.cosines[~found.cosines.new_ones(count, count).bool().tril()]
        low, middle, high = (f"{float(value):.2f}" for value in (values.min(), values.median(), values.max()))
        spread = f"between {low} and {high}, half of them below {middle}{off}".replace("-", "−")
        console.print(
            Text(f"\nCosines of {len(values):,} pairs: {spread}. The page (--html) has them all.", style="dim")
        )
        return
    table = _table(console, f"Cosines{off}", ["", *(str(j + 1) for j in range(count))])
    for i, name in enumerate(found.ids):
        cells = []
        for j, value in enumerate(found.cosines[i].tolist()):
            shown = "·" if i == j else f"{value:.2f}".replace("-", "−")
            cells.append(Text(shown, style="dim" if i == j else "red" if value < -0.005 else ""))
        table.add_row(Text(f"{i + 1} {short(name, 20)}"), *cells)
    table.padding = (0, 1, 0, 0)
    console.print(table)
