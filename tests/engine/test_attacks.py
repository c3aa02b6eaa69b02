from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from comity.engine import run
from comity.engine._attacks import Attack
from comity.methods import Reply
from helpers import keeps


def test_attacks_are_what_they_say() -> None:
    received, reply = torch.tensor([1.0, 2.0, 9.0]), Reply(theta=torch.tensor([1.5, 1.0, 8.0]), size=3)
    scaled = Attack("scale", frozenset({4}), 0).on(reply, received, 2, 4, 1)
    assert scaled.theta.tolist() == [51.0, -98.0, 8.0]
    assert scaled.size == 3
    many = Reply(theta=torch.zeros(10_000), size=3)
    noise = Attack("gaussian", frozenset({4}), 0).on(many, None, 10_000, 4, 1).theta
    assert abs(float(noise.mean())) < 0.05
    assert float(noise.std()) == pytest.approx(1, abs=0.05)
    assert Attack("gaussian", frozenset({4}), 0).on(reply, received, 2, 3, 1) is reply
    assert reply.theta.tolist() == [1.5, 1.0, 8.0]


@pytest.mark.parametrize("attack", ["gaussian", "scale"])
def test_the_attack_reaches_the_average_and_honest_clients_alone_are_counted(
    tiny: dict[str, Any], attack: Literal["gaussian", "scale"]
) -> None:
    options = tiny | {"clients": 10, "rounds": 1}
    clean, attacked = run(**options), run(**options, attack=attack)
    (liar,) = attacked.result.malicious
    assert attacked.columns["client"] == [cid for cid in range(10) if cid != liar]
    assert clean.result.malicious == []

    sizes = [len(client.train) for client in clean.federation.clients]
    received, trained = clean.site.initial, keeps(run(**options, method="Local"))[liar]["personal"]
    reply = Reply(theta=trained, size=1)
    lie = attacked.site.attack.on(reply, received, len(trained), liar, 1).theta
    wanted = clean.server.theta + sizes[liar] / sum(sizes) * (lie - trained)
    torch.testing.assert_close(attacked.server.theta, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(run(**options, attack=attack).server.theta, attacked.server.theta)


def test_harm_under_attack_is_measured_for_honest_clients(tiny: dict[str, Any], tmp_path: Path) -> None:
    done = run(**(tiny | {"clients": 10, "reference": "auto"}), attack="scale", out=tmp_path / "x")
    (liar,) = done.result.malicious
    assert done.result.transfer is not None
    assert done.result.transfer.gain.keys() == set(range(10)) - {liar}
