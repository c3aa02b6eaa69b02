"""``comity table``."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from comity._errors import ComityError, complain
from comity.commands._command import Command

if TYPE_CHECKING:
    from comity.compare import LoadedStudy


def table(
    folders: tuple[Path, ...],
    *,
    format: Literal["terminal", "md", "tex", "csv"] = "terminal",
    columns: tuple[str, ...] = (),
    by: Literal["configuration", "client"] = "configuration",
    base: str | None = None,
) -> int:
    """Print the result table of a study or of runs.

    Examples:
        comity table studies/first --format md
        comity table studies/first --by client
        comity table runs/a runs/b --columns G-acc,global

    Options:
        folders: a study folder, or run folders and folders that contain runs
        format: for the terminal, or as Markdown, LaTeX (booktabs) or CSV
        columns: columns to show beside the deciding metric, by their names in CSV, or all
        by: one row per configuration, or one row per client of each configuration
        base: rule that others are compared with, spelled as in the table; by default Mean
    """
    from comity.compare import LoadedStudy

    study = LoadedStudy(*folders, base=base)
    made = study.table()
    for what in study.damaged.values():
        complain(f"left out: {what}")
    if not made.blocks:
        raise ComityError("no run is finished yet")
    if by == "client":
        return _by_client(study, format)
    if columns:
        made = made.only([column.name for column in made.columns] if columns == ("all",) else columns)
    if format == "terminal":
        from comity.commands._terminal import wide_console

        wide_console().print(made)
    else:
        print({"md": made.markdown, "tex": made.latex, "csv": made.csv}[format](), end="")
    return 0


def _by_client(study: "LoadedStudy", format: str) -> int:
    from comity.commands._terminal import wide_console
    from comity.compare import clients_csv

    tables = [cell.client_table for cell in study.cells if cell.clients]
    if not tables:
        raise ComityError("no run was compared with local training")
    if format == "tex":
        raise ComityError("--by client has no LaTeX form; take md or csv")
    if format == "csv":
        print(clients_csv(tables), end="")
        return 0
    for table in tables:
        if format == "md":
            print(table.markdown())
        else:
            wide_console().print(table)
    return 0


COMMAND = Command(table, order=4)
