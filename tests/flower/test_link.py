"""The whole engine over a grid: the same bits as through threads, and nothing lost when nodes fail, leave or return."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from grids import HASTY, Silent, assert_same, kept, on_grid

from comity import ComityError, Config
from comity.engine import Run, RunPlan, Verb, run
from comity.flower import GridLink, _wire, client_app
from comity.flower._link import Patience
from comity.flower._server import over
from comity.methods import Client, Method, Payload, Reply
from comity.methods import Message as MethodMessage
from in_process import InProcessGrid


@pytest.mark.parametrize(
    "options",
    [
        {"method": "FedAvg"},
        {"method": "FedRep", "rule": "ConFREE"},
        {"method": "FedAvg", "rule": "CALM", "sketch": 16},
        {"method": "FedPAC"},
        {"method": "FedProto"},
        {"method": "GPFL"},
        {"method": "FedDBE"},
        {"method": "FedBABU"},
        {"method": "FedBN", "model": "resnet4", "rounds": 2, "clients": 3},
        {"method": "FEDORA"},
        {"method": "S-FedPG"},
        {"method": "FedRep", "rule": {"name": "ConFREE", "length": "search"}},
        {"method": "FedAvg", "rule": "GeometricMedian", "attack": "inner", "malicious": 0.4},
        {"method": "FedAvg", "rule": "FedFV", "participation": 0.6, "dropout": 0.3, "momentum": 0.5}
        | {"optimizer_state": "keep", "attack": "scale", "malicious": 0.2},
        {"method": "FedRep", "rule": "ConFREE", "model": "resnet4", "rounds": 2, "clients": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_same_bits_as_through_threads(tiny: dict[str, Any], options: dict[str, Any]) -> None:
    config = Config(**(tiny | options))
    grid = InProcessGrid(client_app(config), config.clients, workers=3 if "sketch" in options else 1)
    assert_same(run(config), over(grid, config), grid)


def test_local_is_trained_over_the_grid_too(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"method": "FedRep", "reference": "auto"}))
    there, grid = on_grid(config)
    assert there.result.transfer == run(config).result.transfer
    assert len(grid.contexts[grid.node_of(0)].state) == 3  # what FedRep keeps, Local, and Local repeated


def test_a_guard_works_at_the_sites(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"method": "FedRep", "reference": "auto", "guard": "mixture"}))
    there, grid = on_grid(config)
    assert_same(run(config), there, grid)
    sent = there.server.link.traffic["weigh"]
    assert sent[0] == there.server.link.traffic["evaluate"][0] / len(there.records)  # the model once more, to judge it
    assert sent[1] == 0


class Clumsy(Method):
    def fit(self, client: Client, received: MethodMessage) -> Reply:
        if client.id == 1:
            client.keep["spoilt"] = torch.ones(1)
            raise RuntimeError("out of 'memory'\nagain")
        reply = super().fit(client, received)
        if client.id == 3:
            reply.theta = reply.theta * float("nan")
        return reply


def test_a_client_that_fails_is_named_and_the_round_goes_on(tiny: dict[str, Any]) -> None:
    config = Config(**tiny, method=f"{__name__}.Clumsy")
    there, grid = on_grid(config)
    assert_same(run(config), there, grid)
    for record in there.records:
        assert record.failed[1] == "fit: RuntimeError: out of 'memory' again"
        assert record.failed[3] == "fit: sent theta that is not finite"
    assert "spoilt" not in kept(grid, config, 1).method


class Broken(Method):
    def fit(self, client: Client, received: MethodMessage) -> Reply:
        raise ZeroDivisionError("my own mistake")


def test_a_method_that_fails_everywhere_stops_the_run(tiny: dict[str, Any]) -> None:
    with pytest.raises(ComityError, match=r"no client answered 'fit' in round 1; client 0: ZeroDivisionError: my own"):
        on_grid(Config(**tiny, method=f"{__name__}.Broken"))


def run_with(
    config: Config, grid: InProcessGrid, before: Callable[[str, int], None], patience: Patience = HASTY
) -> Run:
    """A run that calls ``before`` with verb and round of each question."""

    class Hooked(GridLink):
        def deliver(self, verb: Verb, questions: Any, round: int) -> dict[int, Payload]:
            before(verb.name, round)
            return super().deliver(verb, questions, round)

    return run(config, link=lambda c, _: Hooked(grid, c.clients, c.key, patience))


def test_a_silent_node_is_a_failure_of_that_round_and_is_back_when_it_answers(tiny: dict[str, Any]) -> None:
    """In round 2 it gets its work and never answers, in round 3 not even the query."""
    config = Config(**(tiny | {"method": "FedRep", "rounds": 6, "eval_every": 6}))
    grid = Silent(client_app(config), config.clients)

    def before(_: str, round: int) -> None:
        grid.silent = frozenset({2}) if round in (2, 3) else frozenset()
        time.sleep(0.3)  # the last query expires, and a new one is sent

    done = run_with(config, grid, before, Patience(answer=2, query=0.25, start=30))
    failed = [record.failed for record in done.records]
    assert failed[0] == failed[5] == {}
    assert failed[1] == {2: "fit: did not answer within 2 s"}
    assert failed[2] == {2: "fit: is not connected"}  # a silent node is not waited for
    assert done.columns["client"] == list(range(config.clients))


def test_a_node_that_left_and_one_that_came_back_under_another_id(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"method": "FedRep", "rounds": 3}))
    grid = InProcessGrid(client_app(config), config.clients)

    def before(verb: str, round: int) -> None:
        if (verb, round) == ("fit", 2):
            del grid.contexts[grid.node_of(4)]
        if (verb, round) == ("fit", 3):
            grid.add_node(4, config.clients)

    done = run_with(config, grid, before)
    assert [list(record.failed) for record in done.records] == [[], [4], []]
    assert done.records[1].failed[4] == "evaluate: is not connected"
    assert [len(weights.ids) for weights in done.weights] == [5, 4, 5]
    assert done.columns["client"] == [0, 1, 2, 3, 4]


def link_for(grid: InProcessGrid, clients: int = 5, **settings: Any) -> GridLink:
    return GridLink(grid, clients, patience=HASTY, **settings)


def test_nodes_are_asked_who_they_are_once_and_the_first_keeps_its_seat(tiny: dict[str, Any]) -> None:
    asked: list[int] = []

    class Counting(InProcessGrid):
        def answer(self, message: Message) -> Message:
            asked.append(message.metadata.dst_node_id)
            return super().answer(message)

    grid = Counting(client_app(Config(**tiny)), 5)
    link = link_for(grid)
    link._gather()
    assert link.nodes == {cid: grid.node_of(cid) for cid in range(5)}
    assert link.warnings == []
    old, new = grid.node_of(2), grid.add_node(2, 5)
    for _ in range(3):
        link._gather()
    assert sorted(asked) == sorted(grid.contexts)
    assert link.nodes[2] == old
    assert link.warnings == [f"node {new} says that it is client 2 and is rejected: node {old} is"]
    del grid.contexts[old]
    link._gather()
    assert link.nodes[2] == new
    assert link.warnings[-1] == f"client 2 was node {old} and is node {new}"


def test_one_joiner_does_not_replace_the_others_unseen(tiny: dict[str, Any]) -> None:
    """It claims to be each client in turn; the run is the one without it, and the record names it."""
    config = Config(**tiny)
    grid = InProcessGrid(client_app(config), config.clients)

    def before(verb: str, round: int) -> None:
        for cid in range(5) if (verb, round) == ("fit", 2) else ():
            grid.add_node(cid, config.clients)

    done = run_with(config, grid, before)
    assert torch.equal(done.server.theta, run(config).server.theta)
    assert done.records[0].warnings == done.records[2].warnings == []
    assert len(done.records[1].warnings) == config.clients
    assert all("is rejected" in words for words in done.records[1].warnings)


def test_a_seat_may_be_for_one_node_alone(tiny: dict[str, Any]) -> None:
    grid = InProcessGrid(client_app(Config(**tiny)), 3)
    late = grid.add_node(1, 3)
    first = next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == 1)
    link = link_for(grid, 3, owners={1: late})
    link._gather()
    assert link.nodes[1] == late
    assert link.warnings == [f"node {first} says that it is client 1 and is rejected: that seat is for another node"]
    with pytest.raises(ComityError, match="a seat is settled for client 7; clients are 0 to 2"):
        link_for(grid, 3, owners={7: late})


class Keyed(InProcessGrid):
    """Nodes with public keys, as a SuperLink knows them."""

    keys: dict[int, bytes] = {}  # noqa: RUF012

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"%d" % node)) for node in self.contexts]


def test_a_seat_belongs_to_the_key_that_took_it_first(tiny: dict[str, Any]) -> None:
    """Also while its owner is away, and when the server resumes the run; the operator alone reassigns it."""
    grid = Keyed(client_app(Config(**tiny)), 3)
    link = link_for(grid, 3, taken={})
    link._gather()
    assert link.warnings == []
    real = grid.node_of(1)
    context = grid.contexts.pop(real)
    impostor = grid.add_node(1, 3)
    link._gather()
    assert sorted(link.nodes) == [0, 2]
    rejected = f"node {impostor} says that it is client 1 and is rejected: that seat belongs to the key that took it"
    assert [words[: len(rejected)] for words in link.warnings] == [rejected]

    place = link.place()
    link = link_for(grid, 3, taken={}, at_least=2)
    link.resume_at(place)
    link._gather()
    assert sorted(link.nodes) == [0, 2]
    grid.contexts[real] = context  # as one with a registered key, it has its node id again
    link._gather()
    assert link.nodes[1] == real

    moved = link_for(grid, 3, taken={}, owners={1: b"%d" % impostor})
    moved.resume_at(place)
    moved._gather()
    assert moved.nodes[1] == impostor
    assert f"the seat of client 1 is reassigned to node {impostor} by flower.seats" in moved.warnings
    grid.contexts.pop(impostor)
    anew = link_for(grid, 3, taken={})
    anew.resume_at(moved.place())
    anew._seats.look()
    assert 1 not in anew.nodes  # not even the one that had it before


def test_seats_are_kept_from_the_local_baseline_on(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"clients": 3, "rounds": 1, "reference": "auto"}))

    class Replaced(Keyed):
        def answer(self, message: Message) -> Message:
            reply = super().answer(message)
            if message.metadata.message_type == "evaluate" and self.node_of(1) == real:
                del self.contexts[real]
                self.add_node(1, 3)
            return reply

    grid = Replaced(client_app(config), 3)
    real = grid.node_of(1)
    (record,) = over(grid, config, patience=HASTY, at_least=2).records
    assert 1 in record.failed
    with_any = Replaced(client_app(config), 3)
    real = with_any.node_of(1)
    (record,) = over(with_any, config, patience=HASTY, at_least=2, seats="any").records
    assert not record.failed


@pytest.mark.parametrize(
    "given", [{"partition-id": 2.0}, {"partition-id": -1}, {"partition-id": [2]}, {"partition-id": 3}, {}], ids=repr
)
def test_a_partition_id_is_a_whole_number_in_range(
    tiny: dict[str, Any], given: Any, log: pytest.LogCaptureFixture
) -> None:
    class Odd(InProcessGrid):
        def answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id == list(self.contexts)[2]:
                return Message(RecordDict({"metrics": MetricRecord(given)}), reply_to=message)
            return super().answer(message)

    grid = Odd(client_app(Config(**tiny)), 3)
    nameless = grid.add_node(6, 3)
    del grid.contexts[nameless].node_config["partition-id"]
    link = link_for(grid, 3, at_least=2)
    link._gather()
    assert sorted(link.nodes) == [0, 1]
    assert "clients are 0 to 2" in log.text
    assert "does not say which client it is" in log.text


def test_it_waits_for_enough_clients_and_says_so_when_they_do_not_come(tiny: dict[str, Any]) -> None:
    config = Config(**tiny)
    grid = InProcessGrid(client_app(config), 3)
    with pytest.raises(ComityError, match=r"3 of 5 clients are connected after 0.5 s; 5 were waited for"):
        over(grid, config, patience=HASTY)
    done = over(grid, config, patience=HASTY, at_least=2)
    assert done.columns["client"] == [0, 1, 2]
    assert all(record.failed[4] == "evaluate: is not connected" for record in done.records)


def test_a_round_passes_when_nobody_of_its_cohort_is_there(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"participation": 0.2, "rounds": 6}))
    grid = InProcessGrid(client_app(config), 3)
    done = over(grid, config, patience=HASTY, at_least=1)
    alone = {cid for record in done.records for cid in record.cohort}
    assert alone & {3, 4}, "this seed samples no absent client"
    assert {weights.round for weights in done.weights} == {r.round for r in done.records if r.cohort[0] <= 2}


def test_a_node_of_another_configuration_is_refused(tiny: dict[str, Any]) -> None:
    grid = InProcessGrid(client_app(Config(**tiny, seed=1)), 5)
    with pytest.raises(ComityError, match=r"client 0: ComityError: this node has another configuration"):
        over(grid, Config(**tiny), patience=HASTY)


def test_an_answer_that_cannot_be_read_is_that_clients_failure(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.flower._wire.FLOOR", 50_000)

    class Garbled(InProcessGrid):
        def answer(self, message: Message) -> Message:
            reply, node = super().answer(message), message.metadata.dst_node_id
            if message.metadata.message_type == "train.fit" and node == self.node_of(1):
                return Message(RecordDict({"arrays": MetricRecord()}), reply_to=message)
            if message.metadata.message_type == "train.fit" and node == self.node_of(2):
                reply.content["arrays"] = ArrayRecord({"theta": Array("float32", (2,), "numpy.ndarray", b"12")})
            if message.metadata.message_type == "train.fit" and node == self.node_of(3):
                reply.content["arrays"]["theta"] = Array(torch.zeros(100_000))
            return reply

    config = Config(**(tiny | {"rounds": 1}))
    done = over(Garbled(client_app(config), 5), config, patience=HASTY)
    failed = done.records[0].failed
    assert failed.keys() == {1, 2, 3}
    assert all("sent an unreadable reply" in why for why in failed.values())
    assert "400,128 bytes; 50,000 are the most that is taken" in failed[3]
    assert done.columns["client"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["train.export", "evaluate.export", "train.nothing"])
def test_a_server_cannot_ask_for_a_clients_own_model(tiny: dict[str, Any], kind: str) -> None:
    config = RunPlan(Config(**(tiny | {"method": "FedRep"}))).config
    grid = InProcessGrid(client_app(config), config.clients)
    question = _wire.question(_wire.Header(config.key, 1), MethodMessage(theta=torch.zeros(1)), _wire.Arrays())
    (reply,) = grid.send_and_receive([Message(question, grid.node_of(0), kind)])
    assert "invalid message type" in reply.error.reason
