"""A server that dies goes on from its checkpoint, with clients that may be ahead of it, to the unbroken run's bits."""

import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from grids import HASTY, assert_same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comity import ComityError, Config
from comity.engine import ClientState, Run, RunPlan, run
from comity.flower import client_app, server_app
from comity.flower._app import entries_of
from comity.flower._keep import Keep
from comity.flower._server import over
from comity.flower._wire import Place, read_header
from comity.results import RunFolder, Seconds
from in_process import InProcessGrid


def sites(config: Config, keep: Path) -> list[Any]:
    return [{"keep": str(keep / str(cid))} for cid in range(config.clients or 0)]


class Dead(BaseException):
    """What SIGKILL does to the server."""


class Dying(InProcessGrid):
    """The server dies when so many answers are made: the last was made for nobody, later questions never arrive."""

    def __init__(self, config: Config, keep: Path, answers: float) -> None:
        super().__init__(client_app(config), config.clients or 0, node_configs=sites(config, keep), wire=False)
        self.left = answers

    def answer(self, message: Message) -> Message:
        if message.metadata.message_type != "query":
            self.left -= 1
        return super().answer(message) if self.left >= 0 else Message(RecordDict(), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = super().pull_messages(message_ids)
        if self.left <= 0:
            self._pool.shutdown()
            raise Dead
        return replies


def broken_off(config: Config, folder: Path, deaths: list[int]) -> tuple[Run, InProcessGrid]:
    """The run in a folder whose server dies so often; each time a new one goes on with the same sites."""
    config = config.with_(out=folder / "run")
    for answers in deaths:
        grid = Dying(config, folder / "sites", answers)
        try:
            return over(grid, config, resume=True), grid
        except Dead:
            pass
    grid = Dying(config, folder / "sites", float("inf"))
    return over(grid, config, resume=True), grid


def recorded(folder: Path) -> list[Any]:
    return [repr(msgspec.structs.replace(record, seconds=Seconds())) for record in RunFolder(folder).rounds()]


OPTIONS: list[dict[str, Any]] = [
    {"method": "FedRep", "rule": "ConFREE"},
    {"method": "S-FedPG", "checkpoint_every": 2, "eval_every": 2},
    {"method": "FEDORA"},
    {"method": "FedRep", "rule": "FedFV", "participation": 0.6, "optimizer_state": "keep", "momentum": 0.5},
    {"method": "FedRep", "reference": "auto", "guard": "mixture", "rounds": 2, "eval_every": 2},
]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=st.lists(st.integers(1, 25), min_size=1, max_size=4), options=st.sampled_from(OPTIONS))
def test_a_server_that_dies_anywhere_goes_on_to_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Any], deaths: list[int], options: dict[str, Any]
) -> None:
    config = Config(**(tiny | {"clients": 3, "checkpoint_every": 1} | options))
    folder = tmp_path_factory.mktemp("broken")
    done, grid = broken_off(config, folder, deaths)
    straight = run(config, out=folder / "straight" / "run")
    assert_same_bits(straight, done, grid)
    assert done.result.transfer == straight.result.transfer
    assert recorded(folder / "run") == recorded(folder / "straight" / "run")


def test_a_server_that_goes_on_waits_for_one_that_is_still_at_work(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**(tiny | {"clients": 2, "out": tmp_path / "run"}))
    with ThreadPoolExecutor() as pool:
        with RunFolder(tmp_path / "run").locked():
            later = pool.submit(over, Dying(config, tmp_path / "sites", float("inf")), config, resume=True)
            with pytest.raises(TimeoutError):
                later.result(timeout=1)
        assert later.result(timeout=60).done


def test_local_is_not_trained_again(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = RunPlan(Config(**(tiny | {"clients": 2, "reference": "auto", "rounds": 3, "eval_every": 3}))).config
    of_local = config.clients * (config.rounds + 1)  # the rounds, and an evaluation
    asked: list[str] = []

    class Watched(Dying):
        def answer(self, message: Message) -> Message:
            if message.metadata.message_type != "query":
                asked.append(read_header(message.content).run)
            return super().answer(message)

    for answers in (of_local + 1, float("inf")):
        grid = Watched(config, tmp_path / "sites", answers)
        try:
            done = over(grid, config.with_(out=tmp_path / "run"), resume=True)
        except Dead:
            assert asked.count(config.local_baseline().key) == of_local
    assert asked.count(config.local_baseline().key) == of_local
    assert done.result.transfer == run(config).result.transfer
    assert not (tmp_path / ".local").exists()


def test_a_new_flwr_run_goes_on_in_the_folder_that_it_is_given(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**(tiny | {"method": "FedRep", "clients": 2, "checkpoint_every": 1}))
    entries = entries_of(config) | {"out": str(tmp_path / "runs"), "flower.resume": ""}

    def serve(answers: float, run_id: int, **changed: Any) -> None:
        chosen = entries | {f"flower.{key}": value for key, value in changed.items()}
        server_app()(Dying(config, tmp_path / "sites", answers), Context(run_id, 1, {}, RecordDict(), chosen))

    with pytest.raises(Dead):
        serve(5, 17)
    (folder,) = (tmp_path / "runs").iterdir()
    with pytest.raises(ComityError, match=r"flower.resume is .*nowhere, which holds no run"):
        serve(1, 18, resume=str(tmp_path / "nowhere"))
    serve(float("inf"), 19, resume=str(folder))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["flower-17"]
    assert RunFolder(folder).result().clients == run(config).columns
    with pytest.raises(ComityError, match="what the clients of this run kept is at their sites"):
        run(config, out=folder, resume=True)


def test_a_client_that_leaves_with_its_question_is_waited_for(tiny: dict[str, Any], tmp_path: Path) -> None:
    """It has done the work when its node is gone; its next node is asked again, and starts from what was before."""
    config = Config(**(tiny | {"method": "FedRep", "clients": 3}))

    class Leaving(InProcessGrid):
        left = False

        def answer(self, message: Message) -> Message:
            reply, node = super().answer(message), message.metadata.dst_node_id
            if (message.metadata.message_type, message.metadata.group_id) == ("train.fit", "2") and not self.left:
                self.left, gone = True, self.contexts.pop(node)
                reply = super().answer(message)  # the SuperLink's own: the node is not there
                self.add_node(int(gone.node_config["partition-id"]), 3, gone.node_config)
            return reply

    def done(absent: float) -> Run:
        keep = tmp_path / str(absent)
        grid = Leaving(client_app(config), 3, node_configs=sites(config, keep))
        return over(grid, config, patience=replace(HASTY, absent=absent))

    straight, waited, passed = run(config), done(60.0), done(0.0)
    assert torch.equal(waited.server.theta, straight.server.theta)
    assert waited.columns == straight.columns
    assert [record.failed for record in waited.records] == [{}, {}, {}]
    assert list(passed.records[1].failed) == [0]


def test_late_answers_are_ignored(tiny: dict[str, Any]) -> None:
    """The SuperLink hands out every answer again and again; each counts once, for the question that it belongs to."""
    config = Config(**(tiny | {"method": "FedRep"}))

    class Again(InProcessGrid):
        def __init__(self) -> None:
            super().__init__(client_app(config), 5)
            self.old: list[Message] = []

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            new = list(super().pull_messages(message_ids))
            old, self.old = list(self.old), self.old + new
            return old + new + new

    done = over(Again(), config)
    assert torch.equal(done.server.theta, run(config).server.theta)
    assert all(record.failed == {} for record in done.records)


# What a client keeps, and for how long.


class Site:
    """One client with a folder of its own, which a new process opens for every message."""

    def __init__(self, folder: Path, one_way: bool = False) -> None:
        self.context, self.one_way = Context(1, 1, {"keep": str(folder)}, RecordDict(), {}), one_way

    def keep(self) -> Keep:
        return Keep(self.context, "key", 0, self.one_way)

    def leave(self, place: Place, number: float) -> None:
        self.keep().write(place, ClientState({"w": torch.tensor(number)}, {}))

    def found(self, place: Place) -> float | None:
        now = self.keep().read(place)
        return None if now is None else float(now.method["w"])


def test_a_client_finds_the_state_that_a_question_starts_from(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = Place("run", 1, 0, (10,), (0,))
    assert site.found(first) is None
    site.leave(first, 1)
    assert site.found(first) is None  # asked again, it starts from nothing again
    for step in range(2, 9):
        place = first._replace(step=step, saved=3 if step > 3 else 0)
        assert site.found(place) == step - 1
        site.leave(place, step)
        assert site.found(place) == step - 1
        assert len(site.keep().states) <= 3
    restarted = Place("run", 4, 3, (10, 20), (0, 3))
    assert site.found(restarted) == 3
    site.leave(restarted, -4)
    assert site.found(restarted._replace(step=6)) == -4
    again = Place("run", 5, 4, (10, 20, 30), (0, 3, 4))
    assert site.found(again) == -4
    from_the_first_checkpoint = Place("run", 4, 3, (10, 40), (0, 3))  # its predecessor never got to one of its own
    assert site.found(from_the_first_checkpoint) == 3


def test_late_questions_and_other_runs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.leave(Place("run", 3, 2, (10,), (0,)), 3)
    site.leave(Place("run", 3, 2, (10, 20), (0, 2)), 30)
    of_the_dead, of_this = Place("run", 4, 2, (10,), (0,)), Place("run", 2, 2, (10, 20), (0, 2))
    for late in (of_the_dead, of_this, Place("other", 9, 0, (15,), (0,))):
        with pytest.raises(ComityError, match="this question is late"):
            site.found(late)
    newer = Place("other", 1, 0, (21,), (0,))
    assert site.found(newer) is None
    assert site.keep().newest("other") is None
    site.leave(newer, 1)
    assert site.keep().newest("run") is None
    assert site.keep().newest("other") is not None


def test_a_run_with_a_fast_clock_locks_no_other_out(tmp_path: Path) -> None:
    site, now = Site(tmp_path), time.time_ns()
    fast = Place("fast", 1, 0, (now + 10**18,), (0,))
    site.leave(fast, 1)
    assert site.found(fast._replace(step=2)) == 1  # its own questions are as before
    with pytest.raises(ComityError, match="this question is late"):
        site.found(fast._replace(starts=(now,)))
    other = Place("other", 1, 0, (now,), (0,))
    assert site.found(other) is None
    site.leave(other, 5)
    assert site.found(other._replace(step=2)) == 5


def test_a_client_whose_update_is_masked_never_goes_back(tmp_path: Path) -> None:
    """Two answers to one question would undo what masks hide; and what is secret is in no file."""
    site, place = Site(tmp_path, one_way=True), Place("run", 1, 0, (10,), (0,))
    for step in (1, 2):
        secret = {"seed": torch.tensor(step)}
        site.keep().write(place._replace(step=step, saved=1), ClientState({}, {}, secret))
    for again in (place._replace(step=2), Place("run", 2, 1, (10, 20), (0, 1))):
        with pytest.raises(ComityError, match="a question is answered only once, so it cannot go back"):
            site.keep().read(again)
    now = site.keep().read(place._replace(step=3))
    assert now is not None
    assert int(now.secret["seed"]) == 2
    site.context.state.clear()  # the SuperNode was started again
    now = site.keep().read(place._replace(step=3))
    assert now is not None
    assert now.secret == {}


def test_a_server_that_went_back_too_far_is_told_so(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Its folder is restored from a copy of long ago: the sites do not begin again in silence."""
    config = Config(**(tiny | {"method": "FedRep", "clients": 2, "rounds": 4, "checkpoint_every": 1}))
    out = tmp_path / "run"
    with pytest.raises(Dead):
        over(Dying(config, tmp_path / "sites", 5), config.with_(out=out))
    shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(Dead):
        over(Dying(config, tmp_path / "sites", 6), config.with_(out=out), resume=True)
    with pytest.raises(ComityError, match="the server went back to a round that this site no longer keeps"):
        over(Dying(config, tmp_path / "sites", 99), config.with_(out=tmp_path / "copy"), resume=True)
