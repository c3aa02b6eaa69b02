"""Overview of the runs and studies in a folder: state, progress and verdict of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from comity._errors import ComityError, one_line
from comity.compare.study import LoadedStudy, below
from comity.results import LoadedRun, PlannedRun, RunFolder, StudyFolder


class RunRow(NamedTuple):
    """One run or study. Texts from files are shortened, but may contain terminal control characters."""

    folder: str
    state: str
    """finished, running, stopped, waiting, failed, diverged or damaged"""
    progress: str
    verdict: str


def overview(folder: Path | str) -> Iterator[RunRow]:
    """One row per run or study in ``folder``, or per run if it is a study."""
    path = Path(folder)
    if not path.is_dir():
        raise ComityError(f"{path} is {'a file' if path.exists() else 'missing'}; give a folder with runs or studies")
    if planned := StudyFolder(path).planned():
        yield from (_run(path / run.folder, one_line(run.folder, 80), run) for run in planned)
        return
    for each in below(path, studies=True):
        name = one_line(each.relative_to(path) if each != path else each, 80)
        yield _run(each, name) if RunFolder(each).started else _study(each, name)


def _study(path: Path, name: str) -> RunRow:
    try:
        study = LoadedStudy(path)
        folders = [RunFolder(folder) for folder in study.planned]
        finished = sum(folder.finished for folder in folders)
        active = StudyFolder(path).in_use or any(folder.in_use for folder in folders)
        unfinished = "running" if active else "stopped"
        state = unfinished if not study.over else "failed" if study.failed else "finished"
        return RunRow(name, state, f"{finished}/{len(folders)} runs", study.verdict.title if finished else "")
    except ComityError as error:
        return RunRow(name, "damaged", "", one_line(error, 200))


def _run(path: Path, name: str, planned: PlannedRun | None = None) -> RunRow:
    """The row of a single run, or of a ``planned`` run of a study, which has no verdict of its own."""
    why = one_line(planned.error, 200) if planned else ""
    if not RunFolder(path).started:
        return RunRow(name, "failed" if why else "waiting", "", why)
    try:
        run = LoadedRun(path)
        run.check()
        rounds = int(run.options["rounds"]) + int(run.options.get("refit") or 0)
        if run.result is not None:
            state = "diverged" if run.result.diverged else "finished"
            return RunRow(name, state, f"{rounds}/{rounds}", _verdict(run, planned is None))
        state = "running" if run.folder.in_use else "failed" if why else "stopped"
        return RunRow(name, state, f"{run.rounds_done}/{rounds}", why)
    except ComityError as error:
        return RunRow(name, "damaged", "", one_line(error, 200))


def _verdict(run: LoadedRun, single: bool) -> str:
    if run.local:
        return "local training, repeated" if run.repeats_local else "local training"
    if run.result is None or (transfer := run.result.transfer) is None:
        return ""
    worse = f"{len(transfer.worse)} of {len(transfer.clients)} clients worse"
    return f"{LoadedStudy(run.path).verdict.title}; {worse}" if single else worse
