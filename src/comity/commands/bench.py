"""``comity bench``."""

from pathlib import Path
from typing import Any

from comity._errors import complain
from comity._federations import natural
from comity._options import Count
from comity._words import listed
from comity.commands._command import RUN_OPTIONS, Command
from comity.config import Entries, read_yaml

COMPARED = ("method", "rule", "guard")


def bench(
    *,
    given: Entries,
    scale: str | None = None,
    quick: bool = False,
    federations: tuple[str, ...] = (),
    rerun: bool = False,
    seeds: str | None = None,
    jobs: Count | None = None,
    shard: str | None = None,
    config: Path | None = None,
    allow_code: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Compare methods, rules and guards on natural federations.

    The command runs one study per federation and writes one page with gains over local training, clients that are
    worse, and ranks. With --method, --rule or --guard it runs only that configuration and shows it next to the stored
    leaderboard. The same command resumes a stopped benchmark. All other options of comity run apply to every run.

    Examples:
        comity bench --quick
        comity bench --method mymodule.MyMethod --federations pisa,rain --out benchmarks/mine

    Options:
        scale: size of the benchmark: quick, desk or night (sections of its file); by default desk
        quick: same as --scale quick: few configurations, one repetition
        federations: natural federations by name, or tables; by default all whose data are found
        rerun: with --method, also run all configurations of the benchmark
        seeds: number of seeds; every three seeds test each row once, so use a multiple of 3
        jobs: number of parallel runs; by default one per core
        shard: run a part of the federations: 2/4 is the second of four parts; give all parts the same --out
        config: a YAML file that replaces the benchmark's own
        allow_code: allow that file to name your own classes; their code will be executed
        overwrite: replace runs in --out that have another configuration
        quiet: print only errors
    """
    from comity.commands._terminal import Terminal, interruptible, wide_console
    from comity.report import Benchmark, write_benchmark
    from comity.studies import BENCHMARK, LEADERBOARD, Bench, Show, bench
    from comity.studies import federations as found

    console, scale = Terminal(), "quick" if quick else scale
    out = Path(str(given.pop("out", Path("benchmarks") / (scale or "desk"))))
    own = {name: given.pop(name) for name in list(given) if name.partition(".")[0] in COMPARED}
    entries = read_yaml(config or BENCHMARK, allow_code=allow_code)
    data_dir = given.pop("data_dir", None)
    chosen = found(federations, data_dir)
    if not (federations or quiet) and (line := _missing(data_dir)):
        console.print(line, highlight=False, markup=False)
    given |= {name: value for name, value in (("seeds", seeds), ("jobs", jobs)) if value is not None}
    extra: dict[str, Any] = {"only": [own]} if own and not rerun else {"more": [own]} if own else {}
    stored = LEADERBOARD if own and not rerun else None

    pages: list[Benchmark] = []

    def page(done: Bench) -> None:
        left_out = [
            f"{name}: {what} does not run ({why})." for name, each in done.left_out.items() for what, why in each
        ]
        pages[:] = [write_benchmark(out, stored, left_out)]

    with interruptible(console, "these rounds") as stopped:
        done = bench(
            entries,
            federations=chosen,
            out=out,
            scale=scale,
            show=Show(None if quiet else console),
            stop=stopped,
            shard=shard,
            overwrite=overwrite,
            after=page,
            **extra,
            **given,
        )
        if stopped():
            if done.studies:
                page(done)
            console.print("Stopped. The same command resumes it.", highlight=False)
            return 130
    if pages and not quiet:
        terminal, board = wide_console(), pages[0].board
        terminal.print(board.answer, highlight=False, markup=False)
        terminal.print(board)
        terminal.print(f"Page: {out / 'leaderboard.html'}", highlight=False, markup=False)
    for name, error in done.failed.items():
        complain(f"{name} failed: {error}")
    return 1 if done.failed else 0


def _missing(data_dir: str | Path | None) -> str:
    """One line about the natural federations whose data are not found; empty if all are."""
    known = natural()
    names = [name for name, each in known.items() if not each.path(data_dir)]
    if not names:
        return ""
    words = f"Without {listed(names)}: their data are missing (comity data --get NAME says how to get them)."
    only_embedded = all(name in names for name, each in known.items() if not each.embedded)
    return words + " In the others, which come with comity, joining harms few clients." * only_embedded


COMMAND = Command(bench, [option for option in RUN_OPTIONS if option.name not in ("data", "seed")], order=20)
