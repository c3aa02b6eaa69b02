"""Open a path as one checkpoint: a model or a PEFT adapter, in one file or several."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from torch import Tensor

from comity._errors import ComityError
from comity.files._formats import FORMATS, WeightFile

T = TypeVar("T")
Positive = Annotated[float, msgspec.Meta(gt=0)]
INDEX = ".index.json"
ADAPTER = "adapter_config.json"
PREFIX = "base_model.model."
"""Prefix that PEFT puts before the name of a module."""
ENDS_WITH = r"(.*\.)?({})$"
"""How PEFT matches a pattern with a module's original name; the first match counts."""


class Adapter(msgspec.Struct):
    """The scale of an adapter's products, from PEFT's ``adapter_config.json``."""

    lora_alpha: Positive
    peft_type: Literal["LORA"] = "LORA"
    alpha_pattern: dict[str, Positive] | None = None
    """Alphas of single modules, by regular expression."""
    use_rslora: bool | None = False
    """Whether the scale is alpha/√rank instead of alpha/rank."""
    use_dora: bool | None = False
    """Whether columns are rescaled after BA is added."""

    @classmethod
    def read(cls, config: Path) -> "Adapter":
        adapter = read_json(config, cls)
        for pattern in adapter.alpha_pattern or ():
            # matching some untrusted patterns would take forever
            if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > 3:
                raise ComityError(f"{config}: alpha_pattern {pattern!r} repeats a group, or too much, to be tried")
            try:
                re.compile(ENDS_WITH.format(pattern))
            except (re.error, OverflowError, RecursionError) as error:
                raise ComityError(f"{config}: alpha_pattern {pattern!r} is no regular expression ({error})") from error
        return adapter

    def scale(self, module: str, rank: int) -> float:
        module, patterns = module.removeprefix(PREFIX), self.alpha_pattern or {}
        fits = (alpha for pattern, alpha in patterns.items() if re.match(ENDS_WITH.format(pattern), module))
        return next(fits, self.lora_alpha) / self.strength(rank)

    def strength(self, rank: int) -> float:
        """The divisor of alpha."""
        return rank**0.5 if self.use_rslora else rank


class Index(msgspec.Struct):
    """Which shard holds each tensor."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


class Checkpoint:
    """The tensors at a path by name, in any number of files."""

    def __init__(
        self, path: Path, files: Sequence[WeightFile], folder: Path | None = None, config: Path | None = None
    ) -> None:
        self.path, self.files, self.folder, self.config = path, files, folder, config
        self.entries = {name: entry for file in files for name, entry in file.entries.items()}
        self.ties = {name: first for file in files for name, first in file.ties.items()}
        self._homes = {name: file for file in files for name in file.entries}

    @cached_property
    def adapter(self) -> Adapter:
        """The scale of its products, if this is a PEFT adapter."""
        if self.config is None:
            raise self.wrong(f"it is no PEFT adapter ({ADAPTER} is missing), so its factors have no product")
        return Adapter.read(self.config)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        return self._homes[name].read(name, start, stop)

    def sidecars(self) -> Iterator[Path]:
        """The other files in its folder: configurations, tokenizers."""
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
    if path.exists() and not path.is_file():  # a pipe would block
        raise ComityError(f"{path}: it is not a file")
    return FORMATS[path.suffix](path)


def _open_folder(path: Path) -> Checkpoint:
    config = path / ADAPTER
    if config.exists():
        weights = next((file for end in FORMATS if (file := path / f"adapter_model{end}").exists()), None)
        if weights is None:
            raise ComityError(f"{path}: it has {ADAPTER}, but no adapter_model.safetensors or adapter_model.bin")
        return Checkpoint(path, [_open_file(weights)], path, config)
    # A folder from Hugging Face may hold the same model in two formats, and shards have an index.
    for pattern in (f"*.safetensors{INDEX}", "*.safetensors", f"*{INDEX}", "*"):
        named = [file for file in path.glob(pattern) if file.suffix in FORMATS or file.name.endswith(INDEX)]
        found = [file for file in named if file.is_file()]
        if len(found) > 1:
            raise ComityError(f"{path}: it holds {len(found)} models; give a folder with one, or the file itself")
        if found and found[0].name.endswith(INDEX):
            return Checkpoint(found[0], _open_shards(found[0]), path)
        if found:
            return Checkpoint(path, [_open_file(found[0])], path)
    raise ComityError(f"{path}: it holds no weight files")


def _open_shards(index: Path) -> list[WeightFile]:
    """Open the files that an index names. Each must hold exactly the tensors that the index lists for it."""
    names: dict[str, set[str]] = {}
    for name, shard in read_json(index, Index).weight_map.items():
        names.setdefault(shard, set()).add(name)
    files = []
    for shard, expected in names.items():
        # an untrusted index may name a path outside the folder, where an output would be written
        if Path(shard).name != shard or Path(shard).suffix not in FORMATS:
            raise ComityError(f"{index}: {shard!r} is not the name of a weight file beside it")
        files.append(_open_file(index.parent / shard))
        if other := expected ^ files[-1].entries.keys():
            raise ComityError(f"{index}: tensor {min(other)!r} is in the index or in {shard}, but not in both")
    return files


def read_json(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError) as error:
        raise ComityError(f"{path}: {error}") from error


def names_of(paths: Sequence[Path]) -> list[str]:
    """Name each client by the shortest unique end of its path."""
    parts = [(*path.absolute().parts[1:-1], _stem(path)) for path in paths]
    if len(set(parts)) < len(parts):  # a.pt and a.npz in one folder
        parts = [path.absolute().parts[1:] for path in paths]
    # a common last part is omitted: site-1/model.pt and site-2/model.pt become site-1 and site-2
    while len(parts) > 1 and len({part[-1:] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    depth = next(depth for depth in count(1) if len({part[-depth:] for part in parts}) == len(parts))
    return ["/".join(part[-depth:]) for part in parts]


def _stem(path: Path) -> str:
    name = path.name.removesuffix(INDEX)
    return name if path.is_dir() else name.removesuffix(next((end for end in FORMATS if name.endswith(end)), ""))
