"""The promises of a run: the same bits whatever happens, honest numbers, nothing silent."""

import csv
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from comity import ComityError, Config, load
from comity.engine import run
from comity.methods import METHODS, Client, Message, Method, Payload, Question, Reply, Server, verb
from comity.nn import Model
from comity.results import RunFolder, Traffic
from helpers import Options, assert_reproducible, assert_same, client_of, keeps, site_of

RESNET = {"model": "resnet4", "rounds": 2, "clients": 3}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", pytest.param("resnet4", marks=pytest.mark.slow)])
def test_the_same_bits_for_any_number_of_workers_and_after_resume(
    tiny: Options, tmp_path: Path, method: str, model: str
) -> None:
    options = tiny | {"method": method, "participation": 0.6, "dropout": 0.2}
    options |= {"momentum": 0.5, "optimizer_state": "keep"} | (RESNET if model == "resnet4" else {})
    done = assert_reproducible(options, tmp_path / "cut")
    rounds = [record.round for record in RunFolder(tmp_path / "cut").rounds()]
    assert rounds == [record.round for record in done.records] == list(range(1, options["rounds"] + 1))


def test_another_seed_gives_other_bits(tiny: Options) -> None:
    assert not torch.equal(run(**tiny).server.theta, run(**tiny, seed=1).server.theta)


def test_fedavg_is_the_weighted_average_of_plain_sgd(tiny: Options) -> None:
    """One round written out with torch's own optimiser and a loop."""
    config = Config(**(tiny | {"rounds": 1, "data": tiny["data"] | {"label_shift": 0.9}}))
    site = site_of(config)
    total = sum(len(c.train) for c in site.federation.clients)
    average = torch.zeros(site.model().size(), dtype=torch.float64)
    for client in site.federation.clients:
        model = site.model()
        optimiser = torch.optim.SGD(model.net.parameters(), lr=config.lr)
        for x, y in client_of(site, client.id).batches(1):
            optimiser.zero_grad()
            model.loss(x, y).backward()
            optimiser.step()
        average += model.read().double() * len(client.train) / total
    torch.testing.assert_close(run(config).server.theta, average.float(), rtol=0, atol=1e-6)


def test_batchnorm_statistics_are_averaged_by_size_or_kept(tiny: Options) -> None:
    options = tiny | RESNET | {"rounds": 1, "lr": 1e-9, "data": tiny["data"] | {"feature_shift": 2.0}}
    averaged = run(**options)
    theta, layout = averaged.server.theta, averaged.server.layout
    local = run(**options, buffers="local")
    own = {cid: keep["personal"] for cid, keep in keeps(local).items()}
    sizes = torch.tensor([float(len(c.train)) for c in local.federation.clients])
    mean = sum(w * own[cid] for cid, w in enumerate(sizes / sizes.sum()))
    assert isinstance(mean, Tensor)
    torch.testing.assert_close(theta[layout.size :], mean)
    assert not torch.equal(own[0], own[1])
    assert local.server.theta.numel() == layout.size


def test_local_statistics_never_leak_from_one_client_to_the_next(tiny: Options) -> None:
    """A rule that asks for losses looks at the common model first, with each client's own BatchNorm statistics."""
    options = tiny | RESNET | {"buffers": "local", "rule": "FairDescent", "data": tiny["data"] | {"feature_shift": 2.0}}
    assert_same(run(**options), run(**(options | {"workers": 3})))


def test_participation_and_dropout(tiny: Options) -> None:
    done = run(**(tiny | {"clients": 10, "rounds": 30}), participation=0.4, dropout=0.5, eval_every=30)
    cohorts = [record.cohort for record in done.records]
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    assert {cid for cohort in cohorts for cid in cohort} == set(range(10))
    lost = [len(record.lost) for record in done.records]
    assert 0.3 < sum(lost) / sum(len(cohort) for cohort in cohorts) < 0.7
    size = done.server.theta.numel() * 4
    for record in done.records:
        assert record.bytes == Traffic(down=4 * size, up=(4 - len(record.lost)) * size)
    assert done.columns["client"] == list(range(10))


class Clumsy(Method):
    """FedAvg with a client that fails, one that sends what is no number, and one that sends another model's."""

    def fit(self, client: Client, received: Message) -> Reply:
        if client.id == 1:
            client.keep["spoilt"] = torch.ones(1)
            raise RuntimeError("out of memory")
        reply = super().fit(client, received)
        if client.id == 3:
            reply.theta = reply.theta * float("nan")
        if client.id == 4:
            reply.theta = reply.theta[:-1]
        return reply


def test_a_client_that_fails_is_named_and_the_round_continues(tiny: Options) -> None:
    done = run(**tiny, method=Clumsy)
    for record, weights in zip(done.records, done.weights, strict=True):
        assert record.failed == {
            1: "fit: RuntimeError: out of memory",
            3: "fit: sent theta that is not finite",
            4: "fit: sent theta of another shape",
        }
        assert weights.ids == [0, 2]
    assert torch.isfinite(done.server.theta).all()
    assert "spoilt" not in keeps(done)[1]
    assert done.result.failures == 9


class Broken(Method):
    def fit(self, client: Client, received: Message) -> Reply:
        raise ZeroDivisionError("my own mistake")


def test_a_method_that_fails_everywhere_stops_the_run_with_its_own_error(tiny: Options) -> None:
    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        run(**tiny, method=Broken)


class Seen(Question):
    seen: Tensor


class Count(Payload):
    n: int


class Talkative(Method):
    """Asks clients a question of its own after each round."""

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        super().merge(server, replies)
        answers = server.ask(self.count, {cid: Seen(seen=torch.zeros(3)) for cid in replies})
        server.store["counted"] = torch.tensor([answers[cid].n for cid in sorted(answers)])

    @verb
    def count(self, client: Client, received: Seen) -> Count:
        return Count(n=len(client.data.train) + received.seen.numel())


def test_a_verb_of_a_methods_own_is_asked_over_the_link_and_counted(tiny: Options) -> None:
    done = run(**tiny, method=Talkative)
    assert done.server.store["counted"].tolist() == [len(c.train) + 3 for c in done.federation.clients]
    assert done.server.link.traffic["count"] == [3 * 4 * 5 * tiny["rounds"], 0]


@pytest.mark.parametrize(("share", "others"), [(0.1, 1), (0.2, 2), (None, 4)])
def test_accuracies_are_what_they_say(tiny: Options, share: float | None, others: int) -> None:
    """L, S and G counted by hand from each client's model; S-acc has 0.4 of the eleven others by default."""
    given = {} if share is None else {"s_acc_share": share}
    done = run(**(tiny | {"clients": 12}), **given, method="Local")
    clients = done.federation.clients
    for cid, keep in keeps(done).items():
        model = done.site.model()
        model.write(keep["personal"])

        def hits(other: int, model: Model = model) -> Tensor:
            with torch.no_grad():
                return model.net(clients[other].test.x).argmax(1) == clients[other].test.y

        assert done.columns["L-acc"][cid] == pytest.approx(float(hits(cid).double().mean()))
        everybody = torch.cat([hits(other) for other in range(12)]).double()
        assert done.columns["G-acc"][cid] == pytest.approx(float(everybody.mean()))
        # so many others, with as many tests as our own
        own, n = int(hits(cid).sum()), len(clients[cid].test)
        found = [int(hits(other).sum()) for other in range(12) if other != cid]
        possible = {(own + sum(few)) / ((1 + others) * n) for few in itertools.combinations(found, others)}
        assert any(done.columns["S-acc"][cid] == pytest.approx(share) for share in possible)


def test_whom_the_step_goes_against_is_noted(tiny: Options) -> None:
    plain, ruled = (run(**tiny | {"rounds": 2, "rule": rule}) for rule in ("Mean", "ConFREE"))
    noted = {done.title: [record.against for record in done.records] for done in (plain, ruled)}
    for against in (each for notes in noted.values() for each in notes):
        assert against is not None
        assert against.clients == 5
        assert (len(against.mean_ids), len(against.rule_ids)) == (against.mean, against.rule)
    first, same = plain.records[0].against, ruled.records[0].against
    assert first.rule_ids == first.mean_ids == same.mean_ids  # the first round's updates are the same
    shares = [against.rule / against.clients for against in noted[ruled.title]]
    assert ruled.result.rule_against == pytest.approx(sum(shares) / len(shares))


def test_the_folder_holds_everything(tiny: Options, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    done = run(**tiny, out=folder, save_models=True, eval_every=2, general_every=2, val_share=0.2)
    files = "checkpoint clients.csv config.yaml cosines.jsonl models partition.json result.json rounds.jsonl run.json"
    files += " samples.safetensors"
    assert sorted(p.name for p in folder.iterdir()) == [*files.split(), "weights.jsonl"]
    assert Config.load(folder / "config.yaml") == done.config
    assert_same(done, run(Config.load(folder / "config.yaml").with_(out=None)))
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [2] * 5 + [3] * 5
    assert float(rows[-1]["L-acc"]) == done.columns["L-acc"][-1]
    read = RunFolder(folder)
    assert read.result() == done.result
    assert done.result.best.chosen_by == "validation"
    assert done.result.last.round == 3
    assert read.rounds() == done.records
    assert list(read.weights()) == done.weights
    assert [sum(entry.coefficients[0]) for entry in done.weights] == pytest.approx([1.0] * 3)
    info = read.info()
    assert (info.title, info.key, info.own_rule, info.eval_point) == (
        "FedAvg + Mean",
        done.config.key,
        False,
        "received",
    )
    assert len(list((folder / "models").iterdir())) == 5
    assert list(read.cosines()) == done.cosines
    assert all(entry.cosines[i][i] == pytest.approx(1.0) for entry in done.cosines for i in range(5))
    partition = read.partition()
    assert partition is not None
    assert [sum(row) for row in partition.counts] == [24] * 5


def test_saved_models_are_the_models_that_were_judged(tiny: Options, tmp_path: Path) -> None:
    done = run(**(tiny | RESNET), out=tmp_path / "x", save_models=True, method="FedRep")
    for cid in range(3):
        state = load(tmp_path / "x").model(cid)
        net = done.site.model().net
        net.load_state_dict(state)
        test = done.federation.clients[cid].test
        with torch.no_grad():
            accuracy = (net.eval()(test.x).argmax(1) == test.y).double().mean()
        assert float(accuracy) == done.columns["L-acc"][cid]
        assert state["body.bn1.num_batches_tracked"].dtype == torch.int64
        assert int(state["body.bn1.num_batches_tracked"]) > 0


@pytest.mark.parametrize("point", ["received", "fitted"])
def test_the_evaluation_point_is_named(tiny: Options, point: str) -> None:
    done = run(**(tiny | {"rounds": 1}), eval_point=point)
    assert done.site.eval_point == point
    same_for_all = len({round(x, 12) for x in done.columns["G-acc"]}) == 1
    assert same_for_all == (point == "received")


def test_personal_models_of_fedavg(tiny: Options) -> None:
    """``post_local`` is the evaluation point fitted; ``finetune`` starts from the global model and is forgotten."""
    plain, fitted = run(**tiny), run(**tiny, eval_point="fitted")
    local = run(**tiny, method={"name": "FedAvg", "personal_model": "post_local"})
    assert local.columns == fitted.columns
    assert local.site.eval_point == "fitted"
    tuned, none = (
        run(**tiny, method={"name": "FedAvg", "personal_model": "finetune", "finetune_epochs": n}) for n in (5, 0)
    )
    assert torch.equal(tuned.server.theta, plain.server.theta)
    assert tuned.columns["L-acc"] != plain.columns["L-acc"]
    assert none.columns == plain.columns


@pytest.mark.parametrize("option", [{"reference": "nowhere"}, {"optimizer": "Nix"}, {"device": "cuda:99"}], ids=str)
def test_a_rejected_option_leaves_nothing_written(tiny: Options, tmp_path: Path, option: Options) -> None:
    with pytest.raises(ComityError):
        run(**(tiny | option), out=tmp_path / "runs" / "x", store="disk")
    assert not list(tmp_path.iterdir())


# Many clients.


def test_s_and_g_can_be_left_out(tiny: Options, tmp_path: Path) -> None:
    never, last = run(**tiny, general_every="never", out=tmp_path / "x"), run(**tiny)
    assert not {"G-acc", "S-acc"} & never.columns.keys()
    assert never.columns["L-acc"] == last.columns["L-acc"]
    assert run(**tiny, general_every="never", out=tmp_path / "x", resume=True).columns == never.columns
    assert Config(**tiny, general_every=0).key == Config(**tiny).key
    with pytest.raises(ComityError, match=r"general_every must be a whole number, at least 0 or never, got 'seldom'"):
        Config(general_every="seldom")


@pytest.mark.parametrize(("method", "sampled"), [("Local", ["S-acc", "G-acc"]), ("FedAvg", ["S-acc"])])
def test_too_many_tests_are_sampled_and_the_error_is_noted(
    method: str, sampled: list[str], tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tiny | {"clients": 40, "rounds": 1, "method": method}
    whole = run(**options)
    assert whole.records[-1].general_error == 0
    monkeypatch.setattr("comity.engine._tests.LEAST_SAMPLE", 30)  # of 280 tests, S-acc has 119
    monkeypatch.setattr("comity.engine._tests.MOST_ANSWERS", 40 * 30)
    some = run(**options, out=tmp_path / "x")
    error = RunFolder(tmp_path / "x").result().last.general_error
    assert error == some.records[-1].general_error == pytest.approx(0.5 / 30**0.5)
    assert some.columns["L-acc"] == whole.columns["L-acc"]
    for name in sampled:
        differences = torch.tensor(some.columns[name]) - torch.tensor(whole.columns[name])
        assert differences.abs().max() > 0
        assert float(differences.square().mean().sqrt()) < 1.5 * error
    assert abs(float(torch.tensor(some.columns["S-acc"]).mean() - torch.tensor(whole.columns["S-acc"]).mean())) < error
    assert run(**(options | {"workers": 3})).columns == some.columns


def test_everybodys_tests_cost_at_most_a_tenth_of_the_training(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Personal models are tried on a sample with as much of each client and class; a common one on all tests."""
    monkeypatch.setattr("comity.engine._tests.LEAST_SAMPLE", 1)
    short, long = (run(**(tiny | {"method": "Local", "rounds": rounds})) for rounds in (1, 4))
    tests = sum(len(client.test) for client in short.federation.clients)
    passes = 3 * sum(len(client.train) for client in short.federation.clients)
    assert short.site.tests.sample == int(passes / 20 / 5) < tests
    assert long.site.tests.sample == int(4 * passes / 20 / 5)
    y = short.site.tests.sampled.y
    for label, count in enumerate(short.site.tests.split.y.bincount().tolist()):
        assert abs(int((y == label).sum()) - count * len(y) / tests) < 5  # less than one for each client
    common = run(**(tiny | {"method": "FedAvg", "rounds": 1}))
    monkeypatch.undo()
    assert common.columns["G-acc"] == run(**(tiny | {"method": "FedAvg", "rounds": 1})).columns["G-acc"]


def test_conflict_is_measured_on_some_of_very_many_clients(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(**tiny)
    monkeypatch.setattr("comity.engine._server.MOST_MEASURED", 3)
    some = run(**tiny)
    assert torch.equal(whole.server.theta, some.server.theta)
    drawn = [entry.ids for entry in some.cosines]
    assert all(len(ids) == 3 and ids == sorted(ids) for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 1
    assert some.weights[0].ids == [0, 1, 2, 3, 4]
    every = run(**tiny, rule="ConFREE")
    assert every.cosines[0].ids == [0, 1, 2, 3, 4]  # its rule needs them all


def test_cosines_are_recorded_of_a_few_clients(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(**tiny, rule="ConFREE")
    monkeypatch.setattr("comity.engine._aggregation.MOST_COSINES", 3)
    some = run(**tiny, rule="ConFREE")
    assert_same(whole, some)
    assert len({tuple(entry.ids) for entry in some.cosines}) > 1
    for few, every in zip(some.cosines, whole.cosines, strict=True):
        assert few.ids == sorted(few.ids)
        assert few.cosines == [[every.cosines[int(i)][int(j)] for j in few.ids] for i in few.ids]
        assert len(few.ids) == 3


@pytest.mark.slow
def test_two_thousand_clients_leave_a_small_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.engine._tests.LEAST_SAMPLE", 100)
    monkeypatch.setattr("comity.engine._tests.MOST_ANSWERS", 200_000)
    done = run(
        data={"name": "synthetic", "samples": 8, "classes": 3, "size": 4},
        model={"name": "mlp", "widths": (4,)},
        method="FedRep",
        clients=2000,
        rounds=1,
        reference="none",
        out=tmp_path / "x",
    )
    assert done.records[-1].general_error == pytest.approx(0.05)
    assert all(len(entry.ids) == len(entry.cosines) == 64 for entry in done.cosines)
    sizes = {
        file.name: file.stat().st_size
        for file in (tmp_path / "x").iterdir()
        if file.suffix in (".jsonl", ".json", ".csv")
    }
    assert len(sizes) == 7
    assert sum(sizes.values()) < 1_000_000, sizes
