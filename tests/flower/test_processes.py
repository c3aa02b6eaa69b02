"""Real processes on loopback: COMITY_PROCESS_TESTS=1 pytest -n 0 -m processes tests/flower (or make test-flower)."""

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployment import LIMIT, Deployment, commands, connection, node, start_all, start_superlink
from safetensors import safe_open
from sites import NAMES, without, write_tables

from comity import Config, ask
from comity.commands import command
from comity.data import read_columns
from comity.deploy import load_model
from comity.engine import Run, run
from comity.flower import write_app
from comity.results import RoundRecord, RunFolder

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif("COMITY_PROCESS_TESTS" not in os.environ, reason="COMITY_PROCESS_TESTS is not set"),
]

NODES = 3
ALL_BUT_AGE = (
    *("sex", "chest_pain", "blood_pressure", "cholesterol", "blood_sugar", "ecg", "heart_rate"),
    *("exercise_angina", "st_depression", "st_slope", "vessels", "thallium"),
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"


@pytest.fixture
def config(tiny: dict[str, Any]) -> Config:
    return Config(**(tiny | {"method": "FedRep", "rule": "ConFREE", "clients": NODES, "rounds": 2, "eval_every": 2}))


def the_only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def unwrapped(log: str) -> str:
    """Flower's log as one line of text: without the level and colour of each line, and with single spaces."""
    return " ".join(re.sub(r"(?m)^(\x1b\[\d+m)?INFO *(\x1b\[0m)?:", "", log).split())


def rounds(out: Path) -> list[RoundRecord]:
    """What the run has recorded so far."""
    return [record for folder in out.glob("*") for record in RunFolder(folder).rounds()]


def assert_same_bits(out: Path, here: Run) -> None:
    folder = the_only(out)
    result = RunFolder(folder).result()
    assert result.clients == here.columns
    assert result.failures == 0
    with safe_open(folder / "checkpoint" / "state.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("server/theta"), here.server.theta)


def test_the_quickstart_runs_to_its_end(tmp_path: Path) -> None:
    """`flwr run` says that a run was started also where it dies at once: what counts is the model at its end."""
    shutil.copytree(EXAMPLE, tmp_path / "app")
    with Deployment(tmp_path) as here:
        start_all(here, NODES)
        said = here.call(["flwr", "run", "app", "here", "--stream", "-c", "num-server-rounds=2"])
        assert list(tmp_path.rglob("final_model.pt")), said
        assert "conflict-rate" in said


def test_three_supernodes_one_of_which_is_killed_and_started_again(tmp_path: Path, config: Config) -> None:
    """Two rounds give the simulator's bits. Then a node is killed at work: the round ends without it; it returns."""
    write_app(tmp_path / "app", config)
    with Deployment(tmp_path) as here:
        start_all(here, NODES)

        two = tmp_path / "two"
        here.call(["flwr", "run", "app", "here", "-c", f"out='{two}'"])
        here.wait("the end of two rounds", lambda: list(two.glob("*/result.json")))
        assert_same_bits(two, run(config))

        long = tmp_path / "long"
        here.call(["flwr", "run", "app", "here", "-c", f"out='{long}' rounds=30 eval_every=30 flower.seats='any'"])
        here.wait("the first round", lambda: rounds(long))
        at_work = len(re.findall("Receiving: train.fit", here.log("node-2")))
        here.wait("work", lambda: len(re.findall("Receiving: train.fit", here.log("node-2"))) > at_work)
        here.kill("node-2")
        lost = here.wait("a round without it", lambda: [r for r in rounds(long) if 2 in r.failed])[0]
        assert lost.failed.keys() == {2}
        assert lost.conflict is not None  # of those that were there
        here.start("node-2", node(here, 2, NODES))
        back = here.wait(
            "a round with it again",
            lambda: [r for r in rounds(long) if r.round > lost.round and 2 not in r.failed],
        )[0]
        assert back.cohort == [0, 1, 2]


DIES = """

import os
import signal
from pathlib import Path

import comity.engine._checkpoint as checkpoint

save = checkpoint.write_tensors


def dying(path, tensors, about):
    \"\"\"The first server is killed when half of the second checkpoint is written.\"\"\"
    save(path, tensors, about)
    if about["round"] == "2" and not Path("{died}").exists():
        Path("{died}").touch()
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


checkpoint.write_tensors = dying
"""


def test_a_run_survives_its_server_its_superlink_and_its_sites(tmp_path: Path, config: Config) -> None:
    """SIGKILL in a checkpoint and in a round of the ServerApp, of the SuperLink and of a SuperNode; the same bits."""
    nodes, runs, died = 2, tmp_path / "runs", tmp_path / "died"
    config = config.with_(clients=nodes, rounds=4, eval_every=4, checkpoint_every=1)
    write_app(tmp_path / "app", config)
    with (tmp_path / "app" / "app" / "server_app.py").open("a") as file:
        file.write(DIES.format(died=died))
    with Deployment(tmp_path) as here:
        database, keep = ("--database", "flower.db"), f"keep='{tmp_path / 'keep'}'"

        def resume_at() -> None:
            resume = f" flower.resume='{the_only(runs)}'" if runs.exists() else ""
            here.call(
                [
                    "flwr",
                    "run",
                    "app",
                    "here",
                    "-c",
                    f"out='{runs}' flower.wait-absent=600.0 flower.seats='any'{resume}",
                ]
            )

        def at_work(round: int, times: int) -> None:
            """Wait until client 1 got its question of this round for so many times."""
            received = re.compile(rf"ROUND {round}\].{{,60}}Receiving: train.fit", re.DOTALL)
            here.wait(f"round {round}", lambda: len(received.findall(here.log("node-1"))) >= times)

        start_all(here, nodes, keep, *database)
        resume_at()
        here.wait("the death in a checkpoint", died.exists)

        resume_at()  # from round 1: both clients are a round ahead
        at_work(3, times=1)
        assert here.kill_all("flwr-serverapp")

        resume_at()  # from round 2
        at_work(4, times=1)
        here.kill("superlink")  # whose ServerApp lives on for a while, with the run's folder in its hands
        start_superlink(here, *database)

        resume_at()  # from round 3
        at_work(4, times=2)
        here.kill("node-1")
        here.start("node-1", node(here, 1, nodes, keep))  # another id; Flower has yet to notice that the first is gone
        here.wait("the end", lambda: list(runs.glob("*/result.json")))
    assert_same_bits(runs, run(config))


def test_masked_with_a_supernode_killed_in_each_stage(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """In one round five of 13 nodes are killed, each when it gets its message of another stage: there is a sum."""
    lost, nodes = {8: "fit", 9: "share", 10: "mask", 11: "agree", 12: "unmask"}, 13
    options = {"clients": nodes, "rounds": 2, "eval_every": 2, "reference": "none", "masked": True}
    write_app(tmp_path / "app", Config(**(tiny | options)))
    assert command("flower", ["keys", str(tmp_path / "secrets"), "--clients", str(nodes)]) == 0
    with Deployment(tmp_path, nodes=nodes, limit=2 * LIMIT) as here:
        start_all(here, nodes, f"secrets='{tmp_path}/secrets/client-{{cid}}.json'")
        here.call(["flwr", "run", "app", "here", "-c", f"out='{tmp_path / 'run'}'"])
        for cid, stage in lost.items():
            here.wait(stage, lambda cid=cid, stage=stage: f"Receiving: train.{stage}" in here.log(f"node-{cid}"))
            here.kill(f"node-{cid}")
        record = here.wait("the round", lambda: rounds(tmp_path / "run"))[0]
        assert {cid: why.partition(":")[0] for cid, why in record.failed.items()} == lost
        assert not [words for words in record.warnings if "rejected" in words]
        assert record.against is not None  # the model went out, and the eight that are left were counted
        assert record.against.clients == 8


def test_with_tls_and_authentication_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/how-to/deploy.md. A node whose key is not registered does not get in."""
    monkeypatch.chdir(tmp_path)
    with Deployment(tmp_path) as here:
        (new,) = commands("comity flower new")
        assert command("flower", new[2:]) == 0

        authority, request, sign = commands("openssl")
        (extension,) = commands("printf")
        here.call(here.replaced(authority))
        here.call(here.replaced(request))
        here.call(["sh", "-c", " ".join([shlex.join(here.replaced(extension[:2])), *extension[2:]])])
        here.call(here.replaced(sign))
        (superlink,) = commands("flower-superlink")
        here.start("superlink", here.replaced(superlink))
        here.wait("the SuperLink", lambda: "startup complete" in here.log("superlink"))
        (named,) = here.replaced([connection()], {"/srv/federation": str(tmp_path)})
        (here.home / "config.toml").write_text(named)

        (keygen,), (register,), (node,) = map(commands, ("ssh-keygen", "flwr supernode register", "comity supernode"))
        for cid in range(NODES):
            own = {"site-0": f"site-{cid}", "partition-id=0": f"partition-id={cid}"}
            own["/var/lib/comity"] = str(tmp_path / f"keep-{cid}")
            mine = [*here.replaced(node, own), "--port", str(here.node_ports[cid])]
            here.call(here.replaced(keygen, own))
            if cid == 0:
                assert "Failed to activate SuperNode" in here.call(mine, fails=True)
            here.call(here.replaced(register, own))
            here.start(f"node-{cid}", mine)
        for cid in range(NODES):
            here.wait(f"node {cid}", lambda cid=cid: "SuperNode ID" in here.log(f"node-{cid}"))

        start, *_ = commands("flwr run")  # others show how seats are bound, with made-up keys, and how to go on
        assert start[-1] == "rounds=2 out='/srv/runs'"
        start = here.replaced([word for word in start if word != "--stream"], {"/srv": str(tmp_path)})
        start[-1] += " eval_every=2 reference='none'"  # so that it does not take longer than it must
        here.call(start)
        here.wait("the end", lambda: list((tmp_path / "runs").glob("*/result.json")))
        options = {"clients": NODES, "rounds": 2, "eval_every": 2, "reference": "none"}
        assert_same_bits(tmp_path / "runs", run(method="FedRep", rule="ConFREE", **options))
        for cid in range(NODES):
            assert load_model(tmp_path / f"keep-{cid}" / f"client-{cid}" / "model").weights.sum() == 1


def test_the_tutorial_gives_the_bits_of_its_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/tutorials/flower.md."""
    page = "tutorials/flower.md"
    monkeypatch.chdir(tmp_path)
    (rehearse,), (new,) = commands("comity run", page), commands("comity flower new", page)
    assert command("run", [*rehearse[2:], "--quiet"]) == 0
    assert command("flower", new[2:]) == 0
    with Deployment(tmp_path, nodes=4) as here:
        (superlink,), (start,) = commands("flower-superlink", page), commands("flwr run", page)
        here.start("superlink", here.replaced(superlink))
        here.wait("the SuperLink", lambda: "startup complete" in here.log("superlink"))
        (named,) = here.replaced([connection(page)])
        (here.home / "config.toml").write_text(named)
        for place, site in enumerate(commands("comity supernode", page)):
            here.start(f"node-{place}", here.replaced(site, {f"900{place}": str(here.node_ports[place])}))
        here.call(here.replaced(start, {"/tmp/comity": str(tmp_path)}))
    (folder,) = (tmp_path / "runs").glob("flower-*")
    assert RunFolder(folder).result().clients == RunFolder(tmp_path / "runs" / "rehearsal").result().clients


def test_from_four_tables_to_four_models_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each SuperNode is told where its table is, and nothing else. New rows are predicted as by the rehearsal.

    Before that the sites are asked whether joining pays, about one column so that it takes 14 messages to each.
    """
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    options = ["--method", "FedRep", "--model", "mlp", "--guard", "mixture", "--rounds", "1", "--control", "none"]
    options += ["--eval-every", "2"]
    assert command("flower", ["new", "hearts", "--schema", "common.yaml", *options]) == 0
    without(tmp_path / "common.yaml", tmp_path / "age.yaml", *ALL_BUT_AGE)
    assert command("flower", ["new", "question", "--schema", "age.yaml"]) == 0
    with Deployment(tmp_path, nodes=4) as here:
        here.env["HOME"] = str(tmp_path)
        start_superlink(here)
        for place, name in enumerate(reversed(NAMES)):
            table = f"data='{tmp_path / name / 'patients.csv'}'"
            here.start(f"node-{place}", [*node(here, place, 4)[:-1], table])
        answer = unwrapped(here.call(["flwr", "run", "question", "here", "--stream", "-c", "flower.ask=1"]))
        said = here.call(["flwr", "run", "hearts", "here", "--stream"])
    rehearsed = ask("pooled/patients.csv", seeds=1, metric="accuracy", **{"data.schema": "age.yaml"})
    assert rehearsed.title in answer
    assert rehearsed.evidence in answer
    for row in rehearsed.rows:
        assert unwrapped(rehearsed.table.texts(row)[3]) in answer  # the gain with its interval
    (folder,) = (tmp_path / "runs" / "hearts").iterdir()
    assert f"Run folder: {folder}" in said
    assert command("report", [str(folder), "-o", "page.html", "--quiet"]) == 0
    assert all(name in Path("page.html").read_text() for name in NAMES)

    data = ["--data", "pooled/patients.csv", "--data.schema", "common.yaml", "--metric", "accuracy"]
    assert command("run", [*data, *options, "--out", "rehearsal", "--quiet"]) == 0
    assert RunFolder(folder).result().transfer == RunFolder(tmp_path / "rehearsal").result().transfer
    new = read_columns(tmp_path / "pooled" / "patients.csv").select(range(0, 920, 7))
    for cid, name in enumerate(NAMES):
        mine = tmp_path / "comity" / "hearts" / f"client-{cid}" / "model"
        assert f"Model of client {cid}: {mine}" in here.log(f"node-{NAMES[::-1].index(name)}")
        (theirs,) = Path("rehearsal", "models").glob(f"{cid:03d}*")
        predicted, rehearsed = (load_model(each).predict_proba(new) for each in (mine, theirs))
        assert np.array_equal(predicted, rehearsed)


def test_masked_tables_at_four_supernodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With secrets of their own: means, spreads and updates are masked, and new rows predicted as by the rehearsal."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    without(tmp_path / "common.yaml", tmp_path / "most.yaml", "vessels")
    options = ["--model", "logistic", "--rounds", "1", "--reference", "none", "--masked", "--min-clients", "3"]
    assert command("flower", ["new", "hearts", "--schema", "most.yaml", *options]) == 0
    write_secrets(4)
    with Deployment(tmp_path, nodes=4, limit=2 * LIMIT) as here:
        here.env["HOME"] = str(tmp_path)
        start_superlink(here)
        for cid, name in enumerate(NAMES):
            mine = f"data='{tmp_path / name / 'patients.csv'}' secrets='{tmp_path}/secrets/client-{cid}.json'"
            here.start(f"node-{cid}", [*node(here, cid, 4)[:-1], mine])
        here.call(["flwr", "run", "hearts", "here", "--stream"])
    data = ["--data", "pooled/patients.csv", "--data.schema", "most.yaml", "--metric", "accuracy"]
    assert command("run", [*data, *options, "--out", "rehearsal", "--quiet"]) == 0
    new = read_columns(tmp_path / "pooled" / "patients.csv").select(range(0, 920, 7))
    for cid in range(4):
        mine = load_model(tmp_path / "comity" / "hearts" / f"client-{cid}" / "model")
        (rehearsed,) = Path("rehearsal", "models").glob(f"{cid:03d}*")
        assert np.array_equal(mine.predict_proba(new), load_model(rehearsed).predict_proba(new))


def test_a_masked_question_to_four_supernodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With secrets of their own: the server sees masked sums, and gives the answer of the rehearsal."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    without(tmp_path / "common.yaml", tmp_path / "age.yaml", *ALL_BUT_AGE)
    options = ["--masked", "--min-clients", "3"]
    assert command("flower", ["new", "question", "--schema", "age.yaml", *options]) == 0
    write_secrets(4)
    with Deployment(tmp_path, nodes=4, limit=2 * LIMIT) as here:
        here.env["HOME"] = str(tmp_path)
        start_superlink(here)
        for cid, name in enumerate(NAMES):
            mine = f"data='{tmp_path / name / 'patients.csv'}' secrets='{tmp_path}/secrets/client-{cid}.json'"
            here.start(f"node-{cid}", ["comity", "supernode", *node(here, cid, 4)[1:-1], mine])
        answer = unwrapped(here.call(["flwr", "run", "question", "here", "--stream", "-c", "flower.ask=1"]))
    rehearsed = ask("pooled/patients.csv", seeds=1, metric="accuracy", **{"data.schema": "age.yaml"})
    assert rehearsed.title in answer
    for row in rehearsed.rows:
        assert unwrapped(rehearsed.table.texts(row)[3]) in answer  # the gain with its interval
    assert "Columns and classes are not compared between sites" in answer


def write_secrets(clients: int) -> None:
    """Secrets that allow sums of three."""
    assert command("flower", ["keys", "secrets", "--clients", f"{clients}"]) == 0
    for file in Path("secrets").glob("*.json"):
        file.write_text(file.read_text().replace('"min_clients": 5', '"min_clients": 3'))
