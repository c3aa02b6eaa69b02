"""``comity list``."""

import textwrap
from pathlib import Path
from typing import Literal

from comity._catalogue import described
from comity._errors import ComityError
from comity._extensions import BY_OPTION
from comity.commands._command import RUN_OPTIONS, Command, page_width
from comity.config import read_yaml

Kind = Literal["methods", "rules", "guards", "extensions", "models", "data", "partitions", "examples", "runs"]


def list_(kind: Kind, folder: Path | None = None) -> int:
    """List methods, rules, models, data sets and so on, or runs.

    The options of an entry are on its help page, such as comity run --method Ditto --help. For runs, the list shows
    state, progress and verdict. In a study folder it contains each run, in another folder each run and study.

    Examples:
        comity list methods
        comity list runs studies/first

    Options:
        kind: methods, rules, guards, extensions, models, data, partitions, examples or runs
        folder: for runs: a study folder, or a folder that contains runs and studies
    """
    if kind == "runs":
        return _runs(folder)
    if folder is not None:
        raise ComityError(f"comity list {kind} takes no folder, got {folder}")
    if kind == "examples":
        from comity.studies import examples

        sentences = {name: " ".join(str(read_yaml(file).get("about", "")).split()) for name, file in examples().items()}
        folder = next(iter(examples().values())).parent
        note = f"comity reproduce NAME --scale desk|night|paper; the files are in {folder}"
    elif kind == "extensions":
        sentences = {f"--{each.name.replace('_', '-')}": each.help for each in RUN_OPTIONS if each.name in BY_OPTION}
        note = (
            "comity run --extension PATH applies your own, by the dotted path of a subclass of comity.engine.Extension"
        )
    else:
        one = kind if kind == "data" else kind.removesuffix("s")
        sentences = {
            each.name: each.about + (f" ({each.paper})" if each.paper and each.paper not in each.about else "")
            for each in described(one).values()
        }
        note = f"comity run --{one} NAME --help shows the options of each"
    column = 2 + max(map(len, sentences))
    for name, sentence in sentences.items():
        print(textwrap.fill(f"{name:<{column}}{sentence}", page_width(), subsequent_indent=" " * column))
    print(f"\n{note}")
    return 0


def _runs(folder: Path | None) -> int:
    if folder is None:
        raise ComityError("comity list runs needs a folder: comity list runs FOLDER")
    from rich.table import Table
    from rich.text import Text

    from comity.commands._terminal import wide_console
    from comity.compare import LoadedStudy, overview
    from comity.results import StudyFolder

    table = Table("folder", "state", "progress", "verdict", box=None, pad_edge=False)
    table.columns[0].overflow = table.columns[3].overflow = "fold"  # a name is shown to its end
    for row in (rows := list(overview(folder))):
        table.add_row(*map(Text, row))
    if not rows:
        raise ComityError(f"{folder} holds no run")
    console = wide_console()
    console.print(table)
    if StudyFolder(folder).planned() and any(row.state == "finished" for row in rows):
        console.print(f"\n{LoadedStudy(folder).verdict}", highlight=False, markup=False)
    return 0


COMMAND = Command(list_, order=10)
