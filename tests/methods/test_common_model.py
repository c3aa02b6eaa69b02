"""The common models of FedRep and FedFomo, which the FedPG supplement reports, by their definition."""

from typing import Any

import pytest
import torch
from by_hand import kept, same
from torch import Tensor

from comity.engine import Run, run
from comity.metrics import COMMON
from helpers import site_of

FEDREP = {"name": "FedRep", "share_head": True}
FEDFOMO = {"name": "FedFomo", "common": True}


def right_share(done: Run, theta: Tensor) -> list[float]:
    """How much of its own tests each client predicts correctly with this model."""
    site = site_of(done.config)
    model = site.model()
    model.write(theta)
    found = []
    for cid in range(done.config.clients):
        test = site.federation.clients[cid].test
        with torch.no_grad():
            found.append(float((model.net(test.x).argmax(1) == test.y).float().mean()))
    return found


def measured(done: Run) -> list[float]:
    return [float(share) for share in done.columns[COMMON.key]]


def test_fedrep_has_the_mean_of_the_whole_models_as_its_common_model(tiny: dict[str, Any]) -> None:
    """(mean of the bodies, mean of the heads), by size, of the clients of the last round."""
    done = run(**tiny, method=FEDREP, eval_point="fitted")
    heads, sizes = kept(done, "head"), [len(c.train) for c in site_of(done.config).federation.clients]
    mean = sum(size * head for size, head in zip(sizes, heads, strict=True)) / sum(sizes)
    head = done.server.theta[-len(mean) :]
    torch.testing.assert_close(head, mean, rtol=0, atol=1e-6)
    assert measured(done) == pytest.approx(right_share(done, done.server.theta))


def test_fedreps_clients_learn_nothing_from_the_combined_head(tiny: dict[str, Any]) -> None:
    shared, plain = run(**tiny, method=FEDREP), run(**tiny, method="FedRep")
    assert same(kept(shared, "head"), kept(plain))
    body = len(plain.server.theta)
    assert torch.equal(shared.server.theta[:body], plain.server.theta)
    assert shared.result.last.metrics["L-acc"] == plain.result.last.metrics["L-acc"]
    assert COMMON.key not in plain.result.last.metrics


def test_fedfomos_common_model_is_the_mean_of_the_last_rounds_models(tiny: dict[str, Any]) -> None:
    options = tiny | {"clients": 4, "participation": 0.5}
    done, plain = run(**options, method=FEDFOMO), run(**options, method="FedFomo")
    own = kept(done, "own")
    assert same(own, kept(plain, "own"))  # it changes nobody's model
    mean = torch.stack([own[cid] for cid in done.records[-1].cohort]).mean(0)
    assert measured(done) == pytest.approx(right_share(done, mean))
    assert COMMON.key not in plain.result.last.metrics
