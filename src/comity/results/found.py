"""Which run folders are meant: those of a study, all below a folder, and the Local that goes with them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from comity._errors import ComityError
from comity.results import schema
from comity.results.conditions import Flat, flatten, shared_with_local
from comity.results.folder import RunFolder, StudyFolder
from comity.results.run import LoadedRun
from comity.results.schema import PlannedRun
from comity.results.sound import LARGEST

T = TypeVar("T")


def key_of(options: Flat) -> str:
    return repr(sorted(options.items()))


def run_folders(path: Path) -> list[Path]:
    """The runs at or below a folder that have begun. Of a study they are those that belong to it, in its own order."""
    if not path.exists():
        raise ComityError(f"{path} does not exist; give run or study folders")
    if not path.is_dir():
        raise ComityError(f"{path} is a file; give run or study folders")
    planned = planned_runs(path)
    found = [path / run.folder for run in planned] if planned else list(_below(path))
    begun = [folder for folder in found if RunFolder(folder).started]
    if not begun and not planned:
        raise ComityError(f"{path} holds no run: there is no {schema.CONFIG} in it or below it")
    return begun


def planned_runs(path: Path) -> list[PlannedRun]:
    planned = study_file(path, schema.CELLS, StudyFolder.planned)
    for run in planned:
        if not (path / run.folder).resolve().is_relative_to(path.resolve()):
            raise ComityError(f"{path / schema.CELLS} names the folder {run.folder!r}, which is not in the study")
    return planned


def study_file(path: Path, name: str, read: Callable[[StudyFolder], list[T]]) -> list[T]:
    file = path / name
    if file.is_file() and file.stat().st_size > LARGEST[schema.RESULT]:
        raise ComityError(f"{file} is larger than {LARGEST[schema.RESULT]} bytes")
    try:
        return read(StudyFolder(path))
    except (RecursionError, ValueError, OverflowError) as error:  # brackets too deep, a name with a null in it
        raise ComityError(f"{file} is damaged: {error}") from error


def _below(path: Path) -> Iterator[Path]:
    """Run folders at or below a folder; what comity keeps in hidden folders is none of them."""
    if RunFolder(path).started:
        yield path
        return
    for child in sorted(path.iterdir(), key=_natural):
        if child.is_dir() and not child.name.startswith("."):
            yield from _below(child)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Seed 2 before seed 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def unique(runs: Iterable[LoadedRun]) -> list[LoadedRun]:
    """Each run once, from a folder where it is finished if there is one."""
    unique: dict[tuple[str, int], LoadedRun] = {}
    for run in runs:
        key = (key_of(run.decisive), run.seed)
        if key not in unique or (run.finished and not unique[key].finished):
            unique[key] = run
    return list(unique.values())


def cached_locals(runs: list[LoadedRun], read: Callable[[Path], LoadedRun | None]) -> list[LoadedRun]:
    """The Local that goes with each run, from the caches beside them, where it is not among the runs itself."""
    missing = {(*_local_key(run.options), run.info.data) for run in runs if not run.local}
    missing -= {(*_local_key(run.options), run.info.data) for run in runs if run.local}
    found = []
    for cache in dict.fromkeys(run.path.resolve().parent / schema.LOCAL_CACHE for run in runs):
        for folder in sorted(cache.glob("*")):
            if missing and RunFolder(folder).started and (run := read(folder)) is not None:
                key = (*_local_key(run.options), run.info.data)
                if key in missing:
                    missing.remove(key)
                    found.append(run)
    return found


def _local_key(options: Mapping[str, Any]) -> tuple[str, int]:
    """The same for a run and for the Local that goes with it."""
    return key_of(shared_with_local(flatten(options))), int(options["seed"])
