"""The report: one self-contained HTML file on whether to join, which clients gain or lose, and why.

It reads run folders, and imports neither the engine nor torch.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from comity._errors import ComityError, install, unknown
from comity._memory import show_bytes
from comity._words import counted
from comity.compare import LoadedStudy
from comity.report._bench import Benchmark, bench_page, draw_benchmark, read_benchmark, write_benchmark
from comity.report._feedback import feedback_page
from comity.report._words import progress
from comity.report._writer import Writer, wait_for_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# fmt: off
__all__ = [
    "Benchmark", "Plots", "bench_page", "draw_benchmark", "feedback_page", "read_benchmark", "write", "write_benchmark",
]
# fmt: on


@dataclass(frozen=True)
class Plots:
    """Figures of a study for a notebook."""

    study: LoadedStudy

    def gain(self, configuration: str | None = None) -> "Figure":
        """Each client's gain over local training with its 95 % interval; default: the recommended configuration."""
        from comity.report._figures import gain

        cells = [cell for cell in self.study.cells if cell.clients]
        chosen = self.study.verdict.cell if configuration is None else None
        found = chosen or next((cell for cell in cells if configuration in (None, cell.label)), None)
        if found is None or not found.clients:
            raise unknown("configuration with a gain", configuration or "", [cell.label for cell in cells])
        return gain(found)


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
    """Write the report on the runs in ``paths`` as one HTML file.

    ``base`` is the label of the rule that others are compared with, by default the plain mean. ``figures`` is a folder
    for four figures as PDF and PNG. With ``watch`` the function waits for a run, and rewrites the page while runs
    continue. ``say`` gets the conclusions as text, and ``warn`` one line per damaged run, which is left out. Bad input
    is rejected before anything is written.
    """
    file = _output(output)
    folder = None if figures is None else _figures_folder(figures)

    def make() -> Writer:
        return Writer(paths, file, base, warn)

    writer = wait_for_run(make, say) if watch else make()
    if watch:
        say(f"Following {', '.join(map(str, paths))}; open {file} in a browser, Ctrl-C ends.")
        writer.watch(lambda study: say(_progress(study)))
    else:
        writer.write(writer.render())
    study = writer.study
    if folder is not None:
        from comity.report._figures import draw

        say(f"Figures: {len(draw(study, folder))} in {folder}, each as PDF and PNG")
    written = f"Report: {file} ({show_bytes(file.stat().st_size)}, {counted(len(study.runs), 'run')})"
    verdict = study.verdict
    advice = [f"→ {what}. {why}" for what, why in verdict.advice]
    say("\n".join([f"{verdict.title}. {progress(study) or verdict.evidence}", *advice, written]))
    return file


def _progress(study: LoadedStudy) -> str:
    finished = sum(run.finished for run in study.runs)
    return f"{finished} of {counted(len(study.runs), 'run')} finished. {progress(study) or study.verdict.evidence}"


def _output(path: str | Path) -> Path:
    """The output file; another extension is rejected, because it is probably a mistake that would overwrite a file."""
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"output must end in .html, got {file}")
    if file.is_dir():
        raise ComityError(f"output {file} is a folder")
    return file


def _figures_folder(path: str | Path) -> Path:
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ComityError(f"--figures {folder} is a file, not a folder")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ComityError(f"--figures needs matplotlib: {install('report')}") from None
    return folder
