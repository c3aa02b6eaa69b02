"""Updates that rules see through sketches: the sketches alone, or rows of which rules see the sketches."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.rules._rows import Rows, Updates
from comity.rules._rule import Rule
from comity.rules._sketch import Sketch
from comity.rules._updates import Id

NOT_OF_ONE_ROUND = "sketches of two rounds cannot be compared"


def check_sketch(sketch: Sketch | None, rule: Rule) -> None:
    """Refuse a sketch for a rule that compares updates with those of earlier rounds."""
    if sketch is not None and rule.remembers:
        raise ComityError(f"{type(rule).__name__} remembers updates, and {NOT_OF_ONE_ROUND}: leave sketch out")


def make_updates(sketch: Sketch | None, key: bytes, rows: Rows, **others: Any) -> Updates:
    """Updates as rules see them: exactly, or through a sketch drawn from ``key``."""
    return Updates(rows, **others) if sketch is None else SketchedRows(rows, sketch, key, **others)


class SketchedUpdates(Updates):
    """Updates of which only sketches (N, L, k) are known: rules find coefficients, and rows are combined elsewhere.

    The Gram matrices are those of the sketches, which estimate the updates'. What ``combine`` makes is the sketch of
    the combination. ``layout`` is that of the updates, and ``sketch`` is what sketched them; the other arguments are
    those of `Updates`.
    """

    def __init__(self, sketches: Tensor | Sequence[Tensor], sketch: Sketch, layout: Layout, **others: Any) -> None:
        rows = torch.stack(list(sketches)) if isinstance(sketches, Sequence) and sketches else torch.as_tensor(sketches)
        if rows.shape[1:] != (len(layout), sketch.k):
            wanted = f"{len(layout)} layers of {sketch.k} numbers"
            raise ComityError(f"sketches have shape {tuple(rows.shape[1:])}; with this layout they are {wanted}")
        super().__init__(rows.flatten(1), layout=Layout((layer.name, (sketch.k,)) for layer in layout.layers), **others)
        self.sketch, self.original = sketch, layout

    def row(self, i: int) -> Tensor:
        raise ComityError(NOT_OF_ONE_ROUND)

    given = row

    def joined(self, ids: Sequence[Id], rows: Sequence[Tensor] | Tensor, ages: Tensor) -> "Updates":
        raise ComityError(NOT_OF_ONE_ROUND)


class SketchedRows(Updates):
    """Updates as rows, which are combined, while rules see no more of them than sketches drawn from ``key``."""

    def __init__(self, rows: Rows, sketch: Sketch, key: bytes, **others: Any) -> None:
        super().__init__(rows, **others)
        self.sketch: Sketch = sketch
        self._key = key

    @cached_property
    def sketches(self) -> SketchedUpdates:
        """Those of all members."""
        drawn = self.sketch.sketches(self._some, len(self.members), self.layout, self._key, self._threads)
        return SketchedUpdates(drawn, self.sketch, self.layout, **vars(self.members))

    def _some(self, rows: slice, columns: slice) -> Tensor:
        part = torch.stack([row[columns] for row in self._given[rows]])
        if self.base is not None:
            part[: max(0, self._present - rows.start)] -= self.base[columns]
        return part

    @property
    def _seen(self) -> Updates:
        return self.sketches

    def _multiply(self, mean: bool = False) -> Tensor:
        return self.sketches._multiply()

    @property
    def squares(self) -> Tensor:
        return self._squares[self._usable]

    def gains(self, coefficients: Tensor) -> Tensor:
        """Exact, unlike what rules see: the rows are here."""
        step = self.combine(coefficients).double()
        parts = self._sweep(lambda U, _, columns: (U.double() @ step[columns]).cpu())
        return sum(parts, torch.zeros(len(self.members), dtype=torch.float64))[self._usable]

    def _like(self, rows: list[Tensor], **arguments: Any) -> "Updates":
        return SketchedRows(rows, self.sketch, self._key, **arguments)
