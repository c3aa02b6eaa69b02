"""Rounds after the last one, in which clients train on their validation samples too."""

from pathlib import Path

import torch

from comity.engine import run
from comity.metrics import VALIDATION
from helpers import Options, assert_reproducible


def test_validation_samples_are_trained_on_after_the_last_round(tiny: Options, tmp_path: Path) -> None:
    options = tiny | {"val_share": 0.25}
    plain, more = run(**options), assert_reproducible(options | {"refit": 1}, tmp_path / "x", after=3)
    clients = plain.federation.clients
    assert more.server.round == tiny["rounds"] + 1
    assert plain.columns["n_train"] == [len(client.train) for client in clients]
    assert more.columns["n_train"] == [len(client.train) + len(client.val) for client in clients]
    assert VALIDATION.key in plain.columns
    assert VALIDATION.key not in more.columns  # these samples are training samples now
    assert more.result.best.round <= tiny["rounds"]
    assert [record.metrics["L-acc"] for record in more.records[:3]] == [
        record.metrics["L-acc"] for record in plain.records
    ]
    assert not torch.equal(plain.server.theta, more.server.theta)
