"""Flower strategies that combine updates by a rule, and leave everything else as it was."""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from fnmatch import fnmatch
from inspect import Signature, getdoc, signature
from logging import INFO, WARNING
from typing import Any, ClassVar
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

STATISTICS = ("*running_mean", "*running_var")
"""BatchNorm's statistics are averaged: a rule could make a variance negative."""

STEPS = ("configure_train", "aggregate_train", "summary")
"""Steps of a strategy's loop that differ from the wrapped strategy's own."""


class WithRule(Strategy):
    """A strategy of Flower in which a rule's combination takes the place of the mean of the clients' arrays.

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

    def __repr__(self) -> str:
        return f"WithRule({self.rule!r}, {type(self.strategy).__name__})"

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the wrapped strategy's own loop, which may save models or stop early, with the steps of this class.

        A loop calls the steps of the object that it runs on, so to call ``self.strategy.start`` would leave the rule
        out; and it may call ``super().start``, which works on instances of its own class only. It is therefore run on
        an instance of a subclass that has the steps of this class and shares all attributes of the wrapped strategy,
        which itself is not changed.
        """

        def step(name: str) -> property:  # a property comes before an attribute of the same name of the instance
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
        return self.strategy.configure_train(server_round, arrays, config, grid)

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
        arrays, metrics = self.strategy.aggregate_train(server_round, [*answers, *failed])
        return (None if arrays is None else self._as_sent(arrays)), self._with_findings(metrics, dropped)

    # Which replies count.

    def _sift(self, answers: list[Message]) -> tuple[list[Message], dict[int, str]]:
        """The replies that can be combined, ordered by node and not by arrival, and why the others cannot, by node."""
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
        """The replies with the rule's result in place of their own arrays, so that the strategy's mean is this result.

        Also why replies were dropped, by node.
        """
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

    def _with_findings(self, metrics: MetricRecord | None, dropped: dict[int, str]) -> MetricRecord | None:
        """The strategy's metrics and the rule's."""
        outcome = self.outcome
        if metrics is None and not dropped:
            return None
        metrics = MetricRecord() if metrics is None else metrics
        metrics["dropped"] = len(dropped)
        if outcome is None or self.conflict is None:
            return metrics
        coefficients = outcome.coefficients.tolist()
        metrics["conflict-rate"] = self.conflict.overall
        metrics["conflict-rate-by-layer"] = self.conflict.layers.tolist()
        metrics["residual"] = outcome.residual
        metrics["coefficient-nodes"] = [int(node) for node in outcome.ids]
        if len(coefficients) == 1:
            metrics["coefficients"] = coefficients[0]
        else:
            for layer, row in zip(outcome.updates.layout.names, coefficients, strict=True):
                metrics[f"coefficients/{layer}"] = row
        return metrics


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


class RuleStrategy(WithRule):
    """A strategy that is made from the options of its rule, those of `WithRule`, and FedAvg's."""

    rule_class: ClassVar[type[Rule]]

    def __init_subclass__(cls, rule: type[Rule] | None = None) -> None:
        super().__init_subclass__()
        if rule is not None:
            own = [p for p in signature(rule).parameters.values() if p.kind is not p.VAR_KEYWORD]
            others = [p for p in signature(RuleStrategy.__init__).parameters.values() if p.name not in ("self", "args")]
            cls.rule_class = rule
            cls.__signature__ = Signature([*own, *others])  # type: ignore[attr-defined]
            example = f"``{cls.__name__}(fraction_train=0.5)``, ``{cls.__name__}(strategy=FedAdam())``"
            cls.__doc__ = (
                f"FedAvg, or any strategy, with {rule.__name__} in place of the mean: {example}.\n\n{getdoc(rule)}"
            )

    def __init__(
        self,
        *args: Any,
        strategy: Strategy | None = None,
        loss_key: str = "train_loss",
        average: Sequence[str] = STATISTICS,
        **options: Any,
    ) -> None:
        accepted = signature(self.rule_class).parameters
        own = {name: options.pop(name) for name in list(options) if name in accepted}
        if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):  # TorchJD: its weightings have options of their own
            fedavg = signature(FedAvg).parameters
            own |= {name: options.pop(name) for name in list(options) if name not in fedavg}
        super().__init__(self.rule_class(*args, **own), strategy, loss_key=loss_key, average=average, **options)


# fmt: off
class Mean(RuleStrategy, rule=rules.Mean): ...
class Projection(RuleStrategy, rule=rules.Projection): ...
class ConFREE(RuleStrategy, rule=rules.ConFREE): ...
class ReleasedConFREE(RuleStrategy, rule=rules.ReleasedConFREE): ...
class CALM(RuleStrategy, rule=rules.CALM): ...
class MGDA(RuleStrategy, rule=rules.MGDA): ...
class FedMGDAPlus(RuleStrategy, rule=rules.FedMGDAPlus): ...
class FedFV(RuleStrategy, rule=rules.FedFV): ...
class FairDescent(RuleStrategy, rule=rules.FairDescent): ...
class TorchJD(RuleStrategy, rule=rules.TorchJD): ...
# fmt: on
