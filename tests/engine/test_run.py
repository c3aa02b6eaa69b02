"""The promises of a run: the same bits whatever happens, honest numbers, nothing silent."""

import csv
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from comity import ComityError, Config
from comity.engine import run, site_of
from comity.methods import METHODS, Client, Message, Method, Payload, Question, Reply, Server, verb
from comity.nn import Model
from comity.results import RunFolder, Traffic
from helpers import assert_same, client_of, keeps

RESNET = {"model": "resnet4", "rounds": 2, "clients": 3}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", pytest.param("resnet4", marks=pytest.mark.slow)])
def test_the_same_bits_for_any_number_of_workers_and_after_resume(
    tiny: dict[str, Any], tmp_path: Path, method: str, model: str
) -> None:
    options = tiny | {
        "method": method,
        "participation": 0.6,
        "dropout": 0.2,
        "momentum": 0.5,
        "optimizer_state": "keep",
    }
    if model == "resnet4":
        options |= RESNET
    one = run(**options)
    three = run(**(options | {"workers": 3}))
    assert_same(one, three)

    rounds = iter([False, True])
    cut = run(**options, out=tmp_path / "cut", checkpoint_every=1, stop=lambda: next(rounds))
    assert not cut.done
    resumed = run(**options, out=tmp_path / "cut", checkpoint_every=1, resume=True)
    assert resumed.done
    assert_same(one, resumed)
    assert [r.round for r in resumed.records] == list(range(1, options["rounds"] + 1))


def test_another_seed_gives_other_bits(tiny: dict[str, Any]) -> None:
    assert not torch.equal(run(**tiny).server.theta, run(**tiny, seed=1).server.theta)


def test_fedavg_is_the_weighted_average_of_plain_sgd(tiny: dict[str, Any]) -> None:
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


def test_batchnorm_statistics_are_averaged_by_size_or_kept(tiny: dict[str, Any]) -> None:
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


def test_participation_and_dropout(tiny: dict[str, Any]) -> None:
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


def test_a_client_that_fails_is_named_and_the_round_goes_on(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method=f"{__name__}.Clumsy")
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


def test_conflict_is_measured_on_some_of_very_many_clients(tiny: dict[str, Any], monkeypatch: Any) -> None:
    whole = run(**tiny)
    monkeypatch.setattr("comity.engine._server.MOST", 3)
    some = run(**tiny)
    assert torch.equal(whole.server.theta, some.server.theta)
    drawn = [entry.ids for entry in some.cosines]
    assert all(len(ids) == 3 and ids == sorted(ids) for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 1
    assert some.weights[0].ids == [0, 1, 2, 3, 4]
    every = run(**tiny, rule="ConFREE")
    assert every.cosines[0].ids == [0, 1, 2, 3, 4]  # its rule needs them all


class Broken(Method):
    def fit(self, client: Client, received: Message) -> Reply:
        raise ZeroDivisionError("my own mistake")


def test_a_method_that_fails_everywhere_stops_the_run_with_its_own_error(tiny: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        run(**tiny, method=f"{__name__}.Broken")


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


def test_a_verb_of_a_methods_own_is_asked_over_the_link_and_counted(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method=f"{__name__}.Talkative")
    assert done.server.store["counted"].tolist() == [len(c.train) + 3 for c in done.federation.clients]
    assert done.server.link.traffic["count"] == [3 * 4 * 5 * tiny["rounds"], 0]


@pytest.mark.parametrize(("share", "others"), [(0.1, 1), (0.2, 2), (None, 4)])
def test_accuracies_are_what_they_say(tiny: dict[str, Any], share: float | None, others: int) -> None:
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
        own = int(hits(cid).sum())
        n = len(clients[cid].test)
        found = [int(hits(other).sum()) for other in range(12) if other != cid]
        possible = {(own + sum(few)) / ((1 + others) * n) for few in itertools.combinations(found, others)}
        assert any(done.columns["S-acc"][cid] == pytest.approx(share) for share in possible)


def test_harm_is_measured_against_local(tiny: dict[str, Any]) -> None:
    options = tiny | {"rounds": 2, "reference": "auto"}
    joined, alone = run(**options), run(**(options | {"reference": "none"}), method="Local")
    gains = [a - b for a, b in zip(joined.columns["L-acc"], alone.columns["L-acc"], strict=True)]
    transfer = joined.result.transfer
    assert transfer is not None
    assert transfer.harmed == [cid for cid, gain in enumerate(gains) if gain < 0]
    assert transfer.positive_transfer == sum(gain > 0 for gain in gains) / len(gains)
    assert transfer.local == pytest.approx(sum(alone.columns["L-acc"]) / len(gains))


def test_whom_the_step_goes_against_is_noted(tiny: dict[str, Any]) -> None:
    plain, ruled = (run(**tiny | {"rounds": 2, "rule": rule}) for rule in ("Mean", "ConFREE"))
    for done in (plain, ruled):
        for record in done.records:
            assert record.against is not None
            assert record.against.clients == len(record.cohort)
            assert (len(record.against.mean_ids), len(record.against.rule_ids)) == (
                *(record.against.mean, record.against.rule),
            )
    first, same = plain.records[0].against, ruled.records[0].against
    assert first is not None
    assert same is not None
    assert first.rule_ids == first.mean_ids == same.mean_ids  # the first round's updates are the same
    shares = [record.against.rule / record.against.clients for record in ruled.records if record.against]
    assert ruled.result.rule_against == pytest.approx(sum(shares) / len(shares))


def test_local_is_trained_once_and_then_taken_from_the_cache(tiny: dict[str, Any], tmp_path: Path) -> None:
    options = tiny | {"reference": "auto"}
    first = run(**options, out=tmp_path / "a")
    (cached,) = (tmp_path / ".local").iterdir()
    written = (cached / "result.json").stat().st_mtime_ns
    second = run(**options, out=tmp_path / "b", method="FedRep")
    assert (cached / "result.json").stat().st_mtime_ns == written
    assert first.local == second.local
    by_path = run(**(options | {"reference": str(cached)}), out=tmp_path / "c")
    assert by_path.local == first.local
    with pytest.raises(ComityError, match="nowhere holds no finished run"):
        run(**(options | {"reference": str(tmp_path / "nowhere")}), out=tmp_path / "d")
    with pytest.raises(ComityError, match=r"has 5 clients, this run 4"):
        run(**(options | {"reference": str(cached), "clients": 4}), out=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_the_folder_holds_everything(tiny: dict[str, Any], tmp_path: Path) -> None:
    done = run(**tiny, out=tmp_path / "x", save_models=True, eval_every=2, general_every=2, val_share=0.2)
    folder = tmp_path / "x"
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoint",
        "clients.csv",
        "config.yaml",
        "cosines.jsonl",
        "models",
        "partition.json",
        "result.json",
        "rounds.jsonl",
        "run.json",
        "weights.jsonl",
    ]
    assert Config.load(folder / "config.yaml") == done.config
    again = run(Config.load(folder / "config.yaml").with_(out=None))
    assert_same(done, again)
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
    assert (info.title, info.key, info.own_rule, info.moment) == ("FedAvg + Mean", done.config.key, False, "received")
    assert len(list((folder / "models").iterdir())) == 5
    assert list(read.cosines()) == done.cosines
    assert all(entry.cosines[i][i] == pytest.approx(1.0) for entry in done.cosines for i in range(5))
    partition = read.partition()
    assert partition is not None
    assert [sum(row) for row in partition.counts] == [24] * 5


def test_saved_models_are_the_models_that_were_judged(tiny: dict[str, Any], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    done = run(**(tiny | RESNET), out=tmp_path / "x", save_models=True, method="FedRep")
    for cid in range(3):
        state = load_file(tmp_path / "x" / "models" / f"client_{cid:03d}.safetensors")
        net = done.site.model().net
        net.load_state_dict(state)
        test = done.federation.clients[cid].test
        with torch.no_grad():
            accuracy = (net.eval()(test.x).argmax(1) == test.y).double().mean()
        assert float(accuracy) == done.columns["L-acc"][cid]
        assert state["body.bn1.num_batches_tracked"].dtype == torch.int64
        assert int(state["body.bn1.num_batches_tracked"]) > 0


@pytest.mark.parametrize("moment", ["received", "fitted"])
def test_the_moment_of_judgement_is_named(tiny: dict[str, Any], moment: str) -> None:
    done = run(**(tiny | {"rounds": 1}), moment=moment)
    assert done.site.moment == moment
    same_for_all = len({round(x, 12) for x in done.columns["G-acc"]}) == 1
    assert same_for_all == (moment == "received")


def test_post_local_is_the_fitted_moment(tiny: dict[str, Any]) -> None:
    a = run(**tiny, method={"name": "FedAvg", "personal_model": "post_local"})
    b = run(**tiny, moment="fitted")
    assert a.columns == b.columns
    assert a.site.moment == "fitted"


def test_finetuning_starts_from_the_global_model_and_is_forgotten(tiny: dict[str, Any]) -> None:
    tuned = run(**tiny, method={"name": "FedAvg", "personal_model": "finetune", "finetune_epochs": 5})
    plain = run(**tiny)
    assert torch.equal(tuned.server.theta, plain.server.theta)
    assert tuned.columns["L-acc"] != plain.columns["L-acc"]
    none = run(**tiny, method={"name": "FedAvg", "personal_model": "finetune", "finetune_epochs": 0})
    assert none.columns == plain.columns


def test_a_checkpoint_of_another_configuration_is_refused(tiny: dict[str, Any], tmp_path: Path) -> None:
    run(**tiny, out=tmp_path / "x")
    with pytest.raises(ComityError, match=r"another configuration \(lr differ\)"):
        run(**(tiny | {"lr": 0.2}), out=tmp_path / "x", resume=True)
    with pytest.raises(ComityError, match="holds a run already; give --resume"):
        run(**tiny, out=tmp_path / "x")
    run(**(tiny | {"lr": 0.2}), out=tmp_path / "x", overwrite=True)
    (tmp_path / "x" / "checkpoint" / "state.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ComityError, match="cannot be read"):
        run(**(tiny | {"lr": 0.2}), out=tmp_path / "x", resume=True)


def test_a_finished_run_resumed_changes_nothing(tiny: dict[str, Any], tmp_path: Path) -> None:
    first = run(**tiny, out=tmp_path / "x")
    second = run(**tiny, out=tmp_path / "x", resume=True)
    assert_same(first, second)
    assert first.result.last == second.result.last


def test_local_statistics_never_leak_from_one_client_to_the_next(tiny: dict[str, Any]) -> None:
    """A rule that asks for losses looks at the common model first, with each client's own BatchNorm statistics."""
    options = tiny | RESNET | {"buffers": "local", "rule": "FairDescent", "data": tiny["data"] | {"feature_shift": 2.0}}
    assert_same(run(**options), run(**(options | {"workers": 3})))


# Resuming.


def stopped(options: dict[str, Any], out: Path, after: int = 2) -> None:
    """A run that was stopped after some rounds."""
    rounds = iter([False] * after + [True])
    assert not run(**options, out=out, stop=lambda: next(rounds)).done


LOGS = ("rounds.jsonl", "weights.jsonl", "cosines.jsonl", "clients.csv")


@pytest.mark.parametrize("name", LOGS)
def test_lines_that_were_lost_or_changed_are_told_and_later_ones_are_cut(
    tiny: dict[str, Any], tmp_path: Path, name: str
) -> None:
    stopped(tiny, tmp_path / "x")
    file = tmp_path / "x" / name
    whole = file.read_bytes()
    os.truncate(file, len(whole) - 1)
    with pytest.raises(ComityError, match=rf"{name} lost lines: .* --overwrite, or remove the folder, to start anew"):
        run(**tiny, out=tmp_path / "x", resume=True)
    file.write_bytes(whole[:30] + b"7" + whole[31:])
    with pytest.raises(ComityError, match=f"{name} was changed after it was written"):
        run(**tiny, out=tmp_path / "x", resume=True)
    file.write_bytes(whole + b'{"round": 3, "half a li')
    resumed, unbroken = run(**tiny, out=tmp_path / "x", resume=True), run(**tiny, out=tmp_path / "y")
    assert_same(resumed, unbroken)
    if name != "rounds.jsonl":  # which has seconds in it
        assert file.read_bytes() == (tmp_path / "y" / name).read_bytes()
    assert [record.round for record in RunFolder(tmp_path / "x").rounds()] == [1, 2, 3]


def test_logs_are_on_disk_before_the_checkpoint_that_counts_on_them(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    run(**(tiny | {"rounds": 1}), out=tmp_path / "x")
    checkpoint = next(i for i, name in enumerate(synced) if name.startswith(".state.safetensors"))
    assert set(LOGS) <= set(synced[:checkpoint])


def edited(file: Path, how: str) -> None:
    """A checkpoint that another program wrote anew: a safetensors file as good as any, but not the one that was."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(file, framework="pt") as opened:
        about, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    if how == "missing":
        del tensors["server/theta"]
    elif how == "shape":
        tensors["server/theta"] = tensors["server/theta"][:-1].clone()
    elif how == "dtype":
        tensors["server/theta"] = tensors["server/theta"].double()
    elif how == "round":
        about["round"] = "nan"
    elif how == "number":
        tensors["server/theta"][0] += 1
    save_file(tensors, file, about)


@pytest.mark.parametrize("damage", ["result", "information", "checkpoint", "configuration"])
def test_a_damaged_cached_local_is_trained_again(tiny: dict[str, Any], tmp_path: Path, damage: str) -> None:
    options = tiny | {"reference": "auto"}
    first = run(**options, out=tmp_path / "a")
    (cached,) = (tmp_path / ".local").iterdir()
    if damage == "information":
        (cached / "run.json").write_text("{}")
    elif damage == "result":
        (cached / "result.json").write_text('{"clients"')
    else:
        (cached / "result.json").unlink()
        (cached / "checkpoint" / "state.safetensors").write_bytes(b"nothing")
        if damage == "configuration":
            (cached / "config.yaml").unlink()
    with pytest.warns(UserWarning, match=r"\.local.* \(this Local is trained again\)$"):
        second = run(**options, out=tmp_path / "b")
    assert first.local == second.local
    assert RunFolder(cached).finished


def test_a_local_whose_rounds_fail_is_not_begun_again(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ComityError("nobody can be evaluated")

    monkeypatch.setattr("comity.engine._server.Server.evaluate", fail)
    with pytest.raises(ComityError, match="nobody can be evaluated"):  # and no warning, which would be an error here
        run(**(tiny | {"reference": "auto"}), out=tmp_path / "a")


@pytest.mark.parametrize("how", ["missing", "shape", "dtype", "round", "number", "cut", "flipped", "empty", "garbage"])
def test_a_checkpoint_that_is_not_the_one_that_was_written_is_refused(
    tiny: dict[str, Any], tmp_path: Path, how: str
) -> None:
    stopped(tiny, tmp_path / "x")
    file = tmp_path / "x" / "checkpoint" / "state.safetensors"
    content = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(content[:-1])
    elif how == "flipped":
        content[-3] ^= 1
        file.write_bytes(content)
    elif how in ("empty", "garbage"):
        file.write_bytes(b"" if how == "empty" else os.urandom(500))
    else:
        edited(file, how)
    with pytest.raises(ComityError, match=r"^checkpoint .* cannot be read: it was changed .* to start anew$"):
        run(**tiny, out=tmp_path / "x", resume=True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", "", "is not JSON"),
        ("run.json", "[" * 100_000, "Expected `object`, got `array`"),
        ("run.json", "{}", "another version of comity"),
        ("config.yaml", "\0\1", "is not YAML"),
        ("config.yaml", "[" * 100_000, "is not YAML"),
        ("config.yaml", "lr: 1\n" + "#" * 10**6, "is larger than 1 MB"),
        ("config.yaml", "lr: 1", "is not the configuration of a run"),
    ],
)
def test_a_damaged_description_is_told(
    tiny: dict[str, Any], tmp_path: Path, name: str, content: str, words: str
) -> None:
    from comity.commands import command

    stopped(tiny, tmp_path / "x")
    (tmp_path / "x" / name).write_text(content)
    with pytest.raises(ComityError, match=words):
        command("run", ["--resume", "--out", str(tmp_path / "x")])


def test_a_configuration_that_was_edited_is_not_taken_for_the_runs_own(tiny: dict[str, Any], tmp_path: Path) -> None:
    from comity.commands import command

    stopped(tiny, tmp_path / "x")
    file = tmp_path / "x" / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.1\n", "lr: 0.3\n"))
    with pytest.raises(ComityError, match=r"config.yaml is not the configuration that the run began with"):
        command("run", ["--resume", "--out", str(tmp_path / "x")])


def test_another_version_goes_on_with_a_line_of_warning(tiny: dict[str, Any], tmp_path: Path) -> None:
    stopped(tiny, tmp_path / "x")
    file = tmp_path / "x" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"comity": "0.0.1"}))
    with pytest.warns(UserWarning, match=r"was begun by comity 0.0.1 and goes on with"):
        resumed = run(**tiny, out=tmp_path / "x", resume=True)
    assert_same(resumed, run(**tiny))


def test_a_folder_that_was_moved_goes_on_where_it_is(tiny: dict[str, Any], tmp_path: Path) -> None:
    from comity.commands import command

    stopped(tiny, tmp_path / "x")
    shutil.move(tmp_path / "x", tmp_path / "else" / "where")
    assert command("run", ["--resume", "--quiet", "--out", str(tmp_path / "else" / "where")]) == 0
    assert not (tmp_path / "x").exists()
    assert RunFolder(tmp_path / "else" / "where").result().clients == run(**tiny).columns


@pytest.mark.parametrize("option", [{"reference": "nowhere"}, {"optimizer": "Nix"}, {"device": "cuda:99"}])
def test_a_refused_option_leaves_nothing_written(tiny: dict[str, Any], tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ComityError):
        run(**(tiny | option), out=tmp_path / "runs" / "x", store="disk")
    assert not list(tmp_path.iterdir())


# Many clients.


def test_s_and_g_can_be_left_out(tiny: dict[str, Any], tmp_path: Path) -> None:
    never, last = run(**tiny, general_every="never", out=tmp_path / "x"), run(**tiny)
    assert "G-acc" not in never.columns
    assert "S-acc" not in never.columns
    assert never.columns["L-acc"] == last.columns["L-acc"]
    assert run(**tiny, general_every="never", out=tmp_path / "x", resume=True).columns == never.columns
    assert Config(**tiny, general_every=0).key == Config(**tiny).key
    with pytest.raises(ComityError, match=r"general_every must be a whole number, at least 0 or never, got 'seldom'"):
        Config(general_every="seldom")


@pytest.mark.parametrize(("method", "sampled"), [("Local", ["S-acc", "G-acc"]), ("FedAvg", ["S-acc"])])
def test_too_many_tests_are_sampled_and_the_error_is_noted(
    method: str, sampled: list[str], tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tiny | {"clients": 40, "rounds": 1, "method": method}
    whole = run(**options)
    assert whole.records[-1].general_error == 0
    monkeypatch.setattr("comity.engine._evaluation.LEAST_SAMPLE", 30)  # of 280 tests, S-acc has 119
    monkeypatch.setattr("comity.engine._evaluation.MOST_ANSWERS", 40 * 30)
    some = run(**options, out=tmp_path / "x")
    error = RunFolder(tmp_path / "x").result().last.general_error
    assert error == some.records[-1].general_error == pytest.approx(0.5 / 30**0.5)
    assert some.columns["L-acc"] == whole.columns["L-acc"]
    for name in sampled:
        differences = torch.tensor(some.columns[name]) - torch.tensor(whole.columns[name])
        assert differences.abs().max() > 0
        assert float(differences.square().mean().sqrt()) < 1.5 * error
    assert abs(float(torch.tensor(some.columns["S-acc"]).mean() - torch.tensor(whole.columns["S-acc"]).mean())) < error
    again = run(**(options | {"workers": 3}))
    assert again.columns == some.columns


def test_everybodys_tests_cost_at_most_a_tenth_of_the_training(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Personal models are tried on a sample with as much of each client and class; a common one on all tests."""
    monkeypatch.setattr("comity.engine._evaluation.LEAST_SAMPLE", 1)
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


def test_cosines_are_noted_of_some_clients_alone(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(**tiny, rule="ConFREE")
    monkeypatch.setattr("comity.engine._server.MOST_COSINES", 3)
    some = run(**tiny, rule="ConFREE")
    assert_same(whole, some)
    assert len({tuple(entry.ids) for entry in some.cosines}) > 1
    for few, every in zip(some.cosines, whole.cosines, strict=True):
        assert few.ids == sorted(few.ids)
        assert few.cosines == [[every.cosines[int(i)][int(j)] for j in few.ids] for i in few.ids]
        assert len(few.ids) == 3


@pytest.mark.slow
def test_two_thousand_clients_leave_a_small_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.engine._evaluation.LEAST_SAMPLE", 100)
    monkeypatch.setattr("comity.engine._evaluation.MOST_ANSWERS", 200_000)
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
    sizes = {name: (tmp_path / "x" / name).stat().st_size for name in (*LOGS, "result.json", "partition.json")}
    assert sum(sizes.values()) < 1_000_000, sizes
