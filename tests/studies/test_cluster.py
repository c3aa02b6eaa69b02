"""Studies on more than one machine: shards that know nothing of each other, and a Ray cluster that loses a node."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load
from study_parts import BROKEN, numbers, record_begun
from study_parts import SMALL as ONE

from comity import ComityError, Config
from comity.__main__ import main
from comity.results import RunFolder
from comity.studies import Show, study
from comity.studies._crew import Crew, Inbox, Job, Message, execute
from comity.studies._grid import expand, local_of, part
from comity.studies._plan import ray_address
from comity.studies._ray import Place, baselines_of, packed, run_remote, unpack
from helpers import Capture, Patch

SMALL = ONE | {"method": "FedAvg,FedRep", "seeds": 2}

# Shards.


def test_shards_are_a_partition_and_families_stay_together_where_they_can() -> None:
    cells = expand({"method": "FedAvg,Local", "rule": "Mean,ConFREE", "seeds": 6, "reference": "auto"})
    for count in (1, 2, 3, 4, 6, 7, 12, 30):
        shards = [part(cells, f"{k}/{count}") for k in range(1, count + 1)]
        assert sorted(cell.key for shard in shards for cell in shard) == sorted(cell.key for cell in cells)
        sizes = [len(shard) for shard in shards]
        assert max(sizes) - min(sizes) <= (1 if count > 6 else len(cells) // 6)
        trained = sum(len({local_of(cell).key for cell in shard}) for shard in shards)
        assert trained == 6 if count <= 6 else trained <= 6 + count - 1  # once each; else neighbours share one


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "/3", "a/b", "-1/3", "1/0", "1/3/5", ""])
def test_a_shard_that_is_none_is_refused(shard: str, tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="shard must be like 3/16, the third of 16 parts"):
        study(**SMALL, shard=shard, out=tmp_path / "x")
    with pytest.raises(ComityError, match="a shard cannot tune"):
        study(**SMALL, shard="1/2", tune={"rule.c": [0.1]}, rule="ConFREE", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_shards_make_the_same_study_with_each_local_once(tmp_path: Path, monkeypatch: Patch) -> None:
    began = record_begun(monkeypatch)
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    study(**SMALL, out=whole)
    expected, began[:] = sorted(began), []
    second = study(**SMALL, out=sharded, shard="2/2")
    assert sorted(began) == ["fedavg-mean-s1", "fedrep-mean-s1", "local-repeated-s1", "local-s1"]
    assert "4 of 8 runs are not finished" in second.table().markdown()
    study(**SMALL, out=sharded, shard="1/2")
    assert sorted(began) == expected
    assert numbers(sharded) == numbers(whole)
    assert (sharded / "study.yaml").read_text().replace("sharded", "whole") == (whole / "study.yaml").read_text()
    assert not [path for path in sharded.iterdir() if path.name.startswith(".")]


def test_what_failed_in_a_shard_is_still_told_when_another_ends(tmp_path: Path) -> None:
    options = SMALL | {"method": ["FedAvg", BROKEN], "out": tmp_path / "x"}
    first = study(**options, shard="1/2").failed
    assert list(first) == [f"{BROKEN} + Mean, seed 0"]
    both = study(**options, shard="2/2")
    assert set(both.failed) == {f"{BROKEN} + Mean, seed {seed}" for seed in (0, 1)}
    assert all("in fit" in run.traceback for run in both.planned.values() if run.error)


@pytest.mark.slow
def test_shards_that_share_a_local_train_it_once(tmp_path: Path) -> None:
    """One seed and two methods, so that both shards need the same Local, at the same time."""
    options = SMALL | {"rounds": 150, "eval_every": 50, "seeds": 1, "model": {"name": "mlp", "widths": [16]}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(options))
    flags = ["--config", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "x"), "--quiet"]
    begun = [
        subprocess.Popen([sys.executable, "-m", "comity", "study", *flags, "--shard", f"{k}/2"], stderr=subprocess.PIPE)
        for k in (1, 2)
    ]
    told = [process.communicate()[1].decode() for process in begun]
    assert [process.returncode for process in begun] == [0, 0], told
    lines = (tmp_path / "x" / "runs" / "local-s0" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 151))
    assert len(list((tmp_path / "x" / "runs").iterdir())) == 4  # local training, that repeated, and two methods


# Workers that are lost.


class Lost:
    """A worker of a node that dies under the first runs."""

    tries = 3

    def __init__(self, inbox: Inbox, deaths: list[str]) -> None:
        self.inbox, self.deaths = inbox, deaths

    def tell(self, order: Any) -> None:
        out = order["config"]["out"]
        if out in self.deaths:
            self.deaths.remove(out)
            self.inbox.put((self, {"end": "failed", "gone": True, "error": "its node was lost"}))
        else:
            self.inbox.put((self, {"end": "done"}))

    def close(self) -> None:
        pass


def test_a_lost_worker_costs_its_run_a_retry_and_nothing_else() -> None:
    local, unlucky, doomed, other = (
        Job(Config(out=Path(name)), name) for name in ("local", "unlucky", "doomed", "other")
    )
    after = Job(Config(out=Path("after")), "after", needs=(local,))
    deaths = ["local", "local", "unlucky", "doomed", "doomed", "doomed"]
    heard: list[tuple[str, Message]] = []
    jobs = [local, unlucky, doomed, other, after]
    crew = Crew(lambda inbox: Lost(inbox, deaths))
    ends = execute(jobs, 3, lambda job, told: heard.append((job.title, told)), lambda: False, crew)
    assert {job.title: ends[job]["end"] for job in jobs} == {
        "local": "done", "unlucky": "done", "doomed": "failed", "other": "done", "after": "done"
    }  # fmt: skip
    assert ends[doomed]["error"] == "its node was lost"
    assert len(heard) == len(jobs)  # one end each: a retry is not told
    assert deaths == []


def test_a_tuned_study_starts_its_processes_once() -> None:
    """What is tried and what is settled are batches of runs, one after the other."""
    hired: list[Lost] = []

    def hire(inbox: Inbox) -> Lost:
        hired.append(Lost(inbox, []))
        return hired[-1]

    crew = Crew(hire)
    for batch in range(3):
        jobs = [Job(Config(out=Path(f"{batch}/{name}")), name) for name in "abc"]
        ends = execute(jobs, 2, lambda *_: None, lambda: False, crew)
        assert [ends[job]["end"] for job in jobs] == ["done"] * 3
    assert len(hired) == 2


# Ray.


def test_where_ray_is() -> None:
    assert ray_address("ray") is None
    assert ray_address("ray:10.0.0.1:6379") == "10.0.0.1:6379"
    assert ray_address("ray://head:10001") == "ray://head:10001"


def test_another_place_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["study", "--on", "moon", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "comity: on must be ray or ray:ADDRESS, got 'moon'\n"
    assert not (tmp_path / "x").exists()


def test_without_ray_there_is_a_hint(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ComityError, match=r"--on ray needs Ray: .*pip install .*\[ray\]"):
        study(**SMALL, on="ray", out=tmp_path / "x")


def test_a_node_with_a_disk_of_its_own_sends_the_run_back(tmp_path: Path, monkeypatch: Patch) -> None:
    """What a task does, in this process: the same paths mean another disk there."""
    home, node = tmp_path / "home", tmp_path / "node"
    home.mkdir()
    monkeypatch.chdir(home)
    study(**SMALL | {"seeds": 1}, keep_checkpoints=True, out=Path("x"))
    folder = Path("x/runs/fedavg-mean-s0")
    order = {"config": RunFolder(folder).options(), "callbacks": []}
    expected, given = packed(folder), {path: packed(Path(path)) for path in baselines_of(order)}
    assert [Path(path).name for path in given] == ["local-s0", "local-repeated-s0"]
    place = Place(str(node), "x", "a token that is not there")

    monkeypatch.chdir(tmp_path)
    assert list(run_remote(order, place, None)) == [{"wants": "the local baselines that the run is compared with"}]
    *rounds, end = run_remote(order, place, given)
    assert [message["round"] for message in rounds] == [1, 2]
    assert end["end"] == "done"
    assert not (node / folder).exists()
    unpack(end["files"], home / "fetched", home)
    fetched = packed(home / "fetched")
    assert fetched.keys() == expected.keys()
    for name in ("clients.csv", "config.yaml", "partition.json", "weights.jsonl"):  # others hold times
        assert fetched[name] == expected[name]
    state, other = (load(files["checkpoint/state.safetensors"]) for files in (fetched, expected))
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert not list(home.glob(".fetched*"))
    # The same again where the folder is shared: nothing is sent.
    (node / "x" / ".token").write_text(place.token)
    assert "files" not in list(run_remote(order, place, None))[-1]
    assert (node / folder / "result.json").exists()


def test_a_node_with_other_versions_does_nothing(tmp_path: Path) -> None:
    told = list(run_remote({}, Place(str(tmp_path / "x"), "", "", ("0.0", "2.0")), None))
    assert [message["end"] for message in told] == ["failed"]
    assert "the study 0.0 and 2.0" in told[0]["error"]
    assert not (tmp_path / "x").exists()


class Heard(Show):
    """Every message, by run."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, list[int]] = {}

    def hear(self, job: Job, message: Message) -> None:
        super().hear(job, message)
        if "round" in message:
            self.heard.setdefault(job.title, []).append(message["round"])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # libraries warn of their own matters
def test_a_ray_cluster_loses_a_node_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'comity[ray]', or make test-ray")
    from ray.cluster_utils import Cluster

    options = SMALL | {"rounds": 600, "eval_every": 200, "checkpoint_every": 20}
    study(**options | {"jobs": 2}, out=tmp_path / "here")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes: SimpleQueue[Any] = SimpleQueue()
    for _ in range(2):
        nodes.put(cluster.add_node(num_cpus=1))
    show = Heard()

    def lose_a_node() -> None:
        """As soon as a run is under way on either."""
        while len([title for title, rounds in show.heard.items() if max(rounds) >= 50]) < 2:
            time.sleep(0.05)
        cluster.remove_node(nodes.get(), allow_graceful=False)

    Thread(target=lose_a_node, daemon=True).start()
    del options["jobs"]
    try:
        away = study(**options, out=tmp_path / "away", on=f"ray:{cluster.address}", show=show)
    finally:
        cluster.shutdown()
    assert away.failed == {}
    assert numbers(tmp_path / "away") == numbers(tmp_path / "here")
    again = [rounds for rounds in show.heard.values() if rounds != list(range(1, 601))]
    assert len(again) == 1  # one run was under way on the lost node, and went on from its checkpoint
    back = next(k for k in range(1, len(again[0])) if again[0][k] <= again[0][k - 1])
    assert again[0][back] % 20 == 1
    assert again[0][back] > 1
    assert not [path for path in (tmp_path / "away").iterdir() if path.name.startswith(".")]
    shutil.rmtree(tmp_path / "away")
