"""What a curious or lying server, an operator and a colluding client tried on masked sums, and what it comes to now."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cohorts import Cohort
from scipy.stats import ks_2samp
from torch import Tensor
from watched import Watched, assembled, masked_options, open_sum, refusal

from comity import ComityError, Config
from comity._layout import Layout
from comity.engine import RunPlan, Server
from comity.nn import MODELS
from comity.privacy import (
    ANNOUNCEMENT,
    REASONS,
    Collector,
    Ledger,
    Rejected,
    Secrets,
    derive,
    epsilon_of,
    join,
    objection_to_weights,
    write_secrets,
)
from comity.privacy._clients import HIDING, hash_of, sketch_for
from comity.privacy._graph import threshold
from comity.privacy._keys import private_key
from comity.privacy._masks import add_mask
from comity.privacy._parties import context_of, pair_mask
from comity.rules import LayerSketch
from helpers import Options

CLIENTS = 20


@pytest.fixture
def options(tiny: Options) -> Options:
    return masked_options(tiny) | {"min_clients": 3}


# A server that tells different clients different things.


def words_of_the_first(cohort: Cohort) -> np.ndarray[Any, Any]:
    """As a server finds them that tells each client that all but itself and client 0 dropped out."""
    parties, everyone = cohort.parties, list(cohort.masked)
    stories = {cid: sorted({0, cid}) for cid in everyone}
    signatures = {cid: parties[cid].agree(0, story) for cid, story in stories.items()}
    revealed = {cid: parties[cid].unmask(0, signatures) for cid in everyone}

    def opened(owner: int, told: Iterable[int]) -> bytes:
        """The secret of an owner from those who were told one thing of it."""
        holders, collector = sorted(everyone), cohort.collector
        shares = {
            holders.index(holder) + 1: revealed[holder][[*collector.neighbours[holder], holder].index(owner)]
            for holder in told
        }
        return join(dict(list(shares.items())[: threshold(len(holders))]))

    context = context_of(cohort.collector.transcript, 0, cohort.present, cohort.about(0))
    words = cohort.masked[0].copy()
    add_mask(words, derive(opened(0, everyone), b"own mask", context), -1)
    for other in everyone[1:]:
        key = private_key(opened(other, [cid for cid in everyone if other not in stories[cid]]))
        add_mask(words, pair_mask(key, cohort.collector.everyone[0], 0, context), -1)  # client 0 added it
    return words[:-1]


@pytest.mark.parametrize("is_checked", [True, False])
def test_other_survivors_for_each_client(is_checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the agreement one client's words lie open; with it no client unmasks."""
    cohort = Cohort(CLIENTS)
    cohort.announce()
    cohort.share()
    cohort.mask()
    if is_checked:
        with pytest.raises(Rejected, match="agreement: "):
            words_of_the_first(cohort)
    else:
        monkeypatch.setattr("comity.privacy._parties.quorum", lambda _: 1)
        assert np.array_equal(words_of_the_first(cohort), cohort.words[0])


@pytest.mark.parametrize("stories", [2, 3, 7])
def test_no_two_stories_are_opened(stories: int) -> None:
    """However a server deals out stories and signatures, at most one finds two thirds that sign it."""
    random = np.random.default_rng(stories)
    for _ in range(10):
        cohort = Cohort(9)
        cohort.announce()
        cohort.share()
        cohort.mask()
        told = {cid: int(random.choice(stories, p=[0.8, *[0.2 / (stories - 1)] * (stories - 1)])) for cid in range(9)}
        survivors = [[cid for cid in range(9) if cid != 8 - story] for story in range(stories)]
        signatures: dict[int, bytes] = {}
        for cid, story in told.items():
            if cid in survivors[story]:
                signatures[cid] = cohort.parties[cid].agree(0, survivors[story])
        opened = set()
        for cid in signatures:
            try:
                cohort.parties[cid].unmask(0, signatures)
                opened.add(told[cid])
            except Rejected as why:
                assert str(why).startswith("agreement: ")  # noqa: PT017
        assert len(opened) <= 1


def test_clients_that_do_not_exist_take_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large cohort masks along a sparse graph: a server could invent clients that are nobody's neighbours."""
    monkeypatch.setattr("comity.privacy._graph.degree", lambda _: 4)
    cohort = Cohort(40)
    cohort.announce()
    real = cohort.collector.everyone
    for nonce in range(10_000):  # until the invented ones sit where few notice
        invented = {40 + k: bytes([k]) * (ANNOUNCEMENT - 4) + nonce.to_bytes(4, "big") for k in range(3)}
        cohort.collector = Collector(cohort.place, real | invented)
        unaware = [cid for cid in real if not invented.keys() & set(cohort.collector.neighbours[cid])]
        if len(unaware) >= cohort.collector.quorum and 0 in unaware:
            break
    assert len(unaware) >= cohort.collector.quorum
    cohort.lost = {"shares": invented}
    cohort.share()
    for cid in unaware:
        party = cohort.parties[cid]
        party.receive(cohort.collector.sealed_for(cid))
        with pytest.raises(Rejected, match="unlisted: "):
            party.mask(0, cohort.words[cid], [*real, *invented], b"all weight on client 0 and the invented ones")


def test_a_signature_counts_for_its_signer_and_story_alone() -> None:
    cohort = Cohort(6)
    cohort.announce()
    cohort.share()
    cohort.mask()
    signed = {cid: cohort.parties[cid].agree(0, range(6)) for cid in range(6)}
    with pytest.raises(Rejected, match="agreement: "):  # three of six, whose signatures stand twice
        cohort.parties[0].unmask(0, {cid: signed[cid % 3] for cid in range(6)})
    another = Cohort(6, seed=1)
    with pytest.raises(Rejected, match="agreement: "):  # of others, who are not in its list
        cohort.parties[1].unmask(0, {cid: another.secrets[cid].identity for cid in range(6)} | {1: signed[1]})
    cohort.parties[2].unmask(0, signed)


Lie = Callable[[str, int, Any], Any]


def lie(verb: str, to: Iterable[int] = range(5), **changed: Any) -> Lie:
    """Some clients get something else in one message. A field may be a function of what the honest server sends."""
    chosen = set(to)

    def change(asked: str, cid: int, question: Any) -> Any:
        if asked != verb or cid not in chosen:
            return question
        new = {name: value(getattr(question, name)) if callable(value) else value for name, value in changed.items()}
        return replace(question, **new)

    return change


def told(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


LIES: dict[str, tuple[Lie, str]] = {
    "one counts": (lie("mask", coefficients=told(1, 0, 0, 0, 0)), "weights-share"),
    "one stands out": (lie("mask", coefficients=told(0.5, *4 * [0.125])), "weights-share"),
    "others cancel": (lie("mask", coefficients=told(0.5, 0.25, -0.25, 0.25, -0.25)), "weights-sign"),
    "few terms": (lie("mask", coefficients=told(0.5, 0.5, 0, 0, 0)), "weights-terms"),
    "huge": (lie("mask", coefficients=lambda w: 1e6 * w), "weights-size"),
    "no numbers": (lie("mask", coefficients=lambda w: w * torch.nan), "weights-form"),
    "float32": (lie("mask", coefficients=lambda w: w.float()), "weights-form"),
    "too many": (lie("mask", coefficients=lambda w: w.repeat(2)), "cohort"),
    "repeated in the sum": (lie("mask", present=torch.tensor([0, 1, 1, 3, 4])), "ids"),
    "repeated keys": (lie("share", ids=torch.tensor([0, 1, 2, 3, 3])), "ids"),
    "repeated survivors": (lie("agree", survivors=torch.tensor([0, 1, 2, 3, 4, 4])), "ids"),
    "two survive": (lie("agree", survivors=torch.tensor([0, 1])), "survivors|few"),
    "half has other coefficients": (lie("mask", range(2), coefficients=lambda w: w * 0.9), "agreement"),
    "half has another model": (lie("fit", range(2), theta=lambda theta: 0 * theta), "few|keys are not signed|signed"),
    "no signatures": (lie("unmask", signatures=lambda s: 0 * s), "agreement"),
    "another sum": (lie("agree", total=1), "turn"),
    "a sum that is none": (lie("agree", total=7), "form"),
}


@pytest.mark.parametrize("attack", LIES)
def test_a_server_that_lies_learns_nothing(options: Options, attack: str) -> None:
    """The round is rejected, the model stays, and nobody says more than the code of a reason."""
    change, code = LIES[attack]
    _, server = assembled(options, change=change)
    why = refusal(server)
    said = " ".join([why, *server.record.failed.values()])
    assert re.search(code, said), said
    assert not [word for word in said.split() if "." in word and any(map(str.isdigit, word))], said  # no numbers


def test_whole_numbers_with_the_bytes_of_others_are_other_coefficients(options: Options) -> None:
    """Types and shapes are part of what clients agree on; the client that was told whole numbers is left out."""
    weights = torch.rand(5, dtype=torch.float64)
    assert hash_of(weights) != hash_of(weights.view(torch.int64))
    assert hash_of(weights) != hash_of(weights[None])
    link, server = assembled(options, change=lie("mask", [0], coefficients=lambda w: w.view(torch.int64)))
    before = server.theta.clone()
    record = server.step()
    assert record.failed[0].endswith(REASONS["weights-form"])
    link.told["mask"] = lie("mask", coefficients=lambda w: w.view(torch.float64))("mask", 0, link.told["mask"])
    assert torch.equal(server.theta, before + open_sum(link, server, [1, 2, 3, 4]))


@pytest.mark.parametrize("dead", [[0], [1, 2, 3, 4]])
def test_one_client_that_gets_another_model_is_in_no_sum(options: Options, dead: list[int]) -> None:
    """Dead ReLUs for all but one, or for one: its keys are of another model, and the others mask without it."""
    link, server = assembled(options, change=lie("fit", dead, theta=lambda theta: 0 * theta))
    before = server.theta.clone()
    record = server.step()
    if dead == [0]:
        assert "for another model" in record.failed[0]
        assert torch.equal(server.theta, before + open_sum(link, server, [1, 2, 3, 4]))
    else:  # the server's own model is not the one that most clients were sent
        assert torch.equal(server.theta, before)
        assert "is rejected" in record.warnings[0]


def test_no_reason_has_a_number_in_it() -> None:
    assert not [words for words in REASONS.values() if re.search(r"\d", words.replace("float64", ""))]


def test_nothing_is_answered_again_after_a_refusal(options: Options) -> None:
    """The size of an update cannot be found by asking with one coefficient after another."""
    link, server = assembled(options, change=lie("mask", coefficients=lambda w: 1e6 * w))
    refusal(server)
    honest = link.told["mask"]
    link.change = None
    with pytest.raises(Rejected, match="again: "):
        link.ask(server.verbs["mask"], dict.fromkeys(range(5), honest), server.round)


def test_an_update_beyond_the_bound_is_not_sent(options: Options) -> None:
    _, server = assembled(options, lr=1e5)
    with pytest.raises(Rejected, match=f"^{re.escape('update: ' + REASONS['update'])}$"):
        server.step()


def test_one_of_many_that_ask_at_once_gets_an_answer(tmp_path: Path) -> None:
    def asked(_: int) -> bool:
        try:
            Ledger(tmp_path / "answered").claim("run", "1", "mask")
        except Rejected:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(asked, range(40))) == 1


@pytest.mark.parametrize("clients", [5, 6, 20, 60])
def test_no_accepted_coefficients_make_a_sum_look_like_one_client(clients: int) -> None:
    """Independent updates of one length: the cosine of the sum to one of them is at most √max_weight."""
    random, most = np.random.default_rng(clients), 0.0
    updates = np.linalg.qr(random.standard_normal((200, clients)))[0].T
    for _ in range(300):
        weights = random.dirichlet(np.full(clients, random.uniform(0.05, 3)))
        if objection_to_weights(weights, 0.5, 5) is None:
            step = weights @ updates
            most = max(most, float((updates @ step).max() / np.linalg.norm(step)))
    assert 0.5 < most <= np.sqrt(0.5) + 1e-9
    attack = np.full(clients, 0.5 / (clients - 1))  # the same magnitudes as in the attack with alternating signs
    attack[0] = 0.5
    assert objection_to_weights(attack, 0.5, 5) == "weights-share"
    attack[1::2] *= -1
    assert objection_to_weights(attack, 0.5, 5) == "weights-sign"


# The same run again.


def with_secrets(options: Options, folder: Path, **more: Any) -> Server:
    """A server whose clients have secrets of their own, which they keep from run to run."""
    config = Config(**(options | more))
    if not folder.exists():
        write_secrets(folder, 5)
    node = {"secrets": lambda cid: Secrets.read(folder / f"client-{cid}.json", cid)}
    plan = RunPlan(config, None, lambda _, site: Watched(site, {}), node=node)
    return plan.build()[1]


@pytest.mark.parametrize("more", [{}, {"rounds": 7}, {"eval_every": 2}, {"rule": {"name": "Mean", "by": "uniform"}}])
def test_the_same_run_again_is_rejected(options: Options, tmp_path: Path, more: Options) -> None:
    """The difference of two sums of the same updates, one client away from one of them, would be its update."""
    assert not with_secrets(options, tmp_path / "keys").step().failed
    with pytest.raises(Rejected, match="again: "):
        with_secrets(options, tmp_path / "keys", **more).step()
    server = with_secrets(options, tmp_path / "keys", seed=1)
    assert not server.step().failed
    assert not server.step().failed


def test_epsilon_counts_what_the_same_secrets_were_used_for(options: Options, tmp_path: Path) -> None:
    options |= {"rule": {"name": "Mean", "by": "uniform"}}
    with_secrets(options, tmp_path / "keys", dp_noise=1.0, seed=0).step()
    server = with_secrets(options, tmp_path / "keys", dp_noise=2.0, seed=1)
    assert server.step().epsilon == pytest.approx(epsilon_of(1 + 1 / 4, 1e-5))
    assert server.step().epsilon == pytest.approx(epsilon_of(1 + 2 / 4, 1e-5))


def test_a_site_stops_at_its_own_epsilon(options: Options, tmp_path: Path) -> None:
    options |= {"rule": {"name": "Mean", "by": "uniform"}}
    server = with_secrets(options, tmp_path / "keys", dp_noise=1.0)
    most = 1.01 * epsilon_of(2.0, 1e-5)
    for cid in range(5):
        file = tmp_path / "keys" / f"client-{cid}.json"
        file.write_text(file.read_text().replace('"max_epsilon": null', f'"max_epsilon": {most}'))
    for _ in range(2):
        assert not server.step().warnings
    assert REASONS["budget"] in server.step().warnings[0]


# What sketches tell.


@pytest.mark.parametrize("model", sorted(MODELS))
def test_sketches_of_every_model_are_far_smaller_than_an_update(model: str) -> None:
    """Or the model is rejected: with so few numbers a sketch would be the update, turned."""
    net = Config(model=model).model.build(
        shape={"cnn1d": (3, 40), "char-cnn": (58,)}.get(model, (3, 32, 32)), classes=4
    )
    size = sum(parameter.numel() for parameter in net.parameters())
    assert sketch_for(size, None).k <= size / HIDING
    with pytest.raises(ComityError, match="says too much"):
        sketch_for(size, size // HIDING + 1)


@pytest.mark.parametrize("size", [2, 13 * 2 + 2, 127])
def test_small_models_are_not_sketched(size: int) -> None:
    with pytest.raises(ComityError, match="take --rule Mean, which needs none"):
        sketch_for(size, None)


def drawn(size: int, key: int) -> LayerSketch:
    return LayerSketch(sketch_for(size, None).k, 0, Layout([("model", (size,))]).layers[0], derive(b"", bytes([key])))


def sketched(updates: Tensor, key: int) -> Tensor:
    return drawn(updates.shape[1], key).sketched(lambda rows, columns: updates[rows, columns], len(updates))


@pytest.mark.parametrize("size", [128, 500, 1600])
def test_what_one_colluding_client_gives_away(size: int) -> None:
    """With the directions a sketch is k linear measurements: they explain k/n of an update, one eighth at most."""
    directions = sketched(torch.eye(size), key=1).T  # (k, n)
    updates = torch.randn(10, size, generator=torch.Generator().manual_seed(0))
    guess = (torch.linalg.pinv(directions) @ sketched(updates, key=1).T).T
    explained = 1 - ((guess - updates).norm(dim=1) / updates.norm(dim=1)) ** 2
    share = len(directions) / size
    assert share <= 1 / HIDING
    assert float(explained.mean()) == pytest.approx(share, abs=4 * (2 * share / size / len(updates)) ** 0.5)
    without = (torch.linalg.pinv(sketched(torch.eye(size), key=2).T) @ sketched(updates, key=1).T).T
    cosines = torch.cosine_similarity(without, updates.double())
    assert float(cosines.abs().max()) < 5 / size**0.5  # a server with directions of its own: nothing


def test_two_federations_with_the_same_products_look_the_same() -> None:
    """To a server without the directions a sketch says nothing but lengths and angles."""
    size, random = 160, torch.Generator().manual_seed(0)
    updates = torch.randn(3, size, generator=random, dtype=torch.float64)
    updates[1] = 0
    updates[1, 7] = 3.0  # a single number, as of a bias
    turned = updates @ torch.linalg.qr(torch.randn(size, size, generator=random, dtype=torch.float64))[0]
    assert torch.allclose(updates @ updates.T, turned @ turned.T)
    one = torch.stack([sketched(updates.float(), key) for key in range(120)])
    other = torch.stack([sketched(turned.float(), key) for key in range(120, 240)])
    for shown in (lambda s: s[:, 1].flatten(), lambda s: (s[:, 0] * s[:, 1]).sum(1), lambda s: s[:, 1].abs().amax(1)):
        assert ks_2samp(shown(one).numpy(), shown(other).numpy()).pvalue > 1e-3
