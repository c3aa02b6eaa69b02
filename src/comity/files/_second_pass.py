"""The second pass over the clients' files: what the files of the output hold."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import BinaryIO

import torch
from torch import Tensor

from comity.files._checkpoint import ADAPTER, ADAPTER_WEIGHTS, WRAPPED, with_ranks
from comity.files._file import DTYPES, FLOATS, NewTensors, StoredTensor
from comity.files._lora import Factors, norm
from comity.files._output import Write
from comity.files._plan import FACTOR, Choice, Pair
from comity.files._safetensors import FreshTensor, write_fresh
from comity.files._updates import FileUpdates, Inputs

BASE_DELTA = "base_delta.safetensors"
"""What is to be added to the weights of the adapted model, by their names there."""

PIECE = 2**20  # numbers


def file_names(inputs: Inputs, choice: Choice) -> list[str]:
    """The files that are written anew."""
    delta = [BASE_DELTA] if choice.lora == "residual" else []
    if choice.new_ranks:
        return [*delta, ADAPTER_WEIGHTS, ADAPTER]
    return [*delta, *(file.path.name for file in inputs.template.files)]


class SecondPass:
    """New numbers for the tensors of the template, and the files that they go into."""

    def __init__(self, inputs: Inputs, u: FileUpdates, coefficients: Tensor, choice: Choice) -> None:
        self.inputs, self.u, self.choice, self.template = inputs, u, choice, inputs.template
        rows = coefficients.expand(len(u.layout), -1)
        self.rows = dict(zip(u.layout.names, rows, strict=True))
        self.ranks: dict[str, int] = {}
        """Of the new factors, by module."""
        self._waiting: dict[str, Tensor] = {}
        self._lengths: dict[str, float] = {}
        self._errors: dict[str, float] = {}
        if choice.lora == "residual":  # all new factors wait until the rest is written
            u.reader.room -= sum(
                self.template.entries[n].nbytes for pair in inputs.plan.pairs for n in (pair.A, pair.B)
            )

    def files(self) -> dict[str, Write]:
        """How to write each of ``file_names``."""
        new = self._new_tensors()
        writes: dict[str, Write] = {BASE_DELTA: self._write_delta}
        writes |= {ADAPTER_WEIGHTS: partial(self._write_ranks, new), ADAPTER: self._write_config}
        if not self.choice.new_ranks:
            for file in self.template.files:
                own = {name: numbers for name, numbers in new.items() if name in file.entries}
                writes[file.path.name] = partial(file.write, new=own)
        return {name: writes[name] for name in file_names(self.inputs, self.choice)}

    def _new_tensors(self) -> NewTensors:
        plan, entries = self.inputs.plan, self.template.entries
        new: dict[str, Callable[[], Iterator[Tensor]]] = {}
        for name in plan.merged:
            new[name] = partial(self.u.reader.combined, entries[name], self.rows[name])
        for pair in plan.pairs:
            new |= {name: partial(self._factor, name, pair) for name in (pair.A, pair.B)}
        for name in plan.averaged:
            new[name] = partial(self.u.reader.combined, entries[name], self.u.shares)
        if self.inputs.base is None:  # an update must change nothing where tensors are left out
            for name in plan.left:
                new[name] = partial(_zeros, entries[name])
        return new

    def _factor(self, name: str, pair: Pair) -> Iterator[Tensor]:
        """Both factors come from one decomposition; the second one waits until it is written."""
        if name not in self._waiting:
            self._errors[pair.module] = norm(self._combine(pair))
        yield self._waiting.pop(name).reshape(-1)

    def _combine(self, pair: Pair) -> Factors:
        """Have the new factors of a module wait; what is left of its product."""
        merged = self.u.products.merged(pair, self.rows[pair.module], self.choice)
        self._waiting |= {pair.A: merged.A, pair.B: merged.B}
        self._lengths[pair.module] = merged.length
        self.ranks[pair.module] = len(merged.A)
        return merged.rest

    # Adapters of other ranks, whose file is a new one.

    def _write_ranks(self, new: NewTensors, target: BinaryIO) -> None:
        entries = self.template.entries

        def tensors() -> Iterator[FreshTensor]:
            for name, entry in entries.items():
                pieces = new[name]() if name in new else iter([self._copied(entry)])
                first = [*islice(pieces, 1)]  # after which the rank is known
                yield FreshTensor(name, self._shape(name), entry.kind, chain(first, pieces))

        write_fresh(target, {name: len(entry.shape) for name, entry in entries.items()}, tensors())

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.template.entries[name].shape
        for pair in self.inputs.plan.pairs:
            if name == pair.A:
                return self.ranks[pair.module], *shape[1:]
            if name == pair.B:
                return shape[0], self.ranks[pair.module], *shape[2:]
        return shape

    def _copied(self, entry: StoredTensor) -> Tensor:
        if entry.kind not in DTYPES:
            raise self.template.wrong(
                f"tensor {entry.name!r} is {entry.kind}, which a file of new ranks cannot take over"
            )
        return self.template.read(entry.name)

    def _write_config(self, target: BinaryIO) -> None:
        assert self.template.config is not None
        factors = [(match["module"], name) for name in self.template.entries if (match := FACTOR.fullmatch(name))]
        old = {module: self.template.entries[name].shape[0] for module, name in factors}
        target.write(with_ranks(self.template.config, {m: (rank, self.ranks.get(m, rank)) for m, rank in old.items()}))

    # What new factors leave out, for the base's weights.

    def _write_delta(self, target: BinaryIO) -> None:
        def tensors() -> Iterator[FreshTensor]:
            for pair in self.inputs.plan.pairs:
                A, B = self.template.entries[pair.A], self.template.entries[pair.B]
                kind = "F64" if "F64" in (A.kind, B.kind) else "F32"
                rest, shape = self._combine(pair), (B.shape[0], *A.shape[1:])
                assert self.template.adapter is not None
                if self.template.adapter.transposed or "lora_embedding_" in pair.A:
                    rest, shape = Factors(rest.right.mT, rest.left.mT), (shape[1], shape[0])
                yield FreshTensor(_weight(pair), shape, kind, self._multiplied(pair, rest, kind))

        write_fresh(
            target, {_weight(p): len(self.template.entries[p.A].shape) for p in self.inputs.plan.pairs}, tensors()
        )

    def _multiplied(self, pair: Pair, rest: Factors, kind: str) -> Iterator[Tensor]:
        """A product, some rows at a time; how far they are off by rounding is noted."""
        error = 0.0
        for rows in torch.split(rest.left, max(1, PIECE // rest.right.shape[1])):
            exact = rows @ rest.right
            rounded = exact.to(FLOATS[kind])
            error = math.hypot(error, float(torch.linalg.vector_norm(exact - rounded)))
            yield rounded
        self._errors[pair.module] = error

    @property
    def lost(self) -> dict[str, float]:
        return {module: error / (self._lengths[module] or 1.0) for module, error in self._errors.items()}

    @property
    def lost_overall(self) -> float:
        return math.hypot(*self._errors.values()) / (math.hypot(*self._lengths.values()) or 1.0)


def _weight(pair: Pair) -> str:
    """The name that the adapted weight has in the model before PEFT wraps it."""
    return f"{pair.module.removeprefix(WRAPPED)}.weight"


def _zeros(entry: StoredTensor) -> Iterator[Tensor]:
    for start in range(0, entry.numel, PIECE):
        yield torch.zeros(min(PIECE, entry.numel - start), dtype=entry.dtype)
