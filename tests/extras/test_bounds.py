"""How much one client may count, and rules that see sketches: the step is exact, and the error is on record."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comity import ComityError, run
from comity._random import key_bytes
from comity.compare import CONFLICT, LoadedStudy
from comity.engine import Aggregation, Server, _run
from comity.methods import Client, Message, Method, Reply
from comity.results import RunFolder
from comity.rules import CALM, Sketch, Updates, _rule, advice_on_products, against, capped
from helpers import Options, Patch, assert_reproducible

# Sketches.


@pytest.mark.parametrize("rule", ["ConFREE", "CALM"])
def test_the_same_bits_for_any_number_of_workers_and_after_resume(tiny: Options, tmp_path: Path, rule: str) -> None:
    options = tiny | {"rule": rule}
    one = assert_reproducible(options | {"sketch": 32}, tmp_path / "cut")
    assert not torch.equal(one.server.theta, run(**options).server.theta)


def test_a_long_sketch_is_the_exact_run(tiny: Options) -> None:
    options = tiny | {"rule": "ConFREE"}
    exact, turned = run(**options), run(**options, sketch=1100)  # longer than every layer
    assert max(layer.stop - layer.start for layer in exact.server.layout.layers) <= 1100
    torch.testing.assert_close(turned.server.theta, exact.server.theta, rtol=1e-4, atol=1e-5)
    assert turned.records[-1].conflict.error == 0


def test_the_step_is_the_exact_combination_and_who_it_is_against_is_exact(tiny: Options, monkeypatch: Patch) -> None:
    seen: list[Updates] = []
    made = Server.updates

    def noted(self: Server, aggregation: Aggregation) -> Updates:
        seen.append(made(self, aggregation))
        return seen[-1]

    monkeypatch.setattr(Server, "updates", noted)
    found = run(**(tiny | {"rule": "ConFREE", "sketch": 16}))
    theta = found.site.initial
    for updates, record, weights in zip(seen, found.records, found.weights, strict=True):
        assert updates.sketch is not None
        assert updates._key == key_bytes(0, "sketch", record.round)
        rows = torch.stack([updates.row(i) for i in range(len(updates))])
        exact = Updates(rows, layout=updates.layout, ids=updates.ids)
        coefficients = torch.tensor(weights.coefficients, dtype=torch.float64)
        theta = theta + exact.combine(coefficients)
        assert not torch.allclose(updates.gram, exact.gram, rtol=1e-3)
        assert record.against.rule_ids == against(exact, coefficients)
    torch.testing.assert_close(found.server.theta, theta)


def test_the_error_stands_beside_what_sketches_say(tiny: Options, tmp_path: Path) -> None:
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
    tiny: Options, tmp_path: Path, options: Options, complaint: str
) -> None:
    with pytest.raises(ComityError, match=complaint):
        run(**(tiny | {"sketch": 64} | options), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# How much a client counts.


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([1.0, 1.0, 1.0, 97.0], 1.0, [1, 1, 1, 97]),
        ([1.0, 1.0, 1.0, 97.0], 0.4, [1, 1, 1, 2]),
        ([3.0, 3.0, 2.0, 2.0], 0.3, [3, 3, 2, 2]),
        ([1.0, 1.0, 50.0, 90.0], 0.4, [1, 1, 4, 4]),
        ([1.0, 5.0, 9.0], 0.2, [1, 1, 1]),
        ([7.0], 0.5, [7]),
    ],
)
def test_no_size_is_more_than_its_share(sizes: list[float], share: float, expected: list[float]) -> None:
    found = capped(torch.tensor(sizes, dtype=torch.float64), share)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_updates_are_clipped_to_the_median_length() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 400.0], [1.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    expected = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    base = torch.tensor([5.0, -7.0])
    for updates in (Updates(rows), Updates(list(rows + base), base=base)):
        clipped = updates.clipped()
        torch.testing.assert_close(torch.stack([clipped.row(i) for i in range(5)]), expected)
        torch.testing.assert_close(clipped.gram, (expected @ expected.T).double())


class Boastful(Method):
    """Client 2 says that it has a million samples and sends 100 times its update."""

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        if client.id == 2:
            return replace(reply, size=10**6, theta=received.theta + 100 * (reply.theta - received.theta))
        return reply


def test_the_weight_and_length_of_a_client_are_bounded(tiny: Options) -> None:
    options = tiny | {"method": Boastful, "rounds": 1}
    start = run(**(options | {"epochs": 0})).server.theta
    free, shared, clipped, both = (
        float((run(**options, **more).server.theta - start).norm())
        for more in ({}, {"max_share": 0.2}, {"clip_updates": "median"}, {"max_share": 0.2, "clip_updates": "median"})
    )
    assert shared < 0.3 * free
    assert clipped < 0.03 * free
    assert both <= 1.1 * clipped
    done = run(**options)
    assert [words for words in done.records[0].warnings if "client 2 says that it has 1,000,000 samples" in words]


@pytest.mark.parametrize("bound", [{"clip_updates": "median"}, {"max_share": 0.5}, {"sketch": 64}], ids=str)
def test_a_method_without_a_rule_says_that_bounds_change_nothing(tiny: Options, bound: Options) -> None:
    done = run(**tiny, method="FedAMP", **bound)
    assert done.records[0].warnings == ["method FedAMP uses no rule: max_share, clip_updates and sketch change nothing"]


# Many clients.


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"rule": "ConFREE"}, "ConFREE compares the updates of 4 clients exactly, .*: --sketch 1024 estimates"),
        ({"rule": "FedFV"}, "FedFV compares the updates of 4 clients exactly, .*: a smaller --participation"),
        ({"rule": "CALM", "sketch": 64}, ""),
        ({"rule": "CALM", "participation": 0.5}, ""),
        ({"rule": "Mean"}, ""),
    ],
    ids=str,
)
def test_who_compares_many_clients_exactly_is_advised_before_the_first_round(
    tiny: Options, monkeypatch: Patch, options: Options, advice: str
) -> None:
    monkeypatch.setattr(_rule, "MANY_COMPARED", 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(**(tiny | {"clients": 4, "rounds": 2, "reference": "none"} | options))
    words = [str(each.message) for each in caught if "compares the updates" in str(each.message)]
    assert len(words) == bool(advice)
    assert not advice or re.match(advice, words[0])


def test_advice_begins_at_1000_clients_and_says_how_much_memory_it_saves() -> None:
    assert advice_on_products(CALM(), 999, 6) == ""
    assert "in matrices of 4.8 GB" in advice_on_products(CALM(), 10_000, 6)


def test_of_many_clients_the_newest_coefficients_are_kept(tiny: Options, monkeypatch: Patch, tmp_path: Path) -> None:
    options = tiny | {"rule": "CALM", "rounds": 3, "reference": "none"}
    every = run(**options).weights
    monkeypatch.setattr(_run, "MOST_KEPT", 2)
    done = run(**options, out=tmp_path / "run")
    assert done.weights == every[-1:]
    assert [entry.round for entry in RunFolder(tmp_path / "run").weights()] == [1, 2, 3]
