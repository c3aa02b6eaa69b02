"""``comity table``."""

import sys
from pathlib import Path
from typing import Literal

from comity._errors import ComityError
from comity.commands._command import Command


def table(
    folders: tuple[Path, ...],
    *,
    format: Literal["terminal", "md", "tex", "csv"] = "terminal",
    columns: tuple[str, ...] = (),
    base: str | None = None,
) -> int:
    """Print the table of a study, or of any runs, again.

    Examples:
        comity table studies/first --format md
        comity table runs/a runs/b --columns G-acc,global

    Options:
        folders: a study folder, or run folders and folders with runs in them
        format: for the terminal, or as Markdown, LaTeX (booktabs) or CSV
        columns: the columns to show beside accuracy, by their names in CSV; by default all that fit
        base: the rule that others are compared with, as the table names it, where it is not Mean
    """
    from comity.compare import LoadedStudy

    study = LoadedStudy(*folders, base=base)
    made = study.table()
    for what in study.damaged.values():
        print(f"comity: left out: {what}", file=sys.stderr)
    if not made.blocks:
        raise ComityError("no run is finished yet")
    if columns:
        made = made.only(columns)
    if format == "terminal":
        from comity.commands._terminal import wide_console

        wide_console().print(made)
    else:
        print({"md": made.markdown, "tex": made.latex, "csv": made.csv}[format](), end="")
    return 0


COMMAND = Command(table, order=4)
