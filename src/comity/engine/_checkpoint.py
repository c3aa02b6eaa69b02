"""The checkpoint: everything that the next round depends on, in one file that is replaced as a whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError
from comity._write import atomically
from comity.engine._client import ClientState
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
"""What a safetensors file calls them."""


def save(file: Path, server: Server, key: str) -> None:
    """The state of a server and of its clients; ``key`` is that of the run's configuration."""
    tensors = {"server/theta": server.theta}
    tensors |= {f"server/store/{name}": tensor for name, tensor in server.store.items()}
    for kind, states in (("rule", server.rule_states), ("step", server.step_states)):
        for group, remembered in states.items():
            tensors |= {f"server/{kind}/{group}/{name}": tensor for name, tensor in remembered.items()}
    for cid, state in server.link.states().items():
        tensors[f"client/{cid}"] = server.theta.new_empty(0)  # one that keeps nothing has been asked all the same
        tensors |= {f"client/{cid}/{name}": tensor for name, tensor in state.flat().items()}
    about = {"round": str(server.round), "key": key, "traffic": json.dumps(server.link.traffic)}
    with atomically(file) as part:
        write_tensors(part, tensors, about)


def restore(file: Path, server: Server, key: str) -> bool:
    """Put the server and its clients back to the checkpoint; ``False`` when there is none."""
    for left in file.parent.glob(f".{file.name}.*.part"):
        left.unlink()  # by a run that was killed while it wrote
    if not file.exists():
        return False
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
            # cloned into torch's own memory: the bits of a matrix product depend on how its operands are aligned
            tensors: dict[str, Tensor] = {}
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name).clone()
                tensors[name] = server.link.hold(tensor) if name.startswith("client/") else tensor
    except (SafetensorError, OSError) as error:
        raise ComityError(f"checkpoint {file} cannot be read ({error}); give --overwrite to start anew") from error
    if about.get("key") != key:
        raise ComityError(f"checkpoint {file} is of another configuration; give --overwrite or another --out")
    server.round, server.theta = int(about["round"]), tensors["server/theta"]
    server.link.traffic.update(json.loads(about["traffic"]))
    clients: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match name.split("/"):
            case "client", cid, *path:
                kept = clients.setdefault(int(cid), {})
                if path:
                    kept["/".join(path)] = tensor
            case "server", "store", *path:
                server.store["/".join(path)] = tensor
            case "server", "rule", group, *path:
                server.rule_states.setdefault(group, {})["/".join(path)] = tensor
            case "server", "step", group, *path:
                server.step_states.setdefault(group, {})["/".join(path)] = tensor
    server.link.restore({cid: ClientState.of(kept) for cid, kept in clients.items()})
    return True


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """A safetensors file, written a tensor at a time: ``save_file`` would copy all of them first."""
    tensors = dict(sorted(tensors.items(), key=lambda entry: -entry[1].element_size()))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(about)}
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
