"""``comity reproduce``."""

from pathlib import Path

from comity._errors import ComityError
from comity._options import Count
from comity.commands._command import RUN_OPTIONS, Command, Repeated
from comity.commands.study import compare, study_entries
from comity.config import Entries, read_yaml


def reproduce(
    example: str | None = None,
    *,
    given: Entries,
    scale: str | None = None,
    seeds: str | None = None,
    sweep: Repeated = (),
    tune: Repeated = (),
    budget: Count | None = None,
    jobs: Count | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Do a paper's experiment, by name.

    The examples are studies; `comity list examples` names them and says where their files are. Options of a run beside
    the name win over those in the file.

    Examples:
        comity reproduce demo
        comity reproduce confree-table1 --scale desk --seeds 1

    Options:
        example: name of the example
        scale: desk for a size that ends in minutes, paper for the published one; by default desk
        seeds: 3 for the seeds 0, 1 and 2, or the seeds themselves, 0,4,7
        sweep: an option with several values, rule.c=0.1,0.5; several --sweep make a product
        tune: choose an option by validation accuracy, never by test: rule.c=0.1:0.9 or rule.C=0.1,1,10
        budget: the most runs that --tune may take
        jobs: runs side by side; by default one a core
        overwrite: replace runs of another configuration that are in the way in --out
        quiet: print nothing but errors
    """
    from comity.studies import examples, find_example

    if example is None:
        raise ComityError(f"comity reproduce takes the name of an example: {', '.join(examples())}")
    entries = read_yaml(find_example(example))
    given = {"out": Path("studies") / f"{example}-{scale or 'desk'}", **given}
    given |= study_entries(seeds, sweep, tune, budget, jobs)
    return compare(entries, given, scale, overwrite, quiet)


COMMAND = Command(reproduce, RUN_OPTIONS)
