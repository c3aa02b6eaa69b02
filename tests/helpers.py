"""What several tests need."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from comity.engine import Client, Run, Site
from comity.rules import ClientUpdates, Mean, Outcome

TINY: dict[str, Any] = {
    "data": {"name": "synthetic", "samples": 24, "classes": 4, "size": 8, "noise": 0.5},
    "model": {"name": "mlp", "widths": (16,)},
    "clients": 5,
    "rounds": 3,
    "batch_size": 8,
    "lr": 0.1,
    "workers": 1,
    "reference": "none",
}
"""Options of a run that takes a tenth of a second."""


def client_of(site: Site, cid: int = 0, round: int = 1) -> Client:
    """A client at work, as the engine would make it for its first round."""
    return site.client(cid, site.model(), round=round)


def keeps(run: Run) -> dict[int, dict[str, Tensor]]:
    """What the method has each client keep."""
    return {cid: state.method for cid, state in sorted(run.server.link.states().items())}


def used(run: Run) -> list[Tensor]:
    """The models that the clients use now."""
    return list(run.server.export().values())


def bits(run: Run) -> dict[str, Tensor]:
    """Everything a run leaves behind, as tensors."""
    everything = {"theta": run.server.theta} | run.server.store
    for group, state in run.server.rule_states.items():
        everything |= {f"rule/{group}/{name}": tensor for name, tensor in state.items()}
    for cid, state in run.server.link.states().items():
        everything |= {f"{cid}/{name}": tensor for name, tensor in state.flat().items()}
    return everything


def assert_same(a: Run, b: Run) -> None:
    """The same bits and the same numbers."""
    one, other = bits(a), bits(b)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
    assert a.columns == b.columns


def unmoving_rule() -> tuple[Mean, list[tuple[str, ...]]]:
    """A rule that leaves all it is given as it was, and a list into which it writes the layers that it was given."""
    seen: list[tuple[str, ...]] = []

    class Watched(Mean):
        def apply(self, updates: ClientUpdates) -> Outcome:
            seen.append(updates.layout.names)
            outcome = super().apply(updates)
            return replace(outcome, update=torch.zeros_like(outcome.update))

    return Watched(), seen
