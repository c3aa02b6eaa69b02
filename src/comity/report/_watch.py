"""Following a study: the page is written anew when a run folder has changed, until all runs are finished."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comity._errors import ComityError
from comity.results import LoadedRun, LoadedStudy
from comity.results.schema import CONFIG, RESULT, ROUNDS

EVERY = 3.0  # seconds between looks
PATIENCE = 20.0  # seconds without news after the last run finished: a study may be about to start another one
REST = 10  # the pause between looks is at least this many times as long as making the page took


class Reader:
    """Reads a run folder again only when it has changed."""

    def __init__(self) -> None:
        self._runs: dict[Path, tuple[Any, LoadedRun]] = {}

    def __call__(self, path: Path) -> LoadedRun:
        state = tuple(_stamp(path / name) for name in (CONFIG, ROUNDS, RESULT))
        if path not in self._runs or self._runs[path][0] != state:
            self._runs[path] = (state, LoadedRun(path))
        return self._runs[path][1]

    @property
    def state(self) -> tuple[Any, ...]:
        return tuple((path, state) for path, (state, _) in self._runs.items())


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size


def watch(
    look: Callable[[Reader], LoadedStudy],
    show: Callable[[LoadedStudy, Reader, float | None], tuple[LoadedStudy, str]],
    publish: Callable[[LoadedStudy, str], None],
    *,
    every: float = EVERY,
    patience: float = PATIENCE,
) -> LoadedStudy:
    """Publish the study's page for every news, and once more at the end, so that it stands still.

    It ends when all runs are finished and stay so for a while, or with Ctrl-C.
    """
    reader = Reader()
    started = time.monotonic()
    study, text = show(look(reader), reader, every)
    publish(study, text)
    state, news = reader.state, time.monotonic()
    work = news - started
    try:
        while not (study.over and time.monotonic() - news >= patience):
            time.sleep(max(every, REST * work))  # the runs need the machine more than their onlooker
            started = time.monotonic()
            try:
                newest = look(reader)
                if reader.state == state:
                    continue
                newest, text = show(newest, reader, every)
            except ComityError:
                continue  # a folder that is just being replaced; the next look sees it whole
            publish(newest, text)
            study, state, news = newest, reader.state, time.monotonic()
            work = news - started
    except KeyboardInterrupt:
        pass
    study, text = show(study, reader, None)
    publish(study, text)
    return study
