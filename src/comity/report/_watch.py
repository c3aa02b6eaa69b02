"""Following a study: the page is written anew when a run folder has changed, until all runs are finished."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comity._errors import ComityError
from comity.report._cells import Study
from comity.report._read import Run, read

EVERY = 3.0  # seconds between looks
PATIENCE = 20.0  # seconds without news after the last run finished: a study may be about to start another one

RESTING = 10  # times as long as writing a page took

FILES = ("config.yaml", "rounds.jsonl", "result.json")


class Reader:
    """Reads a run folder again only when it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, Run]] = {}

    def __call__(self, path: Path, config: Mapping[str, Any] | None = None) -> Run:
        state = tuple(_stamp(path / name) for name in FILES)
        if path not in self._known or self._known[path][0] != state:
            self._known[path] = (state, read(path, config))
        return self._known[path][1]

    @property
    def state(self) -> tuple[Any, ...]:
        return tuple((path, state) for path, (state, _) in self._known.items())


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size


def watch(
    look: Callable[[Reader], Study],
    publish: Callable[[Study, float | None], None],
    *,
    every: float = EVERY,
    patience: float = PATIENCE,
) -> Study:
    """Publish the study for every news, and once more without seconds at the end, so that the page stands still.

    It ends when all runs are finished and stay so for a while, or with Ctrl-C.
    """
    reader = Reader()
    started = time.monotonic()
    study = look(reader)
    publish(study, every)
    state, news = reader.state, time.monotonic()
    work = news - started
    try:
        while not (study.finished and time.monotonic() - news >= patience):
            time.sleep(max(every, RESTING * work))  # the runs need the machine more than their onlooker
            try:
                study = look(reader)
            except ComityError:
                continue  # a folder that is just being replaced; the next look sees it whole
            if reader.state != state:
                state, news = reader.state, time.monotonic()
                publish(study, every)
                work = time.monotonic() - news
    except KeyboardInterrupt:
        pass
    publish(study, None)
    return study
