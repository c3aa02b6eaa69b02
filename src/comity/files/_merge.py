"""Clients' files become one: two passes, one for the Gram matrices and one for the combination."""

import csv
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity._memory import parse_bytes
from comity.files._checkpoint import Checkpoint, names_of, open_checkpoint
from comity.files._file import NewTensors, StoredTensor
from comity.files._output import becomes_folder, write
from comity.files._plan import Buffers, Choice, Lora, MergePlan, Pair
from comity.files._reader import Reader
from comity.files._updates import FileUpdates
from comity.rules import Combination, ConflictRate, DroppedWarning, Rule, ServerStep, conflict_rate

Progress = Callable[[int, int], None]
"""Called with how many bytes are read, and how many will be."""


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
    """Whose file was left out, and why."""


@dataclass(frozen=True)
class Merge(Combination):
    """What was written, and by which coefficients."""

    output: Path
    rule: str
    stretch: Tensor
    """(L,) the length of each layer's update over that of the plain mean's, nan where the mean is 0."""
    conflict: ConflictRate
    lost: dict[str, float]
    """With LoRA products: the relative error of each layer, by keeping its rank and by rounding."""
    lost_overall: float

    @property
    def layers(self) -> tuple[str, ...]:
        return self.updates.layout.names


def aggregate(
    base: str | Path | None,
    clients: Sequence[str | Path],
    output: str | Path,
    rule: Rule | str | Mapping[str, object] = "ConFREE",
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    buffers: Buffers = "average",
    lora: Lora = "factors",
    server_lr: float = 1.0,
    sizes: Mapping[str, float] | str | Path | None = None,
    losses: Mapping[str, float] | None = None,
    memory: str | float = "2GB",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Merge:
    """Merge the clients' checkpoints by a rule and write the result: the base again, with new numbers.

    ``base`` is what the clients started from; with ``None`` their files are updates, and so is the output. Files are
    safetensors (single, sharded, a folder), torch's, npz, or PEFT adapter folders. They are read in pieces, twice at
    most, within about ``memory`` beside what the process holds already. ``server_lr`` is a factor on the combined
    update. A bad client stops everything with nothing written, or with ``skip_bad`` is left out with a
    `DroppedWarning`.
    """
    rule = rule if isinstance(rule, Rule) else Component.parse("rule", rule).build()
    assert isinstance(rule, Rule)
    step = ServerStep(server_lr)
    inputs = collect(base, clients, Choice(only, exclude, buffers, lora), skip_bad)
    sizes, listed = read_sizes(sizes)
    losses = losses or listed
    given = [Path(path) for path in (*clients, *([base] if base is not None else []))]
    given += [file.path for model in (inputs.template, *inputs.clients) for file in model.files]
    folder = becomes_folder(Path(output), inputs.template, given, overwrite)
    if rule.needs_losses and losses is None:
        raise ComityError(f"{rule!r} needs the clients' losses: a column loss in the table of sizes (--weights)")
    u = survey(inputs, sizes, losses, memory, skip_bad, progress, passes=2)
    u.reader.skip = False  # once the rule has weighed the clients none can be left out any more
    chosen = rule.coefficients(u)
    chosen = replace(chosen, coefficients=step(chosen.coefficients))
    merged = _Merged(inputs, u, chosen.coefficients)
    write(Path(output), inputs.template, merged.new_tensors(), folder)
    plain = u.lengths(u.shares)
    return Merge(
        **vars(chosen),
        output=Path(output),
        rule=repr(rule),
        stretch=torch.where(plain > 0, u.lengths(chosen.coefficients) / plain, math.nan),
        conflict=conflict_rate(u),
        lost=merged.lost,
        lost_overall=merged.lost_overall,
    )


# Before anything is read.


def collect(base: str | Path | None, clients: Sequence[str | Path], choice: Choice, skip_bad: bool) -> Inputs:
    """The files, and what is to be done with each tensor; a bad file is an error, or is left out."""
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
        raise ComityError(next(iter(bad.values())))
    template = start or _usual(list(opened.values()))
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
        reasons = list(dropped.values())
        more = f" ({len(reasons) - 1} more files are bad)" if len(reasons) > 1 else ""
        raise ComityError(reasons[0] + more)
    if not opened:
        raise ComityError(f"no client is left: {next(iter(dropped.values()))}")
    for reason in dropped.values():
        warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)
    return Inputs(
        base=start,
        template=template,
        clients=list(opened.values()),
        ids=[names[i] for i in opened],
        paths=[paths[i] for i in opened],
        plan=plan,
        dropped=dropped,
    )


def _usual(clients: Sequence[Checkpoint]) -> Checkpoint:
    """The first of those whose tensors have the most common names and shapes."""
    keys = [tuple((name, entry.shape) for name, entry in client.entries.items()) for client in clients]
    common = Counter(keys).most_common(1)[0][0]
    return clients[keys.index(common)]


def read_sizes(
    given: Mapping[str, float] | str | Path | None,
) -> tuple[Mapping[str, float] | None, Mapping[str, float] | None]:
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


def _column(table: Mapping[str, float] | None, inputs: Inputs, what: str) -> list[float] | None:
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


# The first pass.


def survey(
    inputs: Inputs,
    sizes: Mapping[str, float] | None,
    losses: Mapping[str, float] | None,
    memory: str | float,
    skip_bad: bool,
    progress: Progress | None,
    passes: int,
) -> FileUpdates:
    """The Gram matrices of all layers, from one pass over the files, which also shows who is bad."""
    models = (*inputs.clients, *([] if inputs.base is None else [inputs.base]))
    total = passes * sum(model.entries[name].nbytes for model in models for name in inputs.plan.names)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    layers, count = len(inputs.plan.merged) + len(inputs.plan.pairs), len(inputs.clients)
    room = parse_bytes(memory) - 3 * 8 * layers * count**2  # the Gram matrices, their parts, and their sum
    reader = Reader(inputs.base, inputs.clients, room, skip=skip_bad, advance=advance)
    columns = _column(sizes, inputs, "size"), _column(losses, inputs, "loss")
    u = FileUpdates(reader, inputs.plan, inputs.template, inputs.ids, *columns, inputs.dropped)
    u.measure()
    for reason in reader.bad.values():
        warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)
    return u


# The second pass.


class _Merged:
    """New numbers for the tensors of the template."""

    def __init__(self, inputs: Inputs, u: FileUpdates, coefficients: Tensor) -> None:
        self.inputs, self.u, self.coefficients = inputs, u, coefficients
        self._waiting: dict[str, Tensor] = {}
        self._errors: dict[str, tuple[float, float]] = {}

    def new_tensors(self) -> NewTensors:
        plan, entries = self.inputs.plan, self.inputs.template.entries
        new: dict[str, Callable[[], Iterator[Tensor]]] = {}
        rows = self.coefficients.expand(len(self.u.layout), -1)
        for name, row in zip(plan.merged, rows, strict=False):
            new[name] = partial(self.u.reader.combined, entries[name], row)
        for pair, row in zip(plan.pairs, rows[len(plan.merged) :], strict=True):
            for name in (pair.A, pair.B):
                new[name] = partial(self._factor, name, pair, row)
        for name in plan.averaged:
            new[name] = partial(self.u.reader.combined, entries[name], self.u.shares)
        if self.inputs.base is None:  # an update must change nothing where tensors are left out
            for name in plan.left:
                new[name] = partial(_zeros, entries[name])
        return new

    def _factor(self, name: str, pair: Pair, row: Tensor) -> Iterator[Tensor]:
        """Both factors come from one decomposition; the second one waits until it is written."""
        if name not in self._waiting:
            merged = self.u.products.merged(pair, row)
            self._waiting |= {pair.A: merged.A, pair.B: merged.B}
            self._errors[pair.module] = merged.error, merged.length
        yield self._waiting.pop(name)

    @property
    def lost(self) -> dict[str, float]:
        return {module: error / length if length else 0.0 for module, (error, length) in self._errors.items()}

    @property
    def lost_overall(self) -> float:
        error, length = (math.hypot(*(pair[k] for pair in self._errors.values())) for k in (0, 1))
        return error / length if length else 0.0


def _zeros(entry: StoredTensor) -> Iterator[Tensor]:
    for start in range(0, entry.numel, 2**20):
        yield torch.zeros(min(2**20, entry.numel - start), dtype=entry.dtype)
