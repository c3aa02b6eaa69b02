"""Runs whose rules see sketches: the step is exact, the bits do not depend on workers, and the error is on record."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from comity import ComityError, run
from comity._random import key_bytes
from comity.compare import CONFLICT, LoadedStudy
from comity.rules import Sketch, Updates, against
from helpers import assert_same


@pytest.mark.parametrize("rule", ["ConFREE", "CALM"])
def test_the_same_bits_for_any_number_of_workers_and_after_resume(
    tiny: dict[str, Any], tmp_path: Path, rule: str
) -> None:
    options = tiny | {"rule": rule, "sketch": 32}
    one = run(**options)
    for workers in (2, 4):
        assert_same(one, run(**(options | {"workers": workers})))
    rounds = iter([False, True])
    run(**options, out=tmp_path / "cut", checkpoint_every=1, stop=lambda: next(rounds))
    assert_same(one, run(**options, out=tmp_path / "cut", checkpoint_every=1, resume=True))
    assert not torch.equal(one.server.theta, run(**(options | {"sketch": None})).server.theta)


def test_a_long_sketch_is_the_exact_run(tiny: dict[str, Any]) -> None:
    options = tiny | {"rule": "ConFREE"}
    exact, turned = run(**options), run(**options, sketch=1100)  # longer than every layer
    assert max(layer.stop - layer.start for layer in exact.server.layout.layers) <= 1100
    torch.testing.assert_close(turned.server.theta, exact.server.theta, rtol=1e-4, atol=1e-5)
    assert turned.records[-1].conflict.error == 0


def test_the_step_is_the_exact_combination_and_who_it_is_against_is_exact(tiny: dict[str, Any], monkeypatch) -> None:
    from comity.engine._server import Server

    seen = []
    original = Server._note

    def note(self, group, updates, outcome):
        seen.append((updates, outcome))
        original(self, group, updates, outcome)

    monkeypatch.setattr(Server, "_note", note)
    found = run(**(tiny | {"rule": "ConFREE", "sketch": 16}))
    for updates, outcome in seen:
        rows = torch.stack([updates.row(i) for i in range(len(updates))])
        exact = Updates(rows, layout=updates.layout, ids=updates.ids)
        torch.testing.assert_close(outcome.update, exact.combine(outcome.coefficients))
        assert not torch.allclose(updates.gram, exact.gram, rtol=1e-3)
        assert against(updates, outcome.coefficients) == against(exact, outcome.coefficients)
    keys = {updates._key for updates, _ in seen}
    assert keys == {key_bytes(0, "sketch", record.round) for record in found.records}


def test_the_error_stands_beside_what_sketches_say(tiny: dict[str, Any], tmp_path: Path) -> None:
    found = run(**(tiny | {"rule": "ConFREE", "sketch": 16, "out": tmp_path / "runs" / "sketched"}))
    conflict = found.records[-1].conflict
    assert 0 < conflict.error < 0.5
    assert found.result.conflict_error == max(record.conflict.error for record in found.records)
    cell = LoadedStudy(tmp_path / "runs").cells[0]
    assert re.fullmatch(r"\d+ ± \d+", str(CONFLICT.entry(cell)))
    assert next(iter(cell.runs[0].cosines())).error == Sketch(16).error()
    assert run(**(tiny | {"rule": "ConFREE"})).result.conflict_error == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rule": "FedFV"}, "FedFV remembers updates"),
        ({"rule": {"name": "Auto", "arms": "Mean,FairDescent"}}, "Auto remembers updates"),
        ({"sketch": 0}, "sketch must be at least 1, got 0"),
        ({"sketch": "many"}, "sketch must be"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    tiny: dict[str, Any], tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ComityError, match=complaint):
        run(**(tiny | {"sketch": 64} | options), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_without_a_rule_says_that_sketches_change_nothing(tiny: dict[str, Any]) -> None:
    found = run(**(tiny | {"method": "FedAMP", "sketch": 64}))
    assert any("sketch change nothing" in warning for warning in found.records[0].warnings)
