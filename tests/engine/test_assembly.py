"""What a run is made of: as many clients as there are, a trainer that can be named, states kept apart."""

from pathlib import Path

import pytest
import torch

from comity import ComityError, Config
from comity.engine import Autograd, Chain, Compiled, run
from comity.methods import Client, Message, Method, Reply
from helpers import Options, assert_same, build, federation_of, interrupted, keeps, site_of


def test_a_federation_says_how_many_clients_there_are(tiny: Options) -> None:
    five = federation_of(Config(**tiny))
    unsaid = {key: value for key, value in tiny.items() if key != "clients"}
    given = run(**unsaid, federation=five)
    assert given.config.clients == 5
    assert given.columns["client"] == list(range(5))
    assert_same(given, run(**tiny))
    attacked = run(**unsaid, federation=five, attack="scale", malicious=0.4)
    assert len(attacked.result.malicious) == 2
    assert set(attacked.result.malicious) < set(range(5))
    with pytest.raises(ComityError, match="clients is 3, but the federation that was given has 5"):
        run(**(tiny | {"clients": 3}), federation=five)
    assert len(build(Config(**unsaid), five)[1].clients) == 5


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, Compiled),
        ({"model": "lenet5"}, Compiled),
        ({"model": "cnn", "batch_size": 64}, Chain),
        ({"model": "resnet4"}, Autograd),
        ({"momentum": 0.5}, Autograd),
        ({"optimizer": "Adam"}, Autograd),
        ({"clip": 1.0}, Autograd),
        ({"method": "FedROD"}, Autograd),
    ],
    ids=str,
)
def test_the_fastest_trainer_that_is_possible_is_chosen(tiny: Options, options: Options, kind: type) -> None:
    assert type(site_of(Config(**(tiny | options))).trainer) is kind


def test_a_trainer_can_be_named_and_an_impossible_one_is_rejected(tiny: Options, tmp_path: Path) -> None:
    config = Config(**tiny)
    for name, kind in (("autograd", Autograd), ("chain", Chain), ("compiled", Compiled)):
        assert type(site_of(config, trainer=name).trainer) is kind  # type: ignore[arg-type]
    with pytest.raises(ComityError, match=r"trainer compiled cannot train this model .*; possible: .*autograd, chain"):
        run(config.with_(model="cnn", batch_size=64), trainer="compiled", out=tmp_path / "x")
    with pytest.raises(ComityError, match=r"auto \| autograd \| bfloat16 \| chain \| compiled, got 'fast'"):
        run(config, trainer="fast", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


NAMES = ("fitted", "counters", "optimiser.fit.0.00000")


class Hoarder(Method):
    """Keeps something under every name that the engine uses for itself."""

    def fit(self, client: Client, received: Message) -> Reply:
        for name in NAMES:
            before = client.keep.get(name, torch.zeros(()))
            client.keep[name] = before + 1
        return super().fit(client, received)


def test_what_a_method_keeps_is_its_own_whatever_its_name(tiny: Options, tmp_path: Path) -> None:
    options = tiny | {"model": "resnet4", "clients": 3, "rounds": 3, "eval_point": "fitted"}
    options |= {"momentum": 0.5, "optimizer_state": "keep", "method": Hoarder}
    plain = run(**(options | {"method": "FedAvg"}))
    interrupted(tmp_path / "x", 2, **options)
    done = run(**options, out=tmp_path / "x", resume=True)
    for keep in keeps(done).values():
        assert {name: float(keep[name]) for name in NAMES} == dict.fromkeys(NAMES, 3.0)
    assert torch.equal(done.server.theta, plain.server.theta)
    assert done.columns == plain.columns
    for cid, state in done.server.link.states().items():
        there = plain.server.link.states()[cid].engine
        assert state.engine.keys() == there.keys() > {"fitted", "counters"}
        assert all(torch.equal(state.engine[name], there[name]) for name in there)
