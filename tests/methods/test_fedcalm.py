from typing import Any

import numpy as np
import torch

from comity.engine import run
from comity.rules import CALM, Projection


def test_fedcalm_is_fedrep_or_fedper_under_calm(tiny: dict[str, Any]) -> None:
    options = tiny | {"data": tiny["data"] | {"label_shift": 0.9}}
    calm = {"name": "CALM", "eps": 0.05, "C": 1.0}
    alternate = run(**options, method={"name": "FedCALM", "eps": 0.05, "C": 1.0})
    assert torch.equal(alternate.server.theta, run(**options, method="FedRep", rule=calm).server.theta)
    joint = run(**options, method={"name": "FedCALM", "eps": 0.05, "C": 1.0, "local": "joint"})
    assert torch.equal(joint.server.theta, run(**options, method="FedPer", rule=calm).server.theta)
    assert not torch.equal(joint.server.theta, alternate.server.theta)


def test_only_proj_is_the_first_stage_alone(tiny: dict[str, Any]) -> None:
    options = tiny | {"data": tiny["data"] | {"label_shift": 0.9}}
    projected = run(**options, method={"name": "FedCALM", "stages": 1})
    layers = {"name": "Projection", "scope": "layer"}
    assert torch.equal(projected.server.theta, run(**options, method="FedRep", rule=layers).server.theta)
    assert torch.equal(projected.server.theta, run(**options, method={"name": "FedCALM", "C": 0.0}).server.theta)
    assert not torch.equal(projected.server.theta, run(**options, method="FedCALM").server.theta)
    assert isinstance(projected.server.rule, Projection)


def test_lambda_is_what_the_second_stage_adds(tiny: dict[str, Any]) -> None:
    rounds = [run(**(tiny | {"rounds": 1}), method={"name": "FedCALM", "stages": stages}).weights for stages in (1, 2)]
    (first,), (second,) = rounds
    assert first.multipliers is None
    assert second.multipliers is not None
    added = np.subtract(second.coefficients, first.coefficients)
    np.testing.assert_allclose(second.multipliers, added, rtol=0, atol=1e-12)
    assert added.max() > 0.01


def test_weights_are_recorded_for_each_layer_and_round(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="FedCALM")
    layers = done.server.layout.names
    assert isinstance(done.server.rule, CALM)
    for record, weights in zip(done.records, done.weights, strict=True):
        assert weights.round == record.round
        assert len(weights.coefficients) == len(layers)
        assert all(len(row) == tiny["clients"] for row in weights.coefficients)
        assert weights.multipliers is not None
        for row, lam in zip(weights.coefficients, weights.multipliers, strict=True):
            assert all(0 <= x <= 10 for x in lam)
            assert all(c - x >= 1 / tiny["clients"] - 1e-9 for c, x in zip(row, lam, strict=True))  # Projection's part
        assert record.rule is not None
        assert set(record.rule.stretch) == set(layers)
        assert record.rule.residual <= 1e-9
