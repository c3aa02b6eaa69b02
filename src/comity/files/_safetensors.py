"""Safetensors files."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity.files._file import DTYPES, FLOATS, NewTensors, StoredTensor, WeightFile, view


class SafetensorsFile(WeightFile):
    """Eight bytes, a JSON header, and the tensors one after the other."""

    def read_entries(self) -> dict[str, StoredTensor]:
        self.opened().close()  # a file that cannot be opened is refused in our own words, not the library's
        try:
            # The library judges sizes, overlaps and gaps; it reads no tensor for that.
            with safe_open(self.path, framework="numpy") as file:
                names = set(file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise self.wrong(f"it is not a safetensors file, or cut short ({error})") from error
        length = int.from_bytes(self.bytes(0, 8), "little")
        self.start = 8 + length
        header = json.loads(self.bytes(8, self.start))
        header.pop("__metadata__", None)
        entries = {
            name: StoredTensor(name, tuple(about["shape"]), about["dtype"], self.start + about["data_offsets"][0])
            for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        }
        self._check(names, header, entries)
        return entries

    def _check(
        self, names: set[str], header: dict[str, dict[str, list[int]]], entries: dict[str, StoredTensor]
    ) -> None:
        """Refuse a header that the library reads differently."""
        for name, entry in entries.items():
            first, last = header[name]["data_offsets"]
            if entry.kind in FLOATS and last - first != entry.nbytes:
                raise self.wrong(f"tensor {name!r} has {last - first:,} bytes for shape {entry.shape}")
        if names != entries.keys():
            raise self.wrong("its header is not clear about its tensors")

    def write(self, target: BinaryIO, new: NewTensors) -> None:
        for block in self.renewed(0, self.size(), new):
            target.write(block)


class FreshTensor(NamedTuple):
    """A tensor of a new file, its numbers in pieces, row by row."""

    name: str
    shape: tuple[int, ...]
    kind: str
    pieces: Iterator[Tensor]


def write_fresh(target: BinaryIO, axes: Mapping[str, int], tensors: Iterable[FreshTensor]) -> None:
    """Write a new file of tensors, of which names and numbers of axes are known before; the header is put in last."""
    room = 64 + sum(len(json.dumps(name)) + 96 + 22 * count for name, count in axes.items())
    start = 8 + room + -room % 8
    target.seek(start)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    here = 0
    for name, shape, kind, pieces in tensors:
        for piece in pieces:
            target.write(view(piece.contiguous()))
        stop = here + math.prod(shape) * DTYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [here, stop]}
        here = stop
    target.seek(0)
    target.write((start - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(start - 8))
