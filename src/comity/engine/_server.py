"""The server's side of a run: what it holds, and the round that every method goes through."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comity._layout import Layout
from comity._random import generator
from comity.engine._evaluation import summarise
from comity.engine._link import Link
from comity.methods import Method, Payload
from comity.rules import Outcome, Rule, ServerStep, Updates, conflict_rate, cosines

MOST = 256
"""Clients whose conflict is measured when the rule does not need it of all: the work grows with their square."""


class Server:
    """What the server half of a method sees. ``theta`` is the shared vector: parameters first, then buffers."""

    def __init__(
        self,
        method: Method,
        rule: Rule,
        link: Link,
        *,
        theta: Tensor,
        layout: Layout,
        seed: int,
        participation: float = 1.0,
        dropout: float = 0.0,
        lr: Callable[[int], float] = lambda _: math.nan,
        honest: Sequence[int] | None = None,
        server_step: ServerStep | None = None,
    ) -> None:
        self.method, self.rule, self.link = method, rule, link
        self.server_step = server_step or ServerStep()
        self.theta, self.layout, self.seed = theta, layout, seed
        self.participation, self.dropout, self._lr = participation, dropout, lr
        self.honest = list(link.clients if honest is None else honest)
        """Whose numbers count; the attackers' own do not."""
        self.store: dict[str, Tensor] = {}
        self.rule_states: dict[str, dict[str, Tensor]] = {}
        """What the rule remembers, by group."""
        self.step_states: dict[str, dict[str, Tensor]] = {}
        """What the server step remembers, by group."""
        self._fresh = dict(rule.state)
        self.outcome: Outcome | None = None
        """What the rule made of the last updates."""
        self.round = 0
        self.record: dict[str, Any] = {}

    @property
    def clients(self) -> list[int]:
        return list(self.link.clients)

    @property
    def lr(self) -> float:
        """This round's local learning rate."""
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

    def ask(self, verb: str, payloads: Mapping[int, Payload], lost: list[int] | None = None) -> dict[int, Payload]:
        """Answers by client. One that fails, or sends what is not finite, is left out and named in the record."""
        replies = self.link.ask(verb, payloads, self.round, lost or ())
        failures = dict(self.link.failures)
        for cid, reply in list(replies.items()):
            tensors = {name: value for name, value in reply.items() if isinstance(value, Tensor)}
            bad = [name for name, value in tensors.items() if not _finite(value)]
            sent = {name: value for name, value in payloads[cid].items() if isinstance(value, Tensor)}
            other = [name for name in tensors.keys() & sent.keys() if tensors[name].shape != sent[name].shape]
            if bad or other:
                failures[cid] = f"sent {', '.join(bad or other)} {'that is not finite' if bad else 'of another shape'}"
                del replies[cid]
        if failures:
            self.record.setdefault("failed", {}).update({str(cid): f"{verb}: {why}" for cid, why in failures.items()})
        return replies

    def aggregate(
        self,
        rows: Mapping[int, Tensor],
        replies: Mapping[int, Payload],
        *,
        base: Tensor | None = None,
        layout: Layout | None = None,
        rule: Rule | None = None,
        group: str = "",
    ) -> Tensor:
        """What the rule makes of the clients' vectors: ``base`` (by default ``theta``) plus the server's step.

        Buffers, which lie behind the parameters of the layout, are averaged by size whatever the rule. A method that
        aggregates several times a round (once a cluster) names each ``group``: the rule and the server step keep a
        state for each. The update of another ``rule`` than the run's own is added as it is, and leaves no trace in the
        record.
        """
        base, layout = self.theta if base is None else base, layout or self.layout
        if base.numel() == 0:
            return base
        cids = sorted(rows)
        sizes = torch.tensor([float(replies[cid]["size"]) for cid in cids], dtype=torch.float64)
        losses = [replies[cid].get("loss") for cid in cids]
        updates = Updates(
            [rows[cid][: layout.size] for cid in cids],
            base=base[: layout.size],
            layout=layout,
            sizes=sizes,
            losses=None if None in losses else torch.tensor(losses, dtype=torch.float64),
            ids=cids,
            threads=self.link.workers,
        )
        if rule is None:
            every = self.rule.needs_gram or len(cids) <= MOST
            if every:
                updates.measure()  # needed below in any case; the rule then makes no pass of its own
            self.rule.state = self.rule_states.setdefault(group, dict(self._fresh))
            self.outcome = outcome = self.rule.apply(updates)
            self.rule_states[group] = self.rule.state
            self.server_step.state = self.step_states.setdefault(group, {})
            step = self.server_step(outcome.update)
            self._note(group, updates if every else self._some(updates), outcome)
        else:
            step = rule.apply(updates).update
        buffers = torch.stack([rows[cid][layout.size :] for cid in cids]) - base[layout.size :]
        return base + torch.cat([step, (sizes / sizes.sum()).to(buffers) @ buffers])

    def _some(self, updates: Updates) -> Updates:
        """Those whose conflict is measured where it would be more work than all else for all."""
        chosen = torch.randperm(len(updates), generator=self.random("conflict"))[:MOST].sort().values.tolist()
        return updates.only(chosen)

    def _note(self, group: str, updates: Updates, outcome: Outcome) -> None:
        layers = [f"{group}/{name}" if group else name for name in updates.layout.names]
        rates = conflict_rate(updates).layers.tolist()
        conflict = self.record.setdefault("conflict", {"rate": 0.0, "layers": {}})
        conflict["layers"] |= dict(zip(layers, rates, strict=True))
        conflict["rate"] = sum(conflict["layers"].values()) / len(conflict["layers"])
        rule = self.record.setdefault("rule", {"residual": 0.0, "certificate": outcome.certificate, "stretch": {}})
        rule["residual"] = max(rule["residual"], outcome.residual)
        rule["stretch"] |= dict(zip(layers, outcome.stretch.tolist(), strict=True))
        weights = {"group": group, "ids": list(outcome.ids), "coefficients": outcome.coefficients.tolist()}
        self.record.setdefault("weights", []).append(weights)
        angles = {"group": group, "ids": list(updates.ids), "cosines": cosines(updates).tolist()}
        self.record.setdefault("cosines", []).append(angles)

    def step(self) -> dict[str, Any]:
        """One round; what happened in it."""
        self.round += 1
        self.outcome = None  # and with it the rows of the last round
        first = self.round == 1  # what was asked before it counts with it
        self.record = {"round": self.round} | (self.record if first else {})
        before = (0, 0) if first else _traffic(self.link)
        started = time.perf_counter()
        cohort = self.sample()
        lost = self.lose(cohort)
        replies = self.ask("fit", {cid: self.method.send(self, cid) for cid in cohort}, lost)
        trained = time.perf_counter()
        if replies:
            self.method.merge(self, replies)
        merged = time.perf_counter()

        losses = [reply["train_loss"] for reply in replies.values()]
        after = _traffic(self.link)
        self.record |= {
            "cohort": cohort,
            "lost": lost,
            "train/loss": sum(losses) / len(losses) if losses else math.nan,
            "bytes": {"down": after[0] - before[0], "up": after[1] - before[1]},
            "seconds": {"train": trained - started, "aggregate": merged - trained},
        }
        return self.record

    def evaluate(self, general: bool) -> tuple[dict[str, float], dict[str, list[Any]]]:
        """Every honest client's numbers as columns, and their summary. ``general`` asks for S-acc and G-acc too."""
        started = time.perf_counter()
        payloads = {cid: self.method.send(self, cid) | {"general": general} for cid in self.honest}
        replies = self.ask("evaluate", payloads)
        names = [name for name in next(iter(replies.values())) if all(name in reply for reply in replies.values())]
        columns: dict[str, list[Any]] = {"client": list(replies)}
        columns |= {name: [reply[name] for reply in replies.values()] for name in names}
        summary = {
            f"eval/{name}/{how}": value
            for name in names
            if not name.startswith("n_")
            for how, value in summarise(columns, name).items()
        }
        self.record.setdefault("seconds", {})["evaluate"] = time.perf_counter() - started
        self.record |= summary
        return summary, columns


def _finite(tensor: Tensor) -> bool:
    """As ``isfinite().all()``, ten times as fast."""
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).isfinite().all())


def cohort_size(clients: int, participation: float) -> int:
    return int(clients * participation + 0.5)


def _traffic(link: Link) -> tuple[int, int]:
    """Bytes down and up so far. Evaluation is ours, not the method's: it is left out."""
    counted = [traffic for verb, traffic in link.traffic.items() if verb != "evaluate"]
    return sum(down for down, _ in counted), sum(up for _, up in counted)
