"""The server's side of a run: what it holds, and the round that every method goes through."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._random import generator, key_bytes
from comity.engine._admission import brief
from comity.engine._attacks import Attack
from comity.engine._evaluation import columns_of, summarise
from comity.engine._link import Link
from comity.engine._verbs import JUDGING_VERBS, Export, Scores, StepLosses, verbs_of
from comity.methods import Combined, Message, Method, Payload, Reply
from comity.results import (
    METRICS,
    Against,
    Columns,
    Conflict,
    Cosines,
    RoundRecord,
    RuleNote,
    Seconds,
    Traffic,
    Verdict,
    Weights,
)
from comity.rules import (
    Outcome,
    Rule,
    ServerStep,
    Sketch,
    TriedSteps,
    Updates,
    against,
    capped,
    conflict_rate,
    cosines,
    loss_change,
    make_updates,
)

MOST = 256
"""Clients whose conflict is measured when the rule does not need it of all: the work grows with their square."""
OUT_OF_LINE = 10
"""A declared size of more than so many times the median is warned of."""
MOST_COSINES = 64
"""Clients whose cosines are noted: what is written grows with their square."""
MOST_NAMED = 64
"""Clients whom a step points against that are noted by name."""


class Server:
    """What the server half of a method sees; ``comity.methods.Server`` says what a method may use of it."""

    def __init__(
        self,
        method: Method[Any, Any],
        rule: Rule,
        link: Link,
        *,
        theta: Tensor,
        layout: Layout,
        seed: int,
        variances: Mapping[str, slice] | None = None,
        participation: float = 1.0,
        dropout: float = 0.0,
        lr: Callable[[int], float] = lambda _: math.nan,
        attack: Attack | None = None,
        server_step: ServerStep | None = None,
        max_share: float = 1.0,
        clip_updates: Literal["none", "median"] = "none",
        sketch: Sketch | None = None,
    ) -> None:
        self.method, self.rule, self.link = method, rule, link
        self.server_step = server_step or ServerStep()
        self.max_share, self.clip_updates, self.sketch = max_share, clip_updates, sketch
        self.verbs = verbs_of(method, rule.tries_steps)
        self.theta, self.layout, self.seed = theta, layout, seed
        self.participation, self.dropout, self._lr = participation, dropout, lr
        self.variances = variances or {}
        """Places in theta of what must not be negative."""
        self.attack = attack or Attack("none", frozenset(), seed)
        self.honest = [cid for cid in link.clients if cid not in self.attack.malicious]
        """Whose scores count; the attackers' own do not."""
        self.store: dict[str, Tensor] = {}
        self.rule_states: dict[str, dict[str, Tensor]] = {}
        """What the rule remembers, by group."""
        self.step_states: dict[str, dict[str, Tensor]] = {}
        """What the server step remembers, by group."""
        self._fresh = dict(rule.state)
        self._bounded = False
        """Whether this round's replies went through ``aggregate``, and so through its bounds."""
        self.round = 0
        self.record = RoundRecord(round=1)
        """The newest round. What a method asks before the first round is recorded with that one."""
        self.weights: list[Weights] = []
        """The rule's coefficients in the newest round, by group."""
        self.cosines: list[Cosines] = []
        """The cosines between the updates of the newest round, by group."""

    @property
    def clients(self) -> list[int]:
        return list(self.link.clients)

    @property
    def lr(self) -> float:
        return self._lr(self.round)

    def random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, "server", purpose, self.round)

    def sample(self) -> list[int]:
        """This round's clients."""
        clients = self.clients
        order = torch.randperm(len(clients), generator=self.random("sample"))
        return sorted(clients[i] for i in order[: cohort_size(len(clients), self.participation)].tolist())

    def lose(self, cohort: list[int]) -> list[int]:
        """Those that will drop out after training."""
        chance = torch.rand(len(cohort), generator=self.random("dropout"))
        return [cid for cid, p in zip(cohort, chance.tolist(), strict=True) if p < self.dropout]

    def ask(self, verb: Callable[[Any, Any], Any], questions: Mapping[int, Any]) -> dict[int, Any]:
        if verb.__name__ not in self.verbs:
            raise ComityError(f"{verb.__name__} is no verb of {type(self.method).__name__}; declare it with @verb")
        replies = self._ask(verb.__name__, questions)
        if not replies and self.round == 0:  # what a method asks before the first round it cannot do without
            raise ComityError(f"no client gave a usable answer to {verb.__name__!r}: {_first(self.record.failed)}")
        return replies

    def _ask(self, verb: str, questions: Mapping[int, Payload], lost: Sequence[int] = ()) -> dict[int, Any]:
        """Answers by client. One that fails, or whose reply cannot be used, is left out and named in the record."""
        replies = self.link.ask(self.verbs[verb], questions, self.round, lost, self.theta)
        self.record.failed |= {cid: f"{verb}: {why}" for cid, why in self.link.failures.items()}
        self.record.warnings += self.link.warnings
        return replies

    def aggregate(
        self,
        replies: Mapping[int, Reply],
        rows: Mapping[int, Tensor] | None = None,
        *,
        base: Tensor | None = None,
        layout: Layout | None = None,
        rule: Rule | None = None,
        group: str = "",
    ) -> Combined:
        base, layout = self.theta if base is None else base, layout or self.layout
        if base.numel() == 0:
            return Combined(base, None)
        cids = sorted(replies)
        vectors = [replies[cid].theta if rows is None else rows[cid] for cid in cids]
        sizes = torch.tensor([float(replies[cid].size) for cid in cids], dtype=torch.float64)
        sizes = capped(sizes, self.max_share)
        losses = [replies[cid].loss for cid in cids]

        # Neither function knows the updates, which know the trial: in a circle they would outlive the round.
        def moved(step: Tensor, dropped: Collection[object]) -> Tensor:
            """``base`` after a step, with buffers averaged by size over those whose updates are used."""
            used = [place for place, cid in enumerate(cids) if cid not in dropped]
            buffers = torch.stack([vectors[place][layout.size :] for place in used]) - base[layout.size :]
            average = (sizes[used] / sizes[used].sum()).to(buffers) @ buffers
            return base + torch.cat([step, average])

        def trial(steps: Sequence[Tensor], factors: Sequence[float], dropped: Collection[object]) -> TriedSteps:
            if base is not self.theta or layout is not self.layout or rows is not None:
                raise ComityError(f"{type(self.method).__name__} combines several things a round: no step can be tried")
            ends = torch.stack([moved(self.server_step.lr * step, dropped) for step in steps])
            return self._try_steps(cids, ends, factors)

        updates = make_updates(
            self.sketch,
            key_bytes(self.seed, "sketch", self.round),
            [vector[: layout.size] for vector in vectors],
            base=base[: layout.size],
            layout=layout,
            sizes=sizes,
            losses=None if None in losses else torch.tensor(losses, dtype=torch.float64),
            ids=cids,
            threads=self.link.workers,
            trial=trial,
        )
        if self.clip_updates == "median":
            updates = updates.clipped(self.link.hold)
        self._bounded = True
        if rule is None:
            every = len(cids) <= MOST or (self.rule.needs_gram and self.sketch is None)
            if every:
                # needed below in any case; the rule then makes no pass of its own
                updates.measure(mean=not self.rule.needs_gram)
            self.rule.state = self.rule_states.setdefault(group, dict(self._fresh))
            outcome = self.rule.apply(updates)
            self.rule_states[group] = self.rule.state
            self.server_step.state = self.step_states.setdefault(group, {})
            step = self.server_step(outcome.update)
            self._note(group, updates if every else self._some(updates), outcome)
            if every or self.sketch is not None:
                self._note_against(updates, outcome)
        else:
            outcome = rule.apply(updates)
            step = outcome.update
        dropped = {cid: why for cid, why in updates.dropped.items() if isinstance(cid, int)}
        self.record.failed |= {cid: f"fit: its update is left out: {why}" for cid, why in dropped.items()}
        if not len(updates):
            return Combined(base, outcome)
        return Combined(moved(step, dropped), outcome)

    def _try_steps(self, cids: Sequence[int], ends: Tensor, factors: Sequence[float]) -> TriedSteps:
        """What multiples of the steps to each of ``ends`` do to the losses of these clients."""
        questions = {}
        for cid in cids:
            message = self.method.send(self, cid)
            if not isinstance(message, Message):
                raise ComityError(f"{type(self.method).__name__} sends no shared part: no step can be tried")
            questions[cid] = replace(message, theta=ends, factors=torch.tensor(factors, dtype=torch.float64))
        replies: list[StepLosses] = list(self._ask("try_steps", questions).values())
        if not replies:
            raise ComityError(f"no client tried a step in round {self.round}; {_first(self.record.failed)}")
        return TriedSteps(
            before=torch.tensor([reply.before for reply in replies], dtype=torch.float64),
            after=torch.stack([reply.after for reply in replies]),
            samples=torch.tensor([reply.samples for reply in replies]),
        )

    def _some(self, updates: Updates) -> Updates:
        """A random subset: to measure the conflict of all pairs would cost more than the round itself."""
        chosen = torch.randperm(len(updates), generator=self.random("conflict"))[:MOST].sort().values.tolist()
        return updates.only(chosen)

    def _note(self, group: str, updates: Updates, outcome: Outcome) -> None:
        record, round = self.record, self.round
        layers = [f"{group}/{name}" if group else name for name in updates.layout.names]
        conflict = record.conflict = record.conflict or Conflict()
        rates = conflict_rate(updates)
        conflict.layers |= dict(zip(layers, rates.layers.tolist(), strict=True))
        conflict.error = max(conflict.error, rates.error)
        conflict.rate = sum(conflict.layers.values()) / len(conflict.layers)
        change = loss_change(updates, self.lr)
        conflict.loss_change += change.total
        conflict.loss_change_by_others += change.others
        rule = record.rule = record.rule or RuleNote(certificate=outcome.certificate)
        rule.residual = max(rule.residual, outcome.residual)
        rule.stretch |= dict(zip(layers, outcome.stretch.tolist(), strict=True))
        prefix = f"{group}/" if group else ""
        rule.choice |= {prefix + name: weight for name, weight in self.rule.choice.items()}
        rule.verdicts |= {prefix + name: Verdict(change=c, harmed=h) for name, (c, h) in self.rule.verdicts.items()}
        multipliers = outcome.notes.get("lambda")
        self.weights.append(
            Weights(
                round=round,
                group=group,
                ids=list(outcome.ids),
                coefficients=outcome.coefficients.tolist(),
                multipliers=None if multipliers is None else multipliers.tolist(),
            )
        )
        some = torch.randperm(len(updates), generator=self.random("cosines"))[:MOST_COSINES].sort().values
        ids, angles = [updates.ids[i] for i in some.tolist()], cosines(updates)[some][:, some].tolist()
        error = 0.0 if self.sketch is None else self.sketch.error()
        self.cosines.append(Cosines(round=round, group=group, ids=ids, cosines=angles, error=error))

    def _note_against(self, updates: Updates, outcome: Outcome) -> None:
        """Count the clients whose loss the plain mean and the rule's step increase; groups have no client in common."""
        noted, honest = self.record.against or Against(), set(self.honest)
        self.record.against = noted
        noted.clients += len(honest.intersection(updates.ids))
        mean, rule = (
            [cid for cid in against(rows, coefficients) if isinstance(cid, int) and cid in honest]
            for rows, coefficients in ((updates, updates.shares), (outcome.updates, outcome.coefficients))
        )
        noted.mean, noted.rule = noted.mean + len(mean), noted.rule + len(rule)
        noted.mean_ids, noted.rule_ids = (noted.mean_ids + mean)[:MOST_NAMED], (noted.rule_ids + rule)[:MOST_NAMED]

    def step(self) -> RoundRecord:
        """One round; what happened in it."""
        # 1. Choose the clients, and who of them will be lost after training.
        self.round += 1
        if self.round > 1:
            self.record = RoundRecord(round=self.round)
        self.weights, self.cosines = [], []
        before = _traffic(self.link) if self.round > 1 else (0, 0)  # the first round counts what was asked before it
        started = time.perf_counter()
        cohort = self.sample()
        lost = self.lose(cohort)

        # 2. Have them fit.
        replies = self.fit(cohort, lost)
        trained = time.perf_counter()

        # 3. Make the new state of what they sent.
        if replies:
            self._merge(replies)
        merged = time.perf_counter()

        losses = [reply.train_loss for reply in replies.values() if not math.isnan(reply.train_loss)]
        after = _traffic(self.link)
        self.record.cohort, self.record.lost = cohort, lost
        self.record.train_loss = sum(losses) / len(losses) if losses else math.nan
        self.record.bytes = Traffic(down=after[0] - before[0], up=after[1] - before[1])
        self.record.seconds = Seconds(train=trained - started, aggregate=merged - trained)
        return self.record

    def fit(self, cohort: Sequence[int], lost: Sequence[int] = ()) -> dict[int, Reply]:
        """Have these clients fit what the method sends them; their replies, but for those that are lost."""
        messages = {cid: self.method.send(self, cid) for cid in cohort}
        replies = self.attack.collude(self._ask("fit", messages, lost), messages, self.layout.size)
        for cid in list(replies):
            if (why := self._objection(cid, replies[cid])) is not None:
                self.record.failed[cid] = f"fit: {brief(why)}"
                del replies[cid]
        usual = median([reply.size for reply in replies.values()] or [0])
        self.record.warnings += [
            f"client {cid} says that it has {reply.size:,} samples; the median is {usual:,.0f}"
            for cid, reply in replies.items()
            if reply.size > OUT_OF_LINE * usual
        ]
        return replies

    def _objection(self, cid: int, reply: Reply) -> str | None:
        """What the model or the method has against a reply that is well-formed."""
        for name, place in self.variances.items():
            if bool((reply.theta[place] < 0).any()):
                return f"sent theta with a negative {name}"
        try:
            return self.method.objection(self, cid, reply)
        except Exception as error:  # it tripped over what a stranger sent
            return f"sent what the method cannot judge: {type(error).__name__}: {error}"

    def _merge(self, replies: dict[int, Reply]) -> None:
        """The method's new state. Where it fails nobody can know whose reply it was, or what is half done."""
        self._bounded = False
        try:
            self.method.merge(self, replies)
        except ComityError:
            raise
        except Exception as error:
            raise ComityError(
                f"method {type(self.method).__name__} could not merge the replies of round {self.round}: "
                f"{type(error).__name__}: {brief(error)}"
            ) from error
        asked = self.max_share < 1 or self.clip_updates != "none" or self.sketch is not None
        if asked and not self._bounded and self.theta.numel():
            self.record.warnings.append(
                f"method {type(self.method).__name__} uses no rule: max_share, clip_updates and sketch change nothing"
            )

    def evaluate(self, general: bool, by_class: bool = True) -> Columns:
        """Every honest client's scores as columns; their summary goes into the record.

        ``general`` asks for S-acc and G-acc too, ``by_class`` for balanced accuracy and AUC.
        """
        started = time.perf_counter()
        sent = {cid: self.method.send(self, cid) for cid in self.honest}
        questions = {cid: replace(message, general=general, by_class=by_class) for cid, message in sent.items()}
        scores: dict[int, Scores] = self._ask("evaluate", questions)
        if not scores:
            raise ComityError(f"no client could be evaluated in round {self.round}; {_first(self.record.failed)}")
        columns = columns_of(scores)
        self.record.metrics = {name: summarise(columns, name) for name in METRICS if name in columns}
        self.record.seconds.evaluate = time.perf_counter() - started
        return columns

    def weigh(self) -> None:
        """Have every honest client's guard choose what the client uses from now on."""
        self._ask("weigh", {cid: self.method.send(self, cid) for cid in self.honest})

    def export(self) -> dict[int, Tensor]:
        """Every client's own model, whole."""
        models: dict[int, Export] = self._ask("export", {cid: self.method.send(self, cid) for cid in self.clients})
        return {cid: export.model for cid, export in models.items()}


def _first(failed: Mapping[int, str]) -> str:
    return f"client {min(failed)}: {failed[min(failed)]}" if failed else "nobody was asked"


def cohort_size(clients: int, participation: float) -> int:
    return int(clients * participation + 0.5)


def _traffic(link: Link) -> tuple[int, int]:
    """Bytes down and up so far. Evaluation is ours, not the method's: it is left out."""
    counted = [traffic for verb, traffic in link.traffic.items() if verb not in JUDGING_VERBS]
    return sum(down for down, _ in counted), sum(up for _, up in counted)
