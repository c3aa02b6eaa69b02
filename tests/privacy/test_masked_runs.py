"""Whole rounds in which the server sees no update: the step of the open sum, whoever is lost, and no word on who."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from comity import ComityError, Config
from comity.engine import Server, Site, Threads, Verb, run
from comity.methods import METHODS, Payload
from comity.privacy import SEALED, FixedPoint, epsilon
from helpers import Options, assert_reproducible, build

K = 16
"""Numbers of a sketch."""
Change = Callable[[str, int, Any], Any]


class Watched(Threads):
    """Threads that write down all that the server receives, lose whom one likes and change what one likes."""

    def __init__(self, site: Site, lost: Mapping[str, Collection[int]], change: Change | None = None) -> None:
        super().__init__(site, 1)
        self.lost, self.change = lost, change
        self.spoilt: dict[str, dict[str, Tensor]] = {}
        """What client 2 sends in place of fields of its replies."""
        self.received: list[tuple[str, int, Payload]] = []
        self.told: dict[str, Payload] = {}
        """The newest question of each verb."""
        self.updates: dict[int, Tensor] = {}
        """What each client keeps to itself in this round."""

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        if self.change is not None:
            questions = {cid: self.change(verb.name, cid, question) for cid, question in questions.items()}
        self.told[verb.name] = next(iter(questions.values()))
        replies = super().deliver(verb, questions, round)
        if verb.name in self.spoilt and 2 in replies:
            replies[2] = replace(replies[2], **self.spoilt[verb.name])  # type: ignore[type-var]
        if verb.name == "fit":
            self.updates = {cid: self._states[cid].secret["update"] for cid in replies}
        kept = {cid: reply for cid, reply in replies.items() if cid not in self.lost.get(verb.name, ())}
        self.failures |= dict.fromkeys(replies.keys() - kept.keys(), "is gone")
        self.received += [(verb.name, cid, reply) for cid, reply in kept.items()]
        return kept


@pytest.fixture
def options(tiny: Options) -> Options:
    return tiny | {"rounds": 2, "masked": True, "sketch": K, "min_clients": 2}


def assembled(
    options: Options,
    lost: Mapping[str, Collection[int]] | None = None,
    change: Change | None = None,
    **more: Any,
) -> tuple[Watched, Server]:
    _, server = build(Config(**(options | more)), link=lambda _, site: Watched(site, lost or {}, change))
    assert isinstance(server.link, Watched)
    return server.link, server


def open_sum(link: Watched, server: Server, clients: Collection[int]) -> Tensor:
    """The fixed-point sum of these clients' terms with the coefficients that were sent to all, without any mask."""
    told: Any = link.told["mask"]
    present, total = told.present.tolist(), np.zeros(server.theta.numel(), dtype=np.uint64)
    for cid in clients:
        place, update = present.index(cid), link.updates[cid].double().numpy()
        weights = np.repeat(
            [float(row[place]) for row in (*told.coefficients.expand(len(server.layout), -1), told.shares)],
            [layer.stop - layer.start for layer in server.layout.layers] + [len(update) - server.layout.size],
        )
        total += FixedPoint(len(present)).encode(weights * update)
    return torch.from_numpy(FixedPoint(len(present)).decode(total)).float()


def refusal(server: Server) -> str:
    """Why a round is refused that changes nothing."""
    before = server.theta.clone()
    (refused,) = server.step().warnings
    assert refused.startswith("round 1 is rejected and changes nothing: ")
    assert torch.equal(server.theta, before)
    return refused


RULES: list[Any] = ["Mean", "ConFREE", {"name": "ConFREE", "scope": "layer"}, "CALM"]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_step_is_the_fixed_point_sum_to_the_bit(options: Options, rule: Any) -> None:
    link, server = assembled(options, rule=rule, max_weight=1.0)
    for _ in range(2):
        before = server.theta.clone()
        record = server.step()
        assert not record.failed
        assert not record.warnings
        step = open_sum(link, server, range(5))
        assert torch.equal(server.theta, before + step)
        size = server.layout.size
        against = [
            float(update[:size].double() @ (server.theta - before)[:size].double()) < 0
            for update in link.updates.values()
        ]
        assert record.against is not None
        assert (record.against.clients, record.against.rule) == (5, sum(against))


@pytest.mark.parametrize("model", ["mlp", "resnet4"])
def test_masked_and_open_means_differ_by_rounding_alone(options: Options, model: str) -> None:
    """Buffers are averaged under the mask, too."""
    options |= {"model": model}
    _, masked = assembled(options)
    _, server = build(Config(**(options | {"masked": False})))
    assert (masked.theta.numel() > masked.layout.size) == (model == "resnet4")
    masked.step()
    server.step()
    close = {"rtol": 0, "atol": 1e-7} if model == "mlp" else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(masked.theta, server.theta, **close)


STAGES = ("fit", "share", "mask", "unmask", "against")


def assert_one_term_is_missing(link: Watched, server: Server, stage: str) -> None:
    """Client 2 fails in this stage. Its words are in the sum where it had sent them before."""
    before = server.theta.clone()
    record = server.step()
    assert record.failed.keys() == {2}
    assert record.failed[2].startswith(f"{stage}: ")
    left = range(5) if stage in ("unmask", "against") else [0, 1, 3, 4]
    assert torch.equal(server.theta, before + open_sum(link, server, left))
    assert record.against is not None
    assert record.against.clients == 4


@pytest.mark.parametrize("stage", STAGES)
def test_one_that_drops_out_in_any_stage_costs_its_own_term_alone(options: Options, stage: str) -> None:
    assert_one_term_is_missing(*assembled(options, {stage: [2]}), stage)


FIELDS = [("fit", "keys"), ("share", "sealed"), ("mask", "words"), ("unmask", "shares")]


@pytest.mark.parametrize(("verb", "field"), FIELDS)
@pytest.mark.parametrize("spoilt", [torch.zeros(1).byte(), torch.zeros(3, 3), torch.zeros(0).long()], ids=repr)
def test_a_reply_of_another_form_costs_its_sender_alone(
    options: Options, verb: str, field: str, spoilt: Tensor
) -> None:
    link, server = assembled(options)
    link.spoilt = {verb: {field: spoilt}}
    assert_one_term_is_missing(link, server, verb)


def test_shares_that_nobody_can_open_name_their_owner(options: Options) -> None:
    link, server = assembled(options)
    link.spoilt = {"share": {"sealed": torch.ones(4, SEALED, dtype=torch.uint8)}}
    assert "shares of client 2" in refusal(server)


def test_too_few_end_in_a_round_that_changes_nothing(options: Options) -> None:
    for lost in ({"mask": [0, 1, 2, 3]}, {"unmask": [0, 1]}, {"share": [0, 1, 2, 3]}, {"fit": [1, 2, 3, 4]}):
        assert "left" in refusal(assembled(options, lost)[1])


def half_flipped(verb: str, cid: int, question: Any) -> Any:
    return replace(question, coefficients=question.coefficients.flip(1)) if verb == "mask" and cid < 2 else question


def one_counts(verb: str, _: int, question: Any) -> Any:
    return replace(question, coefficients=torch.eye(5, dtype=torch.float64)[:1]) if verb == "mask" else question


def twice_as_many(verb: str, _: int, question: Any) -> Any:
    return replace(question, coefficients=question.coefficients.repeat(1, 2)) if verb == "mask" else question


def two_survive(verb: str, _: int, question: Any) -> Any:
    return replace(question, survivors=torch.tensor([0, 1])) if verb == "unmask" else question


@pytest.mark.parametrize(
    ("change", "more", "why"),
    [
        (half_flipped, {"rule": "ConFREE", "max_weight": 1.0}, "masks do not cancel"),
        (one_counts, {}, "does not lend its update"),
        (twice_as_many, {}, "of others than those who mask together"),
        (two_survive, {"min_clients": 3}, "2 clients are left; 3 are the fewest"),
    ],
)
def test_clients_do_not_lend_themselves_to_a_server_that_lies(
    options: Options, change: Change, more: Options, why: str
) -> None:
    """Neither to a sum of one, by coefficients or by survivors, nor to coefficients that differ between clients."""
    assert why in refusal(assembled(options, change=change, **more)[1])


def test_a_replayed_round_is_rejected(options: Options) -> None:
    _, server = assembled(options)
    server.step()
    server.round = 0
    with pytest.raises(ComityError, match="was asked to fit in round 1 after round 1"):
        server.step()


def test_the_weights_of_one_are_lowered_to_what_clients_allow(options: Options) -> None:
    link, server = assembled(options, rule="MGDA", max_weight=0.3)
    record = server.step()
    told: Any = link.told["mask"]
    shares = told.coefficients.abs() / told.coefficients.abs().sum()
    assert float(shares.max()) <= 0.3 + 1e-9
    assert float(told.coefficients.sum()) == pytest.approx(1.0)  # as MGDA's own
    assert [words for words in record.warnings if "so that max_weight holds" in words]


@pytest.mark.parametrize("rule", ["Mean", "ConFREE"])
def test_all_that_the_server_receives_contains_no_update(options: Options, rule: str) -> None:
    """No number of an update, whole or weighted, in the open or behind a mask that follows from anything received."""
    link, server = assembled(options, {"mask": [1]}, rule=rule, max_weight=1.0)
    server.step()
    assert {verb for verb, _, _ in link.received} == set(STAGES)
    told: Any = link.told["mask"]
    sent = [(name, tensor) for _, _, reply in link.received for name, tensor in reply.tensors().items()]
    assert {name for name, _ in sent} <= {"keys", "sketch", "sealed", "words", "shares"}
    for verb, cid, reply in link.received:
        update = link.updates[cid].double()
        for name, tensor in reply.tensors().items():
            if tensor.dtype == torch.uint8:
                continue  # keys and shares: their length alone says that no model fits in
            values = tensor.double().reshape(-1)
            if name == "words":
                point = FixedPoint(5)
                own = point.encode(update.numpy() * float(told.coefficients[0, told.present.tolist().index(cid)]))
                if verb == "mask":
                    words = tensor.numpy().view(np.uint64)[:-1]
                    assert not (words == own).any()
                    bits = np.unpackbits((words - own).view(np.uint8)).mean()  # the mask: a fair coin
                    assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * len(words))
            else:
                assert len(values) == K  # measurements that the server does not know the directions of
                assert not torch.isin(values.float(), link.updates[cid]).any()
    small = [tensor.numel() for _, tensor in sent if tensor.dtype == torch.uint8]  # in bytes
    assert max(small) < 4 * server.theta.numel()


def test_nothing_secret_is_in_the_run_folder(options: Options, tmp_path: Path) -> None:
    run(Config(**(options | {"out": tmp_path / "run", "checkpoint_every": 1, "dropout": 0.3})))
    with safe_open(tmp_path / "run" / "checkpoint" / "state.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if "secret" in name]  # noqa: SIM118


def test_the_same_bits_resumed_and_for_any_number_of_workers(options: Options, tmp_path: Path) -> None:
    assert_reproducible(options | {"rule": "ConFREE"}, tmp_path / "run")


# What cannot run so.

# fmt: off
MASKED = {"FedAvg", "FedProx", "FedBN", "FedPer", "FedRep", "FedBABU", "LG-FedAvg", "Ditto", "Per-FedAvg", "APFL",
          "pFedMe"}
# fmt: on


@pytest.mark.parametrize("method", METHODS)
def test_each_method_runs_masked_or_is_refused_for_what_it_declares(options: Options, method: str) -> None:
    try:
        _, server = assembled(options, method=method, sketch=None)
    except ComityError as refused:
        assert str(refused).startswith("this cannot run masked: ")  # noqa: PT017
        assert method not in MASKED
    else:
        record = server.step()
        assert not [words for words in record.warnings if "refused" in words]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"method": "FEDORA"}, "also asked for basis"),
        ({"method": "FedPG"}, "sends clients what its server half makes of single updates"),
        ({"method": "FedAMP"}, "sends clients what"),
        ({"method": "Local"}, "shares nothing"),
        ({"method": "FedPAC"}, "also send"),
        ({"rule": "FedFV"}, "remembers updates"),
        ({"rule": "Auto"}, "remembers updates"),
        ({"rule": {"name": "ConFREE", "length": "search"}}, "tries steps"),
        ({"attack": "scale"}, "leave attack out"),
        ({"clip_updates": "median"}, "leave clip_updates out"),
        ({"newcomers": 1}, "leave newcomers out"),
        ({"save_models": True}, "send their models"),
        ({"participation": 0.2}, "a round has 1 clients"),
        ({"dp_noise": 1.0, "rule": "ConFREE"}, "take --rule Mean --rule.by uniform"),
        ({"dp_noise": 1.0}, "take --rule Mean --rule.by uniform"),
    ],
    ids=str,
)
def test_what_cannot_run_masked_is_rejected_in_one_line(options: Options, more: Options, why: str) -> None:
    with pytest.raises(ComityError, match=f"^this cannot run masked: .*{why}"):
        assembled(options, sketch=None, **more)


def test_noise_needs_masks(options: Options) -> None:
    with pytest.raises(ComityError, match="give masked too"):
        Config(**(options | {"masked": False, "dp_noise": 1.0}))


# Differential privacy.

UNIFORM = {"rule": {"name": "Mean", "by": "uniform"}}


def test_updates_are_clipped_and_the_sum_has_the_noise_that_epsilon_is_about(options: Options) -> None:
    """Nobody lost: the noise of all five adds up to that of five where four would do."""
    link, server = assembled(options | UNIFORM, dp_noise=3.0, dp_clip=0.01)
    before = server.theta.double()
    record = server.step()
    clipped = [update.double() * min(1.0, 0.01 / float(update.double().norm())) for update in link.updates.values()]
    assert all(float(update.norm()) > 0.01 for update in link.updates.values())
    noise = server.theta.double() - before - torch.stack(clipped).mean(0)
    expected = 3.0 * 0.01 / 5 * np.sqrt(5 / 4)
    assert float(noise.std()) == pytest.approx(expected, rel=5 / np.sqrt(2 * len(noise)))
    assert record.epsilon == epsilon(3.0, 1, 1e-5)
    assert server.step().epsilon == epsilon(3.0, 2, 1e-5)
    assert record.against is None
    fitted = [reply for verb, _, reply in link.received if verb == "fit"]
    assert all(set(reply.values()) == {"keys", "size", "train_loss"} for reply in fitted)
    assert all(np.isnan(reply.values()["train_loss"]) and reply.values()["size"] == 1 for reply in fitted)


def test_too_few_for_the_noise_are_not_unmasked(options: Options) -> None:
    _, server = assembled(options | UNIFORM, {"mask": [0, 1]}, dp_noise=3.0)
    assert "3 clients are left; 4 are the fewest" in refusal(server)


def test_epsilon_counts_the_rounds_of_the_client_that_was_in_most(options: Options) -> None:
    outcome = run(**(options | UNIFORM | {"rounds": 4}), dp_noise=2.0, participation=0.6, eval_every=4)
    most = max(sum(cid in record.cohort for record in outcome.records) for cid in range(5))
    assert outcome.result.epsilon == epsilon(2.0, most, 1e-5)
