from typing import Any

import numpy as np

from comity.engine import run
from comity.rules import CALM


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
