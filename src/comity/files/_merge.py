"""Clients' files become one: two passes, one for the Gram matrices and one for the combination."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity.files._file import NewTensors, StoredTensor
from comity.files._output import becomes_folder, write
from comity.files._plan import Buffers, Choice, Lora, Pair
from comity.files._updates import FileUpdates, Inputs, Progress, collect, read_sizes
from comity.rules import Combination, ConflictRate, Rule, ServerStep, conflict_rate


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
    u = FileUpdates(inputs, sizes, losses, memory, skip_bad, progress, passes=2)
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
