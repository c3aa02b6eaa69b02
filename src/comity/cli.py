"""The command line: thin, and every error one line."""

import inspect
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity._components import SUPPLIED, choices, find, options, type_name
from comity._errors import ComityError, unknown
from comity.config import COMPONENTS, Config, default, read_yaml

Flags = dict[str, str]


def command(name: str, arguments: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {"run": _run, "data": _data, "list": _list}
    if name not in commands:
        raise unknown("command", name, commands)
    sys.path.insert(0, "")  # so that `--method mymod.MyMethod` finds a file beside the user
    return commands[name](arguments)


# Options.


def parse(arguments: list[str], flags: Flags) -> tuple[dict[str, Any], set[str]]:
    """The entries of a configuration and the flags among ``arguments``; a later one wins over ``--config``."""
    entries: dict[str, Any] = {}
    given: set[str] = set()
    known = {f.name: f for f in fields(Config)}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            raise ComityError(f"unexpected argument {argument!r}; options start with --")
        name, equals, value = argument[2:].partition("=")
        if name in flags:
            given.add(name)
            continue
        key, dot, option = name.replace("-", "_").partition(".")
        if key not in known and key != "config":
            raise unknown("option", f"--{name}", [f"--{k.replace('_', '-')}" for k in (*known, "config", *flags)])
        if dot and key not in COMPONENTS:
            raise ComityError(f"--{key} has no options of its own, got --{name}")
        if not equals:
            if not dot and key != "config" and known[key].type is bool:
                value = "true"
            else:
                try:
                    value = next(rest)
                except StopIteration:
                    raise ComityError(f"--{name} needs a value") from None
        if key == "config":
            entries = read_yaml(Path(value)) | entries
        elif dot:
            chosen = entries.get(key) or default(key) or "dirichlet"
            entries[key] = ({"name": chosen} if isinstance(chosen, str) else dict(chosen)) | {option: value}
        elif key in COMPONENTS:
            # options given before the name stay; those of another name in a file do not fit
            before = entries.get(key)
            own = {k: v for k, v in before.items() if k != "name"} if isinstance(before, dict) else {}
            same = isinstance(before, dict) and before["name"] in (value, default(key))
            entries[key] = {"name": value} | (own if same else {})
        else:
            entries[key] = value
    return entries, given


def _help(console: Console, title: str, entries: dict[str, Any], flags: Flags, groups: tuple[str, ...]) -> None:
    console.print(f"[bold]{title}[/]\n", highlight=False)
    hints = get_type_hints(Config)
    shown = [f for f in fields(Config) if f.metadata["group"] in groups]
    for group in groups:
        table = Table(
            box=None,
            show_header=False,
            padding=(0, 2, 0, 1),
            title=group,
            title_justify="left",
            title_style="bold cyan",
        )
        for f in (f for f in shown if f.metadata["group"] == group):
            kind = "a name" if f.name in COMPONENTS else type_name(hints[f.name])
            told = Text(f.metadata["help"])
            told.append("" if f.default is None else f"  [{f.default}]", style="dim")
            table.add_row(f"--{f.name.replace('_', '-')}", Text(kind, style="dim"), told)
        console.print(table)
    for key in COMPONENTS:
        if key not in {f.name for f in shown} or key == "data":
            continue
        chosen = entries.get(key) or default(key) or "dirichlet"
        name, component = find(key, chosen if isinstance(chosen, str) else chosen["name"])
        own = options(component, SUPPLIED.get(key, ()))
        if not own:
            continue
        table = Table(
            box=None,
            show_header=False,
            padding=(0, 2, 0, 1),
            title=f"{key} {name}",
            title_justify="left",
            title_style="bold cyan",
        )
        for option in own.values():
            told = Text(option.help)
            told.append(f"  [{option.default}]", style="dim")
            table.add_row(f"--{key}.{option.name}", Text(type_name(option.type), style="dim"), told)
        console.print(table)
    table = Table(
        box=None, show_header=False, padding=(0, 2, 0, 1), title="and", title_justify="left", title_style="bold cyan"
    )
    table.add_row("--config", Text("a path", style="dim"), "a YAML file with any of these; options beside it win")
    for flag, told_ in flags.items():
        table.add_row(f"--{flag}", "", told_)
    console.print(table)


# comity run

RUN_FLAGS = {
    "resume": "go on with the run in --out, to the same bits as if it had never stopped",
    "overwrite": "replace the run in --out",
    "quiet": "print nothing but errors",
    "help": "this page; after --method X also X's options",
}


def _run(arguments: list[str]) -> int:
    entries, flags = parse(arguments, RUN_FLAGS)
    console = Console()
    if "help" in flags:
        groups = ("data", "learning", "local training", "evaluation", "running")
        _help(console, "comity run: train a federation and write a run folder", entries, RUN_FLAGS, groups)
        return 0
    if {"resume", "overwrite"} <= flags:
        raise ComityError("--resume and --overwrite exclude each other")
    config = Config.of(entries)
    if config.out is None:
        name = "-".join(_slug(str(part)) for part in (config.method, config.rule, config.data, f"s{config.seed}"))
        config = config.with_(out=Path("runs") / name)

    from comity.engine import Callback, TensorBoard, run
    from comity.progress import Progress, summary

    quiet = "quiet" in flags
    callbacks: list[Callback] = [] if quiet else [Progress(console)]
    if config.tensorboard:
        callbacks.append(TensorBoard())
    with _interruptible(console) as stopped:
        done = run(config, resume="resume" in flags, overwrite="overwrite" in flags, callbacks=callbacks, stop=stopped)
    if not done.done:
        console.print(
            f"Stopped after round {done.server.round} of {config.rounds}. Go on with\n"
            f"  comity run --config {config.out}/config.yaml --resume",
            highlight=False,
        )
        return 130
    if not quiet:
        summary(console, done)
    return 0


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@contextmanager
def _interruptible(console: Console) -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the round end; a second one does not wait."""
    asked = False

    def handler(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("[dim]Ending this round… (Ctrl-C again to stop at once)[/]", highlight=False)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


# comity data

DATA_FLAGS = {"help": "this page"}


def _data(arguments: list[str]) -> int:
    entries, flags = parse(arguments, DATA_FLAGS)
    console = Console()
    if "help" in flags:
        told = "comity data: show who holds which samples; --out is the picture (SVG)"
        _help(console, told, entries, DATA_FLAGS, ("data", "running"))
        return 0
    config = Config.of(entries)
    from comity.data import describe, draw
    from comity.engine import federation_of

    federation = federation_of(config)
    console.print(describe(federation))
    path = config.out or Path(f"partition-{_slug(federation.name)}.svg")
    draw(federation, path)
    console.print(f"Picture: {path}", highlight=False)
    return 0


# comity list

PAPER = re.compile(r"[A-Z][\w\-’' ]+(?: et al\.|, [A-Z][\w ]+ and [A-Z]\w+)?,(?: [A-Z][\w\-’' ]*)? \d{4}")


def _list(arguments: list[str]) -> int:
    kinds = {"methods": "method", "rules": "rule", "models": "model", "data": "data", "partitions": "partition"}
    if len(arguments) != 1 or arguments[0] not in kinds:
        raise ComityError(f"comity list takes one of {', '.join(kinds)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for heading in (arguments[0], "what it is", "paper"):
        table.add_column(heading)
    for name, component in choices(kinds[arguments[0]]).items():
        doc = inspect.getdoc(component) or ""
        paper = PAPER.search(doc)
        table.add_row(
            Text(name, style="bold"), _line(component, doc), Text(paper.group() if paper else "", style="dim")
        )
    Console().print(table)
    return 0


def _line(component: Any, doc: str) -> str:
    """The first sentence of its docstring, or its own words where it is no class."""
    return doc.split("\n\n")[0].replace("\n", " ") if isinstance(component, type) else str(component)
