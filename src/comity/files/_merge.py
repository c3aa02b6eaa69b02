"""Merge clients' files into one in two passes: one for the Gram matrices and one for the combination."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity.files._checkpoint import ADAPTER, INDEX, read_json
from comity.files._formats import DTYPES, StoredTensor, WeightFile
from comity.files._lora import Pair, config_with_ranks, merge_products
from comity.files._output import SUFFIX, NewTensor, Write, becomes_folder, write_output, write_safetensors
from comity.files._plan import Buffers, Choice, Inputs, Lora, Rank, collect, read_sizes
from comity.files._updates import FileUpdates, Progress
from comity.rules import Combination, ConflictRate, Rule, ServerStep, conflict_rate

PIECE = 2**20  # numbers


@dataclass(frozen=True)
class Merge(Combination):
    """What was written, and by which coefficients."""

    output: Path
    rule: str
    stretch: Tensor
    """(L,) length ratio of each layer's update to that of the plain mean; nan where the mean is 0."""
    conflict: ConflictRate
    lost: dict[str, float]
    """If LoRA's products are merged: the relative error of each module by truncation and rounding."""
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
    sizes: Mapping[str, float] | str | Path | None = None,
    losses: Mapping[str, float] | None = None,
    memory: str | float = "2GB",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Merge:
    """Merge the clients' checkpoints by a rule and write the result as safetensors.

    ``base`` is what the clients started from; with ``None`` their files are updates, and so is the output. Files are
    safetensors (single, sharded, a folder), torch's, npz, or PEFT adapter folders. They are read in pieces, twice at
    most, within about ``memory`` beside what the process holds already. ``server_lr`` is a factor on the combined
    update. A bad client is an error and nothing is written, or with ``skip_bad`` is left out with a `DroppedWarning`.
    """
    rule = rule if isinstance(rule, Rule) else Component.parse("rule", rule).build()
    assert isinstance(rule, Rule)
    step = ServerStep(server_lr)
    choice = Choice(only, exclude, buffers, lora, rank)
    inputs = collect(base, clients, choice, skip_bad)
    sizes, listed = read_sizes(sizes)
    losses = losses or listed
    given = [Path(path) for path in (*clients, *([base] if base is not None else []))]
    given += [file.path for model in (inputs.template, *inputs.clients) for file in model.files]
    second = SecondPass(inputs, choice)
    folder = becomes_folder(Path(output), inputs.template, given, list(second.files), overwrite)
    if rule.needs_losses and losses is None:
        raise ComityError(f"{rule!r} needs the clients' losses: a column loss in the table of sizes (--weights)")
    u = FileUpdates(inputs, sizes, losses, memory=memory, skip_bad=skip_bad, progress=progress, passes=2)
    u.skip_bad = False  # once the rule has weighed the clients none can be left out any more
    chosen = rule.coefficients(u)
    chosen = replace(chosen, coefficients=step(chosen.coefficients))
    second.start(u, chosen.coefficients)
    write_output(Path(output), inputs.template, second.files, folder)
    plain = u.lengths(u.shares)
    return Merge(
        **vars(chosen),
        output=Path(output),
        rule=repr(rule),
        stretch=torch.where(plain > 0, u.lengths(chosen.coefficients) / plain, math.nan),
        conflict=conflict_rate(u),
        lost={module: error / (second.lengths[module] or 1.0) for module, error in second.errors.items()},
        lost_overall=math.hypot(*second.errors.values()) / (math.hypot(*second.lengths.values()) or 1.0),
        ranks=second.ranks,
    )


class SecondPass:
    """New numbers for the tensors of the template, and the files that they go into."""

    def __init__(self, inputs: Inputs, choice: Choice) -> None:
        self.inputs, self.choice, self.template = inputs, choice, inputs.template
        self.files: dict[str, Write] = {self._name(f.path): partial(self._write, f) for f in self.template.files}
        """How to write each file, by name."""
        if len(self.files) < len(self.template.files):
            raise self.template.wrong(f"two of its files would be written under one name, {min(self.files)}")
        index = self.template.path
        if index.name.endswith(INDEX):
            same = all(self._name(file.path) == file.path.name for file in self.template.files)
            self.files[index.name if same else f"model{SUFFIX}{INDEX}"] = self._write_index
        if choice.rank is not None:
            self.files[ADAPTER] = lambda target: target.write(config_with_ranks(self.template, self.ranks))
        self.ranks: dict[str, int] = {}
        self.lengths: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self._waiting: dict[str, Tensor] = {}
        self._pairs = {name: pair for pair in inputs.plan.pairs for name in (pair.A, pair.B)}

    def start(self, u: FileUpdates, coefficients: Tensor) -> None:
        self.u = u
        rows = coefficients.expand(len(u.layout), -1)
        self.rows = dict(zip(u.layout.names, rows, strict=True)) | dict.fromkeys(self.inputs.plan.averaged, u.shares)

    @staticmethod
    def _name(path: Path) -> str:
        """The name of a weight file in an output folder: Hugging Face's pytorch_model.bin becomes model.safetensors."""
        return path.name if path.suffix == SUFFIX else f"{path.stem.replace('pytorch_model', 'model')}{SUFFIX}"

    def _write_index(self, target: BinaryIO) -> None:
        about = read_json(self.template.path)
        names = {name: self._name(Path(shard)) for name, shard in about["weight_map"].items()}
        same = names == about["weight_map"]
        text = self.template.path.read_bytes() if same else json.dumps(about | {"weight_map": names}, indent=2).encode()
        target.write(text)

    def _write(self, file: WeightFile, target: BinaryIO) -> None:
        # The largest dtype first, as the library does it, so that every tensor is aligned.
        entries = dict(sorted(file.entries.items(), key=lambda item: -item[1].itemsize))
        axes = {name: len(entry.shape) for name, entry in entries.items()}
        write_safetensors(target, axes, (self._tensor(file, *item) for item in entries.items()), file.metadata)

    def _tensor(self, file: WeightFile, name: str, entry: StoredTensor) -> NewTensor:
        first = file.ties.get(name, name)
        if first in self._pairs:
            factor = self._factor(self._pairs[first], first)
            return NewTensor(name, entry.kind, tuple(factor.shape), iter([factor.reshape(-1)]))
        if first in self.rows:
            pieces = self.u.combined(first, self.rows[first])
        elif self.inputs.base is None and first in self.inputs.plan.left:
            pieces = _zeros(entry)  # an update must change nothing where tensors are left out
        else:
            pieces = self._copied(file, name, entry)
        return NewTensor(name, entry.kind, entry.shape, pieces)

    def _factor(self, pair: Pair, name: str) -> Tensor:
        """Both factors come from one decomposition; the second one waits until it is written."""
        if name not in self._waiting:
            A, B, length, error = merge_products(self.u, pair, self.rows[pair.module], self.choice.rank)
            self._waiting |= {pair.A: A, pair.B: B}
            self.ranks[pair.module], self.lengths[pair.module], self.errors[pair.module] = len(A), length, error
        return self._waiting.pop(name)

    def _copied(self, file: WeightFile, name: str, entry: StoredTensor) -> Iterator[Tensor]:
        if entry.kind not in DTYPES and file.path.suffix != SUFFIX:
            raise file.wrong(f"tensor {name!r} is {entry.kind}, which a safetensors file cannot hold")
        if entry.whole and entry.nbytes > self.u.room:
            raise file.wrong(f"tensor {name!r} is too large to be copied within the memory limit")
        for start in range(0, entry.numel, PIECE):
            yield file.read(name, start, min(start + PIECE, entry.numel))


def _zeros(entry: StoredTensor) -> Iterator[Tensor]:
    for start in range(0, entry.numel, PIECE):
        yield torch.zeros(min(PIECE, entry.numel - start), dtype=entry.dtype)
