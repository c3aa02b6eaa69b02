"""Flower strategies that combine updates by a rule, and leave everything else as it was."""

from collections.abc import Iterable, Sequence
from copy import copy
from fnmatch import fnmatch
from inspect import Signature, getdoc, signature
from logging import INFO, WARNING
from typing import Any, ClassVar, Literal
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
from comity.engine import brief, unlike_most
from comity.flower._wire import check_bytes, most_bytes, tensor
from comity.rules import (
    ConflictRate,
    DroppedWarning,
    Outcome,
    Rule,
    Sketch,
    behind,
    check_sketch,
    conflict_rate,
)

STATISTICS = ("*running_mean", "*running_var")
"""BatchNorm's statistics are averaged: a rule could make a variance negative."""

LARGEST_SIZE, LARGEST_METRIC = 2.0**53, 1e300
"""Numbers beyond these are no weights and no metrics: their sums would overflow."""

STEPS = ("configure_train", "aggregate_train", "aggregate_evaluate", "summary")
"""Steps of a strategy's loop that differ from the wrapped strategy's own."""


class WithRule(Strategy):
    """A strategy of Flower in which a rule's combination takes the place of the mean of the clients' arrays.

    ``WithRule(CALM(), FedAdam(fraction_train=0.5))`` samples, evaluates, logs and steps as FedAdam does. Without a
    strategy it is ``FedAvg``, and further options are FedAvg's: ``WithRule(CALM(), fraction_train=0.5)``.

    Each floating array is a layer under its own name, and goes through the rule as the difference to what was sent.
    Integer arrays (BatchNorm's counters) and those whose names match ``average`` (its statistics) are averaged by the
    wrapped strategy; integers stay integers. A reply that is not finite, or does not fit what was sent or what most
    others send, is dropped, named in the log and counted. ``clip="median"`` scales updates that are longer than the
    median length down to it, before the rule. Updates are weighted by the strategy's own key, ``num-examples`` by
    default; a rule that asks for losses gets the metric ``loss_key``, which should be that of the model as received.
    With ``sketch=1024`` the rule sees of each layer so many random measurements, or with a number below 1 as many as
    give cosines this standard error; the update is still the exact combination of what was sent.

    Each round's metrics have, beside the strategy's own: ``conflict-rate`` (share of conflicting pairs, mean over
    layers), ``conflict-rate-error`` where the rule sees sketches (the share that they are expected to judge wrongly),
    ``conflict-rate-by-layer``, ``coefficients`` (or ``coefficients/<layer>`` where the rule works by layer) with
    ``coefficient-nodes`` saying whose they are (−1: the rule's own last step), ``residual`` of the rule's solver, and
    ``dropped``.
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
        """What the rule made of the last updates."""
        self.conflict: ConflictRate | None = None
        self._sent: dict[str, np.ndarray[Any, Any]] = {}
        self._key = b""
        """What the round's sketches are drawn from."""

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
        self._key = key_bytes(0, "sketch", server_round)
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        answers, failed, dropped = self._sift(replies, arrays=False)
        _tell("aggregate_evaluate", dropped)
        return self.strategy.aggregate_evaluate(server_round, [*answers, *failed])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers, failed, dropped = self._sift(replies)
        self.outcome = self.conflict = None
        if answers:
            answers, lost = self._combine(answers)
            dropped |= lost
        _tell("aggregate_train", dropped)
        arrays, metrics = self.strategy.aggregate_train(server_round, [*answers, *failed])
        return (None if arrays is None else self._as_sent(arrays)), self._with_findings(metrics, dropped)

    # Which replies count.

    def _sift(
        self, replies: Iterable[Message], arrays: bool = True
    ) -> tuple[list[Message], list[Message], dict[int, str]]:
        """The replies that can be combined, ordered by node and not by arrival; errors; why others cannot, by node.

        Each is judged by itself and against what was sent; what is left must have the form that most of it has.
        """
        ordered = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        failed = [reply for reply in ordered if reply.has_error()]
        good: dict[int, Message] = {}
        dropped: dict[int, str] = {}
        for answer in (reply for reply in ordered if not reply.has_error()):
            node = answer.metadata.src_node_id
            try:
                wrong = self._wrong(answer, arrays)
            except Exception as error:  # whatever a stranger sent, it is this node's failure alone
                wrong = f"it cannot be read: {brief(error)}"
            if wrong is None:
                good[node] = answer
            else:
                dropped[node] = wrong
        if arrays and self.rule.needs_losses and good:
            silent = {node for node, answer in good.items() if not _is_number(_metric(answer, self.loss_key))}
            if len(silent) == len(good):
                raise ComityError(
                    f"{self.rule!r} needs every client's loss; node {min(silent)} sends no number as "
                    f"{self.loss_key!r}: say with loss_key=... which metric it is"
                )
            dropped |= dict.fromkeys(silent, f"its {self.loss_key} is no finite number")
            good = {node: answer for node, answer in good.items() if node not in silent}
        unlike = unlike_most({node: _form(answer, arrays) for node, answer in good.items()})
        dropped |= {node: f"it {brief(why)}" for node, why in unlike.items()}
        return [answer for node, answer in good.items() if node not in unlike], failed, dropped

    def _wrong(self, answer: Message, with_arrays: bool) -> str | None:
        """What is wrong with a reply by itself."""
        content = answer.content
        if with_arrays and len(content.array_records) != 1:
            return f"it has {len(content.array_records)} ArrayRecords, not one"
        if len(content.metric_records) != 1:
            return f"it has {len(content.metric_records)} MetricRecords, not one"
        size = _metric(answer, self._weighted_by)
        if not _is_number(size) or not 0 < size < LARGEST_SIZE:
            return f"its {self._weighted_by} is {brief(size)}"
        for name, value in next(iter(content.metric_records.values())).items():
            numbers = value if isinstance(value, list) else [value]
            if not all(abs(number) < LARGEST_METRIC or number != number for number in numbers):
                return f"its metric {brief(name)!r} is out of all bounds"
        if not with_arrays:
            return None
        (record,) = content.array_records.values()
        check_bytes(record, most_bytes(sum(array.nbytes for array in self._sent.values())))
        for name, array in record.items():
            sent, what = self._sent.get(name), f"array {brief(name)!r}"
            if sent is not None and tuple(array.shape) != sent.shape:
                return f"{what} has shape {brief(tuple(array.shape))}, not {sent.shape}"
            values = tensor(array)
            if sent is not None and values.is_floating_point() != np.issubdtype(sent.dtype, np.floating):
                return f"{what} is of {array.dtype}, not {sent.dtype}"
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                return f"{what} is not finite"
            if name.endswith("running_var") and bool((values < 0).any()):
                return f"{what} holds a variance below 0"
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
            updates = behind(
                self.sketch,
                self._key,
                rows,
                layout=layout,
                sizes=[float(_metric(answer, self._weighted_by)) for answer in answers],
                losses=[float(_metric(a, self.loss_key)) for a in answers] if self.rule.needs_losses else None,
                ids=[answer.metadata.src_node_id for answer in answers],
            )
            lost = {int(node): why for node, why in updates.dropped.items()}
            answers = [answer for answer in answers if answer.metadata.src_node_id not in lost]
            if answers:
                updates = updates.clipped() if self.clip == "median" else updates
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
        if self.sketch is not None:
            metrics["conflict-rate-error"] = self.conflict.error
        metrics["conflict-rate-by-layer"] = self.conflict.layers.tolist()
        metrics["residual"] = outcome.residual
        metrics["coefficient-nodes"] = [node if isinstance(node, int) else -1 for node in outcome.ids]
        if len(coefficients) == 1:
            metrics["coefficients"] = coefficients[0]
        else:
            for layer, row in zip(outcome.updates.layout.names, coefficients, strict=True):
                metrics[f"coefficients/{layer}"] = row
        return metrics


def _tell(step: str, dropped: dict[int, str]) -> None:
    for node, why in dropped.items():
        log(WARNING, "%s: the reply of node %d is dropped: %s", step, node, why)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < LARGEST_METRIC


def _form(answer: Message, arrays: bool) -> dict[str, str]:
    """What a reply looks like: its records, its arrays with their shapes, its metrics with their lengths."""
    content = answer.content
    form = {f"record {key!r}": type(record).__name__ for key, record in content.items()}
    for record in content.metric_records.values():
        form |= {f"metric {key!r}": str(len(v)) if isinstance(v, list) else "number" for key, v in record.items()}
    if arrays:
        form |= {f"array {name!r}": str(tuple(array.shape)) for name, array in _arrays(answer).items()}
    return form


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
            others = list(signature(WithRule.__init__).parameters.values())[2:]
            others = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in others]
            cls.rule_class = rule
            cls.__signature__ = Signature([*own, *others])  # type: ignore[attr-defined]
            example = f"``{cls.__name__}(fraction_train=0.5)``, ``{cls.__name__}(strategy=FedAdam())``"
            cls.__doc__ = (
                f"FedAvg, or any strategy, with {rule.__name__} in place of the mean: {example}.\n\n{getdoc(rule)}"
            )

    def __init__(self, *args: Any, **options: Any) -> None:
        accepted = signature(self.rule_class).parameters
        own = {name: options.pop(name) for name in list(options) if name in accepted}
        if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):  # TorchJD: its weightings have options of their own
            others = signature(FedAvg).parameters.keys() | signature(WithRule.__init__).parameters.keys()
            own |= {name: options.pop(name) for name in list(options) if name not in others}
        super().__init__(self.rule_class(*args, **own), **options)


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
class CRAFT(RuleStrategy, rule=rules.CRAFT): ...
class MaxFL(RuleStrategy, rule=rules.MaxFL): ...
class UPGrad(RuleStrategy, rule=rules.UPGrad): ...
class CAGrad(RuleStrategy, rule=rules.CAGrad): ...
class NashMTL(RuleStrategy, rule=rules.NashMTL): ...
class AlignedMTL(RuleStrategy, rule=rules.AlignedMTL): ...
class IMTLG(RuleStrategy, rule=rules.IMTLG): ...
class Krum(RuleStrategy, rule=rules.Krum): ...
class GeometricMedian(RuleStrategy, rule=rules.GeometricMedian): ...
class CenteredClipping(RuleStrategy, rule=rules.CenteredClipping): ...
class TorchJD(RuleStrategy, rule=rules.TorchJD): ...
class Auto(RuleStrategy, rule=rules.Auto): ...
# fmt: on
