"""The report: who gains, who is harmed, and why, as one HTML file that needs nothing else.

It reads run folders, and neither the engine nor torch is imported for it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from comity._errors import ComityError
from comity._write import write_text
from comity.report._page import page
from comity.report._words import answer
from comity.results import LoadedRun, LoadedStudy
from comity.results.sound import DamagedRun
from comity.results.words import counted

__all__ = ["write"]


def write(
    paths: Sequence[str | Path],
    output: str | Path = "report.html",
    *,
    base: str | None = None,
    figures: str | Path | None = None,
    watch: bool = False,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Path:
    """The report on the runs at or below ``paths``, as one HTML file.

    ``base`` is the label of the rule that others are compared with, where it is not the plain mean. ``figures`` is a
    folder for the same plots as PDF and PNG. With ``watch`` the page is written anew while runs go on. ``say`` is told
    what comes of it, in words, and ``warn`` of each damaged run, which is left out. Bad input is refused before
    anything is written.
    """
    file = _output(output)
    if figures is not None:
        from comity.report._figures import draw, need

        need(Path(figures))

    warned: set[str] = set()

    def look(read: Callable[[Path], LoadedRun], damaged: Mapping[Path, str] | None = None) -> LoadedStudy:
        study = LoadedStudy(*paths, base=base, read=read, damaged=damaged, thorough=True)
        if not study.runs:
            raise ComityError(f"{', '.join(map(str, paths))} holds no run yet")
        return study

    def show(
        study: LoadedStudy, read: Callable[[Path], LoadedRun], live: float | None = None
    ) -> tuple[LoadedStudy, str]:
        """The study's page, and the study without the runs that are damaged in what is only read for the page."""
        while True:
            try:
                return study, page(study, live=live)
            except DamagedRun as error:
                study = look(read, study.damaged | {error.path: str(error)})

    def publish(study: LoadedStudy, text: str) -> None:
        for what in study.damaged.values():
            if what not in warned:
                warn(f"left out: {what}")
            warned.add(what)
        _write(file, text)

    def publish_news(study: LoadedStudy, text: str) -> None:
        publish(study, text)
        finished = sum(run.finished for run in study.runs)
        say(f"{finished} of {counted(len(study.runs), 'run')} finished. {answer(study, study.table()).lead}")

    if watch:
        from comity.report._watch import watch as follow

        say(f"Following {', '.join(map(str, paths))}; open {file} in a browser, Ctrl-C ends.")
        study = follow(look, show, publish_news)
    else:
        study, text = show(look(LoadedRun), LoadedRun)
        publish(study, text)
    if figures is not None:
        drawn = draw(study, Path(figures))
        say(f"Figures: {len(drawn)} in {figures}, each as PDF and PNG")
    words = answer(study, study.table())
    written = f"Report: {file} ({_size(file)}, {counted(len(study.runs), 'run')})"
    advice = [f"→ {what}. {why}" for what, why in words.advice]
    say("\n".join([f"{words.lead} {words.more}".strip(), *words.effects, *advice, written]))
    return file


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
