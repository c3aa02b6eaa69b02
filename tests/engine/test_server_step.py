"""The server's learning rate and momentum, on top of any rule."""

from pathlib import Path

import pytest
import torch

from comity import ComityError, Config
from comity.engine import run
from comity.rules import ClientUpdates, Outcome
from helpers import Options, assert_reproducible, build


@pytest.mark.parametrize("rule", ["Mean", "CALM", "FedFV"])
def test_steps_are_the_rules_updates_with_rate_and_momentum(tiny: Options, rule: str) -> None:
    _, server = build(Config(**tiny, rule=rule, server_lr=0.5, server_momentum=0.9))
    combined: list[torch.Tensor] = []
    apply = server.rule.apply

    def watched(updates: ClientUpdates) -> Outcome:
        outcome = apply(updates)
        combined.append(outcome.update)
        return outcome

    server.rule.apply = watched  # type: ignore[method-assign]
    velocity = 0.0
    for _ in range(3):
        before = server.theta
        server.step()
        velocity = 0.9 * velocity + combined[-1]
        torch.testing.assert_close(server.theta - before, 0.5 * velocity, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["FedAvg", "FedRoD", "IFCA"])
def test_the_same_bits_after_resume(tiny: Options, tmp_path: Path, method: str) -> None:
    """IFCA aggregates once a cluster, each with a momentum of its own."""
    options = tiny | {"method": method, "rule": "ConFREE", "server_momentum": 0.7, "server_lr": 0.8}
    straight = assert_reproducible(options, tmp_path / "cut")
    states = straight.server.step_states
    assert all("velocity" in state for state in states.values())
    assert (len(states) > 1) == (method == "IFCA")


def test_by_default_nothing_is_changed_or_remembered(tiny: Options) -> None:
    plain = run(**tiny)
    assert not plain.server.step_states[""]
    assert not torch.equal(plain.server.theta, run(**tiny, server_lr=0.5).server.theta)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"server_lr": 0}, "server_lr must be above 0"),
        ({"server_momentum": 1}, "server_momentum must be at least 0 and below 1"),
        ({"method": "FedCALM", "server_lr": 0.5}, "method FedCALM brings its own rule; leave server_lr out, got 0.5"),
        ({"method": "FedPG", "server_momentum": 0.5}, "method FedPG brings its own rule; leave server_momentum out"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_rejected(tiny: Options, options: Options, why: str) -> None:
    with pytest.raises(ComityError, match=why):
        run(**tiny, **options)
