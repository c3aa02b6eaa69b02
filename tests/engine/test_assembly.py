"""What a run is made of: as many clients as there are, one Local, a trainer that can be named, states kept apart."""

from pathlib import Path
from typing import Any

import pytest
import torch

from comity import ComityError, Config
from comity.engine import Autograd, Chain, Compiled, build, federation_of, run, site_of
from comity.methods import Client, Message, Method, Reply
from helpers import assert_same, keeps


def test_a_federation_says_how_many_clients_there_are(tiny: dict[str, Any]) -> None:
    five = federation_of(Config(**tiny))
    unsaid = {key: value for key, value in tiny.items() if key != "clients"}
    given = run(**unsaid, federation=five)
    assert given.config.clients == 5
    assert given.columns["client"] == list(range(5))
    assert_same(given, run(**tiny))
    with pytest.raises(ComityError, match="clients is 3, but the federation that was given has 5"):
        run(**(tiny | {"clients": 3}), federation=five)
    assert len(build(Config(**unsaid), five)[1].clients) == 5


def test_attackers_are_drawn_from_the_clients_that_there_are(tiny: dict[str, Any]) -> None:
    five = federation_of(Config(**tiny))
    unsaid = {key: value for key, value in tiny.items() if key != "clients"}
    done = run(**unsaid, federation=five, attack="scale", malicious=0.4)
    assert len(done.result.malicious) == 2
    assert set(done.result.malicious) < set(range(5))


def test_one_definition_of_local(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**tiny, method="FEDORA", moment="fitted", save_models=True, out=tmp_path / "x")
    alone = config.alone()
    assert alone.is_local
    assert not config.is_local
    assert (alone.out, alone.save_models, alone.reference) == (None, False, "none")
    assert (alone.val_share, config.val_share) == (0, 0.2)  # alone, nobody needs to hold samples out
    assert config.alone(on="train").val_share == 0.2
    assert alone.alone().key == alone.key
    assert alone.key == config.with_(method="FedAvg", rule="CALM", moment=None).alone().key


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
def test_the_fastest_trainer_that_is_possible_is_chosen(
    tiny: dict[str, Any], options: dict[str, Any], kind: type
) -> None:
    assert type(site_of(Config(**(tiny | options))).trainer) is kind


def test_a_trainer_can_be_named_and_an_impossible_one_is_refused(tiny: dict[str, Any]) -> None:
    config = Config(**tiny)
    for name, kind in (("autograd", Autograd), ("chain", Chain), ("compiled", Compiled)):
        site = site_of(config, trainer=name)  # type: ignore[arg-type]
        assert type(site.trainer) is kind
    with pytest.raises(ComityError, match=r"trainer compiled cannot train this model .*; possible: autograd, chain"):
        site_of(config.with_(model="cnn", batch_size=64), trainer="compiled")
    with pytest.raises(ComityError, match=r"trainer must be autograd \| chain \| compiled, got 'fast'"):
        run(config, trainer="fast")  # type: ignore[arg-type]


NAMES = ("fitted", "counters", "optimiser.fit.0.00000")


class Hoarder(Method):
    """Keeps something under every name that the engine uses for itself."""

    def fit(self, client: Client, received: Message) -> Reply:
        for name in NAMES:
            before = client.keep.get(name, torch.zeros(()))
            client.keep[name] = before + 1
        return super().fit(client, received)


def test_what_a_method_keeps_is_its_own_whatever_its_name(tiny: dict[str, Any], tmp_path: Path) -> None:
    options = tiny | {"model": "resnet4", "clients": 3, "rounds": 3, "moment": "fitted"}
    options |= {"momentum": 0.5, "optimizer_state": "keep", "method": f"{__name__}.Hoarder"}
    plain = run(**(options | {"method": "FedAvg"}))
    answers = iter([False, False, True])
    run(**options, out=tmp_path / "x", stop=lambda: next(answers))
    done = run(**options, out=tmp_path / "x", resume=True)
    for keep in keeps(done).values():
        assert {name: float(keep[name]) for name in NAMES} == dict.fromkeys(NAMES, 3.0)
    assert torch.equal(done.server.theta, plain.server.theta)
    assert done.columns == plain.columns
    for cid, state in done.server.link.states().items():
        there = plain.server.link.states()[cid].engine
        assert state.engine.keys() == there.keys() > {"fitted", "counters"}
        assert all(torch.equal(state.engine[name], there[name]) for name in there)
