"""The run folder: what a run leaves behind, and what it goes on from when it was killed."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError
from comity.config import Config, read_yaml
from comity.data import Federation
from comity.engine import _bridge
from comity.engine._server import Server
from comity.results import RunFolder
from comity.results.schema import SCHEMA, PartitionTable, Result, RunInfo

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
        self.files = RunFolder(path)
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

    def result(self) -> Result:
        return self.files.result()

    def open(self, config: Config, title: str, own_rule: bool, moment: Any, *, resume: bool, overwrite: bool) -> None:
        """Make the folder ready for this configuration, or refuse before anything is written."""
        info = RunInfo(schema=SCHEMA, comity="0.1.0", title=title, key=config.key, own_rule=own_rule, moment=moment)
        self.files.open(info, config.plain(), resume=resume, overwrite=overwrite)

    def add_partition(self, federation: Federation) -> None:
        """Who holds how many samples of which class."""
        self.files.add_partition(
            PartitionTable(
                name=federation.name,
                partition=federation.partition,
                classes=federation.classes,
                counts=federation.counts.tolist(),
            )
        )

    # What grows with the rounds.

    def add_round(self, record: dict[str, Any]) -> None:
        self.files.add_round(_bridge.record_of(record), _bridge.weights_of(record), _bridge.cosines_of(record))

    def add_clients(self, round: int, columns: dict[str, list[Any]]) -> None:
        self.files.add_clients(round, columns)

    def add_result(self, result: dict[str, Any]) -> None:
        self.files.add_result(_bridge.result_of(result))

    def rounds(self) -> list[dict[str, Any]]:
        return [_bridge.dictionary_of(record) for record in self.files.rounds()]

    def rewind(self, round: int) -> list[dict[str, Any]]:
        return [_bridge.dictionary_of(record) for record in self.files.rewind(round)]

    # The checkpoint.

    def save(self, server: Server, config: Config) -> None:
        """Everything the next round depends on, in one file that is replaced whole."""
        tensors = {"server/theta": server.theta}
        tensors |= {f"server/store/{name}": tensor for name, tensor in server.store.items()}
        for group, state in server.rule_states.items():
            tensors |= {f"server/rule/{group}/{name}": tensor for name, tensor in state.items()}
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
