"""The checkpoint: everything that the next round depends on, in one file that is replaced as a whole."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError, one_line
from comity._write import atomically
from comity.engine._client import ClientState
from comity.results import ANEW, Marks

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
"""What a safetensors file calls them."""
CHECKSUM = "checksum"
"""The first entry of a file's metadata: the CRC-32 of the file with zeros in place of these eight digits."""
_NO_CHECKSUM = "0" * 8


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds, whole and as it was written."""

    round: int
    traffic: dict[str, list[int]]
    marks: Marks
    place: list[int]
    tensors: dict[str, Tensor]


def save(file: Path, server: "Server", key: str, marks: Marks) -> None:
    """The state of a server and of its clients; ``key`` is that of the run, and ``marks`` say how long its logs are."""
    tensors = {"server/theta": server.theta}
    tensors |= {f"server/store/{name}": tensor for name, tensor in server.store.items()}
    for kind, states in (("rule", server.rule_states), ("step", server.step_states)):
        for group, remembered in states.items():
            tensors |= {f"server/{kind}/{group}/{name}": tensor for name, tensor in remembered.items()}
    for cid, state in server.link.states().items():
        tensors[f"client/{cid}"] = server.theta.new_empty(0)  # one that keeps nothing has been asked all the same
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
    """The checkpoint of a run with this ``key``, for this server; ``None`` when there is none."""
    if not file.exists():
        return None
    try:
        _check_whole(file)
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata()
            if about["key"] != key:
                raise ComityError(f"checkpoint {file} is of another configuration or of other data; {ANEW}")
            # cloned into torch's own memory: the bits of a matrix product depend on how its operands are aligned
            tensors: dict[str, Tensor] = {}
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name).clone()
                tensors[name] = server.link.hold(tensor) if name.startswith("client/") else tensor
        marks = {str(name): (int(length), int(checksum)) for name, (length, checksum) in _entries(about["marks"])}
        traffic = {str(verb): [int(down), int(up)] for verb, (down, up) in _entries(about["traffic"])}
        place = [int(number) for number in json.loads(about.get("place", "[]"))]
        saved = Saved(int(about["round"]), traffic, marks, place, tensors)
        theta = tensors["server/theta"]
    except (SafetensorError, OSError) as error:
        raise ComityError(f"checkpoint {file} cannot be read ({one_line(error, 200)}); {ANEW}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ComityError(f"checkpoint {file} is incomplete ({one_line(error, 200)}); {ANEW}") from error
    if theta.shape != server.theta.shape or theta.dtype != server.theta.dtype:
        raise ComityError(f"checkpoint {file} is of another model than this configuration's; {ANEW}")
    return saved


class SavedStates(Mapping[int, ClientState]):
    """What each client kept in a run, by client; a state is read when it is asked for."""

    def __init__(self, file: Path) -> None:
        self._file, self._names = file, dict[int, list[str]]()
        try:
            _check_whole(file)
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    if name.startswith("client/"):
                        self._names.setdefault(int(name.split("/")[1]), []).append(name)
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


def _check_whole(file: Path) -> None:
    if not _is_whole(file):
        raise ComityError(f"checkpoint {file} cannot be read: it was changed after it was written; {ANEW}")


def _entries(text: str) -> Any:
    return json.loads(text).items()


def _is_whole(file: Path) -> bool:
    """Whether the file is, to the bit, what ``write_tensors`` wrote."""
    begin = len(_header_start())
    with file.open("rb") as stream:
        head = stream.read(8 + begin + len(_NO_CHECKSUM))
        written = head[8 + begin :]
        checksum = zlib.crc32(head[: 8 + begin] + _NO_CHECKSUM.encode())
        while block := stream.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return head[8 : 8 + begin] == _header_start() and written == f"{checksum:08x}".encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """A safetensors file, written a tensor at a time: ``save_file`` would copy all of them first."""
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
            content = flat.view(torch.uint8).numpy().data if flat.numel() else b""  # none has any stride to view
            file.write(content)
            checksum = zlib.crc32(content, checksum)
        file.seek(8 + len(_header_start()))
        file.write(f"{checksum:08x}".encode())


def _header_start() -> bytes:
    """How the header begins, up to the checksum."""
    return json.dumps({"__metadata__": {CHECKSUM: _NO_CHECKSUM}}).encode().partition(_NO_CHECKSUM.encode())[0]
