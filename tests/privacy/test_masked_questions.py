"""Numbers that clients are asked for before the first round: added up behind masks, or not at all."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import fsum
from typing import Any

import pytest
import torch
from torch import Tensor
from watched import Change, Watched, masked_options

from comity import ComityError, Config
from comity.engine import BESIDE, Call, ClientState, Extension, RunPlan, Server, Verb
from comity.extras.scaling import Features, Sums
from comity.methods import Payload
from comity.privacy._messages import KnownColumns
from comity.privacy.extension import MaskedSums
from helpers import Options

TERMS = torch.tensor([[[cid + 1, 0.0, -0.1 * cid], [1e30 / 3**cid, 0.0, 1e-30]] for cid in range(5)]).double()
"""What each client is asked for; nobody knows the second column."""
COLUMNS = ["first", "second", "third"]


class Numbers(Extension):
    """Asks each client for its numbers."""

    terms = TERMS

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        return verbs | {"numbers": Verb("numbers", Features, Sums, self.answer, summed="bits")}

    def answer(self, call: Call) -> tuple[Payload, ClientState | None]:
        return Sums(bits=self.terms[call.cid].contiguous().view(torch.int64)), call.state


@pytest.fixture
def options(tiny: Options) -> Options:
    return masked_options(tiny) | {"min_clients": 4}


def assembled(
    options: Options, lost: Mapping[str, Collection[int]] | None = None, change: Change | None = None
) -> tuple[Watched, Server]:
    plan = RunPlan(Config(**options), None, lambda _, site: Watched(site, lost or {}, change))
    plan.extensions.insert(0, Numbers())
    _, server = plan.build()
    assert isinstance(server.link, Watched)
    return server.link, server


def total(server: Server) -> Tensor:
    question = Features(features=3)
    replies = server.ask_clients("numbers", dict.fromkeys(server.clients, question))
    (masked,) = (each for each in server.extensions if isinstance(each, MaskedSums))
    return masked.total(server, "numbers", question, replies, 2, COLUMNS)


def exact(terms: Tensor) -> Tensor:
    """The sum over clients, rounded once."""
    return torch.tensor(
        [[fsum(column) for column in row] for row in terms.permute(1, 2, 0).tolist()], dtype=torch.float64
    )


def changed(verb: str, cids: Collection[int], **fields: Any) -> Change:
    """A server that sends some clients something else than the protocol says."""

    def change(asked: str, cid: int, question: Any) -> Any:
        new = {name: make(getattr(question, name)) for name, make in fields.items()} if asked == verb else {}
        return replace(question, **new) if cid in cids else question

    return change


def test_the_sum_is_exact_and_nothing_secret_is_left(options: Options) -> None:
    link, server = assembled(options)
    assert torch.equal(total(server), exact(TERMS))
    told = link.told["add"]
    assert isinstance(told, KnownColumns)
    assert told.known.tolist() == [5, 0, 5]
    assert all(not state.secret for state in link.states().values())
    assert not server.step().failed  # and the clients of the first round are started
    assert all("personal" in state.method for state in link.states().values())


EVERYBODY = range(5)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed("mask", EVERYBODY, coefficients=lambda row: 2 * row), "where numbers are added up all coefficients"),
        (changed("mask", EVERYBODY, coefficients=lambda row: row * (torch.arange(5) == 2)), "coefficient stands out"),
        (changed("add", EVERYBODY, known=lambda known: known * 0 + 3), "too few clients know a column that it knows"),
        (changed("add", EVERYBODY, known=lambda known: known.double()), "does not fit the protocol"),
        (changed("add", EVERYBODY, present=lambda present: present[:3]), "too few clients are left"),
        (changed("add", [2], known=lambda known: known + 1), "masks do not cancel"),
        (changed("agree", EVERYBODY, survivors=lambda survivors: survivors[:3]), "too few clients are left"),
    ],
)
def test_a_server_that_lies_learns_no_sum(options: Options, change: Change, why: str) -> None:
    _, server = assembled(options, change=change)
    with pytest.raises(ComityError, match=why):
        total(server)


def test_a_client_that_is_told_of_other_coefficients_is_in_no_sum(options: Options) -> None:
    _, server = assembled(options, change=changed("mask", [2], coefficients=lambda row: 2 * row))
    assert torch.equal(total(server), exact(TERMS[[0, 1, 3, 4]]))
    assert server.record.failed.keys() == {2}


def test_numbers_are_told_before_the_first_round_and_once(options: Options) -> None:
    _, server = assembled(options)
    total(server)
    with pytest.raises(ComityError, match="again: this round of this run"):
        total(server)
    _, server = assembled(options)
    server.step()
    with pytest.raises(ComityError, match="turn: asked out of turn"):
        total(server)


def test_of_several_matrices_each_is_added_up_once(options: Options) -> None:
    """In whichever question and round: a matrix of zeros says nothing, and two equal ones are one."""
    _, server = assembled(options)
    numbers, *_, masked = server.extensions
    assert isinstance(numbers, Numbers)
    assert isinstance(masked, MaskedSums)

    def total_of(round: int, *matrices: Tensor) -> Tensor:
        numbers.terms, question = torch.stack(matrices, 1), Features(features=3)
        desk = server.serving(server.link, BESIDE + round)
        replies = desk.ask_clients("numbers", dict.fromkeys(desk.clients, question))
        return masked.total(desk, "numbers", question, replies, 2 * len(matrices), COLUMNS)

    nothing = 0 * TERMS
    assert torch.equal(total_of(0, TERMS, TERMS, nothing), exact(torch.cat([TERMS, TERMS, nothing], 1)))
    assert torch.equal(total_of(1, 2 * TERMS, nothing), exact(torch.cat([2 * TERMS, nothing], 1)))
    with pytest.raises(ComityError, match="again: this round of this run"):
        total_of(2, 3 * TERMS, TERMS)


def test_numbers_are_not_added_before_it_is_known_who_knows_them(options: Options) -> None:
    link, server = assembled(options)
    server.ask_clients("numbers", dict.fromkeys(EVERYBODY, Features(features=3)))
    known = KnownColumns(present=torch.arange(5), known=torch.full((3,), 5))
    with pytest.raises(ComityError, match="turn: asked out of turn"):
        server.ask_clients("add", dict.fromkeys(EVERYBODY, known))
    assert not [reply for verb, _, reply in link.received if verb == "add"]


@pytest.mark.parametrize("stage", ["numbers", "share", "mask", "agree", "unmask", "add"])
def test_one_that_drops_out_in_any_stage_costs_its_own_numbers_alone(options: Options, stage: str) -> None:
    """One that is lost in the first ``agree`` or ``unmask`` is asked for its numbers no more."""
    _, server = assembled(options, {stage: [2]})
    assert torch.equal(total(server), exact(TERMS[[0, 1, 3, 4]]))
    assert server.record.failed.keys() == {2}
