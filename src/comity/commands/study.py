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
    """Options of a study in addition to those of a run.

    Options:
        scale: section of the study's file to use: desk (minutes), night or paper (published sizes); by default desk
        seeds: number of seeds, such as 3 for 0, 1 and 2, or a list of seeds, such as 0,4,7
        sweep: an option with several values, such as rule.c=0.1,0.5; several --sweep give all combinations
        only: run only configurations with these values, such as data=mnist,cifar10; several --only must all hold
        tune: choose an option by validation, never by test, from a range (rule.c=0.1:0.9) or a list
            (lr=0.01,0.03,0.1); a list that ends with ,... is extended by the same factor while its first or last value
            is best
        tune_by: metric for --tune on validation samples: S-acc, G-acc or global-acc; by default --metric on each
            client's own samples
        tune_seeds: number of seeds that --tune uses (the first ones); by default all
        budget: maximum number of runs for --tune
        jobs: number of parallel runs; by default one per core
        shard: run a part of the study: 3/16 is the third of 16 parts, for the tasks of a Slurm array with one --out
        on: ray: run on a Ray cluster (an existing one, or a new local one); ray:ADDRESS: on the cluster at ADDRESS
        most_cells: maximum number of runs; by default 10,000
        callbacks: dotted names of your own Callback classes, which are called in every run
        keep_checkpoints: keep the checkpoints of all finished runs; by default only those of local baselines are kept
        dry_run: print the number of runs and the estimated time, from a stored cost model and one measured round, and
            stop
        overwrite: replace runs in --out that have another configuration
        quiet: print only errors
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
        """The given options that are entries of the study itself."""
        names = ("seeds", "tune_by", "tune_seeds", "budget", "jobs", "most_cells", "keep_checkpoints")
        entries: Entries = {name: getattr(self, name) for name in names} | {"callbacks": list(self.callbacks)}
        entries |= {name: _assignments(name, getattr(self, name)) for name in ("sweep", "only", "tune")}
        return {name: value for name, value in entries.items() if value}


def study(options: StudyOptions, file: ConfigFile, *, given: Entries) -> int:
    """Run a grid of methods, rules and seeds, and print its table.

    --method and --rule take several names, separated by commas. The options of a run are the same as for comity run;
    those of a method or rule, such as --rule.c, apply to
    all methods and rules in the grid that have them.

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
    """Run the study of ``entries``, overridden by ``given``, and print the result.

    ``example``: name of the example that the entries come from; its published numbers are printed too.
    """
    from rich.markup import escape

    from comity.commands._terminal import Terminal, interruptible, report_divergence, show_verdict, wide_console
    from comity.studies import Show, dry_run, published_table, study

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
    if example is not None and (published := published_table(done, example)):
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
    """Parse ``rule.c=0.1,0.5``; semicolons separate values that contain commas."""
    assigned: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise ComityError(f"--{name} takes key=values, such as rule.c=0.1,0.5, got {text!r}")
        is_walk = name == "tune" and ":" in values
        assigned[key.replace("-", "_")] = values if is_walk else values.split(";" if ";" in values else ",")
    return assigned


COMMAND = Command(study, RUN_OPTIONS, order=2)
