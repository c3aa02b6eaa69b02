"""The round of benchmarks/round.py by other frameworks, in turn with ours: same net, samples, batches and steps.

    python benchmarks/peers.py flwr
    python benchmarks/peers.py fluke
    python benchmarks/peers.py pfllib [--clone PATH]
    python benchmarks/peers.py pfl
    python benchmarks/peers.py fedjax

Each command makes an environment for the peer where there is none (``--venv DIR``; torch takes minutes), starts the
peer in it (benchmarks/peer_worker.py), and prints rows of the table in docs/performance.md. Peers run as their users
run them: their own threads (``--threads 1`` restricts them), clients one after another. All start from the same
weights. PFLlib evaluates in each round (accuracy, AUC and the training loss), and so does comity beside it; the others
do not evaluate. A peer that takes another number of steps, or whose training loss falls by another amount, is an error.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comity.data import Federation
from comity.nn import MODELS
from round import BATCH, CLASSES, LR, Here, Shape, Spread, federation, header

CLIENTS, SAMPLES = 20, 100
SHAPES: dict[str, Shape] = {"cnn": (3, 32, 32), "mlp": (1, 28, 28)}
TORCH = f"torch=={torch.__version__.partition('+')[0]}"
REQUIREMENTS = {
    "flwr": (TORCH, "flwr==1.41.0"),
    "fluke": (TORCH, "fluke-fl==0.8.1"),
    "pfllib": (TORCH, "h5py", "scikit-learn", "matplotlib"),
    "pfl": (TORCH, "pfl==0.6.0"),
    # the newest that its last release runs with: later versions of jax have no jax.tree_map
    "fedjax": (
        *("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12"),
        *("ml_dtypes==0.3.2", "numpy==1.26.4", "scipy==1.12.0"),
    ),
}
PFLLIB = "https://github.com/TsingZ0/PFLlib"
NUMBERS = ("s per round", "comity", "ratio", "processor s", "comity", "ratio", "training loss, comity")


@dataclass
class Turns:
    """What the rounds of one of the two took, in the order in which they were taken."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    losses: tuple[float, float] = (0.0, 0.0)
    """Training loss before the first and after the last round."""

    @property
    def fall(self) -> float:
        return self.losses[0] - self.losses[1]


class Ours(Here):
    """comity in this process."""

    def __init__(self, data: Federation, model: str, method: str, evaluated: bool) -> None:
        super().__init__(data, model, method)
        self.data, self.net, self.evaluated = data, MODELS[model](data.shape, CLASSES), evaluated

    def taken(self) -> tuple[float, float]:
        """Seconds of clock and processor of one round."""
        clock, processor = time.perf_counter(), time.process_time()
        self.round()
        if self.evaluated:
            self.server.evaluate(general=False)
        return time.perf_counter() - clock, time.process_time() - processor

    def weights(self) -> list[torch.Tensor]:
        """The weights of the first client's model."""
        torch.nn.utils.vector_to_parameters(self.server.export()[0], self.net.parameters())
        return [parameter.detach() for parameter in self.net.parameters()]

    def loss(self) -> float:
        total = 0.0
        for cid, vector in self.server.export().items():
            torch.nn.utils.vector_to_parameters(vector, self.net.parameters())
            train = self.data.clients[cid].train
            with torch.no_grad():
                total += float(torch.nn.functional.cross_entropy(self.net(train.x), train.y)) / len(self.data)
        return total


def learnable(model: str) -> Federation:
    """Noise around one pattern per class, so that the training loss falls where a peer learns."""
    data = federation(CLIENTS, SAMPLES, SHAPES[model])
    patterns = torch.randn(CLASSES, *data.shape, generator=torch.Generator().manual_seed(1)) / 4
    for client in data.clients:
        for split in (client.train, client.test):
            split.x.add_(patterns[split.y])
    return data


class Theirs:
    """The peer in its own process."""

    def __init__(self, python: Path, arguments: Sequence[str], threads: int) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")
        }
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [str(python), str(Path(__file__).with_name("peer_worker.py")), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.versions = str(self._answer()["versions"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the peer ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, question: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def write_work(folder: Path, data: Federation, model: str, weights: Sequence[torch.Tensor]) -> None:
    """Samples and weights as the worker reads them."""
    about = {"net": model, "batch": BATCH, "lr": LR, "classes": CLASSES, "weights": len(weights)}
    (folder / "work.json").write_text(json.dumps(about))
    arrays = {f"weights{i}": values.numpy() for i, values in enumerate(weights)}
    for name, part in (("", "train"), ("test_", "test")):
        splits = [getattr(client, part) for client in data.clients]
        arrays[f"{name}x"] = np.stack([split.x.contiguous().numpy() for split in splits])
        arrays[f"{name}y"] = np.stack([split.y.numpy() for split in splits])
    np.savez(folder / "work.npz", **arrays)


def measure(ours: Ours, theirs: Theirs, rounds: int, steps: int) -> tuple[Turns, Turns]:
    """Rounds of both in turn, after one round of each that does not count; the same work is asserted."""
    here, there = Turns(), Turns()
    before = ours.loss(), float(theirs.ask("loss")["loss"])
    for repeat in range(rounds + 1):
        clock, processor = ours.taken()
        answer = theirs.ask("round")
        if answer["steps"] != steps:
            sys.exit(f"the peer took {answer['steps']} steps in a round, comity {steps}")
        if repeat:
            here.clock.append(clock)
            here.processor.append(processor)
            there.clock.append(answer["clock"])
            there.processor.append(answer["processor"])
    here.losses = before[0], ours.loss()
    there.losses = before[1], float(theirs.ask("loss")["loss"])
    if not 0.8 < there.fall / here.fall < 1.25:
        sys.exit(f"the peer's training loss {falls(there)} does not fall as comity's {falls(here)}")
    return here, there


def falls(turns: Turns) -> str:
    return "{:.3f} → {:.3f}".format(*turns.losses)


def ratio(there: Sequence[float], here: Sequence[float]) -> str:
    """Median and range of the ratios of neighbouring rounds."""
    ratios = [a / b for a, b in zip(there, here, strict=True)]
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f})"


def row(peer: str, model: str, here: Turns, there: Turns) -> str:
    cells = [peer, model]
    for theirs, ours in ((there.clock, here.clock), (there.processor, here.processor)):
        cells += [str(Spread(theirs)), str(Spread(ours)), ratio(theirs, ours)]
    return "| " + " | ".join([*cells, f"{falls(there)}, {falls(here)}"]) + " |"


def environment(peer: str, folder: Path) -> Path:
    """The peer's Python, installed where it is not there yet."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[peer])
    if not ready.is_file() or ready.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS[peer]], check=True)
        ready.write_text(wanted)
    return python


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=REQUIREMENTS)
    parser.add_argument("--venv", type=Path, help="folder of the peer's environment; made where there is none")
    parser.add_argument(
        "--clone", type=Path, help="folder of a clone of PFLlib; cloned into --venv where none is given"
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--threads", type=int, default=0, help="threads of a peer on torch (0 = torch's own choice)")
    args = parser.parse_args(arguments)
    args.venv = (args.venv or Path(tempfile.gettempdir()) / f"comity-peer-{args.peer}").resolve()
    return args


def main() -> None:
    args = parse()
    python, options = environment(args.peer, args.venv), {"FedAvg": ""}
    if args.peer == "pfllib":
        clone = (args.clone or args.venv / "PFLlib").resolve()
        if not clone.is_dir():
            subprocess.run(["git", "clone", "-q", "--depth", "1", PFLLIB, str(clone)], check=True)
        options = {method: f"{method} {clone}" for method in ("FedAvg", "FedRep")}
    print(header("peer", "net", numbers=NUMBERS))
    for model in args.models:
        for method, option in options.items():
            data = learnable(model)
            with tempfile.TemporaryDirectory() as folder:
                ours = Ours(data, model, method, evaluated=args.peer == "pfllib")
                write_work(Path(folder), data, model, ours.weights())
                theirs = Theirs(python, [args.peer, folder, option], args.threads)
                steps = CLIENTS * (SAMPLES // BATCH) * (2 if method == "FedRep" else 1)
                turns = measure(ours, theirs, args.rounds, steps)
                theirs.close()
            print(row(f"{method}: {theirs.versions}", model, *turns), flush=True)


if __name__ == "__main__":
    main()
