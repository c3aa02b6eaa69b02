"""``comity reproduce``."""

from pathlib import Path

from comity._errors import ComityError, unknown
from comity.commands._command import RUN_OPTIONS, Command
from comity.commands.study import StudyOptions, compare
from comity.config import Entries, read_yaml


def reproduce(options: StudyOptions, example: str | None = None, *, given: Entries) -> int:
    """Do a paper's experiment, by name.

    The examples are studies; `comity list examples` names them and says where their files are. Options of a run beside
    the name win over those in the file. The scale desk ends in minutes, night by morning; paper has the published
    sizes.

    Examples:
        comity reproduce demo
        comity reproduce confree-table1 --scale desk --seeds 1

    Options:
        example: name of the example
    """
    from comity.studies import examples

    known = examples()
    if example is None:
        raise ComityError(f"comity reproduce takes the name of an example: {', '.join(known)}")
    if example not in known:
        raise unknown("example", example, known)
    given = {"out": Path("studies") / f"{example}-{options.scale or 'desk'}", **given}
    return compare(read_yaml(known[example]), given, options)


COMMAND = Command(reproduce, RUN_OPTIONS, order=5)
