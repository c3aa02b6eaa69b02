"""What happens to each tensor: merged by the rule, averaged, or left as it is."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from comity._errors import ComityError
from comity._layout import STATISTICS
from comity._options import Count, convert
from comity.files._checkpoint import Checkpoint
from comity.files._file import COUNTERS, FLOATS, StoredTensor

Buffers = Literal["average", "keep"]
Lora = Literal["factors", "products", "residual", "stack"]
"""A and B each for itself, or their products: cut to a rank, with the rest apart, or one after another."""
Rank = Count | Literal["auto"] | None
"""Of the new factors: so many, as many as need be, or as many as in the template."""

FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?A(?P<end>(\..+)?)")
"""PEFT's name of the factor A; that of B has B in its place."""


@dataclass(frozen=True)
class Choice:
    """Which tensors take part, and how."""

    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    buffers: Buffers = "average"
    lora: Lora = "factors"
    rank: Rank = None

    def __post_init__(self) -> None:
        convert(self.buffers, Buffers, "buffers")
        convert(self.lora, Lora, "lora")
        convert(self.rank, Rank, "rank")
        if self.rank is not None and self.lora not in ("products", "residual"):
            raise ComityError(
                f"--rank goes with --lora products or residual; --lora {self.lora} leaves no choice of it"
            )

    @property
    def new_ranks(self) -> bool:
        """Whether factors may come out of another rank than they have in the template."""
        return self.lora == "stack" or self.rank is not None

    def takes(self, name: str) -> bool:
        chosen = not self.only or any(fits(name, pattern) for pattern in self.only)
        return chosen and not any(fits(name, pattern) for pattern in self.exclude)


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits a name or the end of it after a dot: ``lora_*`` fits ``layers.0.q_proj.lora_A.weight``."""
    return fnmatchcase(name, pattern) or any(
        fnmatchcase(name[dot.end() :], pattern) for dot in re.finditer(r"\.", name)
    )


@dataclass(frozen=True)
class Pair:
    """The two factors of an adapted module: A is (rank, inputs), B is (outputs, rank)."""

    module: str
    A: str
    B: str


@dataclass(frozen=True)
class MergePlan:
    """What is done with the tensors of a template; those that are not listed here are copied from it."""

    merged: tuple[str, ...]
    pairs: tuple[Pair, ...]
    averaged: tuple[str, ...]
    left: tuple[str, ...]
    """Floating tensors that stay as they are: copied from a base, 0 in an update."""

    @classmethod
    def of(cls, template: Checkpoint, choice: Choice) -> "MergePlan":
        for option, patterns in (("--only", choice.only), ("--exclude", choice.exclude)):
            for pattern in patterns:
                if not any(fits(name, pattern) for name in template.entries):
                    raise ComityError(f"{option} {pattern!r} fits no tensor of {template.path}")
        merged: list[str] = []
        averaged: list[str] = []
        left: list[str] = []
        for name, entry in _without_ties(template).items():
            if entry.kind in COUNTERS:
                continue
            if not choice.takes(name):
                left += [name] if entry.kind in FLOATS else []
            elif entry.kind not in FLOATS:
                reason = f"tensor {name!r} is {entry.kind}, which rules do not combine"
                raise template.wrong(f"{reason}; leave it as it is with --exclude {name!r}")
            elif name.rpartition(".")[2] in STATISTICS:
                (averaged if choice.buffers == "average" else left).append(name)
            else:
                merged.append(name)
        pairs = _pairs(template, merged) if choice.lora != "factors" else []
        factors = {name for pair in pairs for name in (pair.A, pair.B)}
        merged = [name for name in merged if name not in factors]
        if not merged and not pairs:
            raise template.wrong("no floating tensor of it is left to merge")
        return cls(tuple(merged), tuple(pairs), tuple(averaged), tuple(left))

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that are read."""
        factors = (name for pair in self.pairs for name in (pair.A, pair.B))
        return (*self.merged, *factors, *self.averaged)

    def check(self, client: Checkpoint, template: Checkpoint, choice: Choice) -> None:
        """Refuse a client whose tensors are not those of the template."""
        for name in (*self.merged, *self.averaged):
            _check_tensor(client, name, template.entries[name].shape)
        for pair in self.pairs:
            for name in (pair.A, pair.B):
                _check_tensor(client, name, None)
            _check_product(pair, client, template)
        if client.config is not None and template.config is not None:
            _check_scales(client, template, {*self.merged})
        for name, entry in client.entries.items():
            if name not in template.entries and entry.kind not in COUNTERS and choice.takes(name):
                raise client.wrong(f"tensor {name!r} is not in {template.path}")


def _check_tensor(client: Checkpoint, name: str, shape: tuple[int, ...] | None) -> None:
    entry = client.entries.get(name)
    if entry is None:
        raise client.wrong(f"tensor {name!r} is missing")
    if shape is not None and entry.shape != shape:
        raise client.wrong(f"tensor {name!r} has shape {entry.shape}, not {shape}")
    if entry.kind not in FLOATS:
        raise client.wrong(f"tensor {name!r} is {entry.kind}, which rules do not combine")


def _check_scales(client: Checkpoint, template: Checkpoint, names: Collection[str]) -> None:
    """Refuse factors whose product is scaled differently: factors of the two could not be added."""
    for name, entry in template.entries.items():
        if (factor := FACTOR.fullmatch(name)) and not {name, _second(factor)}.isdisjoint(names):
            scale, usual = (model.scale(factor["module"], entry.shape[0]) for model in (client, template))
            if scale != usual:
                reason = f"its scale (lora_alpha over the rank) is {scale:g} in {factor['module']!r}, not {usual:g}"
                raise client.wrong(f"{reason}; --lora products takes that into account")


def _check_product(pair: Pair, client: Checkpoint, template: Checkpoint) -> None:
    """Refuse factors whose product has another shape than the template's; their rank may be another."""
    if client.adapter is None:
        raise client.wrong("it is no PEFT adapter (adapter_config.json is missing), so its factors have no product")
    if client.adapter.dora:
        raise client.wrong("it is a DoRA adapter (use_dora), which does more than its product; use --lora factors")
    A, B = client.entries[pair.A].shape, client.entries[pair.B].shape
    inputs, outputs = template.entries[pair.A].shape[1:], template.entries[pair.B].shape[:1]
    # The B of a convolution is (outputs, rank, 1, 1).
    if len(A) < 2 or len(B) < 2 or A[0] != B[1] or any(size != 1 for size in B[2:]) or not A[0]:
        raise client.wrong(f"factors of {pair.module!r} have shapes {A} and {B}, which have no product")
    if (A[1:], B[:1]) != (inputs, outputs):
        raise client.wrong(f"the product of {pair.module!r} has shape {(*B[:1], *A[1:])}, not {(*outputs, *inputs)}")


def _second(first: re.Match[str]) -> str:
    """The name of the factor B that belongs to a factor A."""
    return f"{first['module']}.lora_{first['kind'] or ''}B{first['end']}"


def _pairs(template: Checkpoint, names: Iterable[str]) -> list[Pair]:
    if template.adapter is None:
        raise template.wrong("it is no PEFT adapter (adapter_config.json is missing), so its factors have no product")
    names, pairs = list(names), []
    for name in names:
        if factor := FACTOR.fullmatch(name):
            other = _second(factor)
            if other not in names:
                raise template.wrong(f"tensor {name!r} has no {other!r} to be multiplied with")
            pair = Pair(factor["module"], name, other)
            _check_product(pair, template, template)
            pairs.append(pair)
    if not pairs:
        raise template.wrong("none of its tensors are LoRA factors (lora_A, lora_B)")
    return pairs


def _without_ties(template: Checkpoint) -> dict[str, StoredTensor]:
    """The tensors, tied ones under their first name only: the same bytes are merged and written once."""
    kept: dict[str, StoredTensor] = {}
    for file in template.files:
        before: StoredTensor | None = None
        tied = []
        for entry in sorted(file.entries.values(), key=lambda entry: entry.offset):
            if not file.ties or entry.kind not in FLOATS or not entry.numel:
                continue
            if before is not None and entry.offset < before.offset + before.nbytes:
                if (entry.offset, entry.shape, entry.stride) != (before.offset, before.shape, before.stride):
                    raise file.wrong(f"tensors {before.name!r} and {entry.name!r} share some of their bytes")
                tied.append(entry.name)
            else:
                before = entry
        kept |= {name: entry for name, entry in file.entries.items() if name not in tied}
    return kept
