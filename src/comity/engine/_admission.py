"""Admission: which replies the server accepts. Every answer to every verb passes here, over any link.

A client may be faulty or malicious. Its reply is compared with its declared type, with the question, and with the
replies of most other clients. A reply that does not fit is left out and recorded; the round continues without it.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from comity._errors import one_line
from comity.engine._verbs import Verb
from comity.methods import Payload, Reply
from comity.rules import LONGEST_SQUARE

LONGEST_WORDS = 300
"""Maximum number of recorded characters of a reason."""
LARGEST_COUNT = 2**53
"""Integers up to this one are exact in float64."""


def admit(
    verb: Verb, questions: Mapping[int, Payload], replies: Mapping[int, Payload], shared: Tensor | None = None
) -> tuple[dict[int, Payload], dict[int, str]]:
    """Usable replies by client, in order, and reasons to reject the others, in words that follow "client 3".

    ``shared`` is the server's shared part: a reply's ``theta`` must have its type and shape.
    """
    rejected: dict[int, str] = {}
    good: dict[int, Payload] = {}
    for cid in sorted(replies):
        try:
            why = objection(verb, questions[cid], replies[cid], shared)
        except Exception as error:  # untrusted input may raise anything; only this client fails
            why = f"sent an unusable reply: {type(error).__name__}: {error}"
        if why is None:
            good[cid] = replies[cid]
        else:
            rejected[cid] = why
    for cid, why in _outliers(verb, questions, good).items():
        del good[cid]
        rejected[cid] = why
    return good, rejected


def objection(verb: Verb, sent: Payload, reply: Payload, shared: Tensor | None = None) -> str | None:
    """Reason to reject this reply to ``sent``, judged by itself; ``None`` if it is usable."""
    if type(reply) is not verb.reply:
        return f"sent {type(reply).__name__}, not {verb.reply.__name__}"
    try:
        verb.reply.of(reply.values())
    except ValueError as difference:
        return f"sent something other than it had declared: {difference}"
    before = sent.tensors()
    if isinstance(reply, Reply) and shared is not None:
        before = {"theta": shared} | before
    for name, tensor in reply.tensors().items():
        if (why := tensor_objection(tensor, before.get(name))) is not None:
            return f"sent {name} {why}"
    for name, value in reply.values().items():
        if not isinstance(value, Tensor) and (why := _value_objection(verb, name, value)) is not None:
            return f"sent {name} {why}"
    return None if verb.objection is None else verb.objection(sent, reply)


def tensor_objection(tensor: Tensor, before: Tensor | None = None) -> str | None:
    """Reason to reject a tensor in place of ``before``, in words that follow the tensor's name."""
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        return f"of {tensor.dtype}, {tensor.layout}, not of plain numbers"
    if before is not None and tensor.dtype != before.dtype:
        return f"of {_dtype_name(tensor.dtype)}, not {_dtype_name(before.dtype)}"
    if before is not None and tensor.shape != before.shape:
        return "of another shape"
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    largest = float(torch.stack(tensor.aminmax()).abs().max())  # ten times as fast as isfinite().all()
    if not math.isfinite(largest):
        return "that is not finite"
    # another pass only if the largest number leaves it open
    if largest**2 * tensor.numel() >= LONGEST_SQUARE / 4 and _square(tensor) >= LONGEST_SQUARE / 4:
        return "whose length is beyond float32"
    return None


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def _value_objection(verb: Verb, name: str, value: Any) -> str | None:
    """Reason to reject a plain value of the declared type, or ``None``."""
    if isinstance(value, str):
        return f"of {len(value):,} characters" if len(value) > 10_000 else None
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return "that is too large a number"
    if name == "size":
        return None if value > 0 else f"that is {value}; it must be above 0"
    if name in verb.checks:  # a diverged model may truly have an infinite loss
        return None
    if name == "train_loss" and math.isnan(value):
        return None  # if nothing was trained; compared with most other replies below
    return None if math.isfinite(value) else f"that is {value}; it must be a finite number"


def _outliers(verb: Verb, questions: Mapping[int, Payload], replies: Mapping[int, Payload]) -> dict[int, str]:
    """Clients whose reply differs from most replies to the same question: in fields, types or shapes."""
    groups: dict[Any, list[int]] = {}
    for cid in replies:
        groups.setdefault(tuple(sorted(_form(questions[cid]).items())), []).append(cid)
    outliers: dict[int, str] = {}
    for cids in groups.values():
        outliers |= differing_from_most({cid: _form(replies[cid], verb.optional) for cid in cids})
    return outliers


def differing_from_most(forms: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Clients whose form differs from the most frequent one (the first one in a tie), and the difference."""
    usual = dict(Counter(tuple(sorted(form.items())) for form in forms.values()).most_common(1)[0][0]) if forms else {}
    return {
        cid: f"sent {form.get(other[0], 'nothing')} as {other[0]}, most others {usual.get(other[0], 'nothing')}"
        for cid, form in forms.items()
        if (other := sorted(name for name in form.keys() | usual.keys() if form.get(name) != usual.get(name)))
    }


def _form(payload: Payload, optional: Collection[str] = ()) -> dict[str, str]:
    """The form of a payload: its fields, and types and shapes of its tensors."""
    form = {}
    for name, value in payload.values().items():
        if isinstance(value, Tensor):
            form[name] = f"{_dtype_name(value.dtype)} of shape {tuple(value.shape)}"
        elif name not in optional:
            unknown = isinstance(value, float) and name == "train_loss" and math.isnan(value)
            form[name] = "no number" if unknown else "a value"
    return form


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def brief(words: object) -> str:
    """Shorten untrusted text to one printable line."""
    return one_line(str(words)[: 4 * LONGEST_WORDS], LONGEST_WORDS)
