"""Updates that stay in their files."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.files._checkpoint import Checkpoint
from comity.files._lora import Products
from comity.files._plan import MergePlan
from comity.files._reader import Reader
from comity.rules import ClientUpdates, Members


class FileUpdates(ClientUpdates):
    """What rules and diagnoses look at, from one pass over the files; no row is ever held as a whole.

    Layers are the merged tensors. Where LoRA factors are merged by their products, these are layers instead.
    """

    def __init__(
        self,
        reader: Reader,
        plan: MergePlan,
        template: Checkpoint,
        ids: Sequence[str],
        sizes: Sequence[float] | None = None,
        losses: Sequence[float] | None = None,
        dropped: Mapping[int | str, str] | None = None,
    ) -> None:
        self.reader, self.plan, self.products = reader, plan, Products(reader, template)
        shapes = [(name, template.entries[name].shape) for name in plan.merged]
        for pair in plan.pairs:
            A, B = template.entries[pair.A], template.entries[pair.B]
            shapes.append((pair.module, (B.shape[0], *A.shape[1:])))
        members = Members(
            ids=tuple(ids),
            sizes=torch.tensor([1.0] * len(ids) if sizes is None else sizes, dtype=torch.float64),
            losses=None if losses is None else torch.tensor(losses, dtype=torch.float64),
            ages=torch.zeros(len(ids), dtype=torch.int64),
        )
        super().__init__(Layout(shapes), members, dropped)

    def _multiply(self) -> Tensor:
        grams = [self.reader.gram(name) for name in self.plan.merged]
        grams += [self.products.gram(pair) for pair in self.plan.pairs]
        for name in self.plan.averaged:
            self.reader.gram(name)  # for the clients whose numbers are not finite in it
        if not self.reader.good:
            raise ComityError(f"no client is left: {next(iter(self.reader.bad.values()))}")
        return torch.stack(grams)

    def _find_unusable(self) -> dict[int, str]:
        self.measure()
        return dict(self.reader.bad)
