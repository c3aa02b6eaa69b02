"""The folders of a study's runs."""

import shutil
from collections.abc import Callable
from pathlib import Path

from comity._options import options as declared
from comity._write import inside
from comity.config import Config
from comity.results import RunFolder, other_configuration, other_data, schema
from comity.studies._grid import Names


class Places:
    """The folder of each existing or future run. Runs are identified by key: names change when a study grows."""

    def __init__(
        self, out: Path, names: Names, fingerprint: Callable[[Config], str | None], overwrite: bool = False
    ) -> None:
        """``fingerprint``: of the current data; ``overwrite``: replace conflicting runs."""
        self.out, self.names, self.fingerprint, self.overwrite = out, names, fingerprint, overwrite
        there = sorted(folder for room in (schema.RUNS, schema.TRIALS) for folder in (out / room).glob("*"))
        self.folders = {RunFolder(folder).info().key: folder for folder in there if RunFolder(folder).started}
        self.ours: set[str] = set()  # keys of the runs that belong to the current study

    def home(self, config: Config, tried: str = "") -> Path:
        return inside(self.out, f"{schema.TRIALS if tried else schema.RUNS}/{self.names.slug(config, tried)}")

    def place(self, config: Config, tried: str = "") -> Path:
        """The folder of this run, existing or future: in ``.tuning`` while a value is tried."""
        if self._outdated(config):
            shutil.rmtree(self.folders.pop(config.key))
        if config.key not in self.folders:
            folder = self.home(config, tried)
            there = next((key for key, other in self.folders.items() if other == folder), None)
            if there in self.ours:  # names that differ only in case
                folder = folder.with_name(f"{folder.name}-{config.key[:6]}")
            elif there is not None:  # left by an earlier study
                if not self.overwrite:
                    old, new = RunFolder(folder).options(), config.plain()
                    differ = {key for key in new if new[key] != old.get(key) and declared(Config)[key].decides}
                    raise other_configuration(folder, [key for key in new if key in differ])
                shutil.rmtree(folder)
                del self.folders[there]
            self.folders[config.key] = folder
        self.ours.add(config.key)
        return self.folders[config.key]

    def finished(self, config: Config) -> bool:
        folder = self.folders.get(config.key)
        return folder is not None and RunFolder(folder).finished and not self._outdated(config)

    def move_in(self, config: Config) -> None:
        """Move a run that a search has already done to the other runs."""
        tried = self.folders.get(config.key)
        if tried is not None and tried.parent.name == schema.TRIALS:
            del self.folders[config.key]
            RunFolder(tried).move(self.place(config))

    def _outdated(self, config: Config) -> bool:
        """Whether the run was done with other data than the current ones; an error unless it may be replaced."""
        folder = self.folders.get(config.key)
        if folder is None or not RunFolder(folder).started:
            return False
        data = RunFolder(folder).info().data
        if not data or self.fingerprint(config) in (None, data):
            return False
        if not self.overwrite:
            raise other_data(folder, config.data)
        return True
