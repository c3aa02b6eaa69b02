"""FedPG and S-FedPG: common descent, protection of others, and a step that clients agree on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from comity import Config
from comity.engine import Run, run
from comity.methods.sfedpg import unfairness
from comity.results import RoundRecord
from comity.rules import FairDescent, Outcome, Updates, evening, protected_directions
from helpers import Options, Patch, build, client_of

SHIFTED = {"label_shift": 0.9, "feature_shift": 0.5}


def shifted(tiny: Options, **options: Any) -> Options:
    return tiny | {"data": tiny["data"] | SHIFTED} | options


@pytest.fixture
def outcomes(monkeypatch: Patch) -> list[Outcome]:
    """What FairDescent made of each round."""
    made: list[Outcome] = []
    usual = FairDescent.apply

    def apply(rule: FairDescent, updates: Updates) -> Outcome:
        made.append(usual(rule, updates))
        return made[-1]

    monkeypatch.setattr(FairDescent, "apply", apply)
    return made


def updates(done: Run, theta: Tensor) -> Tensor:
    """Each client's update from ``theta`` in the run's last round, by hand."""
    rows = []
    for cid in range(len(done.federation)):
        client = client_of(done.site, cid, done.server.round)
        client.model.write(theta)
        client.sgd()
        rows.append(client.model.read() - theta)
    return torch.stack(rows).double()


def test_lemma_1_the_global_step_helps_every_client_and_fairness(tiny: Options) -> None:
    for seed in range(3):
        options = shifted(tiny, rounds=1, seed=seed, method="FedPG")
        done = run(**options)
        start = done.site.initial
        U = updates(done, start)  # −η g_i
        d = (done.server.theta - start).double()
        assert (U @ d > 0).all()  # g_i·d < 0
        losses = []
        for cid in range(len(U)):
            client = client_of(done.site, cid)
            client.model.write(start)
            losses.append(client.loss())
        # ∇F·d < 0, with F's gradient of updates at one length, as the direction has it
        even = U / U.norm(dim=1, keepdim=True)
        h = torch.from_numpy(evening(torch.tensor(losses, dtype=torch.float64).numpy()))
        assert (h @ even) @ d > 0


def test_absent_clients_are_not_hurt_either(tiny: Options, outcomes: list[Outcome]) -> None:
    run(**shifted(tiny, rounds=4, participation=0.6, method="FedPG"))
    outcome = outcomes[-1]
    assert len(outcome.ids) > 3  # the three present and some absent
    assert ((outcome.updates.gram @ outcome.coefficients[0]) > 0).all()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("base", ["new", "old"])
@pytest.mark.parametrize("length", ["global", "own"])
def test_personal_models_do_no_more_harm_than_gamma_allows(tiny: Options, gamma: float, base: str, length: str) -> None:
    done = run(**shifted(tiny, rounds=1, method={"name": "FedPG", "gamma": gamma, "base": base, "length": length}))
    start = done.site.initial
    U = updates(done, start)
    G = U @ U.T
    origin = done.server.theta if base == "new" else start
    step = float((done.server.theta - start).norm())
    harmed = False
    for i in range(len(U)):
        d = (done.server.store[f"personal/{i}"] - origin).double()
        allowed = gamma * G[i].clamp(max=0)
        assert (U @ d >= allowed - 1e-5 * G.diagonal().max()).all()
        if gamma == 1:  # the client's own update, cut to the length of the global step
            assert U[i].norm() > step
            cut = step / U[i].norm() if length == "global" else 1.0
            torch.testing.assert_close(d, cut * U[i], rtol=0, atol=1e-5)
        harmed |= bool((G[i] < -1e-4 * G.diagonal().max()).any())
    assert harmed  # there was something to protect from


def test_who_has_no_personal_model_uses_the_global_one_and_the_absent_keep_theirs(tiny: Options) -> None:
    done = run(**shifted(tiny, rounds=2, participation=0.4, method="FedPG"))
    first, second = (record.cohort for record in done.records)
    server, method = done.server, done.server.method
    never = set(range(5)) - set(first) - set(second)
    assert never
    before = run(**shifted(tiny, rounds=1, participation=0.4, method="FedPG"))
    for cid in never:
        assert method.send(server, cid).personal is None
    for cid in set(first) - set(second):
        sent = method.send(server, cid).personal
        assert torch.equal(sent, before.server.store[f"personal/{cid}"])


def test_the_absent_are_rebuilt_on_the_newest_global_model(tiny: Options, outcomes: list[Outcome]) -> None:
    """From the last gradient of those that the rule remembers, with the last direction of all others."""
    options = shifted(tiny, rounds=8, participation=0.4, method={"name": "FedPG", "gamma": 0.5, "rebuild": True})
    done, before = run(**options), run(**(options | {"rounds": 7}))
    server, updates, seen = done.server, outcomes[7].updates, {cid for r in done.records for cid in r.cohort}
    assert {0} < set(updates.ages.tolist())
    forgotten = seen - set(updates.ids)
    assert forgotten
    directions = updates.mix(protected_directions(updates.gram, 0.5).coefficients)
    step = (server.theta - before.server.theta).norm()
    for cid, direction in zip(updates.ids, directions, strict=True):
        cut = (step / direction.norm()).clamp(max=1)
        sent = server.method.send(server, int(cid)).personal
        torch.testing.assert_close(sent, server.theta + cut * direction, rtol=0, atol=1e-6)
    for cid in forgotten:
        then, now = (done.server.method.send(done.server, cid).personal for done in (before, done))
        torch.testing.assert_close(now - server.theta, then - before.server.theta, rtol=0, atol=1e-6)


def trials(done: Run) -> list[float]:
    return [record.method["step"]["ratio"] for record in done.records]


def test_the_accepted_step_meets_armijos_conditions(tiny: Options) -> None:
    """Every loss falls by the promised share, and so does F; the step twice as large was tried and did not."""
    options = shifted(tiny, rounds=1, lr=0.02, method={"name": "S-FedPG", "s": 3, "beta": 0.1})
    done = run(**options)
    (ratio,) = trials(done)
    start = done.site.initial
    U = updates(done, start)

    def losses(theta: Tensor) -> Tensor:
        found = []
        for cid in range(len(U)):
            client = client_of(done.site, cid)
            client.model.write(theta)
            found.append(client.loss())
        return torch.tensor(found, dtype=torch.float64)

    plain = run(**(options | {"method": "FedPG"}))
    step = plain.server.theta - start
    torch.testing.assert_close(done.server.theta, start + ratio * step, rtol=0, atol=1e-6)
    promised = U @ step.double() / options["lr"]
    h = torch.from_numpy(evening(losses(start).numpy()))

    def holds(r: float) -> bool:
        after = losses(start + r * step)
        helped = bool((losses(start) - after >= 0.1 * r * promised).all())
        return helped and bool(unfairness(losses(start)) - unfairness(after) >= 0.1 * r * (h @ promised))

    assert holds(ratio)
    assert ratio == 8 or not holds(2 * ratio)


def test_the_largest_step_is_smaller_when_somebody_left(tiny: Options) -> None:
    together = run(**shifted(tiny, rounds=3, lr=1e-4, method={"name": "S-FedPG", "s": 2}))
    apart = run(**shifted(tiny, rounds=3, lr=1e-4, participation=0.6, method={"name": "S-FedPG", "s": 2}))
    assert max(trials(together)) == 4.0
    assert trials(apart)[0] > 1
    left = [not set(a.cohort) <= set(b.cohort) for a, b in zip(apart.records, apart.records[1:], strict=False)]
    assert any(left)
    assert all(ratio <= 1 for ratio, gone in zip(trials(apart)[1:], left, strict=True) if gone)


def test_when_no_step_helps_everybody_the_fallbacks_are_taken(tiny: Options, outcomes: list[Outcome]) -> None:
    """A learning rate far too large: the first trial fails, and the mean loss decides."""
    done = run(**shifted(tiny, rounds=1, lr=3.0, method={"name": "S-FedPG", "s": 1, "beta": 0.5}))
    (record,) = done.records
    sigma = float(outcomes[-1].notes["sigma"][0])
    tried = [2.0 * 0.5**k for k in range(record.method["step"]["trials"])]
    assert tried[-1] >= 0.5 / sigma > tried[-1] / 2 or len(tried) == 1
    assert record.method["step"]["ratio"] in tried


def test_the_direction_travels_once_and_then_numbers_alone(tiny: Options) -> None:
    done = run(**shifted(tiny, rounds=2, lr=1.0, method={"name": "S-FedPG", "s": 3, "beta": 0.3}))
    assert sum(record.method["step"]["trials"] for record in done.records) > 2
    size = done.server.theta.numel() * 4
    assert done.server.link.traffic["trial"] == [2 * 5 * size, 0]


def test_reductions(tiny: Options) -> None:
    one = shifted(tiny, clients=1, rounds=2)
    # one client alone: the common descent direction is its own update
    torch.testing.assert_close(
        run(**one, method="FedPG").server.theta, run(**one, method="FedAvg").server.theta, rtol=0, atol=1e-5
    )
    many = shifted(tiny, rounds=2)
    fedavg, fedpg = run(**many, method="FedAvg"), run(**many, method="FedPG")
    assert not torch.allclose(fedavg.server.theta, fedpg.server.theta, atol=1e-4)
    # what differs between FedPG and its line search is the step alone
    sfedpg = run(**(many | {"rounds": 1}), method="S-FedPG")
    step = run(**(many | {"rounds": 1}), method="FedPG").server.theta - sfedpg.site.initial
    moved = sfedpg.server.theta - sfedpg.site.initial
    torch.testing.assert_close(moved, trials(sfedpg)[0] * step, rtol=0, atol=1e-6)


@pytest.mark.parametrize("least_descent", [0.0, 0.1])
def test_a_step_that_cancels_is_reported_once(tiny: Options, least_descent: float) -> None:
    """Clients with equal updates and unequal losses: Lemma 1 fails."""
    _, server = build(Config(**tiny, method={"name": "FedPG", "least_descent": least_descent}))
    said, moved = [], []
    for server.round in (1, 2):
        before, server.record = server.theta, RoundRecord(round=server.round)
        replies = server.fit(server.clients)
        for cid, reply in replies.items():
            reply.theta, reply.loss = replies[0].theta, 0.2 + cid
        server.method.merge(server, replies)
        said += server.record.warnings
        moved.append(float((server.theta - before).norm()))
    if least_descent:
        assert not said
        assert min(moved) > 0.01
    else:
        assert [words.partition(":")[0] for words in said] == ["FairDescent's step is 0"]
        assert "least_descent" in said[0]
        assert moved == [0.0, 0.0]
        assert "cautioned" in server.rule_states[""]  # a resumed run does not repeat it
