"""What a path holds: a model or an adapter, in one file or in several."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.files._file import StoredTensor, WeightFile, view
from comity.files._safetensors import SafetensorsFile
from comity.files._zipped import NpzFile, TorchFile

FORMATS: dict[str, type[WeightFile]] = {
    ".safetensors": SafetensorsFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
    ".bin": TorchFile,
    ".ckpt": TorchFile,
    ".npz": NpzFile,
}
"""By the end of a file's name."""

INDEX = ".index.json"
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
WRAPPED = "base_model.model."
"""What PEFT puts before the name that a module had."""


@dataclass(frozen=True)
class Adapter:
    """How strong an adapter is, from PEFT's ``adapter_config.json``: ΔW = scale · B A."""

    alpha: float
    rooted: bool
    """Whether the scale is alpha/√rank (rsLoRA) and not alpha/rank."""
    patterns: Mapping[str, float] = field(default_factory=dict)
    """Alphas of single modules, by regular expression."""
    dora: bool = False
    """Whether columns are rescaled after BA is added (DoRA)."""
    transposed: bool = False
    """Whether the base stores its weights the other way round, inputs first (``fan_in_fan_out``)."""

    def scale(self, module: str, rank: int) -> float:
        # PEFT takes the first pattern that matches the end of the name that a module had before PEFT wrapped it.
        module = module.removeprefix(WRAPPED)
        fits = (alpha for pattern, alpha in self.patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
        alpha = next(fits, self.alpha)
        return float(alpha / (rank**0.5 if self.rooted else rank))


class Checkpoint:
    """The tensors at a path, by name, whatever files they lie in."""

    def __init__(
        self, path: Path, files: Sequence[WeightFile], folder: Path | None = None, config: Path | None = None
    ) -> None:
        self.path, self.files, self.folder, self.config = path, files, folder, config
        self._homes: dict[str, WeightFile] = {}
        for file in files:
            for name in file.entries:
                if name in self._homes:
                    raise file.wrong(f"tensor {name!r} is in {self._homes[name].path.name} too")
                self._homes[name] = file

    @cached_property
    def entries(self) -> dict[str, StoredTensor]:
        return {name: file.entries[name] for name, file in self._homes.items()}

    @cached_property
    def adapter(self) -> Adapter | None:
        """How strong the adapter is, if this is one of PEFT's."""
        return None if self.config is None else _adapter(self.config)

    def scale(self, module: str, rank: int) -> float:
        """What the product of a module's factors is multiplied by."""
        assert self.adapter is not None
        return self.adapter.scale(module, rank)

    def read(self, name: str) -> Tensor:
        """All numbers of a tensor, row by row."""
        entry = self.entries[name]
        numbers = torch.empty(entry.numel, dtype=entry.dtype)
        self._homes[name].read(name, 0, entry.numel, view(numbers))
        return numbers

    def home(self, name: str) -> WeightFile:
        """The file that a tensor lies in."""
        return self._homes[name]

    def sidecars(self) -> Iterator[Path]:
        """The other files of its folder that belong to it: configurations, tokenisers, the index."""
        for path in sorted(self.folder.iterdir() if self.folder is not None else ()):
            weights = path.suffix in (*FORMATS, ".gguf", ".h5", ".msgpack", ".onnx") or path.name.endswith(INDEX)
            if path.is_file() and not path.name.startswith(".") and (not weights or path == self.path):
                yield path

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at ``path``, a file, an index of shards, or a folder with either; only its headers are read."""
    path = Path(path)
    try:
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise ComityError(f"{path}: there is no such file or folder")
        if path.name.endswith(INDEX):
            return Checkpoint(path, _shards(path), path.parent)
        config = path.with_name(ADAPTER)
        lora = path.stem == "adapter_model" and config.exists()
        return Checkpoint(path, [open_file(path)], config=config if lora else None)
    except OSError as error:
        raise ComityError(f"{path}: it cannot be read ({error.strerror})") from error


def open_file(path: Path) -> WeightFile:
    if path.suffix not in FORMATS:
        raise ComityError(f"{path}: its name must end in one of {', '.join(FORMATS)} or {INDEX}, or be a folder's")
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ComityError(f"{path}: it is not a file")
    return FORMATS[path.suffix](path)


def _folder(path: Path) -> Checkpoint:
    config = path / ADAPTER
    if config.exists():
        for name in (ADAPTER_WEIGHTS, "adapter_model.bin"):
            if (path / name).exists():
                return Checkpoint(path, [open_file(path / name)], path, config)
        raise ComityError(f"{path}: it has {ADAPTER}, but neither adapter_model.safetensors nor adapter_model.bin")
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(file for file in path.iterdir() if file.suffix in FORMATS and file.is_file())
    # A folder from Hugging Face may hold the same model in two formats.
    for kind in (".safetensors", ""):
        shown = [index for index in indices if kind in index.name]
        whole = [file for file in files if kind in file.name]
        if len(shown) == 1:
            return Checkpoint(shown[0], _shards(shown[0]), path)
        if not shown and len(whole) == 1:
            return Checkpoint(path, [open_file(whole[0])], path)
    content = f"{len(files)} weight files and {len(indices)} indices" if files else "no weight files"
    raise ComityError(f"{path}: it holds {content}; give a folder with one model, or the file itself")


def _shards(index: Path) -> list[WeightFile]:
    """The files that an index names; each must hold exactly the tensors that the index says."""
    homes = _json(index).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise ComityError(f"{index}: it has no weight_map")
    shards: dict[str, WeightFile] = {}
    for name, shard in homes.items():
        # A stranger's index may name a path outside the folder, and an output would be written there.
        if not isinstance(shard, str) or Path(shard).name != shard or Path(shard).suffix not in FORMATS:
            raise ComityError(f"{index}: {shard!r} is not the name of a weight file beside it")
        if shard not in shards:
            shards[shard] = open_file(index.parent / shard)
        if name not in shards[shard].entries:
            raise ComityError(f"{index}: tensor {name!r} is not in {shard}")
    for shard, file in shards.items():
        if extra := file.entries.keys() - homes.keys():
            raise ComityError(f"{index}: tensor {min(extra)!r} of {shard} is not in it")
    return list(shards.values())


def _adapter(config: Path) -> Adapter:
    about = _json(config)
    patterns = about.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ComityError(f"{config}: alpha_pattern is {patterns!r}; it must map patterns to numbers")
    if about.get("peft_type", "LORA") != "LORA":
        raise ComityError(f"{config}: its peft_type is {about['peft_type']!r}; only LORA has products")
    for name, value in {"lora_alpha": about.get("lora_alpha"), **patterns}.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ComityError(f"{config}: {name} is {value!r}; it must be a positive number")
    try:
        for pattern in patterns:
            # Some patterns of a stranger would keep us busy for ever.
            if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > 3:
                raise ComityError(f"{config}: alpha_pattern {pattern!r} repeats a group, or too much, to be tried")
            re.compile(pattern)
    except re.error as error:
        raise ComityError(f"{config}: alpha_pattern {pattern!r} is no regular expression ({error})") from error
    rooted, dora, transposed = (bool(about.get(key)) for key in ("use_rslora", "use_dora", "fan_in_fan_out"))
    return Adapter(about["lora_alpha"], rooted, patterns, dora, transposed)


def with_ranks(config: Path, modules: Mapping[str, tuple[int, int]]) -> bytes:
    """An adapter's configuration for other ranks, old and new by module; the strength of each stays what it was."""
    adapter, about = _adapter(config), _json(config)
    ranks: dict[str, float] = {module: new for module, (_, new) in modules.items()}
    alphas = {
        module: adapter.scale(module, old) * (new**0.5 if adapter.rooted else new)
        for module, (old, new) in modules.items()
    }
    for key, pattern, numbers in (("r", "rank_pattern", ranks), ("lora_alpha", "alpha_pattern", alphas)):
        about[key] = max(numbers.values())
        others = {module: number for module, number in numbers.items() if number != about[key]}
        about[pattern] = {f"^{re.escape(module.removeprefix(WRAPPED))}": number for module, number in others.items()}
    return json.dumps(about, indent=2).encode()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ComityError(f"{path}: it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ComityError(f"{path}: it is not a JSON object")
    return found


def names_of(paths: Sequence[Path]) -> list[str]:
    """A name for each client: the shortest end of its path that is different for all of them."""
    parts = [(*path.absolute().parts[1:-1], _stem(path)) for path in paths]
    if len(set(parts)) < len(parts):  # a.pt and a.npz in one folder
        parts = [path.absolute().parts[1:] for path in paths]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    ends = [part[-depth:] for part in parts]
    # The last part is left out where it is the same for all: site-1/model.pt and site-2/model.pt are site-1 and site-2.
    while len(ends) > 1 and depth > 1 and len({end[-1] for end in ends}) == 1:
        ends, depth = [end[:-1] for end in ends], depth - 1
    return ["/".join(end) for end in ends]


def _stem(path: Path) -> str:
    name = path.name.removesuffix(INDEX) if path.name.endswith(INDEX) else path.name
    return name.removesuffix(path.suffix if path.suffix in FORMATS else "") if not path.is_dir() else name
