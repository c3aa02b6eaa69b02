"""Safetensors files."""

import json
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from comity.files._file import FLOATS, NewTensors, StoredTensor, WeightFile


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
        length = int.from_bytes(self.bytes(0, 8).numpy().tobytes(), "little")
        self.start = 8 + length
        header = json.loads(self.bytes(8, self.start).numpy().tobytes())
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
