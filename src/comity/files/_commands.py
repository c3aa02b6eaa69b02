"""``comity inspect`` and ``comity aggregate``."""

import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from comity._components import Component, convert
from comity._errors import ComityError, unknown
from comity._memory import parse_bytes, peak, resident, show_bytes
from comity.files._inspect import inspect
from comity.files._merge import Merge, Progress, aggregate
from comity.files._plan import Buffers, Lora
from comity.files._show import LAYERS, show
from comity.files._words import percent, several
from comity.rules import DroppedWarning, SolverWarning

LEAST = 16_000_000  # bytes to work with, below which pieces are too small to be of use

INPUTS = """\
  BASE, CLIENTS    safetensors, torch (.pt, .pth, .bin, .ckpt) or npz files, an index of shards, or folders with one
                   model or one PEFT adapter each
  --as-updates     no BASE: the files are the updates themselves
  --only PATTERN   tensors that take part, by name or its end after a dot: 'lora_*'; may be repeated
  --exclude PATTERN  tensors that do not; may be repeated
  --weights FILE   CSV with the columns name and size (and loss, for rules that need it)
  --lora HOW       of PEFT adapters: factors (A and B each for itself) or products (BA)  [factors]
  --memory AMOUNT  the most that the process may take  [2GB]
  --skip-bad       leave bad files out and say so; without it they stop the command with nothing written
"""
INSPECT = f"""\
comity inspect: who is in conflict, whom the plain mean would harm, and what a rule would change

  comity inspect BASE CLIENTS… [--html page.html] [--lr 0.01]

{INPUTS}\
  --html FILE      the same as a page, with all pairs and layers
  --lr NUMBER      the clients' learning rate times their local steps: changes of loss are shown too
"""
AGGREGATE = f"""\
comity aggregate: merge clients' checkpoints without harm, at any size

  comity aggregate BASE CLIENTS… --rule ConFREE --rule.c 0.4 -o new.safetensors

{INPUTS}\
  -o, --output     the new model, or the update: names, shapes, dtypes, metadata and files as in BASE
  --rule NAME      how updates are combined (comity list rules), with --rule.OPTION for its options  [ConFREE]
  --buffers HOW    running_mean and running_var: average or keep  [average]
  --overwrite      replace an output that exists
  --quiet          print nothing but errors
"""

OURS = (DroppedWarning, SolverWarning)
VALUES = {"--only", "--exclude", "--weights", "--lora", "--memory"}
FLAGS = {"--as-updates", "--skip-bad", "--help"}


def inspect_command(arguments: list[str]) -> int:
    """``comity inspect``; bad input is a `ComityError`."""
    paths, values, flags = _parse(arguments, VALUES | {"--html", "--lr"}, FLAGS)
    if "--help" in flags:
        print(INSPECT, end="")
        return 0
    page = values.get("--html")
    if page is not None and Path(page).suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"--html must name a file that ends in .html, got {page}")
    lr = convert(values["--lr"], float, "--lr") if "--lr" in values else None
    console = Console()
    with _told(), _progress(console) as progress:
        found = inspect(*_inputs(paths, flags, "inspect"), lr=lr, progress=progress, **_common(values, flags))
    show(found, console)
    if page is not None:
        from comity.files._html import page as html

        _write(Path(page), html(found))
        console.print(Text(f"\nPage: {page}"))
    return 0


def aggregate_command(arguments: list[str]) -> int:
    """``comity aggregate``; bad input is a `ComityError` with nothing written."""
    started = time.perf_counter()
    paths, values, flags = _parse(
        arguments, VALUES | {"--output", "--rule", "--buffers"}, FLAGS | {"--overwrite", "--quiet"}, "--rule."
    )
    if "--help" in flags:
        print(AGGREGATE, end="")
        return 0
    if "--output" not in values:
        raise ComityError("comity aggregate needs -o, where the new model goes; see comity aggregate --help")
    own = {key.removeprefix("--rule."): value for key, value in values.items() if key.startswith("--rule.")}
    rule = Component.parse("rule", {"name": values.get("--rule", "ConFREE")} | own).build()
    console = Console(quiet="--quiet" in flags)
    with _told(), _progress(console) as progress:
        done = aggregate(
            *_inputs(paths, flags, "aggregate"),
            values["--output"],
            rule,
            buffers=convert(values.get("--buffers", "average"), Buffers, "--buffers"),
            overwrite="--overwrite" in flags,
            progress=progress,
            **_common(values, flags),
        )
    _tell(done, console, time.perf_counter() - started)
    return 0


def _tell(done: Merge, console: Console, seconds: float) -> None:
    if done.lost:
        worst = sorted(done.lost.items(), key=lambda pair: -pair[1])
        for layer, lost in worst[:LAYERS]:
            console.print(Text(f"{100 * lost:6.2f} % lost in {layer}", style="dim"))
        if rest := worst[LAYERS:]:
            told = f"{100 * rest[0][1]:6.2f} % or less in {several(len(rest), 'more layer')}"
            console.print(Text(told, style="dim"))
        told = f"{100 * done.lost_overall:.2f} % of the merged products is lost"
        console.print(Text(f"{told} by keeping their rank and by rounding (relative error)"), soft_wrap=True)
    clients, layers = several(len(done.ids), "client"), several(len(done.layers), "layer")
    stretch = [f"{length:.2f}" for length in done.stretch.tolist() if not math.isnan(length)]
    span = "–".join(dict.fromkeys((min(stretch, key=float), max(stretch, key=float)))) if stretch else ""
    parts = [
        f"{done.output}: {clients} merged by {done.rule} in {layers}",
        f"{several(len(done.dropped), 'file')} left out" if done.dropped else "",
        f"{percent(done.conflict.overall, False)} of pairs and layers in conflict" if len(done.ids) > 1 else "",
        f"{done.certificate} {done.residual:.0e}" if done.residual else "",
        f"layers {span} times as long as the mean's" if span else "",
        f"{seconds:.1f} s, peak memory {show_bytes(peak())}",
    ]
    console.print(Text("; ".join(part for part in parts if part) + "."), soft_wrap=True)


# What both take.


def _parse(
    arguments: list[str], values: set[str], flags: set[str], dotted: str | None = None
) -> tuple[list[str], dict[str, Any], set[str]]:
    paths: list[str] = []
    given: dict[str, Any] = {}
    raised: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        name = {"-o": "--output", "-h": "--help"}.get(name, name)
        if not name.startswith("-"):
            paths.append(argument)
        elif name in flags and not equals:
            raised.add(name)
        elif name in values or (dotted is not None and name.startswith(dotted)):
            value = value if equals else next(rest, "")
            if not value or (value.startswith("--") and not equals):
                raise ComityError(f"{argument} needs a value")
            if name in ("--only", "--exclude"):
                given.setdefault(name, []).append(value)
            else:
                given[name] = value
        else:
            raise unknown("option", argument, (*values, *flags))
    return paths, given, raised


def _inputs(paths: list[str], flags: set[str], command: str) -> tuple[str | None, list[str]]:
    updates = "--as-updates" in flags
    if len(paths) < 2 - updates:
        needed = "the clients' updates" if updates else "a base and the clients' files"
        raise ComityError(f"comity {command} takes {needed}; see comity {command} --help")
    return (None, paths) if updates else (paths[0], paths[1:])


def _common(values: Mapping[str, Any], flags: set[str]) -> dict[str, Any]:
    limit = parse_bytes(values.get("--memory", "2GB"))
    room = limit - resident()
    if room < LEAST:
        told = f"Python and torch alone take {show_bytes(resident())}"
        raise ComityError(f"memory {show_bytes(limit)} is too little: {told}; give {show_bytes(resident() + LEAST)}")
    return {
        "only": values.get("--only", ()),
        "exclude": values.get("--exclude", ()),
        "lora": convert(values.get("--lora", "factors"), Lora, "--lora"),
        "sizes": values.get("--weights"),
        "memory": room,
        "skip_bad": "--skip-bad" in flags,
    }


@contextmanager
def _progress(console: Console) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not console.is_terminal or console.quiet:
        yield None
        return
    columns = [TextColumn("reading"), BarColumn(bar_width=30), DownloadColumn(), TextColumn("·"), TimeRemainingColumn()]
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _told() -> Iterator[None]:
    """Warnings of ours as lines; others as they are."""
    with warnings.catch_warnings(record=True) as caught:
        for kind in OURS:
            warnings.simplefilter("always", kind)
        try:
            yield
        finally:
            told = [str(warning.message) for warning in caught if issubclass(warning.category, OURS)]
            print("".join(f"comity: {line}\n" for line in told), file=sys.stderr, end="")
    for warning in caught:
        if not issubclass(warning.category, OURS):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _write(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ComityError(f"{file} could not be written ({error.strerror})") from error
