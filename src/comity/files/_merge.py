"""Clients' files become one: two passes, one for the Gram matrices and one for the combination."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity.files._output import becomes_folder, write
from comity.files._plan import Buffers, Choice, Lora, Rank
from comity.files._second_pass import BASE_DELTA, SecondPass, file_names
from comity.files._updates import FileUpdates, Progress, collect, read_sizes
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
    """Where LoRA's products are merged: the relative error of each, by the rank that is cut off and by rounding."""
    lost_overall: float
    ranks: dict[str, int]
    """Of their new factors."""
    base_delta: Path | None
    """With ``lora="residual"``: the file with what is to be added to the weights of the adapted model."""

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
    choice = Choice(only, exclude, buffers, lora, rank)
    inputs = collect(base, clients, choice, skip_bad)
    sizes, listed = read_sizes(sizes)
    losses = losses or listed
    given = [Path(path) for path in (*clients, *([base] if base is not None else []))]
    given += [file.path for model in (inputs.template, *inputs.clients) for file in model.files]
    folder = becomes_folder(Path(output), inputs.template, given, file_names(inputs, choice), overwrite)
    if rule.needs_losses and losses is None:
        raise ComityError(f"{rule!r} needs the clients' losses: a column loss in the table of sizes (--weights)")
    u = FileUpdates(inputs, sizes, losses, memory, skip_bad, progress, passes=2)
    u.reader.skip = False  # once the rule has weighed the clients none can be left out any more
    chosen = rule.coefficients(u)
    chosen = replace(chosen, coefficients=step(chosen.coefficients))
    merged = SecondPass(inputs, u, chosen.coefficients, choice)
    write(Path(output), inputs.template, merged.files(), folder)
    plain = u.lengths(u.shares)
    return Merge(
        **vars(chosen),
        output=Path(output),
        rule=repr(rule),
        stretch=torch.where(plain > 0, u.lengths(chosen.coefficients) / plain, math.nan),
        conflict=conflict_rate(u),
        lost=merged.lost,
        lost_overall=merged.lost_overall,
        ranks=merged.ranks,
        base_delta=Path(output) / BASE_DELTA if choice.lora == "residual" else None,
    )
