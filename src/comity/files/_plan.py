"""Which files take part, and what happens to each tensor: merged by the rule, averaged, or kept."""

import csv
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from comity._errors import ComityError
from comity._layout import STATISTICS
from comity._options import Count, convert
from comity.files._checkpoint import Checkpoint, names_of, open_checkpoint
from comity.files._formats import COUNTERS, FLOATS
from comity.files._lora import Pair, check_scales, pairs_of
from comity.rules import DroppedWarning

Buffers = Literal["average", "keep"]
Lora = Literal["factors", "products"]
"""Whether A and B are merged separately or by their products."""
Rank = Count | Literal["auto"] | None
"""Rank of the new factors: a number, as many as the exact product has, or as in the template."""


@dataclass(frozen=True)
class Choice:
    """Which tensors take part, and how."""

    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    buffers: Buffers = "average"
    lora: Lora = "factors"
    rank: Rank = None

    def __post_init__(self) -> None:
        convert(self.buffers, Buffers, "buffers")
        convert(self.lora, Lora, "lora")
        convert(self.rank, Rank, "rank")
        if self.rank is not None and self.lora != "products":
            raise ComityError("--rank goes with --lora products; --lora factors keeps the rank")

    def takes(self, name: str) -> bool:
        chosen = not self.only or any(fits(name, pattern) for pattern in self.only)
        return chosen and not any(fits(name, pattern) for pattern in self.exclude)


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits a name or its end after a dot: ``lora_*`` fits ``layers.0.q_proj.lora_A.weight``."""
    return any(fnmatchcase(name[dot.end() :], pattern) for dot in re.finditer(r"^|\.", name))


@dataclass(frozen=True)
class MergePlan:
    """What is done with the tensors of a template. Those that are not listed here are copied from it."""

    merged: tuple[str, ...]
    pairs: tuple[Pair, ...]
    averaged: tuple[str, ...]
    left: tuple[str, ...]
    """Floating tensors that are not merged: copied from a base, 0 in an update."""

    @classmethod
    def of(cls, template: Checkpoint, choice: Choice) -> "MergePlan":
        for option, patterns in (("--only", choice.only), ("--exclude", choice.exclude)):
            for pattern in patterns:
                if not any(fits(name, pattern) for name in template.entries):
                    raise ComityError(f"{option} {pattern!r} fits no tensor of {template.path}")
        merged: list[str] = []
        averaged: list[str] = []
        left: list[str] = []
        for name, entry in template.entries.items():
            if entry.kind in COUNTERS or name in template.ties:  # tied tensors are merged once
                continue
            if not choice.takes(name):
                left += [name] if entry.kind in FLOATS else []
            elif entry.kind not in FLOATS:
                reason = f"tensor {name!r} is {entry.kind}, which rules do not combine"
                raise template.wrong(f"{reason}; leave it as it is with --exclude {name!r}")
            elif name.rpartition(".")[2] in STATISTICS:
                (averaged if choice.buffers == "average" else left).append(name)
            else:
                merged.append(name)
        pairs = pairs_of(template, merged) if choice.lora == "products" else []
        factors = {name for pair in pairs for name in (pair.A, pair.B)}
        merged = [name for name in merged if name not in factors]
        if not merged and not pairs:
            raise template.wrong("no floating tensor of it is left to merge")
        return cls(tuple(merged), tuple(pairs), tuple(averaged), tuple(left))

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that are read."""
        factors = (name for pair in self.pairs for name in (pair.A, pair.B))
        return (*self.merged, *factors, *self.averaged)

    def check(self, client: Checkpoint, template: Checkpoint, choice: Choice) -> None:
        """Reject a client whose tensors are not those of the template."""
        alike = {*self.merged, *self.averaged}
        for name in self.names:
            entry, shape = client.entries.get(name), template.entries[name].shape
            if entry is None:
                raise client.wrong(f"tensor {name!r} is missing")
            if name in alike and entry.shape != shape:
                raise client.wrong(f"tensor {name!r} has shape {entry.shape}, not {shape}")
            if entry.kind not in FLOATS:
                raise client.wrong(f"tensor {name!r} is {entry.kind}, which rules do not combine")
        for pair in self.pairs:
            pair.check(client, template)
        if client.config is not None and template.config is not None:
            check_scales(client, template, self.merged)
        for name, entry in client.entries.items():
            if name not in template.entries and entry.kind not in COUNTERS and choice.takes(name):
                raise client.wrong(f"tensor {name!r} is not in {template.path}")


@dataclass(frozen=True)
class Inputs:
    """The files, opened and checked as far as their headers say, and what is to be done with them."""

    base: Checkpoint | None
    template: Checkpoint
    """What the output looks like: the base, or one of the updates."""
    clients: list[Checkpoint]
    ids: list[str]
    paths: list[Path]
    plan: MergePlan
    dropped: dict[int | str, str]
    """Clients whose file was left out, and why."""


def collect(base: str | Path | None, clients: Sequence[str | Path], choice: Choice, skip_bad: bool) -> Inputs:
    """Open the files and decide what is done with each tensor. A bad file is an error, or is left out."""
    paths = [Path(path) for path in clients]
    if not paths:
        raise ComityError("no client files were given")
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ComityError(f"{path} is given twice")
        if base is not None and place == Path(base).resolve():
            raise ComityError(f"{path} is the base and a client")
    start = None if base is None else open_checkpoint(base)
    opened: dict[int, Checkpoint] = {}
    bad: dict[int, str] = {}
    for i, path in enumerate(paths):
        try:
            opened[i] = open_checkpoint(path)
        except ComityError as error:
            bad[i] = str(error)
    if not opened:
        raise ComityError(bad[0])
    template = start or _most_common(list(opened.values()))
    plan = MergePlan.of(template, choice)
    for i, client in list(opened.items()):
        try:
            plan.check(client, template, choice)
        except ComityError as error:
            bad[i] = str(error)
            del opened[i]
    names = names_of(paths)
    dropped: dict[int | str, str] = {names[i]: bad[i] for i in sorted(bad)}
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more files are bad)" if len(bad) > 1 else ""
        raise ComityError(next(iter(dropped.values())) + more)
    if not opened:
        raise ComityError(f"no client is left: {next(iter(dropped.values()))}")
    for reason in dropped.values():
        warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)
    used = [paths[i] for i in opened]
    return Inputs(start, template, list(opened.values()), [names[i] for i in opened], used, plan, dropped)


def _most_common(clients: Sequence[Checkpoint]) -> Checkpoint:
    """The first of those whose tensors have the most common names and shapes."""
    keys = [tuple((name, entry.shape) for name, entry in client.entries.items()) for client in clients]
    return clients[keys.index(Counter(keys).most_common(1)[0][0])]


Table = Mapping[str, float]


def read_sizes(given: Table | str | Path | None) -> tuple[Table | None, Table | None]:
    """The sizes as they are given, or those of a CSV file, with its losses if there are any.

    Its columns are ``name`` and ``size``, or what a heading says; ``loss`` is for the rules that need losses.
    """
    if given is None or isinstance(given, Mapping):
        return given, None
    path = Path(given)
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ComityError(f"{path}: it is not a CSV file that can be read ({error})") from error
    columns = ["name", "size"]
    if rows and "name" in rows[0]:
        columns = rows.pop(0)
    if not rows or "size" not in columns:
        raise ComityError(f"{path}: it needs the columns name and size, and a row for each client")
    tables: dict[str, dict[str, float]] = {"size": {}, "loss": {}}
    for row in rows:
        if len(row) != len(columns):
            raise ComityError(f"{path}: the row {','.join(row)!r} is not of the form {','.join(columns)!r}")
        cells = dict(zip(columns, row, strict=True))
        if cells["name"] in tables["size"]:
            raise ComityError(f"{path}: {cells['name']!r} is in it twice")
        for column in tables.keys() & cells.keys():
            try:
                tables[column][cells["name"]] = float(cells[column])
            except ValueError:
                raise ComityError(f"{path}: the {column} of {cells['name']!r} is {cells[column]!r}") from None
    return tables["size"], tables["loss"] or None


def column(table: Table | None, inputs: Inputs, what: str) -> list[float] | None:
    """A number for each client, which the table has under its name, its file's name or its path."""
    if table is None:
        return None
    numbers = []
    owners: dict[str, str] = {}
    for name, path in zip(inputs.ids, inputs.paths, strict=True):
        keys = [key for key in (name, path.name, path.stem, str(path)) if key in table]
        if not keys:
            raise ComityError(f"there is no {what} for client {name!r}; the table has {', '.join(sorted(table)[:8])}")
        if (other := owners.setdefault(keys[0], name)) != name:
            raise ComityError(f"the {what} of {keys[0]!r} could be that of client {other!r} or {name!r}")
        number = float(table[keys[0]])
        if not math.isfinite(number) or (what == "size" and number <= 0):
            raise ComityError(f"the {what} of client {name!r} is {number}")
        numbers.append(number)
    return numbers
