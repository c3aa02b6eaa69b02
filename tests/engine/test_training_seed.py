"""The training seed changes training alone: data, splits, malicious clients and what is drawn to evaluate stay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import comity
from comity import Config
from comity.engine import RunPlan, _tests
from comity.guard import extension as guard
from helpers import TINY, client_of, used


def config(**options: Any) -> Config:
    return Config(**(TINY | options))


def test_initial_model_batches_and_server_follow_it() -> None:
    (site, server), (other, other_server) = (RunPlan(config(**seeds)).build() for seeds in ({"seed": 5}, {}))
    same, same_server = RunPlan(config(training_seed=5)).build()
    assert torch.equal(same.initial, site.initial)
    assert not torch.equal(same.initial, other.initial)
    orders = [client_of(each).random("batches").initial_seed() for each in (site, same, other)]
    cohorts = [each.random("cohort").initial_seed() for each in (server, same_server, other_server)]
    for first, again, third in (orders, cohorts):
        assert first == again != third


@pytest.mark.parametrize("options", [{}, {"data": "heart", "model": "logistic", "clients": 4}])
def test_data_and_splits_stay(options: dict[str, Any]) -> None:
    one, other = (RunPlan(config(seed=2, training_seed=seed, **options)).everyone for seed in (None, 9))
    assert one.fingerprint == other.fingerprint
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.test_ids.tolist() == b.test_ids.tolist()
        for split in ("train", "val", "test"):
            assert torch.equal(getattr(a, split).x, getattr(b, split).x)


def test_malicious_clients_and_what_evaluation_draws_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[tuple[str | int, ...]] = set()

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *key: (drawn.add(key), make(*key))[1]

    monkeypatch.setattr(_tests, "generator", noting(_tests.generator))
    monkeypatch.setattr(guard, "numpy_generator", noting(guard.numpy_generator))
    options = {"guard": "mixture", "reference": "auto", "seed": 2, "attack": "flip", "malicious": 0.4}
    excluded = [comity.run(config(training_seed=seed, **options)).excluded for seed in (None, 9)]
    assert excluded[0] == excluded[1]
    assert {key[0] for key in drawn} == {2}
    assert {key[1] for key in drawn} >= {"S-acc", "guard"}


def test_the_seed_of_a_run_changes_no_bit() -> None:
    runs = [comity.run(config(seed=3, training_seed=seed)) for seed in (None, 3, 4)]
    first, again, other = (run.server.theta for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_repeated_baseline_has_other_models_on_the_same_data() -> None:
    plan = RunPlan(config(seed=1, rounds=2))
    local, repeated = plan.local_baseline(), plan.local_baseline(repeat=True)
    assert "training_seed" not in local.config.plain()
    assert repeated.config.differences(local.config) == ["training_seed"]
    assert repeated.config.key != local.config.key
    runs = [comity.run(plan=each) for each in (local, repeated)]
    states = [used(run) for run in runs]
    assert all(not torch.equal(one, other) for one, other in zip(*states, strict=True))
    for one, other in zip(*(run.federation.clients for run in runs), strict=True):
        assert torch.equal(one.train.x, other.train.x)


def test_runs_of_one_seed_share_their_baselines() -> None:
    run, other = config(seed=1), config(seed=1, training_seed=4)
    for repeat in (False, True):
        assert run.local_baseline(repeat=repeat).key == other.local_baseline(repeat=repeat).key
    repeats = {config(seed=seed).local_baseline(repeat=True).seed_for_training for seed in range(1000)}
    assert len(repeats) == 1000
    assert min(repeats) > 1000  # no run's own
    largest = 2**63 - 1
    assert config(seed=largest).local_baseline(repeat=True).seed_for_training != largest
