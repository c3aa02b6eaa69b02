"""`Updates` whose rows stay in their files."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.files._checkpoint import Checkpoint
from comity.files._lora import Products
from comity.files._plan import Plan
from comity.files._reader import Reader
from comity.rules import Updates
from comity.rules._updates import Id


class FileUpdates(Updates):
    """Everything that rules and diagnoses look at, from one pass over the files; rows are never there as a whole.

    Layers are the merged tensors, and in the place of LoRA factors their products where these are merged.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        template: Checkpoint,
        ids: Sequence[Id],
        sizes: Sequence[float] | None = None,
        losses: Sequence[float] | None = None,
    ) -> None:
        self.reader, self.plan = reader, plan
        self._multiplied = Products(reader, template)
        shapes = [(name, template.entries[name].shape) for name in plan.merged]
        for pair in plan.pairs:
            A, B = template.entries[pair.A], template.entries[pair.B]
            shapes.append((pair.module, (B.shape[0], *A.shape[1:])))
        self.layout = Layout(shapes)
        self._ids = tuple(ids)
        self._sizes = torch.ones(len(ids)).double() if sizes is None else torch.tensor(sizes, dtype=torch.float64)
        self._losses = None if losses is None else torch.tensor(losses, dtype=torch.float64)
        self._ages = torch.zeros(len(ids), dtype=torch.int64)
        self._dropped = {}

    @cached_property
    def _products(self) -> Tensor:
        grams = [self.reader.gram(name) for name in self.plan.merged]
        grams += [self._multiplied.gram(pair) for pair in self.plan.pairs]
        for name in self.plan.averaged:
            self.reader.check(name)
        return torch.stack(grams)

    @cached_property
    def _kept(self) -> list[int]:
        self._products  # noqa: B018 - the pass that finds the bad ones
        self._dropped |= {self._ids[i]: reason for i, reason in self.reader.bad.items()}
        if not self.reader.good:
            raise ComityError(f"no client is left: {next(iter(self.reader.bad.values()))}")
        return self.reader.good

    def _combined(self, coefficients: Tensor) -> Tensor:
        raise ComityError("updates in files are combined tensor by tensor, not as one vector")

    def _row(self, i: int) -> Tensor:
        raise ComityError("a rule that remembers updates cannot work on files; give it the updates in memory")

    def joined(self, ids: Sequence[Id], rows: Tensor, ages: Tensor) -> Updates:
        raise ComityError("a rule that remembers updates cannot work on files; give it the updates in memory")
