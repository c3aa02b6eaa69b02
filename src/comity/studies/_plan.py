"""The plan of a study: its cells, their names and searches, and the number of parallel runs. Nothing is written."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from comity._datasets import DATASETS, whereabouts
from comity._errors import ComityError
from comity._options import Count, convert
from comity._words import counted
from comity.config import Config, Entries
from comity.results import schema
from comity.studies._grid import TRAINING, Names, callback_names, expand, locals_of, part, section
from comity.studies._tune import TuneBy, groups

PRUNE = "comity.engine.Prune"


class StudyPlan:
    def __init__(
        self,
        entries: Entries,
        shard: str | None = None,
        on: str | None = None,
        before_torch: Callable[[], object] = lambda: None,
    ) -> None:
        """``before_torch`` is called after all checks that need no torch."""
        self.entries, self.shard, self.on_ray, self.address = entries, shard, on is not None, ray_address(on)
        self.out = Path(entries["out"])
        if self.out.is_file() or (not (self.out / schema.STUDY).exists() and any(self.out.glob("[!.]*"))):
            raise ComityError(f"out {self.out} is not empty and holds no study; give another --out")
        tune = section(entries, "tune")
        training = any(key in TRAINING for key in tune)
        if training:  # Local is tuned too, so it needs validation samples
            entries = {"local_on": "train"} | entries
        cells = expand(entries | {"out": None})
        self.skipped: list[str] = []  # a sentence per missing data set
        cells = self._with_data(cells)
        before_torch()

        from comity.studies._runs import Runs

        self.runs = Runs()
        self.cells = self.runs.settled(cells)
        self.tune_by = convert(entries.get("tune_by"), TuneBy | None, "tune_by")
        if self.tune_by and not tune:
            raise ComityError("tune_by says what tune chooses by; give tune too")
        if self.tune_by:
            self.cells = [cell if cell.is_local else cell.with_(general_validation=True) for cell in self.cells]
        if training:  # all are compared with the best Local
            every = [*locals_of(self.cells), *self.cells]
            self.cells = list({cell.key: cell.with_(reference="none", control="none") for cell in every}.values())
        if any(cell.reference not in ("auto", "none") for cell in self.cells):
            raise ComityError("reference must be auto or none in a study: each seed has a Local of its own")
        keep = convert(entries.get("keep_checkpoints", False), bool, "keep_checkpoints")
        self.callbacks = (*callback_names(entries), *([] if keep else [PRUNE]))
        self.asked = self.cells if shard is None else part(self.cells, shard)  # the cells of the shard, or all
        if shard is not None and tune:
            raise ComityError("a shard cannot tune: what is tried next depends on all that was tried; use --on ray")
        limits = (convert(entries.get(name), Count | None, name) for name in ("budget", "tune_seeds"))
        self.groups = groups(self.cells, tune, *limits)
        self.names = Names([*locals_of(self.cells), *self.cells], tune)
        self.most, self.workers = self._split()

    def _with_data(self, cells: list[Config]) -> list[Config]:
        """The cells whose data set is available. Raises an error if no cell is left, or if a data set is unknown."""
        missing: dict[tuple[str, Path | None], ComityError] = {}
        for data, folder in dict.fromkeys((cell.data.name, cell.data_dir) for cell in cells):
            try:
                whereabouts(data, folder)
            except ComityError as error:
                if data not in DATASETS:
                    raise
                missing[data, folder] = error
        kept = [cell for cell in cells if (cell.data.name, cell.data_dir) not in missing]
        if not kept:
            raise next(iter(missing.values()))
        for (data, folder), reason in missing.items():
            without = sum((cell.data.name, cell.data_dir) == (data, folder) for cell in cells)
            self.skipped.append(f"Skipped {counted(without, 'cell')}: {reason}")
        return kept

    def _split(self) -> tuple[int, int]:
        """Number of parallel runs, one per core, and workers per run, as many as fit.

        Equal for all runs of the study, so that their times are comparable.
        """
        first, most = self.cells[0], convert(self.entries.get("jobs"), Count | None, "jobs")
        if self.on_ray:  # Ray lets runs wait until there is room
            return most or sys.maxsize, max(1, first.workers)
        # the cores of this process: Slurm gives an array's tasks some of a node's cores
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usual = cores // max(1, first.workers) if first.device == "cpu" else 1  # one run at a time per GPU
        most = most or max(1, min(usual, len(self.asked)))
        return most, first.workers or max(1, cores // most)


def ray_address(on: str | None) -> str | None:
    """Ray's address: None for ``ray``, or as in ``ray:10.0.0.1:6379`` or ``ray://10.0.0.1:10001``."""
    name, _, address = (on or "ray").partition(":")
    if name != "ray":
        raise ComityError(f"on must be ray or ray:ADDRESS, got {on!r}")
    return on if address.startswith("//") else address or None
