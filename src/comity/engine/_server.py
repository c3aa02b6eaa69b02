"""The server side of a run: its state, and the steps of a round."""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._random import generator
from comity.config import Config
from comity.engine._admission import brief
from comity.engine._aggregation import MOST_MEASURED, Aggregation, record_against, record_step
from comity.engine._checkpoint import Saved
from comity.engine._client import ClientState
from comity.engine._evaluation import Export, columns_of, summaries
from comity.engine._extension import MakeUpdates
from comity.engine._link import Link
from comity.engine._site import Site
from comity.methods import Combined, Payload, Question, Reply
from comity.results import Columns, Cosines, RoundRecord, Seconds, Traffic, Weights
from comity.rules import Outcome, Rule, ServerStep, Updates, advice_on_products

SUSPICIOUS_SIZE = 10
"""A reported size above this multiple of the median gives a warning."""


class Server:
    """The server; ``comity.methods.Server`` is the part that methods may use."""

    def __init__(self, config: Config, site: Site, rule: Rule, link: Link) -> None:
        self.config, self.method, self.rule, self.link = config, site.method, rule, link
        self.verbs, self.extensions, self.metrics = site.verbs, site.extensions, site.metrics
        model = site.model()
        self.theta, self.layout = model.read("shared"), model.layout("shared")
        self.variances = model.variances("shared")
        """Slices of theta with values that must not be negative."""
        self.server_step = ServerStep(config.server_lr, config.server_momentum)
        self.seed, self._rate = site.seed, site.training.rate
        self.excluded = frozenset[int]().union(*(extension.excluded for extension in self.extensions))
        """Clients left out of the reported scores."""
        self.scored = [cid for cid in link.clients if cid not in self.excluded]
        self.store: dict[str, Tensor] = {}
        self.rule_states: dict[str, dict[str, Tensor]] = {}
        """The rule's state, by group."""
        self.step_states: dict[str, dict[str, Tensor]] = {}
        """The server step's state, by group."""
        self._fresh = dict(rule.state)
        self._aggregated = False
        """Whether this round's replies passed through ``aggregate``."""
        self.round = 0
        self.record = RoundRecord(round=1)
        """The newest round's record. Questions of a method before the first round are recorded in the first one."""
        self.weights: list[Weights] = []
        """The rule's coefficients in the newest round, by group."""
        self.cosines: list[Cosines] = []
        """Cosines between the updates of the newest round, by group."""

    @property
    def clients(self) -> list[int]:
        return list(self.link.clients)

    @property
    def advice(self) -> str:
        """Advice for the user before the first round."""
        if any(extension.estimates for extension in self.extensions):
            return ""
        clients = cohort_size(len(self.link.clients), self.config.participation)
        return advice_on_products(self.rule, clients, len(self.layout))

    @property
    def lr(self) -> float:
        return self._rate(self.round)

    def random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, "server", purpose, self.round)

    def restore(self, saved: Saved) -> None:
        """Continue from a checkpoint, including the clients' states."""
        self.round, self.theta = saved.round, saved.tensors["server/theta"]
        self.link.traffic.update(saved.traffic)
        clients: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.tensors.items():
            match name.split("/"):
                case "client", cid, *path:
                    kept = clients.setdefault(int(cid), {})
                    if path:
                        kept["/".join(path)] = tensor
                case "server", "store", *path:
                    self.store["/".join(path)] = tensor
                case "server", ("rule" | "step") as kind, group, *path:
                    states = self.rule_states if kind == "rule" else self.step_states
                    states.setdefault(group, {})["/".join(path)] = tensor
        self.link.restore({cid: ClientState.of(kept) for cid, kept in clients.items()})
        self.link.resume_at(saved.place)

    def serving(self, link: Link, round: int) -> "Server":
        """A copy that serves other clients; its changes are discarded."""
        newcomers_server = copy.copy(self)
        newcomers_server.link, newcomers_server.round = link, round
        newcomers_server.store, newcomers_server.record = dict(self.store), RoundRecord(round=round)
        return newcomers_server

    def serve(self, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Let clients fit one more round by themselves; nothing is merged."""
        self.round += 1
        return self.link.ask(self.verbs["fit"], messages, self.round, shared=self.theta)

    # A round.

    def step(self) -> RoundRecord:
        """Do one round and return its record."""
        # 1. Sample the clients, and those that will drop out after training.
        self.round += 1
        if self.round > 1:
            self.record = RoundRecord(round=self.round)
        self.weights, self.cosines = [], []
        before = self._traffic() if self.round > 1 else (0, 0)  # the first round includes what was asked before it
        started = time.perf_counter()
        cohort = self.sample()
        dropped = self.choose_dropouts(cohort)

        # 2. Let them fit.
        replies = self.fit(cohort, dropped)
        trained = time.perf_counter()

        # 3. Update the state from their replies.
        if replies:
            self._merge(replies)
        merged = time.perf_counter()

        losses = [reply.train_loss for reply in replies.values() if not math.isnan(reply.train_loss)]
        after = self._traffic()
        self.record.cohort, self.record.lost = cohort, dropped
        self.record.train_loss = sum(losses) / len(losses) if losses else math.nan
        self.record.bytes = Traffic(down=after[0] - before[0], up=after[1] - before[1])
        self.record.seconds = Seconds(train=trained - started, aggregate=merged - trained)
        return self.record

    def sample(self) -> list[int]:
        """Sample this round's clients."""
        clients = self.clients
        order = torch.randperm(len(clients), generator=self.random("sample"))
        return sorted(clients[i] for i in order[: cohort_size(len(clients), self.config.participation)].tolist())

    def choose_dropouts(self, cohort: list[int]) -> list[int]:
        """Choose the clients that drop out after training."""
        chance = torch.rand(len(cohort), generator=self.random("dropout"))
        return [cid for cid, p in zip(cohort, chance.tolist(), strict=True) if p < self.config.dropout]

    def fit(self, cohort: Sequence[int], dropped: Sequence[int] = ()) -> dict[int, Reply]:
        """Let these clients fit the method's messages; returns the replies of clients that do not drop out."""
        messages = {cid: self.method.send(self, cid) for cid in cohort}
        replies: dict[int, Reply] = self.ask_clients("fit", messages, dropped)
        for extension in self.extensions:
            replies = extension.replies(self, replies, messages)
        for cid in list(replies):
            if (why := self._objection(cid, replies[cid])) is not None:
                self.record.failed[cid] = f"fit: {brief(why)}"
                del replies[cid]
        usual = median([reply.size for reply in replies.values()] or [0])
        self.record.warnings += [
            f"client {cid} says that it has {reply.size:,} samples; the median is {usual:,.0f}"
            for cid, reply in replies.items()
            if reply.size > SUSPICIOUS_SIZE * usual
        ]
        return replies

    def _objection(self, cid: int, reply: Payload) -> str | None:
        """Reason why the model or the method rejects a well-formed reply."""
        if not isinstance(reply, Reply):  # the shared part stays with the client
            return None
        for name, place in self.variances.items():
            if bool((reply.theta[place] < 0).any()):
                return f"sent theta with a negative {name}"
        try:
            return self.method.objection(self, cid, reply)
        except Exception as error:  # untrusted input that the method did not expect
            return f"sent a reply that the method cannot use: {type(error).__name__}: {error}"

    def _merge(self, replies: dict[int, Reply]) -> None:
        """Let the method merge the replies. A failure stops the run, because the state may be half updated."""
        self._aggregated = False
        try:
            self.method.merge(self, replies)
        except ComityError:
            raise
        except Exception as error:
            raise ComityError(
                f"method {type(self.method).__name__} could not merge the replies of round {self.round}: "
                f"{type(error).__name__}: {brief(error)}"
            ) from error
        if not self._aggregated and self.theta.numel():
            unused = dict.fromkeys(extension.unused(self) for extension in self.extensions)
            self.record.warnings += [warning for warning in unused if warning is not None]

    # Questions.

    def ask(self, verb: Callable[[Any, Any], Any], questions: Mapping[int, Any]) -> dict[int, Any]:
        if verb.__name__ not in self.verbs:
            raise ComityError(f"{verb.__name__} is no verb of {type(self.method).__name__}; declare it with @verb")
        replies = self.ask_clients(verb.__name__, questions)
        if not replies and self.round == 0:  # a method cannot continue without its answers from before the first round
            raise ComityError(f"no client gave a usable answer to {verb.__name__!r}: {self.first_failure}")
        return replies

    def ask_clients(self, verb: str, questions: Mapping[int, Payload], dropped: Sequence[int] = ()) -> dict[int, Any]:
        """Answers by client. A client that fails, or whose reply is unusable, is left out and recorded."""
        replies = self.link.ask(self.verbs[verb], questions, self.round, dropped, self.theta)
        self.record.failed |= {cid: f"{verb}: {why}" for cid, why in self.link.failures.items()}
        self.record.warnings += self.link.warnings
        return replies

    @property
    def first_failure(self) -> str:
        failed = self.record.failed
        return f"client {min(failed)}: {failed[min(failed)]}" if failed else "no client was asked"

    def questions(self, cids: Sequence[int], **about: Any) -> dict[int, Question]:
        """The method's message to each of these clients, with the engine's fields."""
        return {cid: replace(self.method.send(self, cid), **about) for cid in cids}

    def evaluate(self, general: bool, by_class: bool = True) -> Columns:
        """Every scored client's metrics as columns; their summary is recorded.

        ``general`` also measures S-acc and G-acc, ``by_class`` balanced accuracy and AUC.
        """
        started = time.perf_counter()
        scores = self.ask_clients("evaluate", self.questions(self.scored, general=general, by_class=by_class))
        if not scores:
            raise ComityError(f"no client could be evaluated in round {self.round}; {self.first_failure}")
        columns = columns_of(scores, self.metrics)
        self.record.metrics = summaries(columns, self.metrics)
        self.record.seconds.evaluate = time.perf_counter() - started
        return columns

    def export(self) -> dict[int, Tensor]:
        """Every client's own whole model."""
        models: dict[int, Export] = self.ask_clients("export", self.questions(self.clients))
        return {cid: export.model for cid, export in models.items()}

    # The rule.

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
        if not base.numel():
            return Combined(base, None)
        self._aggregated = True
        is_whole = base is self.theta and layout is self.layout and rows is None
        for extension in self.extensions:
            combined = extension.combine(self, replies, is_whole and rule is None and not group)
            if combined is not None:
                return combined
        aggregation = Aggregation.of(replies, base, layout, rows, is_whole)
        updates = self.updates(aggregation)
        if rule is None:
            outcome = self._apply_rule(updates, group)
            step = self.take_step(outcome.update, group)
        else:
            outcome = rule.apply(updates)
            step = outcome.update
        dropped = {cid: why for cid, why in updates.dropped.items() if isinstance(cid, int)}
        self.record.failed |= {cid: f"fit: its update is left out: {why}" for cid, why in dropped.items()}
        if not len(updates):
            return Combined(aggregation.base, outcome)
        return Combined(aggregation.moved(step, dropped), outcome)

    def updates(self, aggregation: Aggregation) -> Updates:
        """The updates for a rule."""
        make = self.extended(aggregation, Updates)
        size = aggregation.layout.size
        return make(
            [vector[:size] for vector in aggregation.vectors],
            base=aggregation.base[:size],
            layout=aggregation.layout,
            sizes=aggregation.sizes,
            losses=aggregation.losses,
            ids=aggregation.cids,
            threads=self.link.workers,
        )

    def extended(self, aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        """The function that builds updates, wrapped by all extensions."""
        for extension in self.extensions:
            make = extension.updates(self, aggregation, make)
        return make

    def _apply_rule(self, updates: Updates, group: str) -> Outcome:
        """Apply the run's own rule and record its step."""
        exact = updates.cosine_error == 0
        every = len(updates.members) <= MOST_MEASURED or (self.rule.needs_gram and exact)
        if every:
            # needed below anyway; the rule then needs no pass of its own
            updates.measure(mean=not self.rule.needs_gram)
        outcome: Outcome = self.with_state(group, self.rule.apply, updates)
        record_step(self, group, updates if every else self._some(updates), outcome)
        if words := self.rule.caution_once(outcome):
            self.record.warnings.append(words)
        if every or not exact:
            record_against(self, updates, outcome)
        return outcome

    def with_state(self, group: str, apply: Callable[[Updates], Any], updates: Updates) -> Any:
        """Call the rule with its state for this group."""
        self.rule.state = self.rule_states.setdefault(group, dict(self._fresh))
        result = apply(updates)
        self.rule_states[group] = self.rule.state
        return result

    def take_step(self, update: Tensor, group: str) -> Tensor:
        """The server's step for an update: learning rate and momentum."""
        self.server_step.state = self.step_states.setdefault(group, {})
        return self.server_step(update)

    def _some(self, updates: Updates) -> Updates:
        """A random subset: measuring the conflict of all pairs would cost more than the round itself."""
        chosen = torch.randperm(len(updates), generator=self.random("conflict"))[:MOST_MEASURED].sort().values.tolist()
        return updates.only(chosen, exact=True)

    def _traffic(self) -> tuple[int, int]:
        """Bytes down and up so far, without evaluation."""
        counted = [each for verb, each in self.link.traffic.items() if not self._judges(verb)]
        return sum(down for down, _ in counted), sum(up for _, up in counted)

    def _judges(self, verb: str) -> bool:
        return verb in self.verbs and self.verbs[verb].judges


def cohort_size(clients: int, participation: float) -> int:
    return int(clients * participation + 0.5)
