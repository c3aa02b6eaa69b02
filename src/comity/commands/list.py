"""``comity list``."""

from typing import Literal

from comity._catalogue import described
from comity.commands._command import Command


def list_(kind: Literal["methods", "rules", "models", "data", "partitions", "examples"]) -> int:
    """List what there is: methods, rules, models, data sets, partitions or examples.

    The options of each are on the help page of comity run: comity run --method Ditto --help.

    Examples:
        comity list methods
        comity list examples

    Options:
        kind: methods, rules, models, data, partitions or examples
    """
    from rich.table import Table
    from rich.text import Text

    from comity.commands._terminal import wide_console

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    note = ""
    if kind == "examples":
        from comity.studies import about, examples

        rows = [(name, about(file), "") for name, file in examples().items()]
        folder = next(iter(examples().values())).parent
        note = f"[dim]comity reproduce NAME --scale desk or paper; the files are in {folder}[/]"
    else:
        descriptions = described(kind if kind == "data" else kind.removesuffix("s")).values()
        rows = [(each.name, each.about, each.paper if each.paper not in each.about else "") for each in descriptions]
    headings = (kind, "what it is", "paper")
    for heading in headings if any(paper for *_, paper in rows) else headings[:2]:
        table.add_column(heading)
    for name, sentence, paper in rows:
        table.add_row(
            Text(name, style="bold"), Text(sentence), *([Text(paper, style="dim")] if table.columns[2:] else [])
        )
    console = wide_console()
    console.print(table)
    if note:
        console.print(note, highlight=False)
    return 0


COMMAND = Command(list_)
