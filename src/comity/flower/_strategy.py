"""Flower strategies that combine updates by a rule, and leave everything else as it was."""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from fnmatch import fnmatch
from logging import INFO, WARNING
from typing import Any
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
from comity.flower._wire import tensor
from comity.rules import ConflictRate, DroppedWarning, Outcome, Rule, Updates, conflict_rate
from comity.rules._rule import Length, Scope
from comity.rules.confree import Rescale
from comity.rules.projection import Order

STATISTICS = ("*running_mean", "*running_var")
"""BatchNorm's: a mean by size is what they are for, and a rule could make a variance negative."""

STEPS = ("configure_train", "aggregate_train", "summary")


class WithRule(Strategy):
    """A strategy of Flower whose mean of the clients' arrays is a rule's combination of their updates instead.

    ``WithRule(CALM(), FedAdam(fraction_train=0.5))`` samples, evaluates, logs and steps as FedAdam does. Without a
    strategy it is ``FedAvg``, and further options are FedAvg's: ``WithRule(CALM(), fraction_train=0.5)``.

    Each floating array is a layer under its own name, and goes through the rule as the difference to what was sent.
    Integer arrays (BatchNorm's counters) and those whose names match ``average`` (its statistics) are averaged by the
    wrapped strategy; integers stay integers. A reply that is not finite, or does not fit what was sent, is dropped,
    named in the log and counted. Updates are weighted by the strategy's own key, ``num-examples`` by default; a rule
    that asks for losses gets the metric ``loss_key``, which should be that of the model as received.

    Each round's metrics have, beside the strategy's own: ``conflict-rate`` (share of conflicting pairs, mean over
    layers), ``conflict-rate-by-layer``, ``coefficients`` (or ``coefficients/<layer>`` where the rule works by layer)
    with ``coefficient-nodes`` saying whose they are, ``residual`` of the rule's solver, and ``dropped``.
    """

    def __init__(
        self,
        rule: Rule,
        strategy: Strategy | None = None,
        *,
        loss_key: str = "train_loss",
        average: Sequence[str] = STATISTICS,
        **options: Any,
    ) -> None:
        if strategy is not None and options:
            raise ComityError(f"{', '.join(sorted(options))} are options of the strategy; give them to it")
        self.rule, self.strategy = rule, strategy or FedAvg(**options)
        self.loss_key, self.average = loss_key, tuple(average)
        self.outcome: Outcome | None = None
        """What the rule made of the last updates."""
        self.conflict: ConflictRate | None = None
        self._sent: dict[str, np.ndarray[Any, Any]] = {}
        # The wrapped strategy's own steps, whatever stands in for them while it runs.
        self._own = {step: getattr(self.strategy, step) for step in STEPS}

    def __repr__(self) -> str:
        return f"WithRule({self.rule!r}, {type(self.strategy).__name__})"

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """The wrapped strategy's own loop (a user's may save models or stop early) with our steps in it."""
        for step in STEPS:
            setattr(self.strategy, step, getattr(self, step))
        try:
            return self.strategy.start(*args, **kwargs)
        finally:
            for step in STEPS:
                delattr(self.strategy, step)

    def summary(self) -> None:
        log(INFO, "\t├──> Rule: %r", self.rule)
        self._own["summary"]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = {name: np.asarray(array.numpy()) for name, array in arrays.items()}
        messages: Iterable[Message] = self._own["configure_train"](server_round, arrays, config, grid)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        answers, dropped = self._sift([reply for reply in replies if not reply.has_error()])
        self.outcome = self.conflict = None
        if answers:
            answers, lost = self._combine(answers)
            dropped |= lost
        for node, why in dropped.items():
            log(WARNING, "aggregate_train: the reply of node %d is dropped: %s", node, why)
        arrays, metrics = self._own["aggregate_train"](server_round, [*answers, *failed])
        return (None if arrays is None else self._as_sent(arrays)), self._told(metrics, dropped)

    # Which replies count.

    def _sift(self, answers: list[Message]) -> tuple[list[Message], dict[int, str]]:
        """Replies that can be combined, by node so that the order of arrival does not matter; why the others cannot."""
        good, dropped = [], {}
        sets = Counter(frozenset(_arrays(answer)) for answer in answers)
        usual = sets.most_common(1)[0][0] if sets else frozenset()
        for answer in sorted(answers, key=lambda answer: answer.metadata.src_node_id):
            wrong = self._wrong(answer, usual)
            if wrong is None:
                good.append(answer)
            else:
                dropped[answer.metadata.src_node_id] = wrong
        return good, dropped

    def _wrong(self, answer: Message, usual: frozenset[str]) -> str | None:
        if len(answer.content.array_records) != 1:
            return f"it has {len(answer.content.array_records)} ArrayRecords, not one"
        arrays = _arrays(answer)
        if arrays.keys() != usual:
            return f"array {min(arrays.keys() ^ usual)!r} is not in both it and the others"
        for name, array in arrays.items():
            sent = self._sent.get(name)
            if sent is not None and tuple(array.shape) != sent.shape:
                return f"array {name!r} has shape {tuple(array.shape)}, not {sent.shape}"
            if not np.isfinite(array.numpy()).all():
                return f"array {name!r} is not finite"
        size = _metric(answer, self._weighted_by)
        if not isinstance(size, (int, float)) or not 0 < size < float("inf"):
            return f"its {self._weighted_by} is {size}"
        return None

    @property
    def _weighted_by(self) -> str:
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    # The rule's part.

    def _combine(self, answers: list[Message]) -> tuple[list[Message], dict[int, str]]:
        """The replies with what the rule made of them in place of each one's own arrays: their mean is the rule's."""
        names = [name for name in _arrays(answers[0]) if self._is_combined(name)]
        if not names:
            return answers, {}
        layout = Layout((name, self._sent[name].shape) for name in names)
        double = any(self._sent[name].dtype == np.float64 for name in names)
        base = self._vector(layout, self._sent).to(torch.float64 if double else torch.float32)
        rows = torch.stack([self._vector(layout, _arrays(answer)).to(base).sub_(base) for answer in answers])
        with catch_warnings():
            simplefilter("ignore", DroppedWarning)  # it is in the log, where Flower's users look
            updates = Updates(
                rows,
                layout=layout,
                sizes=[float(_metric(answer, self._weighted_by)) for answer in answers],
                losses=[self._loss(answer) for answer in answers] if self.rule.needs_losses else None,
                ids=[answer.metadata.src_node_id for answer in answers],
            )
            lost = {int(node): why for node, why in updates.dropped.items()}
            answers = [answer for answer in answers if answer.metadata.src_node_id not in lost]
            if answers:
                self.outcome, self.conflict = self.rule.apply(updates), conflict_rate(updates)
        if self.outcome is None:
            return [], lost
        # In float64 the mean of equal numbers is that number, once it is float32 again.
        combined = layout.state_dict((base + self.outcome.update).double())
        ready = {name: Array(value.numpy()) for name, value in combined.items()}
        return [_with_arrays(answer, ready) for answer in answers], lost

    def _is_combined(self, name: str) -> bool:
        floating = name in self._sent and np.issubdtype(self._sent[name].dtype, np.floating)
        return floating and not any(fnmatch(name, pattern) for pattern in self.average)

    def _vector(self, layout: Layout, arrays: Any) -> torch.Tensor:
        parts = {}
        for name in layout.names:
            value = arrays[name]
            parts[name] = tensor(value) if isinstance(value, Array) else torch.from_numpy(value)
        return layout.vector(parts)

    def _loss(self, answer: Message) -> float:
        loss = _metric(answer, self.loss_key)
        if not isinstance(loss, (int, float)):
            raise ComityError(
                f"{self.rule!r} needs every client's loss; node {answer.metadata.src_node_id} sends no number as "
                f"{self.loss_key!r}: say with loss_key=... which metric it is"
            )
        return float(loss)

    # What comes out.

    def _as_sent(self, arrays: ArrayRecord) -> ArrayRecord:
        """Each array with the type and shape that it was sent with; a mean of integers is rounded."""
        record = ArrayRecord()
        for name, array in arrays.items():
            value, sent = np.asarray(array.numpy()), self._sent.get(name)
            if sent is not None:
                if not np.issubdtype(sent.dtype, np.floating):
                    value = np.rint(value)
                value = np.asarray(value, dtype=sent.dtype).reshape(sent.shape)
            record[name] = Array(value)
        return record

    def _told(self, metrics: MetricRecord | None, dropped: dict[int, str]) -> MetricRecord | None:
        outcome = self.outcome
        if metrics is None and not dropped:
            return None
        told = MetricRecord() if metrics is None else metrics
        told["dropped"] = len(dropped)
        if outcome is None or self.conflict is None:
            return told
        coefficients = outcome.coefficients.tolist()
        told["conflict-rate"] = self.conflict.overall
        told["conflict-rate-by-layer"] = self.conflict.layers.tolist()
        told["residual"] = outcome.residual
        told["coefficient-nodes"] = [int(node) for node in outcome.ids]
        if len(coefficients) == 1:
            told["coefficients"] = coefficients[0]
        else:
            for layer, row in zip(outcome.updates.layout.names, coefficients, strict=True):
                told[f"coefficients/{layer}"] = row
        return told


def _arrays(answer: Message) -> dict[str, Array]:
    return {name: array for record in answer.content.array_records.values() for name, array in record.items()}


def _metric(answer: Message, key: str) -> Any:
    return next((record[key] for record in answer.content.metric_records.values() if key in record), None)


def _with_arrays(answer: Message, ready: dict[str, Array]) -> Message:
    content = RecordDict(dict(answer.content))
    for key, record in answer.content.array_records.items():
        changed = ArrayRecord()
        for name, array in record.items():
            changed[name] = ready.get(name, array)
        content[key] = changed
    other = copy(answer)
    other.content = content
    return other


# One class for each rule that an app is likely to want: the rule's options, then FedAvg's or a strategy.


class ConFREE(WithRule):
    """FedAvg, or any strategy, with ConFREE in place of the mean: ``ConFREE(c=0.5, fraction_train=0.5)``."""

    def __init__(
        self,
        c: float = 0.5,
        *,
        scope: Scope = "model",
        order: Order = "simultaneous",
        rescale: Rescale = "none",
        seed: int = 0,
        length: Length = "own",
        strategy: Strategy | None = None,
        **options: Any,
    ) -> None:
        rule = rules.ConFREE(c, scope=scope, order=order, rescale=rescale, seed=seed, length=length)
        super().__init__(rule, strategy, **options)


class CALM(WithRule):
    """FedAvg, or any strategy, with CALM in place of the mean: ``CALM(eps=0.1, scale="layer", fraction_train=0.5)``."""

    def __init__(
        self,
        eps: float = 0.1,
        C: float = 10.0,
        *,
        scope: Scope = "layer",
        scale: Any = "none",
        length: Length = "own",
        strategy: Strategy | None = None,
        **options: Any,
    ) -> None:
        super().__init__(rules.CALM(eps, C, scope=scope, scale=scale, length=length), strategy, **options)


class FedMGDAPlus(WithRule):
    """FedAvg, or any strategy, with FedMGDA+ in place of the mean."""

    def __init__(
        self,
        eps: float = 0.1,
        *,
        lr: float = 1.0,
        norm_restore: bool = False,
        length: Length = "own",
        strategy: Strategy | None = None,
        **options: Any,
    ) -> None:
        rule = rules.FedMGDAPlus(eps, lr=lr, norm_restore=norm_restore, length=length)
        super().__init__(rule, strategy, **options)


class FedFV(WithRule):
    """FedAvg, or any strategy, with FedFV in place of the mean; it needs losses, see ``loss_key``."""

    def __init__(
        self,
        alpha: float = 0.1,
        tau: int = 1,
        *,
        length: Length = "own",
        loss_key: str = "train_loss",
        strategy: Strategy | None = None,
        **options: Any,
    ) -> None:
        super().__init__(rules.FedFV(alpha, tau, length=length), strategy, loss_key=loss_key, **options)
