"""Natural federations: data of real clients, such as countries, patients and speakers.

This module needs no torch. ``comity._federations`` lists them, ``comity.data.sources.natural`` reads their files.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from comity._errors import ComityError
from comity._options import Count

EMBEDDED = Path(__file__).parent / "data" / "federations"
"""The files that come with comity; its README has their licences."""
FOLDER = "natural"
"""The folder of all others, in ``--data-dir`` or ``COMITY_DATA``."""


@dataclass(frozen=True, kw_only=True)
class NaturalOptions:
    """A natural federation, or a part of it.

    Options:
        max_clients: at most so many clients, evenly spaced by name; by default all
        max_samples: at most so many samples of each client, drawn at random with a fixed seed; by default all
    """

    max_clients: Count | None = None
    max_samples: Count | None = None


@dataclass(frozen=True, kw_only=True)
class NaturalFederation:
    """Description of a natural federation, known before its file is read."""

    name: str = ""
    about: str
    """What a sample, the target and a client are."""
    file: str
    sha256: str
    """Of the file."""
    clients: int
    samples: int
    kind: Literal["table", "text", "counts", "characters", "images"] = "table"
    """Of features: ``counts`` of words become log(1 + count), ``characters`` one feature per place and character."""
    thresholds: tuple[int, ...] = ()
    """Round numbers that make classes of a numeric target, chosen by its distribution and not by results."""
    metric: str = "accuracy"
    """The metric that decides where none is named."""
    in_time: bool = False
    """Whether the samples of a client are in time order: then folds and validation are blocks of time."""
    embedded: bool = False
    licence: str
    cite: str
    source: str
    """Where the original data are."""
    recipe: str
    """How the file was made of them."""
    columns: str = ""
    """Columns of a table that is not embedded, after ``client`` and ``target``."""
    traps: str = ""
    """What to mind when reading results."""

    @property
    def bands(self) -> tuple[str, ...]:
        """The classes of a numeric target, from low to high; one threshold asks whether the target is above it."""
        if len(self.thresholds) < 2:
            return ("no", "yes")
        middle = (f"{low} to {high}" for low, high in pairwise(self.thresholds))
        return (f"up to {self.thresholds[0]}", *middle, f"above {self.thresholds[-1]}")

    @property
    def task(self) -> str:
        """What is predicted, and how it is measured; for a numeric target also its classes."""
        decides = "balanced accuracy decides" if self.metric == "balanced" else f"{self.metric} decides"
        if not self.thresholds:
            return f"classification, {decides}"
        number, *more = self.thresholds
        classes = f"classes {', '.join(self.bands)}" if more else f"above {number}: no or yes"
        return f"numeric target, asked as {classes}, because comity has no regression; {decides}"

    @property
    def split(self) -> str:
        """How tests and validation samples are chosen."""
        if self.in_time:
            return "each fold is a block of time per client; validation samples are the last in time of the others"
        return "folds are drawn at random within each client"

    @property
    def format(self) -> str:
        """What is in the file, for whoever makes it; empty if it is embedded."""
        if self.embedded:
            return ""
        if self.columns:
            return f"CSV with the columns client target {self.columns}"
        return "x_train (uint8), y_train and client_train (indices into class_names and client_names)"

    def path(self, data_dir: str | Path | None = None) -> Path | None:
        """The file, if it is here: embedded, or in the folder ``natural`` of ``data_dir`` (default ``COMITY_DATA``)."""
        folder = Path(data_dir or os.environ.get("COMITY_DATA") or ".") / FOLDER
        path = (EMBEDDED if self.embedded else folder) / self.file
        return path if path.is_file() else None

    @property
    def available(self) -> bool:
        """Whether it can be run here."""
        return self.path() is not None

    def found(self, data_dir: str | Path | None = None) -> Path:
        """The file; an error that says what to do if it is not here."""
        path = self.path(data_dir)
        if path is None:
            folder = Path(data_dir or os.environ.get("COMITY_DATA") or ".").resolve() / FOLDER
            raise ComityError(
                f"data {self.name}: looked for {folder / self.file} (set by --data-dir or COMITY_DATA); "
                f"to get it: comity data --get {self.name}"
            )
        return path

    def card(self) -> str:
        """All of this in lines, and what to do to have the file."""
        todo = (
            "nothing to do: it is embedded"
            if self.embedded
            else f"create {FOLDER}/{self.file} in --data-dir or COMITY_DATA from the source, as in the lines contents "
            "and format; comity downloads nothing"
        )
        lines = {
            "what": f"{self.about}; {self.clients} clients, {self.samples:,} samples",
            "task": self.task,
            "split": self.split,
            "caution": self.traps,
            "licence": self.licence,
            "cite": self.cite,
            "source": self.source,
            "contents": self.recipe,
            "format": self.format,
            "to get it": todo,
            "file": str(self.path() or "missing"),
            "SHA-256": self.sha256,
        }
        return "\n".join(f"{name + ':':<11}{text}" for name, text in lines.items() if text)
