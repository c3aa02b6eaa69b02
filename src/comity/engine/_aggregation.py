"""Apply a rule to the updates of a round's clients, and record the step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from comity._layout import Layout
from comity.results import Against, Conflict, Cosines, RuleNote, Verdict, Weights
from comity.rules import Outcome, Updates, against, conflict_rate, cosines, loss_change

if TYPE_CHECKING:
    from comity.engine._server import Server

MOST_MEASURED = 256
"""Number of clients whose conflict is measured if the rule does not need it: the work grows with its square."""
MOST_COSINES = 64
"""Number of clients whose cosines are recorded: the file grows with its square."""
MOST_NAMED = 64
"""Number of clients whose loss a step increases that are recorded by id."""


@dataclass(eq=False)
class Aggregation:
    """Input of a rule: one vector per client, from a common base."""

    cids: list[int]
    vectors: Sequence[Tensor]
    """Parameters first, then buffers."""
    base: Tensor
    layout: Layout
    """Layout of the parameters."""
    sizes: Tensor
    losses: Tensor | None
    is_whole: bool
    """Whether this is everything that clients share, not one of several parts that a method combines."""

    @classmethod
    def of(
        cls,
        replies: Mapping[int, Any],
        base: Tensor,
        layout: Layout,
        rows: Mapping[int, Tensor] | None = None,
        is_whole: bool = True,
    ) -> "Aggregation":
        """Create from ``rows``, or else from each reply's ``theta``; sizes and losses come from the replies."""
        cids = sorted(replies)
        vectors = [getattr(replies[cid], "theta", base) if rows is None else rows[cid] for cid in cids]
        sizes = torch.tensor([float(replies[cid].size) for cid in cids], dtype=torch.float64)
        losses = [replies[cid].loss for cid in cids]
        known = None if None in losses else torch.tensor(losses, dtype=torch.float64)
        return cls(cids, vectors, base, layout, sizes, known, is_whole)

    def moved(self, step: Tensor, dropped: Collection[object]) -> Tensor:
        """``base`` after a step, with buffers averaged by size over clients whose updates are used."""
        used = [place for place, cid in enumerate(self.cids) if cid not in dropped]
        size, base = self.layout.size, self.base
        buffers = torch.stack([self.vectors[place][size:] for place in used]) - base[size:]
        average = (self.sizes[used] / self.sizes[used].sum()).to(buffers) @ buffers
        return base + torch.cat([step, average])


def record_step(server: "Server", group: str, updates: Updates, outcome: Outcome) -> None:
    """Record conflict, certificate, coefficients and cosines of one step."""
    record, round = server.record, server.round
    layers = [f"{group}/{name}" if group else name for name in updates.layout.names]
    conflict = record.conflict = record.conflict or Conflict()
    rates = conflict_rate(updates)
    conflict.layers |= dict(zip(layers, rates.layers.tolist(), strict=True))
    conflict.error = max(conflict.error, rates.error)
    conflict.rate = sum(conflict.layers.values()) / len(conflict.layers)
    change = loss_change(updates, server.lr)
    conflict.loss_change += change.total
    conflict.loss_change_by_others += change.others
    rule = record.rule = record.rule or RuleNote(certificate=outcome.certificate)
    rule.residual = max(rule.residual, outcome.residual)
    rule.length_ratio |= dict(zip(layers, outcome.length_ratio.tolist(), strict=True))
    prefix = f"{group}/" if group else ""
    rule.choice |= {prefix + name: weight for name, weight in server.rule.choice.items()}
    rule.verdicts |= {prefix + name: Verdict(change=c, harmed=h) for name, (c, h) in server.rule.verdicts.items()}
    multipliers = outcome.notes.get("lambda")
    server.weights.append(
        Weights(
            round=round,
            group=group,
            ids=list(outcome.ids),
            coefficients=outcome.coefficients.tolist(),
            multipliers=None if multipliers is None else multipliers.tolist(),
        )
    )
    some = torch.randperm(len(updates), generator=server.random("cosines"))[:MOST_COSINES].sort().values
    ids, angles = [updates.ids[i] for i in some.tolist()], cosines(updates)[some][:, some].tolist()
    server.cosines.append(Cosines(round=round, group=group, ids=ids, cosines=angles, error=updates.cosine_error))


def record_against(server: "Server", updates: Updates, outcome: Outcome) -> None:
    """Record clients whose loss the plain mean or the rule's step increases; groups share no clients."""
    noted, scored = server.record.against or Against(), set(server.scored)
    server.record.against = noted
    noted.clients += len(scored.intersection(updates.ids))
    mean, rule = (
        [cid for cid in against(rows, coefficients) if isinstance(cid, int) and cid in scored]
        for rows, coefficients in ((updates, updates.shares), (outcome.updates, outcome.coefficients))
    )
    noted.mean, noted.rule = noted.mean + len(mean), noted.rule + len(rule)
    noted.mean_ids, noted.rule_ids = (noted.mean_ids + mean)[:MOST_NAMED], (noted.rule_ids + rule)[:MOST_NAMED]
