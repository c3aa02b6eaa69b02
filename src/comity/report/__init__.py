"""The report: who gains, who is harmed, and why, as one HTML file that needs nothing else.

It reads run folders, and neither the engine nor torch is imported for it.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from comity._errors import ComityError
from comity.report._cells import Study, study_of
from comity.report._page import page
from comity.report._read import read
from comity.report._words import answer

__all__ = ["write"]


def write(
    paths: Sequence[str | Path],
    output: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
    watch: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """The report on the runs at or below ``paths``, as one HTML file.

    ``figures`` is a folder for the same plots as PDF and PNG. With ``watch`` the page is written anew while runs go on.
    ``say`` is told what comes of it, in words. Bad input is refused before anything is written.
    """
    file, folders = _output(output), [Path(path) for path in paths]
    if figures is not None:
        from comity.report._figures import draw, need

        need(Path(figures))

    def publish(study: Study, live: float | None) -> None:
        _write(file, page(study, live=live))
        if live:
            finished = sum(run.finished for run in study.runs)
            say(f"{finished} of {_count(study)} finished. {answer(study).lead}")

    if watch:
        from comity.report._watch import watch as follow

        say(f"Following {', '.join(map(str, folders))}; open {file} in a browser, Ctrl-C ends.")
        study = follow(lambda reader: study_of(folders, reader), publish)
    else:
        study = study_of(folders, read)
        publish(study, None)
    if figures is not None:
        drawn = draw(study, Path(figures))
        say(f"Figures: {len(drawn)} in {figures}, each as PDF and PNG")
    words = answer(study)
    say(f"{words.lead} {words.more}".strip() + f"\nReport: {file} ({_size(file)}, {_count(study)})")
    return file


def _count(study: Study) -> str:
    return f"{len(study.runs)} run{'s' if len(study.runs) != 1 else ''}"


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
