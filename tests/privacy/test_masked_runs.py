"""Whole rounds in which the server sees no update: the step of the open sum, whoever is lost, and no word on who."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from watched import STAGES, K, Watched, assembled, masked_options, open_sum, refusal

from comity import ComityError, Config
from comity.engine import Server, run
from comity.methods import METHODS
from comity.privacy import SEALED, FixedPoint, epsilon
from helpers import Options, assert_reproducible, build


@pytest.fixture
def options(tiny: Options) -> Options:
    return masked_options(tiny)


RULES: list[Any] = ["Mean", "ConFREE", {"name": "CALM", "scope": "model"}]


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


def assert_one_term_is_missing(link: Watched, server: Server, stage: str) -> None:
    """Client 2 fails in this stage. Its words are in the sum where it had sent them before."""
    before = server.theta.clone()
    record = server.step()
    assert record.failed.keys() == {2}
    assert record.failed[2].startswith(f"{stage}: ")
    left = range(5) if stage in ("agree", "unmask", "against") else [0, 1, 3, 4]
    assert torch.equal(server.theta, before + open_sum(link, server, left))
    assert record.against is not None
    assert record.against.clients == 4


@pytest.mark.parametrize("stage", STAGES)
def test_one_that_drops_out_in_any_stage_costs_its_own_term_alone(options: Options, stage: str) -> None:
    assert_one_term_is_missing(*assembled(options, {stage: [2]}), stage)


FIELDS = [
    *(("fit", "keys"), ("share", "sealed"), ("share", "digests")),
    *(("mask", "words"), ("agree", "signature"), ("unmask", "shares")),
]


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
    assert "client 2 shared out other secrets than it announced" in refusal(server)


def test_too_few_end_in_a_round_that_changes_nothing(options: Options) -> None:
    for lost in ({"mask": [0, 1, 2, 3]}, {"unmask": [0, 1]}, {"share": [0, 1, 2, 3]}, {"fit": [1, 2, 3, 4]}):
        assert any(word in refusal(assembled(options, lost)[1]) for word in ("left", "signed"))


def test_the_weights_of_one_are_lowered_to_what_clients_allow(options: Options) -> None:
    link, server = assembled(options, rule="MGDA", max_weight=0.3)
    record = server.step()
    told: Any = link.told["mask"]
    squares = told.coefficients**2
    assert float(squares.max() / squares.sum()) <= 0.3 + 1e-9
    assert float(told.coefficients.sum()) == pytest.approx(1.0)  # as MGDA's own
    assert [words for words in record.warnings if "so that no client exceeds max_weight" in words]


@pytest.mark.parametrize("rule", ["Mean", "ConFREE"])
def test_all_that_the_server_receives_contains_no_update(options: Options, rule: str) -> None:
    """No number of an update, whole or weighted, in the open or behind a mask that follows from anything received."""
    link, server = assembled(options, {"mask": [1]}, rule=rule, max_weight=1.0)
    server.step()
    assert {verb for verb, _, _ in link.received} == set(STAGES)
    told: Any = link.told["mask"]
    sent = [(name, tensor) for _, _, reply in link.received for name, tensor in reply.tensors().items()]
    assert {name for name, _ in sent} <= {"keys", "sketch", "sealed", "digests", "words", "signature", "shares"}
    for verb, cid, reply in link.received:
        update = link.updates[cid].double()
        for name, tensor in reply.tensors().items():
            if tensor.dtype == torch.uint8:
                continue  # keys and shares: their length alone says that no model fits in
            values = tensor.double().reshape(-1)
            if name == "words":
                point = FixedPoint(5)
                own = point.encode(update.numpy() * float(told.coefficients[told.present.tolist().index(cid)]))
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

SMALL = {"name": "synthetic", "samples": 24, "classes": 2, "size": 4}

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
        ({"rule": "CALM"}, "works by layer, .*; take --rule.scope model"),
        ({"rule": "ConFREE-released"}, "works by layer, and sketches of small layers hide nothing"),
        ({"rule": "ConFREE", "data": SMALL, "model": "logistic"}, "hides an update of at least 128; .*rule Mean"),
        ({"rule": "ConFREE", "sketch": 640}, "a sketch of 640 numbers says too much of an update of"),
        ({"rule": {"name": "ConFREE", "length": "search"}}, "tries steps"),
        ({"attack": "scale"}, "leave attack out"),
        ({"clip_updates": "median"}, "leave clip_updates out"),
        ({"newcomers": 1}, "leave newcomers out"),
        ({"participation": 0.2}, "a round has 1 clients"),
        ({"dp_noise": 1.0, "rule": "ConFREE"}, "take --rule Mean --rule.by uniform"),
        ({"dp_noise": 1.0}, "take --rule Mean --rule.by uniform"),
        ({"dp_noise": 1e-200, "rule": {"name": "Mean", "by": "uniform"}}, "hides nothing; it must be 0 or at least"),
    ],
    ids=str,
)
def test_what_cannot_run_masked_is_rejected_in_one_line(options: Options, more: Options, why: str) -> None:
    with pytest.raises(ComityError, match=f"^this cannot run masked: .*{why}"):
        assembled(options | {"sketch": None}, **more)


def test_noise_needs_masks(options: Options) -> None:
    with pytest.raises(ComityError, match="--dp-noise needs --masked"):
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
    assert record.epsilon == pytest.approx(epsilon(3.0, 1, 1e-5))
    assert server.step().epsilon == pytest.approx(epsilon(3.0, 2, 1e-5))
    assert record.against is None
    fitted = [reply for verb, _, reply in link.received if verb == "fit"]
    assert all(set(reply.values()) == {"keys", "size", "train_loss", "spent"} for reply in fitted)
    assert all(np.isnan(reply.values()["train_loss"]) and reply.values()["size"] == 1 for reply in fitted)


def test_too_few_for_the_noise_are_not_unmasked(options: Options) -> None:
    _, server = assembled(options | UNIFORM, {"mask": [0, 1]}, dp_noise=3.0)
    assert "3 clients are left; 4 are the fewest" in refusal(server)


def test_epsilon_counts_the_rounds_of_the_client_that_was_in_most(options: Options) -> None:
    outcome = run(**(options | UNIFORM | {"rounds": 4}), dp_noise=2.0, participation=0.6, eval_every=4)
    most = max(sum(cid in record.cohort for record in outcome.records) for cid in range(5))
    assert outcome.result.epsilon == pytest.approx(epsilon(2.0, most, 1e-5))
