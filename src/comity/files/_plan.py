"""Which files are merged, and what happens to each tensor: merged by the rule, averaged, or kept."""

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

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import STATISTICS
from comity._options import Count, convert
from comity._write import real
from comity.files._checkpoint import Checkpoint, names_of, open_checkpoint
from comity.files._formats import COUNTERS, FLOATS
from comity.files._lora import Pair, check_scales, pairs_to_merge
from comity.rules import DroppedWarning, Members

Buffers = Literal["average", "keep"]
Lora = Literal["factors", "products"]
"""Whether A and B are merged separately or by their products."""
Rank = Count | Literal["auto"] | None
"""Rank of the new factors: a number, that of the exact product, or that of the template."""
Table = Mapping[str, float]
"""A number per client."""


@dataclass(frozen=True)
class Choice:
    """Which tensors are merged, and how."""

    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    buffers: Buffers = "average"
    lora: Lora = "factors"
    rank: Rank = None

    def __post_init__(self) -> None:
        for option, kind in (("buffers", Buffers), ("lora", Lora), ("rank", Rank)):
            convert(getattr(self, option), kind, option)
        if self.rank is not None and self.lora != "products":
            raise ComityError("--rank goes with --lora products; --lora factors keeps the rank")

    def takes(self, name: str) -> bool:
        chosen = not self.only or any(fits(name, pattern) for pattern in self.only)
        return chosen and not any(fits(name, pattern) for pattern in self.exclude)


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name or its end after a dot: ``lora_*`` matches ``layers.0.q_proj.lora_A.weight``."""
    return any(fnmatchcase(name[dot.end() :], pattern) for dot in re.finditer(r"^|\.", name))


class MergePlan:
    """What is done with each tensor of a template. Tensors not listed here are copied from it."""

    def __init__(self, template: Checkpoint, choice: Choice) -> None:
        self.template, self.choice = template, choice
        for option, patterns in (("--only", choice.only), ("--exclude", choice.exclude)):
            for pattern in patterns:
                if not any(fits(name, pattern) for name in template.entries):
                    raise ComityError(f"{option} {pattern!r} fits no tensor of {template.path}")
        self.merged: list[str] = []
        self.averaged: list[str] = []
        self.left: list[str] = []
        """Floating-point tensors that are not merged: copied from a base, 0 in an update."""
        for name, entry in template.entries.items():
            if entry.kind in COUNTERS or name in template.ties:  # tied tensors are merged once
                continue
            if not choice.takes(name):
                self.left += [name] if entry.kind in FLOATS else []
            elif entry.kind not in FLOATS:
                reason = f"tensor {name!r} is {entry.kind}, which rules do not combine"
                raise template.wrong(f"{reason}; leave it as it is with --exclude {name!r}")
            elif name.rpartition(".")[2] in STATISTICS:
                (self.averaged if choice.buffers == "average" else self.left).append(name)
            else:
                self.merged.append(name)
        self.pairs: list[Pair] = pairs_to_merge(template, self.merged) if choice.lora == "products" else []
        self.factors = {name: pair for pair in self.pairs for name in (pair.A, pair.B)}
        self.merged = [name for name in self.merged if name not in self.factors]
        if not self.merged and not self.pairs:
            raise template.wrong("no floating tensor of it is left to merge")
        self.names = (*self.merged, *self.factors, *self.averaged)
        """The tensors that are read."""

    def check(self, client: Checkpoint) -> None:
        """Reject a client whose tensors differ from the template's."""
        for name in self.names:
            entry, shape = client.entries.get(name), self.template.entries[name].shape
            if entry is None:
                raise client.wrong(f"tensor {name!r} is missing")
            if name not in self.factors and entry.shape != shape:
                raise client.wrong(f"tensor {name!r} has shape {entry.shape}, not {shape}")
            if entry.kind not in FLOATS:
                raise client.wrong(f"tensor {name!r} is {entry.kind}, which rules do not combine")
        for pair in self.pairs:
            pair.check(client, self.template)
        if client.config is not None and self.template.config is not None:
            check_scales(client, self.template, self.merged)
        for name, entry in client.entries.items():
            if name not in self.template.entries and entry.kind not in COUNTERS and self.choice.takes(name):
                raise client.wrong(f"tensor {name!r} is not in {self.template.path}")


@dataclass(frozen=True)
class Inputs:
    """The files, with checked headers, and the plan of the merge."""

    base: Checkpoint | None
    template: Checkpoint
    """The model for the output: the base, or one of the updates."""
    clients: list[Checkpoint]
    members: Members
    plan: MergePlan
    dropped: dict[int | str, str]
    """Clients whose file was left out, with the reason."""


def collect(
    base: str | Path | None,
    clients: Sequence[str | Path],
    choice: Choice,
    sizes: Table | str | Path | None,
    losses: Table | None,
    skip_bad: bool,
) -> Inputs:
    """Open the files and decide what is done with each tensor. A bad file is an error, or is left out."""
    paths = [Path(path) for path in clients]
    if not paths:
        raise ComityError("no client files were given")
    places = Counter(map(real, paths))
    for path in paths:
        if places[real(path)] > 1:
            raise ComityError(f"{path} is given twice")
        if base is not None and real(path) == real(base):
            raise ComityError(f"{path} is both the base and a client's model")
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
    plan = MergePlan(template, choice)
    for i, client in list(opened.items()):
        try:
            plan.check(client)
        except ComityError as error:
            bad[i] = str(error)
            del opened[i]
    reasons = [bad[i] for i in sorted(bad)]
    if bad and not skip_bad:
        raise ComityError(reasons[0] + (f" ({len(bad) - 1} more files are bad)" if len(bad) > 1 else ""))
    if not opened:
        raise ComityError(f"no client is left: {reasons[0]}")
    for reason in reasons:
        warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)
    names = names_of(paths)
    dropped: dict[int | str, str] = {names[i]: bad[i] for i in sorted(bad)}
    used = {names[i]: paths[i] for i in opened}
    if isinstance(sizes, str | Path):
        sizes, listed = read_sizes(Path(sizes))
        losses = losses or listed
    members = Members(
        ids=tuple(used),
        sizes=torch.ones(len(used), dtype=torch.float64) if sizes is None else column(sizes, used, "size"),
        losses=None if losses is None else column(losses, used, "loss"),
        ages=torch.zeros(len(used), dtype=torch.int64),
    )
    return Inputs(start, template, list(opened.values()), members, plan, dropped)


def _most_common(clients: Sequence[Checkpoint]) -> Checkpoint:
    """The first client whose tensors have the most common names and shapes."""
    keys = [tuple((name, entry.shape) for name, entry in client.entries.items()) for client in clients]
    return clients[keys.index(Counter(keys).most_common(1)[0][0])]


def read_sizes(path: Path) -> tuple[Table, Table | None]:
    """Sizes from a CSV file with the columns name and size, and losses if it has them."""
    sizes: dict[str, float] = {}
    losses: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            for row in csv.DictReader(lines, skipinitialspace=True, strict=True):
                if row["name"] in sizes or None in row:
                    raise ValueError(f"the row of {row['name']!r} comes twice or is too long")
                sizes[row["name"]] = float(row["size"])
                losses |= {row["name"]: float(row["loss"])} if "loss" in row else {}
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        reason = f"the column {error} is missing" if isinstance(error, KeyError) else error
        raise ComityError(f"{path}: it needs a name and a number in each row, under name,size ({reason})") from error
    return sizes, losses or None


def column(table: Table, clients: Mapping[str, Path], what: str) -> Tensor:
    """(N,) a number per client, which the table lists by its name, its file's name or its path."""
    numbers = []
    owners: dict[str, str] = {}
    for name, path in clients.items():
        keys = [key for key in (name, path.name, path.stem, str(path)) if key in table]
        if not keys:
            raise ComityError(f"there is no {what} for client {name!r}; the table has {', '.join(sorted(table)[:8])}")
        if (other := owners.setdefault(keys[0], name)) != name:
            raise ComityError(f"the {what} of {keys[0]!r} could be that of client {other!r} or {name!r}")
        number = float(table[keys[0]])
        if not math.isfinite(number) or (what == "size" and number <= 0):
            raise ComityError(f"the {what} of client {name!r} is {number}")
        numbers.append(number)
    return torch.tensor(numbers, dtype=torch.float64)
