"""Clients that join after training: every method serves them, and nobody else notices."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from comity import ComityError, Config
from comity.commands._progress import summary
from comity.compare import LoadedStudy, Table
from comity.engine import Run, run
from comity.methods import METHODS, FedU, Message, Reply, Server
from comity.metrics import OWN_WEIGHT
from comity.results import LoadedRun
from helpers import Options, assert_same, federation_of, interrupted

SKEWED: Options = {"clients": 7, "newcomers": 2}


@pytest.fixture
def skewed(tiny: Options) -> Options:
    return tiny | SKEWED | {"data": tiny["data"] | {"label_shift": 0.9}}


def late(done: Run) -> dict[str, list[float]]:
    assert done.result.newcomers.failed == {}
    return done.result.newcomers.clients


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_serves_them_and_nobody_else_notices(skewed: Options, tmp_path: Path, method: str) -> None:
    """The federation's bits are those of one that never had them; theirs are the same for any workers, and resumed."""
    options = skewed | {"method": method}
    done = run(**options)
    columns = late(done)
    assert columns["client"] == [5, 6]
    assert all(torch.isfinite(torch.tensor(columns["loss"])))
    assert columns["n_train"] == [len(client.train) for client in done.plan.everyone.clients[5:]]
    assert len(done.federation) == 5

    without = {name: value for name, value in options.items() if name not in SKEWED}
    never = run(**without, federation=federation_of(Config(**options)).first(5))
    assert_same(done, never)
    assert never.result.newcomers is None

    assert late(run(**(options | {"workers": 3}))) == columns
    interrupted(tmp_path / "cut", **options)
    assert late(run(**options, out=tmp_path / "cut", resume=True)) == columns


def test_batchnorm(skewed: Options) -> None:
    for method in ("FedBN", "FedRep", "pFedHN"):
        done = run(**(skewed | {"model": "resnet4", "clients": 4, "lr": 0.01, "method": method}))
        assert late(done)["client"] == [2, 3]


def test_alone_they_fare_as_clients_of_local_do(skewed: Options) -> None:
    """The same two clients take part in a run of Local: the same numbers to the bit."""
    options = skewed | {"reference": "auto"}
    everybody = run(**(options | {"newcomers": 0, "method": "Local", "reference": "none"}))
    alone = dict(zip(everybody.columns["client"], everybody.columns["L-acc"], strict=True))
    done = run(**options, method="FedRep")
    transfer = done.result.newcomers.transfer
    own = dict(zip(late(done)["client"], late(done)["L-acc"], strict=True))
    assert transfer.gain == {cid: own[cid] - alone[cid] for cid in (5, 6)}
    local = run(**(options | {"method": "Local"}))
    assert late(local)["loss"] == everybody.columns["loss"][5:]
    assert local.result.newcomers.transfer is None


def test_a_global_model_is_served_as_it_is(skewed: Options) -> None:
    done = run(**skewed)
    model = done.site.model()
    model.write(done.server.theta, "shared")
    for place, cid in enumerate((5, 6)):
        test = done.plan.everyone.clients[cid].test
        right = (model.net(test.x).argmax(1) == test.y).double().mean()
        assert late(done)["L-acc"][place] == float(right)


def test_a_head_is_fitted_on_the_body_as_received(skewed: Options) -> None:
    """FedRep by hand: the head learns round by round, the body that the newcomer trains beside it is forgotten."""
    config = Config(**skewed, method="FedRep", newcomer_rounds=3)
    done, losses = run(config), []
    for cid in (5, 6):
        model, data = done.site.model(), done.plan.everyone.clients[cid]
        model.write(done.server.theta, "shared")
        for round in range(config.rounds + 1, config.rounds + 4):
            source = replace(done.site.client(0, done.site.model()), id=cid, data=data, round=round)
            optimiser = torch.optim.SGD(model.parameters("head"), lr=config.lr)
            for x, y in source.batches(1):
                optimiser.zero_grad()
                model.loss(x, y).backward()
                optimiser.step()
        losses.append(model.loss(data.test.x, data.test.y).item())
    torch.testing.assert_close(torch.tensor(late(done)["loss"]), torch.tensor(losses), rtol=0, atol=1e-4)
    assert late(run(config.with_(newcomer_rounds=0)))["loss"] != late(done)["loss"]


def test_fedora_gives_a_newcomer_what_clients_with_its_data_have(tiny: Options) -> None:
    """Similarity 1 with its twin and little with the others: with an exponential the twin's model is all it gets."""
    options = tiny | {"data": tiny["data"] | {"feature_shift": 2.0}, "val_share": 0.2}
    method = {"name": "FEDORA", "similarity": "exp", "neighbours": 1, "alpha": 1.0}
    config = Config(**(options | {"clients": 6, "newcomers": 1, "newcomer_rounds": 0}), method=method)
    whole = federation_of(config)
    federation = replace(whole, clients=(*whole.clients[:5], replace(whole.clients[2], id=5)))
    done = run(config, federation=federation)
    model, hat = done.site.model(), done.server.store["hat"][2]
    model.write(hat, "shared")
    test = federation.clients[2].test
    assert late(done)["loss"] == [pytest.approx(model.loss(test.x, test.y).item(), rel=1e-5)]


@pytest.mark.parametrize("method", ["FedU", "FedAMP"])
def test_a_mixers_newcomer_gets_the_mean_and_then_a_mixture_for_its_own(skewed: Options, method: str) -> None:
    done = run(**skewed, method=method)
    server, W = done.server, done.server.store["W"]
    mean = server.method.welcome(server, 5, None).theta
    torch.testing.assert_close(mean, W.mean(0))
    mine = W[2] + 0.01
    given = server.method.welcome(server, 5, Reply(theta=mine, size=9)).theta
    if method == "FedU":
        expected = 0.9 * mine + 0.1 * mean
    else:  # far from all but client 2, which it is a copy of
        xi = server.method.attention(torch.cat([W, mine[None]]), torch.tensor([True] * 5 + [False]), server.layout)
        assert xi[5, 2] == xi[5, :5].max()
        torch.testing.assert_close(xi[:5, 5], torch.zeros(5, dtype=xi.dtype))
        expected = xi[5].float() @ torch.cat([W, mine[None]])
    torch.testing.assert_close(given, expected)


def test_a_hypernetworks_newcomer_learns_its_embedding_alone(skewed: Options) -> None:
    losses = [late(run(**skewed, method="pFedHN", newcomer_rounds=rounds))["loss"] for rounds in (0, 20)]
    assert sum(losses[1]) < sum(losses[0])


class Rigid(FedU):
    """Knows the clients that it began with, and no others."""

    def welcome(self, server: Server, cid: int, last: Reply | None) -> Message:
        return self.send(server, cid)


def test_a_method_that_cannot_serve_them_says_so_and_keeps_its_result(skewed: Options) -> None:
    done = run(**skewed, method=Rigid)
    newcomers = done.result.newcomers
    assert newcomers.clients == {}
    assert newcomers.failed.keys() == {5, 6}
    assert "out of bounds" in newcomers.failed[5]


def test_they_are_in_the_folder_the_table_and_the_terminal(skewed: Options, tmp_path: Path) -> None:
    options = skewed | {"reference": "auto", "method": "FedRep"}
    done = run(**options, out=tmp_path / "runs" / "one")
    loaded = LoadedRun(tmp_path / "runs" / "one")
    loaded.check(thorough=True)
    assert loaded.result.newcomers == done.result.newcomers
    assert len(loaded.partition.counts) == 5
    written = StringIO()
    summary(Console(file=written, width=200), done)
    transfer = done.result.newcomers.transfer
    mean = 100 * done.result.newcomers.metrics["L-acc"].mean
    local = f"accuracy of local training {100 * transfer.local:.1f} %"
    assert f"Newcomers: {mean:.1f} %, {local}; of 2, none significantly worse, 2 undecided." in written.getvalue()
    table = Table.of(LoadedStudy(tmp_path / "runs" / "one"))
    entry = next(line for line in table.rows if line.method == "FedRep").entries
    assert entry["newcomers"].value == pytest.approx(mean)
    assert entry["newcomers_gain"].value == pytest.approx(mean - 100 * transfer.local)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"newcomers": 5}, r"newcomers is 5 of 5 clients.* no client is left to train"),
        ({"newcomers": 4, "participation": 0.4}, r"newcomers is 4 of 5 clients.* no client is left to train"),
        ({"newcomers": -1}, "newcomers must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_rejected(tiny: Options, options: Options, why: str) -> None:
    with pytest.raises(ComityError, match=why):
        run(**tiny, **options)


def test_newcomers_are_guarded_too(tiny: Options) -> None:
    options = tiny | {"reference": "auto", "newcomers": 2, "clients": 6, "val_share": 0.2, "method": "FedRep"}
    done = run(**options, guard="mixture")
    newcomers = done.result.newcomers
    assert not newcomers.failed
    assert all(0 < weight < 1 for weight in newcomers.clients[OWN_WEIGHT.key])
    noted = dict(zip(newcomers.clients["client"], newcomers.clients["gain"], strict=True))
    assert newcomers.transfer.gain == pytest.approx(noted)  # against local models of their own
