"""Merge clients' files into one in two passes: one for the Gram matrices and one for the combination."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity._write import real
from comity.files._checkpoint import ADAPTER, INDEX, Checkpoint, read_json
from comity.files._formats import DTYPES, FORMATS, StoredTensor, WeightFile
from comity.files._lora import Pair, config_with_ranks, merge_products
from comity.files._plan import Buffers, Choice, Inputs, Lora, Rank, Table, collect
from comity.files._ties import mergers
from comity.files._updates import FileUpdates, Progress
from comity.rules import TIES, Combination, ConflictRate, Rule, ServerStep, conflict_rate

SUFFIX = ".safetensors"
PIECE = 2**20  # numbers
Write = Callable[[BinaryIO], object]
"""Writes one file."""


@dataclass(frozen=True)
class Merge(Combination):
    """The written files, and the coefficients."""

    output: Path
    rule: str
    length_ratio: Tensor
    """(L,) length ratio of each layer's update to that of the plain mean; nan where the mean is 0."""
    conflict: ConflictRate
    lost: dict[str, float]
    """For merged LoRA products: the relative error of each module by truncation and rounding."""
    lost_overall: float
    ranks: dict[str, int]
    """Ranks of the new factors."""

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
    rank: Rank = None,
    server_lr: float = 1.0,
    sizes: Table | str | Path | None = None,
    losses: Table | None = None,
    memory: str | float = "2GB",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Merge:
    """Merge the clients' checkpoints by a rule and write the result as safetensors.

    ``base`` is the model that the clients started from; with ``None`` their files are updates, and so is the output.
    Files are safetensors (single, sharded, a folder), torch files, npz files, or PEFT adapter folders. They are read in
    pieces, at most twice (by TIES up to four times), within about ``memory`` in addition to the process's current
    memory. ``server_lr`` is a factor on the combined update. A bad client is an error and nothing is written; with
    ``skip_bad`` it is left out with a `DroppedWarning`.
    """
    rule = rule if isinstance(rule, Rule) else Component.parse("rule", rule).build()
    assert isinstance(rule, Rule)
    step = ServerStep(server_lr)
    inputs = collect(base, clients, Choice(only, exclude, buffers, lora, rank), sizes, losses, skip_bad)
    given = [Path(path) for path in (*clients, *([base] if base is not None else []))]
    given += [file.path for model in (inputs.template, *inputs.clients) for file in model.files]
    second = SecondPass(inputs)
    folder = becomes_folder(Path(output), inputs.template, given, list(second.files), overwrite)
    if rule.needs_losses and inputs.members.losses is None:
        raise ComityError(f"{rule!r} needs the clients' losses: a column loss in the table of sizes (--weights)")
    u = FileUpdates(inputs, memory, skip_bad, progress, passes=4 if isinstance(rule, TIES) else 2)
    u.skip_bad = False  # once the rule has weighed the clients none can be left out
    chosen = rule.coefficients(u)
    chosen = replace(chosen, coefficients=step(chosen.coefficients))
    second.start(u, chosen.coefficients)
    if isinstance(rule, TIES):
        second.mergers = {name: _scaled(merge, step) for name, merge in mergers(rule, u).items()}
    write_output(Path(output), inputs.template, second.files, folder)
    plain = u.lengths(u.shares)
    return Merge(
        **vars(chosen),
        output=Path(output),
        rule=repr(rule),
        length_ratio=torch.where(
            (plain > 0) & torch.tensor(rule.has_coefficients), u.lengths(chosen.coefficients) / plain, math.nan
        ),
        conflict=conflict_rate(u),
        lost={module: error / (second.lengths[module] or 1.0) for module, error in second.errors.items()},
        lost_overall=math.hypot(*second.errors.values()) / (math.hypot(*second.lengths.values()) or 1.0),
        ranks=second.ranks,
    )


def _scaled(merge: Callable[[Tensor], Tensor], step: ServerStep) -> Callable[[Tensor], Tensor]:
    return lambda U: step(merge(U))


class SecondPass:
    """New numbers for the tensors of the template, and the files that they are written to."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.template, self.rank = inputs, inputs.template, inputs.plan.choice.rank
        self.files: dict[str, Write] = {_renamed(f.path.name): partial(self._write, f) for f in self.template.files}
        """How to write each file, by name."""
        if len(self.files) < len(self.template.files):
            raise self.template.wrong(f"two of its files would be written under one name, {min(self.files)}")
        if self.template.path.name.endswith(INDEX):
            self.files[_renamed(self.template.path.name.removesuffix(INDEX)) + INDEX] = self._write_index
        if self.rank is not None:
            self.files[ADAPTER] = lambda target: target.write(config_with_ranks(self.template, self.ranks))
        self.ranks: dict[str, int] = {}
        self.lengths: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self._waiting: dict[str, Tensor] = {}
        self.mergers: Mapping[str, Callable[[Tensor], Tensor]] = {}
        """Functions that combine the updates of a tensor instead of coefficients."""

    def start(self, u: FileUpdates, coefficients: Tensor) -> None:
        self.u = u
        rows = coefficients.expand(len(u.layout), -1)
        self.rows = dict(zip(u.layout.names, rows, strict=True)) | dict.fromkeys(self.inputs.plan.averaged, u.shares)

    def _write_index(self, target: BinaryIO) -> None:
        about = read_json(self.template.path, dict[str, Any])
        about["weight_map"] = {name: _renamed(shard) for name, shard in about["weight_map"].items()}
        target.write(msgspec.json.format(msgspec.json.encode(about)))

    def _write(self, file: WeightFile, target: BinaryIO) -> None:
        """Write the tensors one by one, and the header, which has the new ranks, in the space left before them."""
        header: dict[str, object] = {"__metadata__": dict(file.metadata or {"format": "pt"})}
        names = {name: 96 + 22 * len(entry.shape) for name, entry in file.entries.items()}
        room = len(json.dumps(header | names)) + sum(names.values())
        start = 8 + room + -room % 8
        target.seek(start)
        # largest dtype first, as in the library, so that every tensor is aligned
        for name, entry in sorted(file.entries.items(), key=lambda item: -item[1].itemsize):
            first = target.tell() - start
            shape, pieces = self._new(file, name, entry)
            for piece in pieces:
                numbers: Any = piece.contiguous().view(torch.uint8).numpy()
                target.write(numbers)
            header[name] = {"dtype": entry.kind, "shape": shape, "data_offsets": [first, target.tell() - start]}
        target.seek(0)
        target.write((start - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(start - 8))

    def _new(self, file: WeightFile, name: str, entry: StoredTensor) -> tuple[Sequence[int], Iterable[Tensor]]:
        """The shape of a tensor, and its numbers in pieces in row-major order."""
        first = file.ties.get(name, name)
        if pair := self.inputs.plan.factors.get(first):
            factor = self._factor(pair, first)
            return factor.shape, [factor.reshape(-1)]
        if first not in self.rows:
            return entry.shape, self._copied(file, name, entry)
        return entry.shape, self.u.combined(first, self.rows[first], self.mergers.get(first))

    def _factor(self, pair: Pair, name: str) -> Tensor:
        """A new factor; both come from one decomposition, and the second one waits until it is written."""
        if name not in self._waiting:
            A, B, length, error = merge_products(self.u, pair, self.rows[pair.module], self.rank)
            self._waiting |= {pair.A: A, pair.B: B}
            self.ranks[pair.module], self.lengths[pair.module], self.errors[pair.module] = len(A), length, error
        return self._waiting.pop(name)

    def _copied(self, file: WeightFile, name: str, entry: StoredTensor) -> Iterator[Tensor]:
        """The template's own numbers, or 0: an update must not change tensors that are left out."""
        if entry.kind not in DTYPES and file.path.suffix != SUFFIX:
            raise file.wrong(f"tensor {name!r} is {entry.kind}, which a safetensors file cannot hold")
        if entry.whole and entry.nbytes > self.u.room:
            raise file.wrong(f"tensor {name!r} is too large to be copied within the memory limit")
        zero = self.inputs.base is None and file.ties.get(name, name) in self.inputs.plan.left
        for start in range(0, entry.numel, PIECE):
            stop = min(start + PIECE, entry.numel)
            yield torch.zeros(stop - start, dtype=entry.dtype) if zero else file.read(name, start, stop)


def _renamed(name: str) -> str:
    """A weight file's name in an output folder: Hugging Face's pytorch_model.bin becomes model.safetensors."""
    return name if name.endswith(SUFFIX) else f"{Path(name).stem.replace('pytorch_model', 'model')}{SUFFIX}"


def becomes_folder(
    output: Path, template: Checkpoint, inputs: Iterable[Path], files: Sequence[str], overwrite: bool
) -> bool:
    """Whether the output is a folder or a file, like the base. Rejects an output that cannot be written.

    ``files`` are the names of files to write, beside those copied from a template's folder.
    """
    folder = template.folder is not None and output.suffix not in FORMATS  # one file of a folder may be requested
    if len(files) > 1 and not folder:
        raise ComityError(f"output {output} must be a folder: {' and '.join(files)} go into it")
    if not folder and output.suffix != SUFFIX:
        raise ComityError(f"output {output} must end in {SUFFIX}, the only format that is written")
    place = real(output)
    for given in map(real, inputs):
        if place.is_relative_to(given) or given.is_relative_to(place):
            raise ComityError(f"output {output} is one of the inputs, in one, or a folder with one ({given})")
    if output.exists():
        if not overwrite:
            raise ComityError(f"output {output} exists; give --overwrite to replace it")
        if output.is_dir() != folder:
            raise ComityError(f"output {output} is a {'folder' if output.is_dir() else 'file'}; it cannot be replaced")
        expected = {*files, *(path.name for path in template.sidecars())}
        if folder and (other := {path.name for path in output.iterdir()} - expected):
            raise ComityError(f"output {output} holds {min(other)!r} too; a folder with other things stays as it is")
    return folder


def write_output(output: Path, template: Checkpoint, files: Mapping[str, Write], folder: bool) -> None:
    """Write a folder with the other files of the template's, or a single file, atomically."""
    part = output.with_name(f".{output.name}.part")  # one name, so that the rest of a killed process is overwritten
    new, old = part / "new", part / "old"
    try:
        shutil.rmtree(part, ignore_errors=True)
        new.mkdir(parents=True)
        for path in template.sidecars() if folder else ():
            shutil.copyfile(path, new / path.name)
        for name, write in files.items():
            with (new / name).open("w+b") as target:
                write(target)
                target.flush()
                os.fsync(target.fileno())
        if folder and output.exists():
            output.rename(old)  # a folder cannot be replaced in one step
        (new if folder else new / min(files)).replace(output)
    except OSError as error:
        raise ComityError(f"output {output} could not be written ({error.strerror or error})") from error
    finally:
        if old.exists() and not output.exists():
            old.rename(output)
        shutil.rmtree(part, ignore_errors=True)
