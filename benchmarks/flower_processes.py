"""What a question costs real SuperNodes on this machine, by Flower's own command and by ours.

    python benchmarks/flower_processes.py [--nodes 3] [--rounds 6]

A SuperLink and the SuperNodes run on loopback; each round is one question, ``fit``. The seconds are wall-clock from the
question to the last answer; processor time is that of a SuperNode with all its processes, over the rounds after the
first. The vector of every run must be that of threads.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import safe_open

from comity import Config, run
from comity.flower import write_app
from comity.results import RunFolder

sys.path.append(str(Path(__file__).parents[1] / "tests" / "flower"))

from deployment import Deployment, node, start_superlink

from round import header

COMMANDS = {"flower-supernode": ["flower-supernode"], "comity supernode": [sys.executable, "-m", "comity", "supernode"]}


def processor(pid: int) -> float:
    """Seconds of user and system time of a process and all its descendants, also of those that have ended."""
    rows = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            rows[int(process.name)] = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
    tree = {pid}
    while more := {each for each, row in rows.items() if int(row[1]) in tree} - tree:
        tree |= more
    return sum(sum(map(int, rows[each][11:15])) for each in tree if each in rows) / os.sysconf("SC_CLK_TCK")


def measured(config: Config, command: list[str], nodes: int) -> tuple[list[float], float, torch.Tensor]:
    """Wall-clock of each question but the first, processor seconds per node and question, and the final vector."""
    with tempfile.TemporaryDirectory() as name, Deployment(Path(name), nodes) as here:
        folder = Path(name)
        write_app(folder / "app", config)
        start_superlink(here)
        for cid in range(nodes):
            here.start(f"node-{cid}", [*command, *node(here, cid, nodes)[1:]])
        for cid in range(nodes):
            here.wait(f"node {cid}", lambda cid=cid: "SuperNode ID" in here.log(f"node-{cid}"))
        here.call(["flwr", "run", "app", "here", "-c", f"out='{folder / 'runs'}'"])
        pids = [here.running[f"node-{cid}"].pid for cid in range(nodes)]
        ends, marks = [], []
        for done in range(1, config.rounds):
            while not any(len(list(RunFolder(each).rounds())) >= done for each in (folder / "runs").glob("*")):
                time.sleep(0.02)
            ends.append(time.monotonic())
            marks.append(sum(map(processor, pids)) / nodes)
        here.wait("the end", lambda: list((folder / "runs").glob("*/result.json")))
        (out,) = (folder / "runs").iterdir()
        with safe_open(out / "checkpoint" / "state.safetensors", framework="pt") as file:
            theta = file.get_tensor("server/theta")
    return [b - a for a, b in pairwise(ends)], (marks[-1] - marks[0]) / (len(marks) - 1), theta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=COMMANDS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the SuperNodes end with it
    rounds = {"rounds": options.rounds, "eval_every": options.rounds, "reference": "none"}
    config = Config(data="digits", model="mlp", method="FedRep", rule="ConFREE", clients=options.nodes, **rounds)
    expected = run(config).server.theta
    print(header("", numbers=("processor time per node and question", "wall-clock per question")))
    for name, command in COMMANDS.items():
        if options.only in (None, name):
            seconds, each, theta = measured(config, command, options.nodes)
            assert torch.equal(theta, expected), "not the same bits"
            spread = f"{statistics.median(seconds):.1f} s ({min(seconds):.1f}–{max(seconds):.1f})"
            print(f"| `{name}` | {each:.1f} s | {spread} |", flush=True)


if __name__ == "__main__":
    main()
