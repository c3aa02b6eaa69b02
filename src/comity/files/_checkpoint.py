"""Open what a path holds as one checkpoint: a model or a PEFT adapter, in one file or in several."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from comity._errors import ComityError
from comity.files._formats import FORMATS, StoredTensor, WeightFile

INDEX = ".index.json"
ADAPTER = "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before the name of a module."""


@dataclass(frozen=True)
class Adapter:
    """The scale of an adapter's products, from PEFT's ``adapter_config.json``."""

    alpha: float
    rooted: bool
    """Whether the scale is alpha/√rank (rsLoRA) instead of alpha/rank."""
    patterns: Mapping[str, float] = field(default_factory=dict)
    """Alphas of single modules, by regular expression."""
    dora: bool = False
    """Whether columns are rescaled after BA is added (DoRA)."""

    @classmethod
    def read(cls, config: Path) -> "Adapter":
        about = read_json(config)
        patterns = about.get("alpha_pattern") or {}
        if not isinstance(patterns, dict):
            raise ComityError(f"{config}: alpha_pattern is {patterns!r}; it must map patterns to numbers")
        if about.get("peft_type", "LORA") != "LORA":
            raise ComityError(f"{config}: its peft_type is {about['peft_type']!r}; only LORA has products")
        for name, value in {"lora_alpha": about.get("lora_alpha"), **patterns}.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ComityError(f"{config}: {name} is {value!r}; it must be a positive number")
        for pattern in patterns:
            # Matching some untrusted patterns would take forever.
            if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > 3:
                raise ComityError(f"{config}: alpha_pattern {pattern!r} repeats a group, or too much, to be tried")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ComityError(f"{config}: alpha_pattern {pattern!r} is no regular expression ({error})") from error
        return cls(about["lora_alpha"], bool(about.get("use_rslora")), patterns, bool(about.get("use_dora")))

    def scale(self, module: str, rank: int) -> float:
        # PEFT takes the first pattern that matches the end of the module's name before PEFT wrapped it.
        module = module.removeprefix(PREFIX)
        fits = (alpha for pattern, alpha in self.patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
        return float(next(fits, self.alpha) / (rank**0.5 if self.rooted else rank))


class Checkpoint:
    """The tensors at a path by name, whatever files they lie in."""

    def __init__(
        self, path: Path, files: Sequence[WeightFile], folder: Path | None = None, config: Path | None = None
    ) -> None:
        self.path, self.files, self.folder, self.config = path, files, folder, config
        self.entries: dict[str, StoredTensor] = {}
        self.ties: dict[str, str] = {}
        self._homes: dict[str, WeightFile] = {}
        for file in files:
            if both := self._homes.keys() & file.entries:
                raise file.wrong(f"tensor {min(both)!r} is in {self._homes[min(both)].path.name} too")
            self._homes |= dict.fromkeys(file.entries, file)
            self.entries |= file.entries
            self.ties |= file.ties

    @cached_property
    def adapter(self) -> Adapter:
        """The scale of its products, if this is a PEFT adapter."""
        if self.config is None:
            raise self.wrong(f"it is no PEFT adapter ({ADAPTER} is missing), so its factors have no product")
        return Adapter.read(self.config)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        return self._homes[name].read(name, start, stop)

    def sidecars(self) -> Iterator[Path]:
        """The other files of its folder that belong to it: configurations, tokenizers."""
        for path in sorted(self.folder.iterdir() if self.folder is not None else ()):
            weights = path.suffix in (*FORMATS, ".gguf", ".h5", ".msgpack", ".onnx") or path.name.endswith(INDEX)
            if path.is_file() and not path.name.startswith(".") and not weights:
                yield path

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a file, an index of shards, or a folder with either. Only headers are read."""
    path = Path(path)
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            raise ComityError(f"{path}: there is no such file or folder")
        if path.name.endswith(INDEX):
            return Checkpoint(path, _open_shards(path), path.parent)
        config = path.with_name(ADAPTER)
        lora = path.stem == "adapter_model" and config.exists()
        return Checkpoint(path, [_open_file(path)], config=config if lora else None)
    except OSError as error:
        raise ComityError(f"{path}: it cannot be read ({error.strerror})") from error


def _open_file(path: Path) -> WeightFile:
    if path.suffix not in FORMATS:
        raise ComityError(f"{path}: its name must end in one of {', '.join(FORMATS)} or {INDEX}, or be a folder's")
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ComityError(f"{path}: it is not a file")
    return FORMATS[path.suffix](path)


def _open_folder(path: Path) -> Checkpoint:
    config = path / ADAPTER
    if config.exists():
        for name in ("adapter_model.safetensors", "adapter_model.bin"):
            if (path / name).exists():
                return Checkpoint(path, [_open_file(path / name)], path, config)
        raise ComityError(f"{path}: it has {ADAPTER}, but neither adapter_model.safetensors nor adapter_model.bin")
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(file for file in path.iterdir() if file.suffix in FORMATS and file.is_file())
    # A folder from Hugging Face may hold the same model in two formats.
    for kind in (".safetensors", ""):
        shown = [index for index in indices if kind in index.name]
        single = [file for file in files if kind in file.name]
        if len(shown) == 1:
            return Checkpoint(shown[0], _open_shards(shown[0]), path)
        if not shown and len(single) == 1:
            return Checkpoint(path, [_open_file(single[0])], path)
    content = f"{len(files)} weight files and {len(indices)} indices" if files else "no weight files"
    raise ComityError(f"{path}: it holds {content}; give a folder with one model, or the file itself")


def _open_shards(index: Path) -> list[WeightFile]:
    """Open the files that an index names. Each must hold exactly the tensors that the index lists for it."""
    homes = read_json(index).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise ComityError(f"{index}: it has no weight_map")
    shards: dict[str, WeightFile] = {}
    for name, shard in homes.items():
        # An untrusted index may name a path outside the folder, and an output would be written there.
        if not isinstance(shard, str) or Path(shard).name != shard or Path(shard).suffix not in FORMATS:
            raise ComityError(f"{index}: {shard!r} is not the name of a weight file beside it")
        if shard not in shards:
            shards[shard] = _open_file(index.parent / shard)
        if name not in shards[shard].entries:
            raise ComityError(f"{index}: tensor {name!r} is not in {shard}")
    for shard, file in shards.items():
        if extra := file.entries.keys() - homes.keys():
            raise ComityError(f"{index}: tensor {min(extra)!r} of {shard} is not in it")
    return list(shards.values())


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ComityError(f"{path}: it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ComityError(f"{path}: it is not a JSON object")
    return found


def names_of(paths: Sequence[Path]) -> list[str]:
    """Name each client by the shortest end of its path that is different for all of them."""
    parts = [(*path.absolute().parts[1:-1], _stem(path)) for path in paths]
    if len(set(parts)) < len(parts):  # a.pt and a.npz in one folder
        parts = [path.absolute().parts[1:] for path in paths]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    ends = [part[-depth:] for part in parts]
    # The last part is omitted where it is the same for all: site-1/model.pt and site-2/model.pt are site-1 and site-2.
    while len(ends) > 1 and depth > 1 and len({end[-1] for end in ends}) == 1:
        ends, depth = [end[:-1] for end in ends], depth - 1
    return ["/".join(end) for end in ends]


def _stem(path: Path) -> str:
    name = path.name.removesuffix(INDEX) if path.name.endswith(INDEX) else path.name
    return name.removesuffix(path.suffix if path.suffix in FORMATS else "") if not path.is_dir() else name
