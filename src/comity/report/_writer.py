"""Writes the page: once, or again whenever a run folder has changed, until all runs are finished."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity._errors import ComityError
from comity._write import write_text
from comity.compare import LoadedStudy, NoRun
from comity.report._page import page
from comity.results import CONFIG, RESULT, ROUNDS, DamagedRun, LoadedRun

EVERY = 3.0  # seconds between looks
PATIENCE = 20.0  # seconds without news after the last run finished: a study may be about to start another one
REST = 10  # the pause between looks is at least this many times the processor time of making the page


def wait_for_run(make: Callable[[], "Writer"], say: Callable[[str], None]) -> "Writer":
    """The writer that ``make`` makes, as soon as each of its folders holds a run; meanwhile ``say`` gets a line."""
    while True:
        try:
            return make()
        except NoRun as error:
            say(f"Waiting for a run: {str(error).partition(';')[0]}. Ctrl-C ends.")
            time.sleep(EVERY)


class Writer:
    """The page of some runs; ``warn`` gets a line for each damaged run, once."""

    def __init__(self, paths: Sequence[str | Path], file: Path, base: str | None, warn: Callable[[str], None]) -> None:
        self.paths, self.file, self.base, self.warn = paths, file, base, warn
        self._runs: dict[Path, tuple[Any, LoadedRun]] = {}
        self._rendered: list[Any] = []
        self._warned: set[str] = set()
        self.study = self._load()

    def read(self, path: Path) -> LoadedRun:
        """A run folder is read again only when it has changed."""
        state = [_stamp(path / name) for name in (CONFIG, ROUNDS, RESULT)]
        if path not in self._runs or self._runs[path][0] != state:
            self._runs[path] = (state, LoadedRun(path))
        return self._runs[path][1]

    @property
    def _state(self) -> list[Any]:
        return [(path, state) for path, (state, _) in self._runs.items()]

    def _load(self, damaged: Mapping[Path, str] | None = None) -> LoadedStudy:
        study = LoadedStudy(*self.paths, base=self.base, read=self.read, damaged=damaged, thorough=True)
        if not study.runs:
            raise NoRun(f"{', '.join(map(str, self.paths))} holds no run yet")
        return study

    def look(self) -> bool:
        """Read the runs again; whether there is news."""
        study = self._load()
        if self._state == self._rendered:
            return False
        self.study = study
        return True

    def render(self, live: float | None = None) -> str:
        """The page, without runs that turn out to be damaged in files that only the page reads."""
        while True:
            try:
                text = page(self.study, live=live)
            except DamagedRun as error:
                self.study = self._load(self.study.damaged | {error.path: str(error)})
            else:
                self._rendered = self._state
                return text

    def write(self, text: str) -> None:
        for what in self.study.damaged.values():
            if what not in self._warned:
                self.warn(f"left out: {what}")
            self._warned.add(what)
        try:
            write_text(self.file, text)
        except OSError as error:
            raise OSError(error.errno, f"could not be written: {error.strerror}", str(self.file)) from error

    def watch(self, tell: Callable[[LoadedStudy], None]) -> None:
        """Write the page whenever there is news, and call ``tell``; at the end once more, without live reloading.

        It ends when all runs have been finished for a while, or with Ctrl-C.
        """
        news, work = time.monotonic(), 0.0
        try:
            while not (self.study.over and time.monotonic() - news >= PATIENCE):
                started = time.process_time()  # by the clock a page takes long where runs keep all cores busy
                try:
                    text = self.render(EVERY) if self.look() else ""
                except ComityError:
                    if not self._rendered:
                        raise
                    text = ""  # a folder that is just being replaced; the next look sees it whole
                if text:
                    self.write(text)
                    tell(self.study)
                    news = time.monotonic()
                    work = time.process_time() - started
                time.sleep(max(EVERY, REST * work))  # the runs need the machine more than the page does
        except KeyboardInterrupt:
            pass
        self.write(self.render())


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size
