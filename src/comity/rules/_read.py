"""Convert updates in any form that callers use (matrix, vectors, state dicts) to matrices."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout

Rows = Tensor | np.ndarray[Any, Any] | Sequence[Tensor] | Sequence[Mapping[str, Tensor]]


def read(rows: Rows, layout: Layout | None) -> tuple[Sequence[Tensor], Layout, dict[int, str]]:
    """Matrices of the rows that fit the layout, the layout, and by index the reason why a row does not fit."""
    if isinstance(rows, np.ndarray | Tensor):
        matrix = _tensor(rows)
        if matrix.ndim != 2:
            raise ComityError(f"updates have shape {tuple(matrix.shape)}; give an (N, P) matrix or a list of vectors")
        layout = layout or Layout([("update", (matrix.shape[1],))])
        if matrix.shape[1] != layout.size:
            raise ComityError(f"updates have {matrix.shape[1]:,} columns; their layout has {layout.size:,} numbers")
        return [matrix], layout, {}
    vectors: list[Tensor] = []
    misshaped: dict[int, str] = {}
    if isinstance(rows[0], Mapping):
        dicts = [_floating(cast(Mapping[str, Tensor], row)) for row in rows]
        layout = layout or Counter(map(Layout.of, dicts)).most_common(1)[0][0]
        for i, member in enumerate(dicts):
            try:
                if extra := member.keys() - set(layout.names):
                    raise ValueError(f"layer {min(extra)!r} is not in the others")
                vectors.append(layout.vector(member))
            except ValueError as difference:
                misshaped[i] = str(difference)
    else:
        tensors = [_tensor(member) for member in rows]
        layout = layout or Layout([("update", Counter(tuple(t.shape) for t in tensors).most_common(1)[0][0])])
        for i, tensor in enumerate(tensors):
            if tuple(tensor.shape) == (layout.size,):
                vectors.append(tensor)
            else:
                misshaped[i] = f"it has shape {tuple(tensor.shape)}, not {(layout.size,)}"
    same_type = [vector.to(vectors[0])[None] for vector in vectors]
    return same_type or [torch.zeros(0, layout.size)], layout, misshaped


def _floating(row: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop BatchNorm's counters and other integers, which no rule combines."""
    floating = {name: values for name, values in row.items() if torch.as_tensor(values).is_floating_point()}
    return {name: _tensor(values) for name, values in (floating or row).items()}


def _tensor(values: Any) -> Tensor:
    with warnings.catch_warnings():  # torch warns about read-only memory-mapped arrays; nothing here writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(values).detach()
    if not tensor.is_floating_point():
        raise ComityError(f"an update holds {tensor.dtype} numbers; rules combine floating ones (leave counters out)")
    return tensor
