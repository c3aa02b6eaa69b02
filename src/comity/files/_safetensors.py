"""Safetensors files."""

import json
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from comity.files._file import FLOATS, Entry, Fresh, WeightFile


class SafetensorsFile(WeightFile):
    """Eight bytes, a JSON header, and the tensors one after the other."""

    def found(self) -> dict[str, Entry]:
        with self.opened():
            pass  # a file that is not there has its own words
        try:
            # the library is asked first: sizes, overlaps and gaps are its to judge, and nothing is read for it
            with safe_open(self.path, framework="numpy") as file:
                names = set(file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise self.wrong(f"it is not a safetensors file, or cut short ({error})") from error
        length = int.from_bytes(self.bytes(0, 8).numpy().tobytes(), "little")
        self.start = 8 + length
        header = json.loads(self.bytes(8, self.start).numpy().tobytes())
        header.pop("__metadata__", None)
        entries = {
            name: Entry(name, tuple(about["shape"]), about["dtype"], self.start + about["data_offsets"][0])
            for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        }
        self._check(names, header, entries)
        return entries

    def _check(self, names: set[str], header: dict[str, dict[str, list[int]]], entries: dict[str, Entry]) -> None:
        """Our reading of the header is the library's."""
        for name, entry in entries.items():
            first, last = header[name]["data_offsets"]
            if entry.kind in FLOATS and last - first != entry.nbytes:
                raise self.wrong(f"tensor {name!r} has {last - first:,} bytes for shape {entry.shape}")
        if names != entries.keys():
            raise self.wrong("its header is not clear about its tensors")

    def write(self, target: BinaryIO, fresh: Fresh) -> None:
        with self.opened() as file:
            size = file.seek(0, 2)
        for block in self.renewed(0, size, fresh):
            target.write(block)
