"""The report: who gains, who is harmed, and why, as one HTML file that needs nothing else.

It reads run folders, and neither the engine nor torch is imported for it.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from comity._errors import ComityError, unknown
from comity.report._cells import Study, study_of
from comity.report._page import page
from comity.report._read import read
from comity.report._words import answer

__all__ = ["command", "write"]

USAGE = """\
comity report: who gains, who is harmed, and why, in one HTML file

  comity report PATH… [-o report.html] [--figures DIR] [--watch] [--quiet]

  PATH            run folders, or study folders with run folders below them
  -o, --output    the page to write  [report.html]
  --figures DIR   the same plots for a paper too, as PDF and PNG (needs matplotlib: pip install 'comity[report]')
  --watch         write the page anew while runs go on; an open page follows by itself; ends with them or with Ctrl-C
  --quiet         print nothing but errors
"""

OPTIONS = ("--output", "--figures", "--watch", "--quiet", "--help")


def write(paths: Sequence[str | Path], output: str | Path) -> Path:
    """The report on the runs at or below ``paths``, as one HTML file."""
    file = _output(output)
    _write(file, page(study_of([Path(path) for path in paths])))
    return file


def command(arguments: list[str]) -> int:
    """``comity report``; bad input is a ``ComityError`` before anything is written."""
    paths, output, figures, flags = _parse(arguments)
    if "--help" in flags:
        print(USAGE, end="")
        return 0
    if not paths:
        raise ComityError("comity report needs a run or study folder; see comity report --help")
    file = _output(output)
    if figures is not None:
        from comity.report._figures import draw, need

        need(figures)

    said = ""

    def tell(words: str) -> None:
        nonlocal said
        if "--quiet" not in flags and words != said:
            print(words, flush=True)
        said = words

    def publish(study: Study, live: float | None) -> None:
        _write(file, page(study, live=live))
        if live:
            done = sum(run.finished for run in study.runs)
            tell(f"{done} of {_count(study)} finished. {answer(study).lead}")

    if "--watch" in flags:
        from comity.report._watch import watch

        tell(f"Following {', '.join(map(str, paths))}; open {file} in a browser, Ctrl-C ends.")
        study = watch(lambda reader: study_of(paths, reader), publish)
    else:
        study = study_of(paths, read)
        publish(study, None)
    if figures is not None:
        drawn = draw(study, figures)
        tell(f"Figures: {len(drawn)} in {figures}, each as PDF and PNG")
    told = answer(study)
    tell(f"{told.lead} {told.more}".strip() + f"\nReport: {file} ({_size(file)}, {_count(study)})")
    return 0


def _count(study: Study) -> str:
    return f"{len(study.runs)} run{'s' if len(study.runs) != 1 else ''}"


def _parse(arguments: list[str]) -> tuple[list[Path], str, Path | None, set[str]]:
    paths: list[Path] = []
    output, figures = "report.html", None
    flags: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        name = {"-o": "--output", "-h": "--help"}.get(name, name)
        if not name.startswith("-"):
            paths.append(Path(argument))
        elif name in ("--output", "--figures"):
            value = value if equals else next(rest, "")
            if not value:
                raise ComityError(f"{argument} needs a value")
            if name == "--output":
                output = value
            else:
                figures = Path(value)
        elif name in OPTIONS and not equals:
            flags.add(name)
        else:
            raise unknown("option", argument, OPTIONS)
    return paths, output, figures, flags


def _output(path: str | Path) -> Path:
    """Where the page goes; a name that is no page's is a slip that could cost a file."""
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"output must end in .html, got {file}")
    if file.is_dir():
        raise ComityError(f"output {file} is a folder")
    return file


def _write(file: Path, text: str) -> None:
    """All or nothing: a page that is just being read is never half there."""
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ComityError(f"output {file} could not be written: {error.strerror}") from error


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
