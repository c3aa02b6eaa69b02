"""``comity ask``: the probe by its equations, its answer, its calibration, and its command."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.linear_model import LogisticRegression

import comity
from comity import ComityError
from comity.__main__ import main
from comity.compare import ClientPairs, paired_rows
from comity.data import Dataset, federate
from comity.privacy import FixedPoint
from comity.probe import calibration, compared, similar
from comity.probe._logistic import Array, Rows, common, fit, log_probabilities, reply, side_by_side


def sites(classes: int, seed: int = 0) -> list[Rows]:
    """Three sites of different sizes and class shares."""
    random = np.random.default_rng(seed)
    weights = random.normal(size=(5, classes))
    made = []
    for size, shift in ((30, 0.0), (80, 1.0), (200, -1.0)):
        x = np.concatenate([random.normal(shift, 1, size=(size, 4)), np.ones((size, 1))], axis=1)
        made.append(Rows(x, (x @ weights + random.gumbel(size=(size, classes))).argmax(1)))
    return made


def of_sklearn(rows: Rows, classes: int) -> Array:
    """Two classes have one vector there, half of whose squares both of ours have together: C is 2."""
    model = LogisticRegression(C=2 if classes == 2 else 1, tol=1e-10, max_iter=5000).fit(rows.x[:, :-1], rows.y)
    return np.asarray(model.predict_log_proba(rows.x[:, :-1]))


@pytest.mark.parametrize("classes", [2, 4])
def test_the_common_model_is_logistic_regression_on_all_rows_and_the_own_one_on_own_rows(classes: int) -> None:
    parts = sites(classes)
    pooled = Rows(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
    model = common(parts, classes)
    assert np.abs(log_probabilities(model, pooled.x) - of_sklearn(pooled, classes)).max() < 5e-3
    own = common(parts[1:2], classes)
    assert np.abs(log_probabilities(own, parts[1].x) - of_sklearn(parts[1], classes)).max() < 5e-3
    assert np.abs(own - model).max() > 0.1, "the two models differ, so that the comparison means something"


def test_a_reply_is_the_loss_and_its_gradient() -> None:
    (rows, *_), random = sites(3), np.random.default_rng(1)
    weights, step = random.normal(size=(5, 3)), random.normal(size=(5, 3))
    h = 1e-6
    change = (reply(weights + h * step, rows)[1] - reply(weights - h * step, rows)[1]) / (2 * h)
    assert change == pytest.approx(reply(weights, rows)[2:] @ step.ravel(), rel=1e-6)
    assert reply(np.zeros((5, 3)), rows)[:2] == pytest.approx([len(rows.y), len(rows.y) * np.log(3)])


def test_the_sum_of_masked_replies_gives_the_same_model() -> None:
    """Words modulo 2⁶⁴ with masks that cancel, as secure aggregation adds them up: no single reply can be read."""
    parts, random = sites(3), np.random.default_rng(2)
    ring = FixedPoint(len(parts))

    def ask(weights: Array) -> Array:
        words = [ring.encode(reply(weights, rows)) for rows in parts]
        masks = random.integers(0, 2**64, size=(len(parts), len(words[0])), dtype=np.uint64)
        sent = [word + masks[k] - masks[k - 1] for k, word in enumerate(words)]
        assert not any(np.array_equal(a, b) for a, b in zip(sent, words, strict=True))
        return ring.decode(np.sum(sent, axis=0, dtype=np.uint64))

    masked = fit(ask, 4, 3)
    assert np.abs(masked - common(parts, 3)).max() < 1e-3


def test_fits_side_by_side_ask_together_and_find_what_each_finds_by_itself() -> None:
    parts, asked = sites(3), list[int]()

    def ask(models: dict[int, Array]) -> dict[int, Array]:
        asked.append(len(models))
        return {k: np.asarray(sum(reply(weights, rows) for rows in parts[k:])) for k, weights in models.items()}

    found = side_by_side(ask, [partial(fit, features=4, classes=3)] * 3)
    assert all(np.array_equal(found[k], common(parts[k:], 3)) for k in range(3))
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 3

    def fails(_: dict[int, Array]) -> dict[int, Array]:
        raise ComityError("nobody answers")

    with pytest.raises(ComityError, match="nobody answers"):
        side_by_side(fails, [partial(fit, features=4, classes=3)] * 3)


def test_the_sums_of_a_client_say_what_its_pairs_say() -> None:
    """In one vector, also where a run has no pairs; and zeros say that there are none."""
    pairs = [pair for name, client, pair in compared(federate(dataset(), seed=1), ["accuracy"]) if client == 2]
    sums, runs = ClientPairs.of(pairs, "accuracy"), [0, 1, 2]
    numbers = sums.numbers(runs)
    assert numbers.shape == (ClientPairs.width(3),)
    back = ClientPairs.of_numbers(numbers, runs)
    assert back is not None
    assert paired_rows({2: back}, "accuracy", 0.0, "abc") == paired_rows({2: sums}, "accuracy", 0.0, "abc")
    assert ClientPairs.of_numbers(0 * numbers, runs) is None
    for place in range(len(numbers)):
        for wrong in (np.nan, np.inf, -1e9) if place != 23 else (np.nan, -1.0):  # the step may be infinite
            bad = numbers.copy()
            bad[place] = wrong
            if place in (12, 13, 14, 19, 28, 29) and wrong == -1e9:  # signed: changes, cross sums, and both scores
                continue
            with pytest.raises(ValueError, match="sums of differences that cannot be"):
                ClientPairs.of_numbers(bad, runs)


def dataset(opposed: bool = False, rows: int = 250) -> Dataset:
    """Four hospitals with the same task, of 12 features; the last one's is another task if ``opposed``."""
    random = np.random.default_rng(0)
    weights, x = random.normal(size=12), random.normal(size=(4 * rows, 12))
    owner = np.repeat(["a", "b", "c", "d"], rows)
    other = np.where((owner == "d")[:, None] & opposed, np.roll(weights, 5), weights)
    y = ((x * other).sum(1) + random.logistic(size=len(x)) > 0).astype(np.int64)
    return Dataset("made", x, y, columns={"client": owner})


def test_a_client_with_another_task_is_worse_and_few_similar_clients_gained() -> None:
    answer = comity.ask(dataset(opposed=True))
    worst = answer.rows[0]
    assert (worst.name, worst.state) == ("d", "worse")
    assert worst.gain < -0.05
    small = comity.ask(dataset(rows=30))
    assert small.mean.gain > 0, "clients with the same task and few rows gain"
    assert answer.similar[3].share < 0.3 < small.chances
    assert small.title.startswith("Joining probably pays: judging by similar clients, about ") == (small.chances > 0.6)
    assert answer.title.startswith("Joining probably does not pay") == (answer.chances < 0.4)
    print(f"{len(dataset())} rows, 4 clients: {answer.seconds:.2f} s")
    assert answer.seconds < 10


def test_models_are_compared_on_rows_that_neither_has_seen() -> None:
    federation = federate(dataset(), seed=0)
    for (_, client, pair), data in zip(compared(federation, ["accuracy"]), federation.clients, strict=True):
        assert client == data.id
        assert np.array_equal(pair.id, data.test_ids)
        assert set(np.unique(pair.joined)) <= {0.0, 1.0}
    name, client, pair = next(compared(federation, ["log-loss"]))
    common_model = common([Rows.of(each.train) for each in federation.clients], 2)
    tests = Rows.of(federation.clients[0].test)
    expected = log_probabilities(common_model, tests.x)[np.arange(len(tests.y)), tests.y]
    assert (name, client) == ("log-loss", 0)
    assert np.allclose(pair.joined, expected)


def test_the_calibration_counts_the_clients_that_the_results_list() -> None:
    """calibration.json is what benchmarks/ask.py makes of evidence/ask-clients.csv."""
    import csv

    with (Path(__file__).parents[2] / "evidence/ask-clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = calibration()
    group = np.digitize([float(row["probe"]) for row in rows], known["edges"])
    gained = np.array([float(row["gain"]) > 0 for row in rows])
    assert known["clients"] == [int((group == k).sum()) for k in range(6)]
    assert known["gained"] == [int(gained[group == k].sum()) for k in range(6)]
    assert sorted({row["federation"] for row in rows}) == known["federations"]
    assert similar(-30).share < similar(0.5).share < similar(30).share
    assert str(similar(30)) == f"{known['gained'][-1]} of {known['clients'][-1]}"


def test_similar_clients_are_found_by_the_metric_that_decides_if_the_calibration_has_it() -> None:
    made = dataset(opposed=True)
    made.y[:200] = 1  # classes of unequal frequency, so that the two gains differ
    by = {metric: comity.ask(made, seeds=3, metric=metric) for metric in ("accuracy", "balanced", "log-loss")}
    for metric in ("accuracy", "balanced"):
        assert by[metric].similar == {row.client: similar(100 * row.gain) for row in by[metric].rows}
    assert by["log-loss"].similar == by["accuracy"].similar
    gains = [sorted(row.gain for row in by[metric].rows) for metric in ("accuracy", "balanced")]
    assert gains[0] != pytest.approx(gains[1])


def test_the_command_prints_a_first_line_soon_and_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    assert main(["ask", "--data", "heart", "--metric", "accuracy", "--seeds", "3"]) == 0
    said = capsys.readouterr().out
    print(f"heart: {time.perf_counter() - began:.1f} s")
    assert said.startswith("Reading heart …")
    for words in ("would gain", "One logistic regression for all clients", "similar gained", "Switzerland"):
        assert words in said


def test_no_name_or_number_is_broken_at_80_columns() -> None:
    console = Console(width=80, record=True)
    console.print(comity.ask("heart", metric="log-loss", seeds=3))
    shown = console.export_text()
    assert all(f"\n{name} " in shown for name in ("Switzerland", "Hungary", "Cleveland", "Long Beach"))
    assert max(map(len, shown.splitlines())) <= 80
    assert all(str(each) in shown for each in comity.ask("heart", metric="log-loss", seeds=3).similar.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "comity ask needs TABLE or --data"),
        (["none.csv"], "none.csv"),
        (["x.csv", "--data", "heart"], "not both"),
        (["--data", "heart", "--method", "FedAvg"], "--method"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_one_client_has_nobody_to_join() -> None:
    alone = dataset()
    with pytest.raises(ComityError, match="no federation to join"):
        comity.ask(Dataset("one", alone.x, alone.y, columns={"client": np.repeat("a", len(alone))}))


def test_the_calibration_says_where_it_comes_from() -> None:
    assert {"truth", "made by", "federations"} <= calibration().keys()
    assert json.dumps(calibration()).isascii()
