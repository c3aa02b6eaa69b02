"""Write the page once, or whenever a run folder changes, until all runs are finished."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity._errors import ComityError
from comity._write import write_text
from comity.compare import LoadedStudy, NoRun
from comity.report._page import page
from comity.results import CONFIG, RESULT, ROUNDS, DamagedRun, LoadedRun

CHECK_SECONDS = 3.0  # seconds between checks
QUIET_SECONDS = 20.0  # seconds without news after the last run finished: a study may be about to start another one
PAUSE_FACTOR = 10  # the pause between checks is at least this multiple of the processor time of making the page


def wait_for_run(make: Callable[[], "Writer"], say: Callable[[str], None]) -> "Writer":
    """The writer from ``make``, once each of its folders has a run; until then ``say`` gets a line."""
    while True:
        try:
            return make()
        except NoRun as error:
            say(f"Waiting for a run: {str(error).partition(';')[0]}. Ctrl-C ends.")
            time.sleep(CHECK_SECONDS)


class Writer:
    """The page of some runs; ``warn`` gets one line per damaged run, once."""

    def __init__(self, paths: Sequence[str | Path], file: Path, base: str | None, warn: Callable[[str], None]) -> None:
        self.paths, self.file, self.base, self.warn = paths, file, base, warn
        self._runs: dict[Path, tuple[Any, LoadedRun]] = {}
        self._rendered: list[Any] = []
        self._warned: set[str] = set()
        self.study = self._load()

    def read(self, path: Path) -> LoadedRun:
        """Read a run folder, again only if it has changed."""
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
        """Read the runs again; returns whether anything changed."""
        study = self._load()
        if self._state == self._rendered:
            return False
        self.study = study
        return True

    def render(self, live: float | None = None) -> str:
        """The page, without runs that prove damaged in files that only the page reads."""
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
        """Write the page and call ``tell`` on every change; at the end once more, without live reloading.

        It ends when all runs have been finished for a while, or with Ctrl-C.
        """
        news, work = time.monotonic(), 0.0
        try:
            while not (self.study.over and time.monotonic() - news >= QUIET_SECONDS):
                started = time.process_time()  # not by the clock: runs may keep all cores busy
                try:
                    text = self.render(CHECK_SECONDS) if self.look() else ""
                except ComityError:
                    if not self._rendered:
                        raise
                    text = ""  # a folder that is just being replaced; the next check sees it complete
                if text:
                    self.write(text)
                    tell(self.study)
                    news = time.monotonic()
                    work = time.process_time() - started
                time.sleep(max(CHECK_SECONDS, PAUSE_FACTOR * work))  # the runs need the machine more than the page does
        except KeyboardInterrupt:
            pass
        self.write(self.render())


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except FileNotFoundError:
        return None
    return about.st_mtime_ns, about.st_size
