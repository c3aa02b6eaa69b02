"""FedBABU: the head that nobody trains, the fine-tuning that is judged, and its reductions."""

from typing import Any

import pytest
import torch
from by_hand import sgd_step

from comity import Config
from comity.engine import run
from comity.methods import WHOLE, Message
from helpers import client_of, keeps, site_of, used


def babu(**options: Any) -> dict[str, Any]:
    return {"name": "FedBABU"} | options


def test_the_head_stays_as_it_was_drawn(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="FedBABU")
    head = done.site.model().read("head")
    assert all(torch.equal(keep["personal"], head) for keep in keeps(done).values())
    assert done.server.theta.numel() == done.site.model().size("body")
    assert (done.server.theta - done.site.model().read("body")).abs().max() > 0.01


@pytest.mark.parametrize("part", ["whole", "head"])
def test_fine_tuning_is_plain_sgd_from_the_common_model(tiny: dict[str, Any], part: str) -> None:
    config = Config(**tiny, method=babu(finetune=part, finetune_epochs=3))
    site = site_of(config)
    client, by_hand = client_of(site, 1), site.model()
    received = Message(theta=site.model().read("body") + 0.1)
    by_hand.write(received.theta, "body")
    common = by_hand.read()
    parts = WHOLE if part == "whole" else ("head",)
    for x, y in client.batches(3):
        sgd_step(by_hand.loss(x, y), by_hand.parameters(*parts), config.lr)
    torch.testing.assert_close(site.method.personal(client, received), by_hand.read(), rtol=0, atol=1e-6)
    assert torch.equal(site.method.general(client, received), common)


def test_fine_tuning_leaves_no_trace(tiny: dict[str, Any]) -> None:
    tuned, untuned = run(**tiny, method="FedBABU"), run(**tiny, method=babu(finetune_epochs=0))
    assert torch.equal(tuned.server.theta, untuned.server.theta)
    assert tuned.columns["global-acc"] == untuned.columns["global-acc"]
    assert not torch.equal(used(tuned)[0], used(untuned)[0])
