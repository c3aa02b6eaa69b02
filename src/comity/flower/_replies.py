"""Which replies of Flower nodes a strategy may combine."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from comity.engine import brief, differing_from_most, tensor_objection
from comity.flower._wire import check_bytes, most_bytes, tensor

Arrays = Mapping[str, np.ndarray[Any, Any]]

LARGEST = 2.0**53
"""Larger sizes, metrics and counters are rejected: larger integers are not exact, and sums would overflow."""
SHARES = re.compile(r"(^|[^a-z])(acc|accuracy|auc|auroc|f1|precision|recall)([^a-z]|$)", re.IGNORECASE)
"""Names of metrics that are shares or percentages."""
Asked = Mapping[int, str]
"""The message group that each node was asked in, in this round."""


class Sifted(NamedTuple):
    """Replies in the order of their nodes, not of their arrival."""

    usable: list[Message]
    failed: list[Message]
    """Flower's own error messages."""
    dropped: dict[int, str]
    """Why the reply of a node cannot be used."""
    without_loss: list[int]
    """Nodes whose replies were dropped only because of their loss."""


def sift(
    replies: Iterable[Message],
    weighted_by: str,
    sent: Arrays | None = None,
    loss_key: str | None = None,
    asked: Asked | None = None,
) -> Sifted:
    """Check each reply by itself and against the ``sent`` arrays, then drop those that differ from most others.

    Without ``sent`` only metrics are checked. With ``loss_key`` each reply must have this metric. ``asked``: only these
    nodes may reply, once, in the group that they were asked in.
    """
    ordered = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
    answers = Counter(reply.metadata.src_node_id for reply in ordered if not reply.has_error())
    good: dict[int, Message] = {}
    dropped: dict[int, str] = {}
    without_loss = []
    for reply in (reply for reply in ordered if not reply.has_error()):
        node = reply.metadata.src_node_id
        try:
            wrong = _wrong_sender(reply, asked, answers[node]) or _wrong_metrics(reply, weighted_by)
            wrong = wrong or (None if sent is None else _wrong_arrays(reply, sent))
            if wrong is None and loss_key is not None and not _is_number(metrics_of(reply).get(loss_key)):
                wrong = f"its {loss_key} is no finite number"
                without_loss.append(node)
        except Exception as error:  # untrusted content fails only this node
            wrong = f"it cannot be read: {brief(error)}"
        if wrong is None:
            good[node] = reply
        else:
            dropped[node] = wrong
    unlike = differing_from_most({node: _form(reply, sent is not None) for node, reply in good.items()})
    dropped |= {node: f"it {brief(why)}" for node, why in unlike.items()}
    usable = [reply for node, reply in good.items() if node not in unlike]
    return Sifted(usable, [reply for reply in ordered if reply.has_error()], dropped, without_loss)


def arrays_of(reply: Message) -> ArrayRecord:
    """The reply's only ArrayRecord."""
    (record,) = reply.content.array_records.values()
    return record


def metrics_of(reply: Message) -> MetricRecord:
    """The reply's only MetricRecord."""
    (record,) = reply.content.metric_records.values()
    return record


def is_floating(array: np.ndarray[Any, Any]) -> bool:
    return np.issubdtype(array.dtype, np.floating)


def _wrong_sender(reply: Message, asked: Asked | None, answers: int) -> str | None:
    about = reply.metadata
    if asked is not None and about.src_node_id not in asked:
        return "it was not asked in this round"
    if asked is not None and about.group_id != asked[about.src_node_id]:
        return f"it is of round {brief(about.group_id)}"
    return f"it is one of {answers} of this node" if answers > 1 else None


def _wrong_metrics(reply: Message, weighted_by: str) -> str | None:
    if (count := len(reply.content.metric_records)) != 1:
        return f"it has {count} MetricRecords, not one"
    size = metrics_of(reply).get(weighted_by)
    if not _is_number(size) or not 0 < size < LARGEST:
        return f"its {weighted_by} is {brief(size)}"
    for name, value in metrics_of(reply).items():
        numbers = value if isinstance(value, list) else [value]
        low, high = (0, 100) if SHARES.search(name) else (-LARGEST, LARGEST)
        if not all(low <= number <= high for number in numbers):
            return f"its metric {brief(name)!r} is {brief(value)}, out of all bounds"
    return None


def _wrong_arrays(reply: Message, sent: Arrays) -> str | None:
    if (count := len(reply.content.array_records)) != 1:
        return f"it has {count} ArrayRecords, not one"
    check_bytes(arrays_of(reply), most_bytes(sum(array.nbytes for array in sent.values())))
    for name, array in arrays_of(reply).items():
        known, what = sent.get(name), f"array {brief(name)!r}"
        if known is not None and tuple(array.shape) != known.shape:
            return f"{what} has shape {brief(tuple(array.shape))}, not {known.shape}"
        values = tensor(array)
        if known is not None and values.is_floating_point() != is_floating(known):
            return f"{what} is of {array.dtype}, not {known.dtype}"
        if (why := tensor_objection(values)) is not None:
            return f"{what} {why.replace('that is', 'is').replace('whose length is', 'has a length')}"
        if not values.is_floating_point() and bool((values.double().abs() > LARGEST).any()):
            return f"{what} holds a number that is too large"
        if name.endswith("running_var") and bool((values < 0).any()):
            return f"{what} holds a variance below 0"
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def _form(reply: Message, arrays: bool) -> dict[str, str]:
    """The form of a reply (records, metrics with lengths, arrays with shapes), to compare with other replies."""
    form = {f"record {key!r}": type(record).__name__ for key, record in reply.content.items()}
    for key, value in metrics_of(reply).items():
        form[f"metric {key!r}"] = str(len(value)) if isinstance(value, list) else "number"
    if arrays:
        form |= {f"array {name!r}": str(tuple(array.shape)) for name, array in arrays_of(reply).items()}
    return form
