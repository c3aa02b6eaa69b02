from typing import Any

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


def test_weights_are_recorded_for_each_layer_and_round(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="FedCALM")
    layers = done.server.layout.names
    assert isinstance(done.server.rule, CALM)
    for record, weights in zip(done.records, done.weights, strict=True):
        assert weights.round == record.round
        assert len(weights.coefficients) == len(layers)
        assert all(len(row) == tiny["clients"] for row in weights.coefficients)
        assert record.rule is not None
        assert set(record.rule.stretch) == set(layers)
        assert record.rule.residual <= 1e-9
