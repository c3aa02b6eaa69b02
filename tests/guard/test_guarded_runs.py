"""A guard around any method: what a client uses, what it is judged by, and that nothing more travels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comity import ComityError, Config
from comity.data import Split
from comity.engine import Client, Judgement, Run, Site, run
from comity.guard import extension, mixture_weights
from comity.guard.extension import Guarding
from comity.methods import METHODS
from comity.metrics import BOUND, GAIN, LOSS, OWN, OWN_WEIGHT, UNGUARDED, VALIDATION, Metric, class_weights
from comity.studies import study
from helpers import Options, assert_reproducible

JOINED = [name for name in METHODS if name != "Local"]


@pytest.fixture
def guarded(tiny: Options) -> Options:
    return tiny | {"reference": "auto", "guard": "mixture", "rounds": 3, "lr": 0.02}


def measured(run: Run, metric: Metric = OWN) -> np.ndarray:
    return np.array(run.columns[metric.key])


def bounds(run: Run) -> np.ndarray:
    """NaN for clients that use the local baseline; no column where all do."""
    return np.array(run.columns.get(BOUND.key, [np.nan] * len(run.columns["client"])))


@pytest.mark.slow
@pytest.mark.parametrize("method", JOINED)
def test_any_method_can_be_guarded(guarded: Options, method: str) -> None:
    done = run(**guarded, method=method)
    plain = run(**guarded | {"guard": None}, method=method, refit=1, val_share=done.config.val_share)
    if done.config.val_share == 0.2:  # else the method learns from a part of the validation samples
        # only what clients use is another: the federation itself learns as it does without a guard
        assert torch.equal(done.server.theta, plain.server.theta)
        assert done.columns[UNGUARDED.key] == plain.columns[OWN.key]
    gain = np.array(list(done.result.transfer.gain.values()))
    assert gain == pytest.approx(measured(done, GAIN))
    assert ((measured(done, OWN_WEIGHT) > 0) & (measured(done, OWN_WEIGHT) < 1)).all()


def test_the_weights_are_the_posterior_mean_on_samples_that_neither_model_has_seen(guarded: Options) -> None:
    """By hand: both models trained without the validation samples, their predictions for these, the weights."""
    done = run(**guarded, refit=0)
    config = Config.of(guarded | {"refit": 0})
    alone = run(config.local_baseline(on="train"))
    for cid, client in enumerate(done.federation.clients):
        given = []
        for each in (alone, done):
            model = each.site.model()
            model.write(each.server.export()[cid])
            logits = model.net.eval()(client.val.x)
            given.append(torch.softmax(logits.double(), 1)[range(len(client.val)), client.val.y].detach().numpy())
        weights = mixture_weights(np.column_stack(given)).weights
        assert done.columns[OWN_WEIGHT.key][cid] == pytest.approx(weights[0], abs=1e-5)


def test_the_weights_are_found_before_the_validation_samples_are_trained_on(guarded: Options) -> None:
    done, short = run(**guarded, refit=2), run(**guarded, refit=0)
    assert done.server.round == short.server.round + 2
    assert done.columns[OWN_WEIGHT.key] == short.columns[OWN_WEIGHT.key]
    assert sum(done.columns["n_train"]) > sum(short.columns["n_train"])
    assert VALIDATION.key not in done.columns  # these samples are training samples now
    assert done.result.best.chosen_by == "validation"
    assert done.result.best.round <= guarded["rounds"]


def test_local_learns_from_all_samples_however_many_others_hold_out(guarded: Options) -> None:
    whole = run(**guarded | {"guard": None}, method="Local")
    done = run(**guarded)
    some = run(**guarded | {"guard": None}, val_share=0.5)
    assert done.local[OWN.key] == some.local[OWN.key] == whole.columns[OWN.key]
    train = run(**guarded | {"guard": None}, val_share=0.5, local_on="train")
    assert train.local != some.local
    assert train.result.transfer.local_on == "train"


def test_where_the_federation_is_worthless_the_own_model_is_used_as_it_is(guarded: Options) -> None:
    """An attack makes the common model useless; a certified client then has exactly the local baseline on all samples.

    Not the model that was trained without the held-out samples, which the certificate is about.
    """
    options = guarded | {"guard": {"name": "certified", "margin": 0.0}, "attack": "scale", "malicious": 0.4}
    options |= {"data": guarded["data"] | {"samples": 120}, "lr": 0.1}
    done = run(**options)
    fallen = measured(done, OWN_WEIGHT) == 1
    assert fallen.any()
    alone = run(Config.of(options).local_baseline(on="all"))
    own = dict(zip(alone.columns["client"], alone.columns[LOSS.key], strict=True))
    for cid, value, falls in zip(done.columns["client"], done.columns[LOSS.key], fallen, strict=True):
        assert not falls or value == own[cid]
    seen = run(Config.of(options).local_baseline(on="train"))
    assert seen.columns[LOSS.key] != alone.columns[LOSS.key]  # so that the two can be distinguished
    assert (np.isnan(bounds(done)) == fallen).all()


@pytest.mark.parametrize("stop_after", [2, 4], ids=["before the choice", "after the choice"])
def test_workers_resume_and_cache_give_the_same_bits(guarded: Options, tmp_path: Path, stop_after: int) -> None:
    options = guarded | {"refit": 2}
    run(**options, out=tmp_path / "whole")  # trains both baselines, so that below only the run itself asks to stop
    assert_reproducible(options, tmp_path / "cut", stop_after)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "Local"}, "has no effect on Local"),
        ({"reference": "none"}, "needs each client's own model"),
        ({"local_on": "train"}, "needs local_on all"),
        ({"guard": {"name": "certified", "delta": 1.0}}, "guard.delta must be above 0 and below 1"),
        ({"guard": "mixtur"}, "did you mean mixture"),
    ],
    ids=str,
)
def test_what_cannot_be_is_rejected(guarded: Options, options: Options, words: str) -> None:
    with pytest.raises(ComityError, match=words):
        run(**guarded | options)


def test_a_method_with_a_common_model_has_three_experts(guarded: Options) -> None:
    done = run(**guarded, method="Ditto")
    kept = [state.engine["guard"] for state in done.server.link.states().values()]
    assert {len(each) for each in kept} == {3}  # own, federated and common
    assert all(float(each.sum()) == pytest.approx(1) for each in kept)


@pytest.mark.parametrize(
    "options",
    [{"method": {"name": "FedAvg", "personal_model": "finetune"}}, {"method": "FedBABU"}],
    ids=["finetune", "FedBABU"],
)
@pytest.mark.parametrize("state", ["reset", "keep"])
def test_the_model_that_is_weighed_is_the_one_that_is_used(
    guarded: Options, options: Options, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a client's model is trained on the way: the same to the bit, so that all decisions are."""
    seen: dict[int, list[torch.Tensor]] = {}
    weigh = Guarding.weights

    def noting(self: Guarding, site: Site, client: Client, model: torch.Tensor, *more: Any) -> Any:
        if client.round == guarded["rounds"]:
            seen.setdefault(client.id, []).append(model.clone())
        return weigh(self, site, client, model, *more)

    monkeypatch.setattr(Guarding, "weights", noting)
    done = run(**guarded | options, refit=0, momentum=0.5, optimizer_state=state)
    assert set(seen) == set(done.columns["client"])
    for cid, (weighed, used) in seen.items():
        assert torch.equal(weighed, used)
        assert torch.equal(weighed, done.server.export()[cid])


@pytest.mark.parametrize(
    "options",
    [
        {"method": "FedFomo"},
        {"method": "FEDORA"},
        {"rule": {"name": "Mean", "length": "search"}},
        {"guard_split": True},
    ],
    ids=["FedFomo", "FEDORA", "search", "tuned"],
)
def test_the_samples_of_the_guard_are_used_by_nobody_else(
    guarded: Options, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples: dict[str, set[tuple[float, ...]]] = {"guard": set(), "others": set()}
    predictions, predict = extension._predictions, Client.predict
    by_guard, client, guarded_clients = False, Site.client, dict[int, Client]()

    def rows(split: Split) -> set[tuple[float, ...]]:
        return {tuple(row) for row in split.x.flatten(1).tolist()}

    def weighing(experts: Any, split: Split) -> Any:
        nonlocal by_guard
        samples["guard"] |= rows(split)
        by_guard = True
        found = predictions(experts, split)
        by_guard = False
        return found

    def predicting(self: Client, split: Split) -> Any:
        if not by_guard and id(self) in guarded_clients:
            samples["others"] |= rows(split)
        return predict(self, split)

    def at_work(self: Site, *given: Any, **options: Any) -> Client:
        found = client(self, *given, **options)
        if self.config.guard is not None:  # not in a local baseline
            guarded_clients[id(found)] = found
        return found

    def expecting(self: Judgement, predict: Any) -> Any:
        """Evaluation sees these samples without their labels, and chooses nothing by them."""
        nonlocal by_guard
        by_guard, before = True, by_guard
        found = expected_shares(self, predict)
        by_guard = before
        return found

    expected_shares = Judgement.expected_shares
    monkeypatch.setattr(Judgement, "expected_shares", expecting)
    monkeypatch.setattr(extension, "_predictions", weighing)
    monkeypatch.setattr(Client, "predict", predicting)
    monkeypatch.setattr(Site, "client", at_work)
    done = run(**guarded | options, refit=0)
    held_out = set().union(*(rows(client.val) for client in done.federation.clients))
    assert samples["guard"] < held_out
    assert held_out - samples["guard"] <= samples["others"]
    assert not samples["guard"] & samples["others"]


def test_where_nobody_else_uses_them_the_guard_has_all_validation_samples(guarded: Options) -> None:
    done = run(**guarded, refit=0)
    assert done.config.val_share == 0.2
    data = done.site.data(0, 1)
    assert data.val is done.federation.clients[0].val


def test_a_search_and_the_guard_have_samples_of_their_own(guarded: Options, tmp_path: Path) -> None:
    options = guarded | {"method": "Ditto", "guard": ["none", "mixture"], "tune": {"method.lam": [0.1, 10.0]}}
    done = study(**options, out=tmp_path / "x")
    assert [len(search.tried) for search in done.tuning] == [2, 2]
    assert all(trial.validation is not None for search in done.tuning for trial in search.tried)
    (under_guard,) = (each for each in done.runs if each.options.get("guard"))
    assert under_guard.options["guard_split"]
    assert under_guard.options["val_share"] == 0.4
    assert len(done.settings) == 1  # the guarded run is compared with the others
    with pytest.raises(ComityError, match="runs without a guard"):
        study(**options | {"tune": {"lr": [0.1, 0.2]}}, out=tmp_path / "y")


def test_where_balanced_accuracy_decides_classes_weigh_the_same(guarded: Options) -> None:
    """By hand: the posterior mean with the class weights of the validation labels as powers."""
    done = run(**guarded, refit=0, metric="balanced")
    plain = run(**guarded, refit=0, metric="accuracy")
    for cid, client in enumerate(done.federation.clients):
        model = done.site.model()
        model.write(done.server.export()[cid])
        with torch.inference_mode():
            joined = torch.softmax(model.net.eval()(client.val.x).double(), 1)
        own = done.site.baselines["train"].predict(cid, client.val).double().exp()
        given = [each[range(len(client.val)), client.val.y].numpy() for each in (own, joined)]
        weights = mixture_weights(np.column_stack(given), class_weights(client.val.y.numpy())).weights
        assert done.columns[OWN_WEIGHT.key][cid] == pytest.approx(weights[0], abs=1e-5)
    assert done.columns[OWN_WEIGHT.key] != plain.columns[OWN_WEIGHT.key]


@pytest.mark.parametrize("metric", ["accuracy", "balanced", "log-loss", "brier", "auc"])
def test_certified_runs_with_every_metric(guarded: Options, metric: str) -> None:
    options = guarded | {"data": guarded["data"] | {"samples": 200}, "guard": {"name": "certified", "margin": 0.5}}
    done = run(**options, metric=metric)
    assert ((measured(done, OWN_WEIGHT) < 1) == np.isfinite(bounds(done))).all()
    assert np.nanmax(bounds(done), initial=-1) <= 0.5
