from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from msgspec.structs import replace

from comity.compare import LoadedStudy
from comity.engine import run
from comity.engine._attacks import Attack
from comity.methods import Message, Reply
from comity.results import DamagedRun, LoadedRun, RunFolder
from helpers import assert_same, keeps


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


def test_inner_sends_minus_twice_the_honest_mean() -> None:
    received = Message(theta=torch.tensor([1.0, 2.0, 9.0]))
    steps = torch.tensor([[1.0, 3.0, 0.0], [3.0, 3.0, 1.0], [7.0, 7.0, 7.0]])
    replies = {cid: Reply(theta=received.theta + step, size=3) for cid, step in enumerate(steps)}
    sent = dict.fromkeys(replies, received)
    attack = Attack("inner", frozenset({2}), 0)
    uploaded = attack.collude(replies, sent, 2)
    assert (uploaded[2].theta - received.theta).tolist() == pytest.approx([-4.0, -6.0, 7.0])
    assert uploaded[0] is replies[0]
    assert attack.on(replies[2], received.theta, 2, 2, 1) is replies[2]
    assert attack.collude({2: replies[2]}, sent, 2) == {2: replies[2]}  # no honest client to imitate


def test_two_fifths_that_collude_turn_the_mean_around(tiny: dict[str, Any]) -> None:
    options = tiny | {"clients": 10, "rounds": 1, "malicious": 0.4}
    clean, attacked = run(**options), run(**options, rule={"name": "Mean", "by": "uniform"}, attack="inner")
    assert len(attacked.result.malicious) == 4
    honest = [cid for cid in range(10) if cid not in attacked.result.malicious]
    alone = keeps(run(**options, method="Local"))
    mean = torch.stack([alone[cid]["personal"] for cid in honest]).mean(0) - clean.site.initial
    wanted = clean.site.initial + (0.6 - 0.4 * 2) * mean
    torch.testing.assert_close(attacked.server.theta, wanted, rtol=1e-4, atol=1e-5)
    assert_same(attacked, run(**(options | {"workers": 3}), rule={"name": "Mean", "by": "uniform"}, attack="inner"))


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


def test_the_folder_of_an_attacked_run_is_sound(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Honest clients alone are judged, and a table has the run as it has any other."""
    done = run(**tiny, attack="scale", malicious=0.2, out=tmp_path / "runs" / "x")
    (liar,) = done.result.malicious
    assert RunFolder(tmp_path / "runs" / "x").result().malicious == [liar]
    study = LoadedStudy(tmp_path / "runs")
    assert not study.damaged
    assert study.runs
    RunFolder(tmp_path / "runs" / "x").add_result(replace(done.result, malicious=[int(done.columns["client"][0])]))
    with pytest.raises(DamagedRun, match="a malicious client is judged"):
        _ = LoadedRun(tmp_path / "runs" / "x").result
