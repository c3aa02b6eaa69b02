"""Flower strategies that combine updates by a rule and leave everything else to the wrapped strategy."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from fnmatch import fnmatch
from functools import cache
from inspect import Signature, getdoc, signature
from logging import INFO, WARNING
from typing import Any, Literal, cast
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from comity import rules
from comity._errors import ComityError
from comity._layout import Layout
from comity._random import key_bytes
from comity.flower._replies import Asked, arrays_of, is_floating, metrics_of, sift
from comity.flower._wire import tensor
from comity.rules import ConflictRate, DroppedWarning, Outcome, Rule, Sketch, Updates, check_sketch, conflict_rate

STATISTICS = ("*running_mean", "*running_var")
"""BatchNorm's statistics are averaged: a rule could make a variance negative."""

STEPS = ("configure_train", "configure_evaluate", "aggregate_train", "aggregate_evaluate", "summary")
"""Steps of a strategy's loop that `WithRule` replaces."""


class WithRule(Strategy):
    """A Flower strategy that combines the clients' arrays by a rule instead of averaging them.

    ``WithRule(CALM(), FedAdam(fraction_train=0.5))`` samples, evaluates, logs and steps like FedAdam. Without a
    strategy it uses ``FedAvg``, and further options are FedAvg's: ``WithRule(CALM(), fraction_train=0.5)``.

    Each floating-point array is a layer under its own name; the rule gets the difference to the sent array. Integer
    arrays (BatchNorm's counters) and those whose names match ``average`` (its statistics) are averaged by the wrapped
    strategy; integers stay integers. A reply that is not finite, or does not fit what was sent or what most others
    send, is dropped, logged and counted. ``clip="median"`` first scales longer updates down to the median length.
    Updates are weighted by the strategy's own key, ``num-examples`` by default. A rule that needs losses gets the
    metric ``loss_key``, which should be the loss of the model as received. With ``sketch=1024`` the rule gets sketches
    of 1,024 numbers per layer; a value below 1 is the standard error that estimated cosines should have. The update is
    still the exact combination of what was sent.

    Each round's metrics contain, beside the strategy's own: ``conflict-rate`` (share of conflicting pairs, mean over
    layers), ``conflict-rate-error`` (with sketches, the share expected to be misjudged), ``conflict-rate-by-layer``,
    ``coefficients`` (``coefficients/<layer>`` if the rule works by layer), ``coefficient-nodes`` (the node of each
    coefficient; −1 for the rule's own last step), ``residual`` of the rule's solver, and ``dropped``.
    """

    def __init__(
        self,
        rule: Rule,
        strategy: Strategy | None = None,
        *,
        loss_key: str = "train_loss",
        average: Sequence[str] = STATISTICS,
        clip: Literal["none", "median"] = "none",
        sketch: float | None = None,
        **options: Any,
    ) -> None:
        self.sketch = None if sketch is None else Sketch.of(sketch)
        check_sketch(self.sketch, rule)
        if clip not in ("none", "median"):
            raise ComityError(f"clip must be none | median, got {clip!r}")
        if strategy is not None and options:
            raise ComityError(f"{', '.join(sorted(options))} are options of the strategy; give them to it")
        self.rule, self.strategy = rule, strategy or FedAvg(**options)
        self.loss_key, self.average, self.clip = loss_key, tuple(average), clip
        self.outcome: Outcome | None = None
        """The rule's result of the last round."""
        self.conflict: ConflictRate | None = None
        self._sent: dict[str, np.ndarray[Any, Any]] = {}
        self._asked: Asked | None = None
        self._key = b""
        """Seed of the round's sketches."""

    def __repr__(self) -> str:
        return f"WithRule({self.rule!r}, {type(self.strategy).__name__})"

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the wrapped strategy's own loop, which may save models or stop early, with the steps of this class.

        The loop runs on an instance of a subclass of the strategy that has the steps of this class and shares all
        attributes of the wrapped strategy, which itself is not changed.
        """

        def step(name: str) -> property:  # a property takes precedence over an instance attribute of the same name
            return property(lambda _: getattr(self, name))

        wrapped = type(self.strategy)
        stand_in: Strategy = object.__new__(type(wrapped.__name__, (wrapped,), {name: step(name) for name in STEPS}))
        stand_in.__dict__ = vars(self.strategy)
        return stand_in.start(*args, **kwargs)

    def summary(self) -> None:
        log(INFO, "\t├──> Rule: %r", self.rule)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = {name: np.asarray(array.numpy()) for name, array in arrays.items()}
        self._key = key_bytes(0, "sketch", server_round)
        return self._with_asked_nodes(self.strategy.configure_train(server_round, arrays, config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._with_asked_nodes(self.strategy.configure_evaluate(server_round, arrays, config, grid))

    def _with_asked_nodes(self, messages: Iterable[Message]) -> list[Message]:
        """Record which nodes are asked."""
        messages = list(messages)
        self._asked = {message.metadata.dst_node_id: message.metadata.group_id for message in messages}
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        usable, failed, dropped, _ = sift(replies, self._weighted_by, asked=self._asked)
        _log_dropped("aggregate_evaluate", dropped)
        return self.strategy.aggregate_evaluate(server_round, [*usable, *failed])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        loss_key = self.loss_key if self.rule.needs_losses else None
        usable, failed, dropped, without_loss = sift(replies, self._weighted_by, self._sent, loss_key, self._asked)
        if without_loss and not usable:
            raise ComityError(
                f"{self.rule!r} needs every client's loss; node {min(without_loss)} sends no number as "
                f"{self.loss_key!r}: say with loss_key=... which metric it is"
            )
        self.outcome = self.conflict = None
        if usable:
            usable, more = self._combine(usable)
            dropped |= more
        _log_dropped("aggregate_train", dropped)
        arrays, metrics = self.strategy.aggregate_train(server_round, [*usable, *failed])
        return (None if arrays is None else self._as_sent(arrays)), self._with_findings(metrics, dropped)

    @property
    def _weighted_by(self) -> str:
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    def _combine(self, replies: list[Message]) -> tuple[list[Message], dict[int, str]]:
        """Replace the arrays of each reply by the rule's result, which is then also the strategy's mean.

        Also returns why the rule dropped replies, by node.
        """
        names = [name for name in arrays_of(replies[0]) if self._is_combined(name)]
        if not names:
            return replies, {}
        layout = Layout((name, self._sent[name].shape) for name in names)
        double = any(self._sent[name].dtype == np.float64 for name in names)
        base = layout.vector({name: torch.from_numpy(self._sent[name]) for name in names})
        base = base.to(torch.float64 if double else torch.float32)
        rows = []
        for reply in replies:
            arrays = arrays_of(reply)
            rows.append(layout.vector({name: tensor(arrays[name]) for name in names}).to(base).sub_(base))
        losses = [cast(float, metrics_of(reply).get(self.loss_key)) for reply in replies]
        with catch_warnings():
            simplefilter("ignore", DroppedWarning)  # Flower's log reports it
            updates = Updates(
                torch.stack(rows),
                sketch=self.sketch,
                key=self._key,
                layout=layout,
                sizes=[cast(float, metrics_of(reply)[self._weighted_by]) for reply in replies],
                losses=losses if self.rule.needs_losses else None,
                ids=[reply.metadata.src_node_id for reply in replies],
            )
            dropped = {int(node): why for node, why in updates.dropped.items()}
            replies = [reply for reply in replies if reply.metadata.src_node_id not in dropped]
            if not replies:
                return [], dropped
            updates = updates.clipped() if self.clip == "median" else updates
            self.outcome, self.conflict = self.rule.apply(updates), conflict_rate(updates)
        # the mean of equal float64 numbers is that number once it is float32 again
        combined = layout.state_dict((base + self.outcome.update).double())
        ready = {name: Array(value.numpy()) for name, value in combined.items()}
        return [_with_arrays(reply, ready) for reply in replies], dropped

    def _is_combined(self, name: str) -> bool:
        floating = name in self._sent and is_floating(self._sent[name])
        return floating and not any(fnmatch(name, pattern) for pattern in self.average)

    def _as_sent(self, arrays: ArrayRecord) -> ArrayRecord:
        """Give each array the type and shape that it was sent with; round a mean of integers."""
        record = ArrayRecord()
        for name, array in arrays.items():
            value = np.asarray(array.numpy())
            if name in self._sent:
                sent = self._sent[name]
                value = value if is_floating(sent) else np.rint(value)
                value = np.asarray(value, dtype=sent.dtype).reshape(sent.shape)
            record[name] = Array(value)
        return record

    def _with_findings(self, metrics: MetricRecord | None, dropped: Mapping[int, str]) -> MetricRecord | None:
        """The strategy's metrics and the rule's."""
        if metrics is None and not dropped:
            return None
        metrics = MetricRecord() if metrics is None else metrics
        metrics["dropped"] = len(dropped)
        outcome = self.outcome
        if outcome is None or self.conflict is None:
            return metrics
        metrics["conflict-rate"] = self.conflict.overall
        if self.sketch is not None:
            metrics["conflict-rate-error"] = self.conflict.error
        metrics["conflict-rate-by-layer"] = self.conflict.layers.tolist()
        metrics["residual"] = outcome.residual
        metrics["coefficient-nodes"] = [node if isinstance(node, int) else -1 for node in outcome.ids]
        coefficients = outcome.coefficients.tolist()
        if len(coefficients) == 1:
            metrics["coefficients"] = coefficients[0]
        else:
            for layer, row in zip(outcome.updates.layout.names, coefficients, strict=True):
                metrics[f"coefficients/{layer}"] = row
        return metrics


def _log_dropped(step: str, dropped: Mapping[int, str]) -> None:
    for node, why in dropped.items():
        log(WARNING, "%s: the reply of node %d is dropped: %s", step, node, why)


def _with_arrays(reply: Message, ready: Mapping[str, Array]) -> Message:
    ((key, record),) = reply.content.array_records.items()
    changed = ArrayRecord()
    for name, array in record.items():
        changed[name] = ready.get(name, array)
    other = copy(reply)
    other.content = RecordDict(dict(reply.content) | {key: changed})
    return other


@cache
def strategy_of(name: str) -> type[WithRule]:
    """The strategy class of the rule with this class name; it takes the options of the rule, `WithRule` and FedAvg."""
    rule = getattr(rules, name, None)
    if not (isinstance(rule, type) and issubclass(rule, Rule) and rule is not Rule):
        raise AttributeError(f"module 'comity.flower' has no attribute {name!r}")
    own = signature(rule).parameters
    ours = list(signature(WithRule.__init__).parameters.values())[2:]
    theirs = signature(FedAvg).parameters.keys() | {p.name for p in ours}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in own.values())  # TorchJD: each weighting has its own options

    def __init__(self: WithRule, *args: Any, **options: Any) -> None:
        mine = [name for name in options if name in own or (open_ended and name not in theirs)]
        WithRule.__init__(self, rule(*args, **{name: options.pop(name) for name in mine}), **options)

    shown = [p for p in own.values() if p.kind is not p.VAR_KEYWORD]
    shown += [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in ours]
    doc = (
        f"FedAvg, or any strategy, with {name} in place of the mean: ``{name}(strategy=FedAdam())``.\n\n{getdoc(rule)}"
    )
    members = {"__init__": __init__, "__signature__": Signature(shown), "__doc__": doc, "__module__": "comity.flower"}
    return type(name, (WithRule,), members)
