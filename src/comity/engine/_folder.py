"""The run folder: what a run leaves behind, and what it goes on from when it was killed."""

import contextlib
import csv
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError
from comity.config import Config, read_yaml
from comity.data import Federation
from comity.engine._server import Server

DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` when all is written, and only then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # one name, so that what a kill left is written over
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomically(path) as part:
        part.write_text(text)


class Folder:
    """Configuration, rounds, rule weights, clients, result, checkpoint and models, each in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.rounds_file = path / "rounds.jsonl"
        self.weights_file = path / "weights.jsonl"
        self.cosines_file = path / "cosines.jsonl"
        self.clients_file = path / "clients.csv"
        self.result_file = path / "result.json"
        self.checkpoint_file = path / "checkpoint" / "state.safetensors"

    @property
    def started(self) -> bool:
        return self.config_file.exists()

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    def config(self) -> Config:
        return Config.of(read_yaml(self.config_file))

    def result(self) -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(self.result_file.read_text())
        except (OSError, ValueError) as error:
            raise ComityError(f"{self.path} holds no finished run ({error})") from error
        return result

    def open(self, config: Config, *, resume: bool, overwrite: bool) -> None:
        """Make the folder ready for this configuration, or refuse before anything is written."""
        if self.path.exists() and not self.path.is_dir():
            raise ComityError(f"out {self.path} is a file, not a folder")
        if self.started and resume:
            if self.config().key != config.key:
                different = [key for key, value in config.plain().items() if self.config().plain().get(key) != value]
                raise ComityError(
                    f"{self.path} holds a run of another configuration ({', '.join(different)} differ); "
                    "give the same options, another --out, or --overwrite"
                )
        elif self.started and not overwrite:
            raise ComityError(
                f"{self.path} holds a run already; give --resume to go on with it, --overwrite to replace it, "
                "or another --out"
            )
        elif self.path.exists() and any(self.path.iterdir()) and not self.started:
            raise ComityError(f"out {self.path} is not empty and holds no run; give another --out")
        if self.started and not resume:
            grown = (self.rounds_file, self.weights_file, self.cosines_file, self.clients_file)
            for file in (self.result_file, self.checkpoint_file, *grown):
                file.unlink(missing_ok=True)
        write_text(self.config_file, yaml.safe_dump(config.plain(), sort_keys=False))

    def add_partition(self, federation: Federation) -> None:
        """Who holds how many samples of which class."""
        about = {
            "name": federation.name,
            "partition": federation.partition,
            "classes": federation.classes,
            "counts": federation.counts.tolist(),
        }
        write_text(self.path / "partition.json", to_json(about) + "\n")

    # What grows with the rounds.

    def add_round(self, record: dict[str, Any]) -> None:
        record = dict(record)
        for name, file in (("weights", self.weights_file), ("cosines", self.cosines_file)):
            for entry in record.pop(name, ()):
                _append(file, {"round": record["round"], **entry})
        _append(self.rounds_file, record)

    def add_clients(self, round: int, columns: dict[str, list[Any]]) -> None:
        """One row a client. Columns that this evaluation did not measure stay empty."""
        header = [
            "round",
            "client",
            "n_train",
            "n_test",
            "L-acc",
            "loss",
            "val-acc",
            "val-loss",
            "S-acc",
            "G-acc",
            "global-acc",
        ]
        new = not self.clients_file.exists()
        with self.clients_file.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(header)
            for i in range(len(columns["client"])):
                writer.writerow([round, *(columns[name][i] if name in columns else "" for name in header[1:])])

    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _lines(self.rounds_file)]

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Forget what came after ``round``, and lines that a kill cut short; the records that stay."""
        for file in (self.rounds_file, self.weights_file, self.cosines_file):
            if file.exists():
                kept = [line for line in _lines(file) if json.loads(line)["round"] <= round]
                write_text(file, "".join(line + "\n" for line in kept))
        if self.clients_file.exists():
            lines = self.clients_file.read_text().splitlines(keepends=True)
            whole = [line for line in lines[1:] if line.endswith("\n") and line.count(",") == lines[0].count(",")]
            write_text(self.clients_file, "".join([lines[0], *(x for x in whole if int(x.split(",", 1)[0]) <= round)]))
        return self.rounds()

    # The checkpoint.

    def save(self, server: Server, config: Config) -> None:
        """Everything the next round depends on, in one file that is replaced whole."""
        tensors = {"server/theta": server.theta}
        tensors |= {f"server/store/{name}": tensor for name, tensor in server.store.items()}
        for group, state in server.rule_states.items():
            tensors |= {f"server/rule/{group}/{name}": tensor for name, tensor in state.items()}
        for group, state in server.step_states.items():
            tensors |= {f"server/step/{group}/{name}": tensor for name, tensor in state.items()}
        for cid, keep in server.link.states().items():
            tensors |= {f"client/{cid}/{name}": tensor for name, tensor in keep.items()}
            tensors[f"client/{cid}"] = server.theta.new_empty(
                0
            )  # a client that keeps nothing has been asked all the same
        about = {"round": str(server.round), "key": config.key, "traffic": json.dumps(server.link.traffic)}
        with atomically(self.checkpoint_file) as part:
            write_tensors(part, tensors, about)

    def restore(self, server: Server, config: Config) -> bool:
        """Put the server and its clients back to the checkpoint; ``False`` when there is none."""
        if not self.checkpoint_file.exists():
            return False
        try:
            with safe_open(self.checkpoint_file, framework="pt") as file:
                about = file.metadata() or {}
                # cloned into torch's own memory: the bits of a matrix product depend on how its operands are aligned
                tensors: dict[str, Tensor] = {}
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name).clone()
                    tensors[name] = server.link.hold(tensor) if name.startswith("client/") else tensor
        except (SafetensorError, OSError) as error:
            raise ComityError(
                f"checkpoint {self.checkpoint_file} cannot be read ({error}); give --overwrite to start anew"
            ) from error
        if about.get("key") != config.key:
            raise ComityError(
                f"checkpoint {self.checkpoint_file} is of another configuration; give --overwrite or another --out"
            )
        server.round, server.theta = int(about["round"]), tensors["server/theta"]
        server.link.traffic.update(json.loads(about["traffic"]))
        clients: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            room, *path = name.split("/")
            if room == "client":
                keep = clients.setdefault(int(path[0]), {})
                if len(path) > 1:
                    keep["/".join(path[1:])] = tensor
            elif path[0] == "store":
                server.store["/".join(path[1:])] = tensor
            elif path[0] == "rule":
                server.rule_states.setdefault(path[1], {})["/".join(path[2:])] = tensor
            elif path[0] == "step":
                server.step_states.setdefault(path[1], {})["/".join(path[2:])] = tensor
        server.link.restore(clients)
        return True


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file, written a tensor at a time: ``save_file`` would copy all of them first."""
    tensors = dict(sorted(tensors.items(), key=lambda entry: -entry[1].element_size()))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: what is not a number becomes null."""

    def finite(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: finite(inner) for key, inner in item.items()}
        if isinstance(item, (list, tuple)):
            return [finite(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(finite(value), indent=indent, allow_nan=False)


def _append(file: Path, entry: dict[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(to_json(entry) + "\n")


def _lines(file: Path) -> list[str]:
    """The whole lines of a JSON-lines file; a last one that a kill cut short is no line."""
    if not file.exists():
        return []
    return [line.rstrip("\n") for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
