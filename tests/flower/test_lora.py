"""The example of fine-tuning, in one process and on real nodes: COMITY_PROCESS_TESTS=1 (make test-flower)."""

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from deployment import Deployment, start_all
from safetensors import safe_open

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-lora"
SITES = 3

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif("COMITY_PROCESS_TESTS" not in os.environ, reason="COMITY_PROCESS_TESTS is not set"),
    pytest.mark.skipif(
        not (find_spec("peft") and find_spec("transformers")),
        reason="peft and transformers are not installed: pip install -c constraints.txt -e '.[lora]'",
    ),
]

WATCHED = """
import json, sys
from finetuning.client_app import app as client
from finetuning.server_app import app as server
from finetuning.task import adapters, build, load_data, put, test
from flwr.app import Context, RecordDict
from in_process import InProcessGrid

sent = set()

class Watched(InProcessGrid):
    def answer(self, message):
        reply = super().answer(message)
        for content in (message.content, reply.content):
            sent.update(name for record in content.array_records.values() for name in record)
        return reply

settings = {"sites": 3, "num-server-rounds": 2, "local-steps": 20, "learning-rate": 0.005, "out": sys.argv[1]}
grid = Watched(client, clients=3, run_config=settings)
server(grid, Context(1, 1, {}, RecordDict(), settings))
kept = {}
for cid in range(3):
    kept[cid] = grid.contexts[grid.node_of(cid)].state["personal"].to_torch_state_dict()
strangers = build()
put(strangers, kept[0])
print(json.dumps({
    "sent": sorted(sent),
    "shared": sorted(adapters(build(), personal=False)),
    "kept": sorted(kept[0]),
    "personal": sorted(adapters(build(), personal=True)),
    "differ": all(bool((kept[0][name] != kept[1][name]).any()) for name in kept[0]),
    "put": all(bool((adapters(strangers, True)[name] == kept[0][name]).all()) for name in kept[0]),
    "before": [test(build(), load_data(cid)[1]) for cid in range(3)],
}))
"""


def losses(said: str) -> dict[int, float]:
    """The mean loss on the sites' held-out text after each round, from Flower's history."""
    return {int(number): float(loss) for number, loss in re.findall(r"(\d+): \{'eval_loss': '([^']+)'\}", said)}


def test_one_matrix_of_each_adapter_travels_and_the_other_stays(tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (EXAMPLE, Path(__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WATCHED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sent"] == found["shared"]
    assert found["kept"] == found["personal"]
    assert not set(found["sent"]) & set(found["kept"])
    assert found["differ"]
    assert found["put"]
    assert losses(done.stderr)[2] < losses(done.stderr)[1] < max(found["before"])


def test_three_sites_on_real_nodes(tmp_path: Path) -> None:
    with Deployment(tmp_path) as here:
        here.env |= {"HF_HUB_OFFLINE": "1"}
        start_all(here, SITES)
        chosen = f"num-server-rounds=1 local-steps=20 out='{tmp_path}'"
        told = here.call(["flwr", "run", str(EXAMPLE), "here", "--stream", "-c", chosen])
    assert told.count(f"Received {SITES} results and 0 failures") == 2  # to train and to evaluate
    assert losses(told)[1] < math.log(128)  # better than to guess each character alike; untrained it is worse
    with safe_open(tmp_path / "shared.safetensors", framework="pt") as file:
        assert all("lora_A" in name for name in file.keys())  # noqa: SIM118
