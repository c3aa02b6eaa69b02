"""The command line: thin, and every error one line."""

import inspect
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from comity._components import SUPPLIED, choices, find, options, type_name
from comity._errors import ComityError, unknown
from comity.config import COMPONENTS, Config, default, read_yaml

Flags = dict[str, str]


ELSEWHERE = {
    "report": ("comity.report", "command"),
    "inspect": ("comity.files", "inspect_command"),
    "aggregate": ("comity.files", "aggregate_command"),
    "flower": ("comity.flower", "command"),
}
"""Commands that their own rooms answer."""


def command(name: str, arguments: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "run": _run,
        "study": _study,
        "table": _table,
        "reproduce": _reproduce,
        "data": _data,
        "list": _list,
    }
    sys.path.insert(0, "")  # so that `--method mymod.MyMethod` finds a file beside the user
    if name in ELSEWHERE:
        room, function = ELSEWHERE[name]
        return int(getattr(import_module(room), function)(arguments))
    if name not in commands:
        raise unknown("command", name, (*commands, *ELSEWHERE))
    return commands[name](arguments)


# Options.


def tokens(arguments: list[str], flags: Flags, more: Flags) -> Iterator[tuple[str, str]]:
    """Each option of a run (dotted ones too), or one of ``more``, with its value; a flag with none."""
    known = {f.name: f for f in fields(Config)}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            raise ComityError(f"unexpected argument {argument!r}; options start with --")
        name, equals, value = argument[2:].partition("=")
        if name in flags:
            yield name, ""
            continue
        key, dot, option = name.replace("-", "_").partition(".")
        if key not in known and key not in more:
            raise unknown("option", f"--{name}", [f"--{k.replace('_', '-')}" for k in (*known, *more, *flags)])
        if dot and key not in COMPONENTS:
            raise ComityError(f"--{key} has no options of its own, got --{name}")
        if not equals:
            if not dot and key in known and known[key].type is bool:
                value = "true"
            else:
                try:
                    value = next(rest)
                except StopIteration:
                    raise ComityError(f"--{name} needs a value") from None
        yield key + dot + option, value


CONFIG = {"config": "a YAML file with any of these; options beside it win"}


def parse(arguments: list[str], flags: Flags) -> tuple[dict[str, Any], set[str]]:
    """The entries of a configuration and the flags among ``arguments``; a later one wins over ``--config``."""
    entries: dict[str, Any] = {}
    given: set[str] = set()
    for name, value in tokens(arguments, flags, CONFIG):
        key, dot, option = name.partition(".")
        if key in flags:
            given.add(key)
        elif key == "config":
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


def _help(
    console: Console, title: str, entries: dict[str, Any], flags: Flags, groups: tuple[str, ...], more: Flags = CONFIG
) -> None:
    console.print(f"[bold]{title}[/]\n", highlight=False)
    hints = get_type_hints(Config)
    shown = [f for f in fields(Config) if f.metadata["group"] in groups]

    def section(title: str, rows: list[tuple[str, str, str, Any]]) -> None:
        style = {"title_justify": "left", "title_style": "bold cyan"}
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 1), title=title, **style)  # type: ignore[arg-type]
        for name, kind, told, usual in rows:
            text = Text(told)
            text.append("" if usual is None else f"  [{usual}]", style="dim")
            table.add_row(f"--{name}", Text(kind, style="dim"), text)
        console.print(table)

    for group in groups:
        rows = []
        for f in (f for f in shown if f.metadata["group"] == group):
            kind = "a name" if f.name in COMPONENTS else type_name(hints[f.name])
            rows.append((f.name.replace("_", "-"), kind, f.metadata["help"], f.default))
        section(group, rows)
    for key in COMPONENTS:
        if key not in {f.name for f in shown} or key == "data":
            continue
        chosen = entries.get(key) or default(key) or "dirichlet"
        for each in chosen.split(",") if isinstance(chosen, str) else chosen if isinstance(chosen, list) else [chosen]:
            name, component = find(key, each if isinstance(each, str) else each["name"])
            if own := options(component, SUPPLIED.get(key, ())):
                rows = [(f"{key}.{o.name}", type_name(o.type), o.help, str(o.default)) for o in own.values()]
                section(f"{key} {name}", rows)
    section("and", [(name, "", told, None) for name, told in (more | flags).items()])


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

    from comity.engine import run
    from comity.progress import Progress, summary

    quiet = "quiet" in flags
    callbacks = [] if quiet else [Progress(console)]
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
def _interruptible(console: Console, what: str = "this round") -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the round end; a second one does not wait."""
    asked = False

    def handler(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(f"[dim]Ending {what}… (Ctrl-C again to stop at once)[/]", highlight=False)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


# comity study

STUDY_FLAGS = {
    "overwrite": "replace runs of another configuration that are in the way in --out",
    "quiet": "print nothing but errors",
    "help": "this page; after --method X,Y also their options",
}
STUDY_OPTIONS = {
    "config": "a YAML file with any of these (docs/studies.md); options beside it win",
    "scale": "desk or paper: the section of the file to take",
    "seeds": "3 for the seeds 0, 1 and 2, or the seeds themselves: 0,4,7",
    "sweep": "rule.c=0.1,0.5 or any other option; several --sweep make a product",
    "tune": "rule.c=0.1:0.9 or rule.C=0.1,1,10: choose by validation accuracy, never by test",
    "budget": "the most runs that --tune may take",
    "jobs": "runs side by side; by default one a core",
}


def _study(arguments: list[str], example: str | None = None) -> int:
    from comity.studies import Show, find_example, study

    given: dict[str, Any] = {}
    flags: set[str] = set()
    for name, value in tokens(arguments, STUDY_FLAGS, STUDY_OPTIONS):
        if name in STUDY_FLAGS:
            flags.add(name)
        elif name in ("sweep", "tune"):
            given[name] = given.get(name, {}) | _assignment(name, value)
        else:
            given[name] = value
    console = Console()
    if "help" in flags:
        told = "comity study: compare methods and rules over seeds; --method and --rule take several, with commas"
        groups = ("data", "learning", "local training", "evaluation", "running")
        _help(console, told, given, STUDY_FLAGS, groups, STUDY_OPTIONS)
        return 0
    scale, file = given.pop("scale", None), given.pop("config", None)
    if example is not None:
        file = find_example(example)
        given.setdefault("out", Path("studies") / f"{example}-{scale or 'desk'}")
    entries = read_yaml(Path(file)) if file is not None else {}
    if "out" not in entries | given:
        named = (
            Path(file).stem
            if file
            else "-".join(str(given.get(key, default(key))) for key in ("method", "rule", "data"))
        )
        given["out"] = Path("studies") / _slug(named)
    try:
        with _interruptible(console, "these rounds") as stopped:
            done = study(
                entries,
                scale=scale,
                overwrite="overwrite" in flags,
                show=Show(None if "quiet" in flags else console),
                stop=stopped,
                **given,
            )
            interrupted = stopped()
    except KeyboardInterrupt:
        interrupted = True
    out = (entries | given)["out"]
    if interrupted:
        console.print(f"Stopped. Go on with\n  comity study --config {out}/study.yaml", highlight=False)
        return 130
    if "quiet" not in flags:
        _wide(console).print(done.table())
        _wide(console).print(f"Study folder: [bold]{out}[/], with table.md, table.tex and table.csv", highlight=False)
    for title, error in done.failed.items():
        print(f"comity: {title} failed: {error}", file=sys.stderr)
    if done.failed:
        print(f"comity: {len(done.failed)} runs failed; {out}/cells.json has the tracebacks", file=sys.stderr)
    return 1 if done.failed else 0


def _assignment(name: str, text: str) -> dict[str, Any]:
    """``rule.c=0.1,0.5``; semicolons between values that have commas themselves."""
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise ComityError(f"--{name} takes key=values, such as rule.c=0.1,0.5, got {text!r}")
    walks = name == "tune" and ":" in values
    return {key.replace("-", "_"): values if walks else values.split(";" if ";" in values else ",")}


def _reproduce(arguments: list[str]) -> int:
    from comity.studies import examples

    if not arguments or arguments[0].startswith("--"):
        raise ComityError(f"comity reproduce takes the name of an example: {', '.join(examples())}")
    return _study(arguments[1:], arguments[0])


def _wide(console: Console) -> Console:
    """A table in a file or a pipe is not cut at 80 columns."""
    return console if console.is_terminal else Console(width=160)


# comity table


def _table(arguments: list[str]) -> int:
    from comity.loading import LoadedRun, LoadedStudy, load
    from comity.tables import Table as StudyTable

    folders, chosen = [], {"--format": "terminal", "--columns": ""}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in chosen:
            chosen[name] = value if equals else next(rest, "")
        elif argument.startswith("-"):
            raise unknown("option", argument, chosen)
        else:
            folders.append(load(argument))
    if not folders:
        raise ComityError("comity table takes study or run folders, --format md, tex or csv, and --columns")
    if len(folders) == 1 and isinstance(folders[0], LoadedStudy):
        table = folders[0].table()
    else:
        runs = [run for folder in folders for run in ([folder] if isinstance(folder, LoadedRun) else folder.runs)]
        table = StudyTable.of(runs)
    if not table.blocks:
        raise ComityError("no run is finished yet")
    if chosen["--columns"]:
        table = table.only(chosen["--columns"].split(","))
    form, texts = chosen["--format"], {"md": table.markdown, "tex": table.latex, "csv": table.csv}
    if form == "terminal":
        _wide(Console()).print(table)
    elif form in texts:
        print(texts[form](), end="")
    else:
        raise unknown("format", form, texts)
    return 0


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
    if len(arguments) != 1 or arguments[0] not in (*kinds, "examples"):
        raise ComityError(f"comity list takes one of {', '.join((*kinds, 'examples'))}")
    if arguments[0] == "examples":
        return _list_examples()
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


def _list_examples() -> int:
    from comity.studies import about, examples

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for heading in ("examples", "what it is"):
        table.add_column(heading)
    for name, file in examples().items():
        table.add_row(Text(name, style="bold"), about(file))
    console = Console()
    console.print(table)
    console.print(
        f"[dim]comity reproduce NAME --scale desk or paper; the files are in {file.parent}[/]", highlight=False
    )
    return 0


def _line(component: Any, doc: str) -> str:
    """The first sentence of its docstring, or its own words where it is no class."""
    return doc.split("\n\n")[0].replace("\n", " ") if isinstance(component, type) else str(component)
