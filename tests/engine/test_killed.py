"""A run killed with SIGKILL, in the middle of a round and of a checkpoint, goes on to the same bits."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from comity import Config
from comity.engine import run
from comity.results import RunFolder
from helpers import Options, assert_same

DRIVER = """
import os, signal, sys
from pathlib import Path
from comity import Config
from comity.engine import run, Client
import comity.engine._checkpoint as checkpoint
from comity.results import RunFolder

def die():
    os.kill(os.getpid(), signal.SIGKILL)

where, config = sys.argv[1], Config.load(Path(sys.argv[2]))
train, save = Client.sgd, checkpoint.write_tensors

def sgd(client, *args, **kwargs):
    train(client, *args, **kwargs)
    if client.round == 4 and client.id == 2:
        die()

def dying(path, tensors, about):
    save(path, tensors, about)
    if about["round"] == "4":
        os.truncate(path, os.path.getsize(path) // 2)
        die()

if where == "round":
    Client.sgd = sgd
elif where == "checkpoint":
    checkpoint.write_tensors = dying
elif where == "line":
    add = RunFolder.add_round
    def add_round(self, record, weights, cosines):
        add(self, record, weights, cosines)
        if record.round == 4:
            for name, cut in (("rounds.jsonl", 20), ("clients.csv", 5)):
                os.truncate(self / name, os.path.getsize(self / name) - cut)
            die()
    RunFolder.add_round = add_round
run(config)
"""


@pytest.mark.parametrize("where", ["round", "checkpoint", "line"])
def test_killed_and_resumed_is_the_unbroken_run(tiny: Options, tmp_path: Path, where: str) -> None:
    options = tiny | {"rounds": 6, "method": "Ditto", "participation": 0.8, "workers": 2}
    config = Config(**options, out=tmp_path / "killed", checkpoint_every=2)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.plain()))
    killed = subprocess.run([sys.executable, "-c", DRIVER, where, str(file)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = RunFolder(tmp_path / "killed")
    assert not folder.finished

    resumed = run(config, resume=True)
    unbroken = run(**options, out=tmp_path / "unbroken")
    assert_same(resumed, unbroken)
    assert (tmp_path / "killed" / "clients.csv").read_text() == (tmp_path / "unbroken" / "clients.csv").read_text()
    weights = [(tmp_path / name / "weights.jsonl").read_text() for name in ("killed", "unbroken")]
    assert weights[0] == weights[1]
    assert [r.round for r in folder.rounds()] == [1, 2, 3, 4, 5, 6]
    assert not list((tmp_path / "killed" / "checkpoint").glob("*.part*"))
