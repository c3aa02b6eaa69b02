"""``comity study``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from comity._errors import ComityError, complain
from comity._labels import slug
from comity._options import Count
from comity._write import write_text
from comity.commands._command import RUN_OPTIONS, Command, ConfigFile, Repeated
from comity.config import Entries, code_in, default, read_yaml


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What a study takes beside the options of a run.

    Options:
        scale: desk, night or paper, the section of the file to take; by default desk
        seeds: 3 for the seeds 0, 1 and 2, or the seeds themselves, 0,4,7
        sweep: an option with several values, rule.c=0.1,0.5; several --sweep make a product
        only: keep the cells with these values of an option, data=mnist,cifar10; several --only must all hold
        tune: choose an option by validation accuracy, never by test: rule.c=0.1:0.9, rule.C=0.1,1,10
            or lr=0.01,0.03,0.1; lr=0.01,0.03,0.1,... continues in the same ratio while the best is at an end
        tune_by: S-acc, G-acc or global-acc: what --tune chooses by, on validation samples; by default the metric that
            decides, on the client's own
        tune_seeds: on how many of the seeds, the first ones, --tune tries values; by default on all
        budget: the most runs that --tune may take
        jobs: runs side by side; by default one per core
        shard: 3/16 does the third of 16 parts, one for each task of a Slurm array, all with the same --out
        on: ray does the runs on a Ray cluster, the one that Ray finds or a new one here; ray:ADDRESS on the one there
        most_cells: the most cells that the study may have; by default 10,000
        callbacks: dotted names of your own Callback classes, which see every run
        keep_checkpoints: keep the checkpoints of finished runs too; else only those of Local stay
        dry_run: say how many runs it would be and about how long, by a stored cost model and one measured round; write
            nothing
        overwrite: replace runs of another configuration that are in the way in --out
        quiet: print nothing but errors
    """

    scale: str | None = None
    seeds: str | None = None
    sweep: Repeated = ()
    only: Repeated = ()
    tune: Repeated = ()
    tune_by: Literal["S-acc", "G-acc", "global-acc"] | None = None
    tune_seeds: Count | None = None
    budget: Count | None = None
    jobs: Count | None = None
    shard: str | None = None
    on: str | None = None
    most_cells: Count | None = None
    callbacks: tuple[str, ...] = ()
    keep_checkpoints: bool = False
    dry_run: bool = False
    overwrite: bool = False
    quiet: bool = False

    def entries(self) -> Entries:
        """Those that are entries of the study itself, as far as they are given."""
        names = ("seeds", "tune_by", "tune_seeds", "budget", "jobs", "most_cells", "keep_checkpoints")
        entries: Entries = {name: getattr(self, name) for name in names} | {"callbacks": list(self.callbacks)}
        entries |= {name: _assignments(name, getattr(self, name)) for name in ("sweep", "only", "tune")}
        return {name: value for name, value in entries.items() if value}


def study(options: StudyOptions, file: ConfigFile, *, given: Entries) -> int:
    """Compare methods and rules over seeds: a grid of runs, and its table.

    --method and --rule take several names, separated by commas. The options of a run are the same as for comity run;
    those of a method or rule, such as --rule.c, go to all in the grid that have them.

    Examples:
        comity study --method FedAvg,FedRep --rule Mean,ConFREE --seeds 3 --out studies/first
        comity study --method FedRep --rule ConFREE --sweep rule.c=0.2,0.8 --sweep partition.alpha=0.1,1
    """
    entries = read_yaml(file.config, allow_code=file.allow_code)
    if "out" not in entries | given:
        names = "-".join(str(given.get(kind, default(kind))) for kind in ("method", "rule", "data"))
        given = given | {"out": Path("studies") / slug(names if file.config is None else file.config.stem)}
    return compare(entries, given, options)


def compare(entries: Entries, given: Entries, options: StudyOptions, example: str | None = None) -> int:
    """Do the study of ``entries`` with ``given`` over them, and show what came of it.

    ``example``: the name of the example that the entries are from, whose published numbers are shown beside ours.
    """
    from rich.markup import escape

    from comity.commands._terminal import Terminal, interruptible, report_divergence, show_verdict, wide_console
    from comity.studies import Show, beside, dry_run, study

    console = Terminal()
    given = given | options.entries()
    common = {"scale": options.scale, "overwrite": options.overwrite, **given}
    if options.dry_run:
        dry_run(entries, show=Show(console), example=example, **common)
        return 0
    show = Show(None if options.quiet else console)
    try:
        with interruptible(console, "these rounds") as stopped:
            done = study(entries, show=show, stop=stopped, shard=options.shard, on=options.on, **common)
            interrupted = stopped()
    except KeyboardInterrupt:
        interrupted = True
    out = (entries | given)["out"]
    if interrupted:
        flag = " --allow-code" if code_in([entries, given]) else ""
        flag += "".join(f" --{name} {value}" for name in ("shard", "on") if (value := getattr(options, name)))
        console.print(
            f"Stopped. Resume with\n  comity study --config {out}/study.yaml{flag}", highlight=False, markup=False
        )
        return 130
    if not options.quiet:
        show_verdict(wide_console(), done)
        wide_console().print(
            f"Study folder: [bold]{escape(str(out))}[/], with table.md, table.tex and table.csv", highlight=False
        )
    if example is not None and (published := beside(done, example)):
        write_text(Path(out) / "published.md", published)
        if not options.quiet:
            wide_console().print(published, highlight=False, markup=False)
    for title, error in done.failed.items():
        complain(f"{title} failed: {error}")
    if done.failed:
        complain(f"{len(done.failed)} runs failed; {out}/cells.json has the tracebacks")
    diverged = report_divergence({f"{run.title}, {run.path.name}": run.result for run in done.runs if run.result})
    return 1 if done.failed else diverged


def _assignments(name: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """``rule.c=0.1,0.5``; semicolons between values that have commas themselves."""
    assigned: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise ComityError(f"--{name} takes key=values, such as rule.c=0.1,0.5, got {text!r}")
        is_walk = name == "tune" and ":" in values
        assigned[key.replace("-", "_")] = values if is_walk else values.split(";" if ";" in values else ",")
    return assigned


COMMAND = Command(study, RUN_OPTIONS, order=2)
