"""Malicious clients: what they upload, what it does to the step, and that only honest clients are scored."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from comity._random import generator
from comity.compare import LoadedStudy
from comity.engine import run
from comity.extras.attacks import Attack
from comity.methods import Message, Reply
from comity.results import DamagedRun, LoadedRun, RunFolder
from helpers import Options, assert_same, keeps

RECEIVED = torch.tensor([1.0, 2.0, 9.0])  # two parameters and a buffer, which attacks leave as it is


def attack(kind: str, size: int = 2, malicious: int = 2) -> tuple[Attack, Any, Any]:
    """An attack of one client, and what it needs to know of the site and the server."""
    made = Attack(kind=kind, share=0.5)
    made.excluded, made.seed = frozenset({malicious}), 0  # type: ignore[misc]
    return made, SimpleNamespace(parameters=size), SimpleNamespace(layout=SimpleNamespace(size=size))


def uploaded(kind: str, reply: Reply, cid: int = 2, size: int = 2) -> Reply:
    """What leaves a client after it fitted."""
    made, site, _ = attack(kind, size)
    client: Any = SimpleNamespace(id=cid, round=1, origin=None)
    return made.after_fit(site, client, Message(theta=RECEIVED), reply)


def test_attacks_are_what_they_say() -> None:
    reply = Reply(theta=torch.tensor([1.5, 1.0, 8.0]), size=3)
    assert uploaded("scale", reply).theta.tolist() == [51.0, -98.0, 8.0]
    assert uploaded("scale", reply).size == 3
    noise = uploaded("gaussian", Reply(theta=torch.zeros(10_001), size=3), size=10_000).theta
    assert abs(float(noise.mean())) < 0.05
    assert float(noise.std()) == pytest.approx(1, abs=0.05)
    assert noise[-1] == 0
    assert uploaded("gaussian", reply, cid=1) is reply
    assert reply.theta.tolist() == [1.5, 1.0, 8.0]


def test_inner_sends_minus_twice_the_honest_mean() -> None:
    steps = torch.tensor([[1.0, 3.0, 0.0], [3.0, 3.0, 1.0], [7.0, 7.0, 7.0]])
    replies = {cid: Reply(theta=RECEIVED + step, size=3) for cid, step in enumerate(steps)}
    sent = dict.fromkeys(replies, Message(theta=RECEIVED))
    made, _, server = attack("inner")
    told = made.replies(server, replies, sent)
    assert (told[2].theta - RECEIVED).tolist() == pytest.approx([-4.0, -6.0, 7.0])
    assert told[0] is replies[0]
    assert uploaded("inner", replies[2]) is replies[2]
    assert made.replies(server, {2: replies[2]}, sent) == {2: replies[2]}  # no honest client to imitate


def test_two_fifths_that_collude_turn_the_mean_around(tiny: Options) -> None:
    options = tiny | {"clients": 10, "rounds": 1, "malicious": 0.4}
    alone = run(**options, method="Local")
    options |= {"rule": {"name": "Mean", "by": "uniform"}, "attack": "inner"}
    attacked = run(**options)
    assert_same(attacked, run(**(options | {"workers": 3})))
    assert len(attacked.result.malicious) == 4
    honest = [keeps(alone)[cid]["personal"] for cid in range(10) if cid not in attacked.result.malicious]
    start = attacked.site.initial
    wanted = start + (0.6 - 0.4 * 2) * (torch.stack(honest).mean(0) - start)
    torch.testing.assert_close(attacked.server.theta, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "scale", "flip"])
def test_the_attack_reaches_the_average_and_only_honest_clients_are_scored(tiny: Options, kind: str) -> None:
    options = tiny | {"clients": 10, "rounds": 1}
    clean, attacked = run(**options), run(**options, attack=kind)
    (liar,) = attacked.result.malicious
    assert attacked.excluded == [liar]
    assert attacked.columns["client"] == [cid for cid in range(10) if cid != liar]
    assert clean.result.malicious == []

    sizes = [len(client.train) for client in clean.federation.clients]
    received, trained = clean.site.initial, keeps(run(**options, method="Local"))[liar]["personal"]
    random = generator(0, "attack", 1, liar)
    false = {
        "gaussian": torch.randn(len(trained), generator=random),
        "scale": received + 100 * (trained - received),
        "flip": received - (trained - received),
    }[kind]
    wanted = clean.server.theta + sizes[liar] / sum(sizes) * (false - trained)
    torch.testing.assert_close(attacked.server.theta, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(run(**options, attack=kind).server.theta, attacked.server.theta)


def test_harm_under_attack_is_measured_for_honest_clients(tiny: Options, tmp_path: Path) -> None:
    done = run(**(tiny | {"clients": 10, "reference": "auto"}), attack="scale", out=tmp_path / "x")
    (liar,) = done.result.malicious
    assert done.result.transfer.gain.keys() == set(range(10)) - {liar}


def test_the_folder_of_an_attacked_run_is_sound(tiny: Options, tmp_path: Path) -> None:
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
