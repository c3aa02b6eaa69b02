"""The checkpoint: the complete state for the next round, in one file that is replaced as a whole."""

import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError, one_line
from comity._write import atomically
from comity.engine._client import ClientState
from comity.results import ANEW, LOGS, Marks

if TYPE_CHECKING:
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
"""Names of types in safetensors files."""
CHECKSUM = "checksum"
"""First entry of a file's metadata: the CRC-32 of the file, computed with zeros in place of these eight digits."""
_NO_CHECKSUM = "0" * 8
_NAME = re.compile(
    r"server/theta|server/store/.+|server/(?:rule|step)/[^/]*/.+|client/(0|[1-9]\d{0,8})(?:/(?:method|engine)/.+)?",
    re.DOTALL,
)
"""Tensor names that ``save`` uses; the group is the client."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Pair = Annotated[list[_Count], msgspec.Meta(min_length=2, max_length=2)]


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint."""

    round: int
    traffic: dict[str, list[int]]
    marks: Marks
    place: list[int]
    tensors: dict[str, Tensor]


def save(file: Path, server: "Server", key: str, marks: Marks) -> None:
    """Save the state of server and clients; ``key`` is that of the run, ``marks`` the lengths of its logs."""
    tensors = {"server/theta": server.theta}
    tensors |= {f"server/store/{name}": tensor for name, tensor in server.store.items()}
    for kind, states in (("rule", server.rule_states), ("step", server.step_states)):
        for group, remembered in states.items():
            tensors |= {f"server/{kind}/{group}/{name}": tensor for name, tensor in remembered.items()}
    for cid, state in server.link.states().items():
        tensors[f"client/{cid}"] = server.theta.new_empty(0)  # marks a client that was asked, even if it keeps nothing
        tensors |= {f"client/{cid}/{name}": tensor for name, tensor in state.flat().items()}
    about = {
        "round": str(server.round),
        "key": key,
        "traffic": json.dumps(server.link.traffic),
        "marks": json.dumps(marks),
        "place": json.dumps(server.link.place()),
    }
    with atomically(file) as part:
        write_tensors(part, tensors, about)
    server.link.saved()


def read(file: Path, server: "Server", key: str) -> Saved | None:
    """Read the checkpoint of a run with this ``key`` for this server; ``None`` if there is none.

    A checksum detects damage, not forgery: names, counts and the model's shape are compared with the run's plan.
    """
    if not file.exists():
        return None
    try:
        _check_whole(file)
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata()
            if about["key"] != key:
                raise ComityError(f"checkpoint {file} is of another configuration or of other data; {ANEW}")
            # cloned into torch's own memory: the bits of a matrix product depend on the alignment of its operands
            tensors: dict[str, Tensor] = {}
            clients = set(server.link.clients)
            for name in opened.keys():  # noqa: SIM118
                _client_of(name, clients)
                tensor = opened.get_tensor(name).clone()
                tensors[name] = server.link.hold(tensor) if name.startswith("client/") else tensor
        marks = msgspec.json.decode(about["marks"], type=dict[str, tuple[_Count, _Count]])
        traffic = msgspec.json.decode(about["traffic"], type=dict[str, _Pair])
        place = msgspec.json.decode(about.get("place", "[]"), type=list[_Count])
        saved = Saved(int(about["round"]), traffic, marks, place, tensors)
        known = marks.keys() <= set(LOGS) and traffic.keys() <= server.verbs.keys()
        if not known or not 0 <= saved.round <= server.config.last_round:
            raise ValueError("it names a round, file or verb that this run does not have")
        theta = tensors["server/theta"]
    except (SafetensorError, OSError) as error:
        raise ComityError(f"checkpoint {file} cannot be read ({one_line(error, 200)}); {ANEW}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ComityError(
            f"checkpoint {file} is not of this run, or incomplete ({one_line(error, 200)}); {ANEW}"
        ) from error
    if theta.shape != server.theta.shape or theta.dtype != server.theta.dtype:
        raise ComityError(f"checkpoint {file} is of another model than this configuration's; {ANEW}")
    return saved


class SavedStates(Mapping[int, ClientState]):
    """The state that each client kept in a run; a state is read on access."""

    def __init__(self, file: Path, clients: Collection[int], size: int) -> None:
        """``clients`` are those of the reading run, ``size`` is the length of its model."""
        self._file, self._names = file, dict[int, list[str]]()
        try:
            _check_whole(file)
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    if (cid := _client_of(name, clients)) is not None:
                        self._names.setdefault(cid, []).append(name)
                for cid in self._names:
                    model = opened.get_slice(f"client/{cid}/method/personal")
                    if model.get_shape() != [size] or model.get_dtype() != "F32":
                        raise ValueError(f"the model of client {cid} is not of this configuration")
        except (SafetensorError, OSError, ValueError) as error:
            raise ComityError(f"checkpoint {file} cannot be read ({one_line(error, 200)}); {ANEW}") from error

    def __contains__(self, cid: object) -> bool:
        return cid in self._names

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, cid: int) -> ClientState:
        paths = {name: name.split("/", 2)[2:] for name in self._names[cid]}
        with safe_open(self._file, framework="pt") as opened:
            return ClientState.of({path[0]: opened.get_tensor(name).clone() for name, path in paths.items() if path})


def _client_of(name: str, clients: Collection[int]) -> int | None:
    """The client that a tensor belongs to, ``None`` for the server; rejects names that such a run does not write."""
    found = _NAME.fullmatch(name)
    cid = None if found is None or found[1] is None else int(found[1])
    if found is None or (cid is not None and cid not in clients):
        raise ValueError(f"it holds {name!r}, which is not of this run")
    return cid


@contextmanager
def resumed(file: Path | None) -> Iterator[None]:
    """Turn errors from a method's state, which has no declared form, into an error that names the checkpoint."""
    try:
        yield
    except (ComityError, OSError):
        raise
    except Exception as error:
        if file is None:
            raise
        what = f"{type(error).__name__}: {one_line(error, 200)}"
        raise ComityError(f"the run does not continue from {file}: {what}; {ANEW}") from error


def _check_whole(file: Path) -> None:
    if not _is_whole(file):
        raise ComityError(f"checkpoint {file} cannot be read: it was changed after it was written; {ANEW}")


def _is_whole(file: Path) -> bool:
    """Whether the file is bit-identical to what ``write_tensors`` wrote."""
    begin = len(_header_start())
    with file.open("rb") as stream:
        head = stream.read(8 + begin + len(_NO_CHECKSUM))
        written = head[8 + begin :]
        checksum = zlib.crc32(head[: 8 + begin] + _NO_CHECKSUM.encode())
        while block := stream.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return head[8 : 8 + begin] == _header_start() and written == f"{checksum:08x}".encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a safetensors file one tensor at a time: ``save_file`` would copy all of them first."""
    tensors = dict(sorted(tensors.items(), key=lambda entry: -entry[1].element_size()))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: _NO_CHECKSUM} | dict(about)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start_of_file = len(text).to_bytes(8, "little") + text
    checksum = zlib.crc32(start_of_file)
    with path.open("wb") as file:
        file.write(start_of_file)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            content = flat.view(torch.uint8).numpy().data if flat.numel() else b""  # an empty one has no stride
            file.write(content)
            checksum = zlib.crc32(content, checksum)
        file.seek(8 + len(_header_start()))
        file.write(f"{checksum:08x}".encode())


def _header_start() -> bytes:
    """The start of the header, up to the checksum."""
    return json.dumps({"__metadata__": {CHECKSUM: _NO_CHECKSUM}}).encode().partition(_NO_CHECKSUM.encode())[0]
