"""Updates that stay in their files: which files there are, and the one pass over them that rules need."""

import csv
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._memory import parse_bytes
from comity._random import key_bytes
from comity.files._checkpoint import Checkpoint, names_of, open_checkpoint
from comity.files._lora import Products
from comity.files._plan import Choice, MergePlan
from comity.files._reader import Reader
from comity.rules import ClientUpdates, DroppedWarning, LayerSketch, Members, Sketch, lower_products, mirrored

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


class FileUpdates(ClientUpdates):
    """What rules and diagnoses look at, from one pass over the files, which also shows who is bad.

    No row is ever held as a whole. Layers are the merged tensors. Where LoRA factors are merged by their products,
    these are layers instead.
    """

    def __init__(
        self,
        inputs: Inputs,
        sizes: Mapping[str, float] | None,
        losses: Mapping[str, float] | None,
        memory: str | float,
        skip_bad: bool,
        progress: Progress | None,
        passes: int,
        sketch: Sketch | None = None,
    ) -> None:
        plan, entries, count = inputs.plan, inputs.template.entries, len(inputs.clients)
        shapes = [(name, entries[name].shape) for name in plan.merged]
        shapes += [(pair.module, (entries[pair.B].shape[0], *entries[pair.A].shape[1:])) for pair in plan.pairs]
        room = parse_bytes(memory) - 3 * 8 * len(shapes) * count**2  # the Gram matrices, their parts, and their sum
        if sketch is not None:
            room -= sketch.needs(Layout(shapes), count)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(min(done, total), total)

        self.plan, self.reader = plan, Reader(inputs.base, inputs.clients, room, skip=skip_bad, advance=advance)
        self.products = Products(self.reader, inputs.template)
        models = self.reader.models(range(count))
        total = passes * sum(model.entries[name].nbytes for model in models for name in plan.names)
        weights, listed = _column(sizes, inputs, "size"), _column(losses, inputs, "loss")
        members = Members(
            ids=tuple(inputs.ids),
            sizes=torch.tensor([1.0] * count if weights is None else weights, dtype=torch.float64),
            losses=None if listed is None else torch.tensor(listed, dtype=torch.float64),
            ages=torch.zeros(count, dtype=torch.int64),
        )
        super().__init__(Layout(shapes), members, inputs.dropped)
        self.sketch = sketch
        self.measure()
        for reason in self.reader.bad.values():
            warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)

    def _multiply(self, mean: bool = False) -> Tensor:
        grams = [self._products_of(place, name) for place, name in enumerate(self.plan.merged)]
        grams += [self.products.gram(pair) for pair in self.plan.pairs]
        for name in self.plan.averaged:
            self.reader.gram(name)  # for the clients whose numbers are not finite in it
        if not self.reader.good:
            raise ComityError(f"no client is left: {next(iter(self.reader.bad.values()))}")
        return torch.stack(grams)

    def _products_of(self, place: int, name: str) -> Tensor:
        """(N, N) of one tensor: whole, or from sketches where these are fewer numbers."""
        layer = self.layout.layers[place]
        if self.sketch is None or layer.stop - layer.start <= self.sketch.k:
            return self.reader.gram(name)
        sketches = self.reader.sketched(name, LayerSketch(self.sketch.k, place, layer, key_bytes(0, "files")))
        return mirrored(lower_products(sketches))

    def _find_unusable(self) -> dict[int, str]:
        return dict(self.reader.bad)
