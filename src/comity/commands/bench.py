"""``comity bench``."""

from pathlib import Path
from typing import Any

from comity._errors import complain
from comity._options import Count
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
    """Compare methods, rules and guards with local training on natural federations, client by client.

    One study per federation, one page for all: gain over local training, clients that are worse, and ranks. With
    --method, --rule or --guard only that configuration is run; the committed leaderboard stands beside it. The same
    command resumes a benchmark that was stopped. Any other option of comity run goes to all runs.

    Examples:
        comity bench --quick
        comity bench --method mymodule.MyMethod --federations pisa,rain --out benchmarks/mine

    Options:
        scale: quick, desk or night, the section of the benchmark's file to take; by default desk
        quick: the same as --scale quick: few configurations, one repetition
        federations: natural federations by name, or tables; by default all that are here
        rerun: with --method, run all configurations of the benchmark too
        seeds: number of seeds; three consecutive seeds are one repetition
        jobs: runs side by side; by default one per core
        shard: 2/4 does the second of four parts of the federations, all with the same --out
        config: a YAML file in place of the benchmark's own
        allow_code: let that file name classes that do not come with comity; their code is run
        overwrite: replace runs of another configuration that are in the way in --out
        quiet: print nothing but errors
    """
    from comity.commands._terminal import Terminal, interruptible, wide_console
    from comity.report import Benchmark, write_benchmark
    from comity.studies import BENCHMARK, LEADERBOARD, Bench, Show, bench
    from comity.studies import federations as found

    console, scale = Terminal(), "quick" if quick else scale
    out = Path(str(given.pop("out", Path("benchmarks") / (scale or "desk"))))
    own = {name: given.pop(name) for name in list(given) if name.partition(".")[0] in COMPARED}
    entries = read_yaml(config or BENCHMARK, allow_code=allow_code)
    chosen = found(federations, given.pop("data_dir", None))
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


COMMAND = Command(bench, [option for option in RUN_OPTIONS if option.name not in ("data", "seed")], order=20)
