"""The report: who gains, who is harmed, and why, as one HTML file that needs nothing else.

It reads run folders, and neither the engine nor torch is imported for it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from comity._errors import ComityError, unknown
from comity._write import write_text
from comity.report._page import page
from comity.report._words import answer
from comity.results import LoadedRun, LoadedStudy
from comity.results.words import counted

__all__ = ["command", "write"]

USAGE = """\
comity report: who gains, who is harmed, and why, in one HTML file

  comity report PATH… [-o report.html] [--base RULE] [--figures DIR] [--watch] [--quiet]

  PATH            run folders, or study folders with run folders below them
  -o, --output    the page to write  [report.html]
  --base RULE     the rule that others are compared with, as the table names it  [Mean]
  --figures DIR   the same plots for a paper too, as PDF and PNG (needs matplotlib: pip install 'comity[report]')
  --watch         write the page anew while runs go on; an open page follows by itself; ends with them or with Ctrl-C
  --quiet         print nothing but errors
"""

OPTIONS = ("--output", "--base", "--figures", "--watch", "--quiet", "--help")


def write(paths: Sequence[str | Path], output: str | Path, *, base: str | None = None) -> Path:
    """The report on the runs at or below ``paths``, as one HTML file.

    ``base`` is the label of the rule that others are compared with, where it is not the plain mean.
    """
    file = _output(output)
    _write(file, page(_study(paths, base)))
    return file


def _study(paths: Sequence[str | Path], base: str | None, read: Callable[[Path], LoadedRun] = LoadedRun) -> LoadedStudy:
    study = LoadedStudy(*paths, base=base, read=read)
    if not study.runs:
        raise ComityError(f"{', '.join(map(str, paths))} holds no run yet")
    return study


def command(arguments: list[str]) -> int:
    """``comity report``; bad input is a ``ComityError`` before anything is written."""
    paths, output, base, figures, flags = _parse(arguments)
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

    def publish(study: LoadedStudy, text: str) -> None:
        _write(file, text)
        done = sum(run.finished for run in study.runs)
        tell(f"{done} of {counted(len(study.runs), 'run')} finished. {answer(study, study.table()).lead}")

    if "--watch" in flags:
        from comity.report._watch import watch

        tell(f"Following {', '.join(map(str, paths))}; open {file} in a browser, Ctrl-C ends.")
        study = watch(lambda reader: _study(paths, base, reader), lambda study, live: page(study, live=live), publish)
    else:
        study = _study(paths, base)
        _write(file, page(study))
    if figures is not None:
        drawn = draw(study, figures)
        tell(f"Figures: {len(drawn)} in {figures}, each as PDF and PNG")
    told = answer(study, study.table())
    report = f"Report: {file} ({_size(file)}, {counted(len(study.runs), 'run')})"
    tell(f"{told.lead} {told.more}".strip() + f"\n{report}")
    return 0


def _parse(arguments: list[str]) -> tuple[list[Path], str, str | None, Path | None, set[str]]:
    paths: list[Path] = []
    output, base, figures = "report.html", None, None
    flags: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        name = {"-o": "--output", "-h": "--help"}.get(name, name)
        if not name.startswith("-"):
            paths.append(Path(argument))
        elif name in ("--output", "--base", "--figures"):
            value = value if equals else next(rest, "")
            if not value:
                raise ComityError(f"{argument} needs a value")
            if name == "--output":
                output = value
            elif name == "--base":
                base = value
            else:
                figures = Path(value)
        elif name in OPTIONS and not equals:
            flags.add(name)
        else:
            raise unknown("option", argument, OPTIONS)
    return paths, output, base, figures, flags


def _output(path: str | Path) -> Path:
    """Where the page goes; a name that is no page's is a slip that could cost a file."""
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"output must end in .html, got {file}")
    if file.is_dir():
        raise ComityError(f"output {file} is a folder")
    return file


def _write(file: Path, text: str) -> None:
    try:
        write_text(file, text)
    except OSError as error:
        raise ComityError(f"output {file} could not be written: {error.strerror}") from error


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
