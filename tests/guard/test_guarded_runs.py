"""A guard around any method: what a client uses, what it is judged by, and that nothing more travels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from comity import ComityError, Config
from comity.engine import Run, run
from comity.guard import mixture_weights
from comity.methods import METHODS
from comity.metrics import ONLY_JOINED, ONLY_LOCAL, OWN, OWN_WEIGHT, UNGUARDED, VALIDATION, Metric
from helpers import Options, assert_reproducible

JOINED = [name for name in METHODS if name != "Local"]


@pytest.fixture
def guarded(tiny: Options) -> Options:
    return tiny | {"reference": "auto", "guard": "mixture", "rounds": 3, "lr": 0.02}


def measured(run: Run, metric: Metric = OWN) -> np.ndarray:
    return np.array(run.columns[metric.key])


@pytest.mark.slow
@pytest.mark.parametrize("method", JOINED)
def test_any_method_can_be_guarded(guarded: Options, method: str) -> None:
    done = run(**guarded, method=method)
    plain = run(**guarded | {"guard": None}, method=method, refit=1, val_share=0.2)
    tests = np.array(done.columns["n_test"])
    # only what clients use is another: the federation itself learns as it does without a guard
    assert torch.equal(done.server.theta, plain.server.theta)
    assert done.columns[UNGUARDED.key] == plain.columns[OWN.key]
    gain = np.array(list(done.result.transfer.gain.values()))
    assert gain == pytest.approx((measured(done, ONLY_JOINED) - measured(done, ONLY_LOCAL)) / tests)
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
    assert done.local == some.local == dict(enumerate(whole.columns[OWN.key]))
    train = run(**guarded | {"guard": None}, val_share=0.5, local_on="train")
    assert train.local != some.local
    assert train.result.transfer.local_on == "train"


def test_where_the_federation_is_worthless_the_own_model_is_used_as_it_is(guarded: Options) -> None:
    """An attack makes the common model useless; a certified client then has exactly what it has alone."""
    options = guarded | {"guard": {"name": "certified", "margin": 0.0}, "attack": "scale", "malicious": 0.4}
    options["data"] = guarded["data"] | {"samples": 120}
    done = run(**options)
    fallen = measured(done, OWN_WEIGHT) == 1
    assert fallen.any()
    alone = run(Config.of(options).local_baseline(on="train"))
    own = dict(zip(alone.columns["client"], alone.columns[OWN.key], strict=True))
    for cid, value, falls in zip(done.columns["client"], done.columns[OWN.key], fallen, strict=True):
        assert not falls or value == own[cid]


@pytest.mark.parametrize("stop_after", [2, 4], ids=["before the choice", "after the choice"])
def test_workers_resume_and_cache_give_the_same_bits(guarded: Options, tmp_path: Path, stop_after: int) -> None:
    options = guarded | {"refit": 2}
    run(**options, out=tmp_path / "whole")  # trains both baselines, so that below only the run itself asks to stop
    assert_reproducible(options, tmp_path / "cut", stop_after)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "Local"}, "nothing to do for Local"),
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


def test_saved_models_and_weights_are_what_the_client_uses(guarded: Options, tmp_path: Path) -> None:
    done = run(**guarded, save_models=True, out=tmp_path / "x")
    for cid, client in enumerate(done.federation.clients):
        mixture = torch.zeros(len(client.test), done.federation.classes)
        for place, name in enumerate((f"client_{cid:03d}_own", f"client_{cid:03d}")):
            file = tmp_path / "x" / "models" / f"{name}.safetensors"
            net = done.site.model().net
            net.load_state_dict(load_file(file))
            with safe_open(file, "pt") as opened:
                weight = float(opened.metadata()["weights"].split()[place])
            mixture += weight * torch.softmax(net.eval()(client.test.x), 1).detach()
        assert float((mixture.argmax(1) == client.test.y).double().mean()) == done.columns[OWN.key][cid]
