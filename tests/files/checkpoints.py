"""Models of clients, in every kind of file."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from comity.files import Merge, aggregate
from comity.rules import Rule

Model = dict[str, Tensor]

SHAPES = {"bn.bias": (4,), "bn.weight": (4,), "conv.weight": (4, 3, 3, 3), "head.bias": (70,), "head.weight": (70, 90)}
"""In the order of their names, which is the order of safetensors."""

BUFFERS = {"bn.running_mean": (4,), "bn.running_var": (4,)}
COUNTER = "bn.num_batches_tracked"


def models(count: int = 4, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Model, list[Model]]:
    """A base, and clients that pull in different ways."""
    generator = torch.Generator().manual_seed(seed)
    shapes = SHAPES | BUFFERS
    base = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    common = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    clients = []
    for i in range(count):
        way = 0.06 if i % 4 else -0.06
        moved = {
            name: (value.float() + way * common[name] + 0.05 * torch.randn(value.shape, generator=generator)).to(dtype)
            for name, value in base.items()
        }
        clients.append(moved | {COUNTER: torch.tensor(10 + i)})
    return base | {COUNTER: torch.tensor(7)}, clients


def merged(
    rule: Rule, base: Model, clients: Sequence[Model], names: Sequence[str] = tuple(SHAPES), **options: Any
) -> Model:
    """What the rule makes of them in memory; buffers averaged uniformly."""
    wide = {name: base[name].dtype if base[name].dtype == torch.float64 else torch.float32 for name in base}
    updates = [{name: client[name].to(wide[name]) - base[name].to(wide[name]) for name in names} for client in clients]
    update = rule(updates, **options)
    new = {name: (base[name].to(wide[name]) + update[name]).to(base[name].dtype) for name in names}
    mean = {
        name: torch.stack([client[name].double() for client in clients]).mean(0).to(base[name].dtype)
        for name in BUFFERS
        if name in base
    }
    return base | mean | new


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Names, shapes and dtypes the same, numbers to the rounding of their dtype."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        eps = torch.finfo(value.dtype).eps if value.is_floating_point() else 0
        torch.testing.assert_close(
            found[name], value, rtol=2 * eps, atol=2 * eps, msg=lambda text, name=name: f"{name}: {text}"
        )


def _arrays(model: Model) -> dict[str, Any]:
    return {name: value.numpy() for name, value in model.items()}


def save_sharded(model: Model, folder: Path, suffix: str = ".safetensors") -> Path:
    folder.mkdir()
    names, homes = list(model), {}
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    for k in range(2):
        shard = f"{stem}-{k + 1:05d}-of-00002{suffix}"
        own = {name: model[name] for name in names[k::2]}
        torch.save(own, folder / shard) if suffix == ".bin" else save_file(own, folder / shard, {"format": "pt"})
        homes |= dict.fromkeys(own, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": homes}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def _save_folder(model: Model, folder: Path) -> Path:
    folder.mkdir()
    save_file(model, folder / "model.safetensors")
    (folder / "config.json").write_text('{"hidden_size": 3}')
    return folder


def _saved(save: Callable[[Model, Path], Any], suffix: str) -> Callable[[Model, Path], Path]:
    def saved(model: Model, path: Path) -> Path:
        save(model, path.with_suffix(suffix))
        return path.with_suffix(suffix)

    return saved


def _channels_last(model: Model) -> Model:
    return model | {"conv.weight": model["conv.weight"].to(memory_format=torch.channels_last)}


def _fortran(model: Model) -> dict[str, Any]:
    return _arrays(model) | {"head.weight": np.asfortranarray(model["head.weight"].numpy())}


SAVE: dict[str, Callable[[Model, Path], Path]] = {
    "safetensors": _saved(lambda m, p: save_file(m, p, metadata={"step": "3"}), ".safetensors"),
    "sharded": save_sharded,
    "torch shards": lambda m, p: save_sharded(m, p, ".bin"),
    "folder": _save_folder,
    "pt": _saved(torch.save, ".pt"),
    "nested": _saved(lambda m, p: torch.save({"state_dict": m, "epoch": 3}, p), ".pth"),
    "channels last": _saved(lambda m, p: torch.save(_channels_last(m), p), ".bin"),
    "npz": _saved(lambda m, p: np.savez(p, **_arrays(m)), ".npz"),
    "compressed": _saved(lambda m, p: np.savez_compressed(p, **_arrays(m)), ".npz"),
    "fortran": _saved(lambda m, p: np.savez(p, **_fortran(m)), ".npz"),
}


def load(path: Path) -> Model:
    """An output: a file, a folder with one, or shards with an index that names each of them."""
    if path.is_file():
        return load_file(path)
    if not (path / "model.safetensors.index.json").exists():
        return load_file(path / "model.safetensors")
    homes = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    return {name: load_file(path / shard)[name] for name, shard in homes.items()}


def save_all(kind: str, base: Model, clients: Sequence[Model], folder: Path) -> tuple[Path, list[Path]]:
    folder.mkdir(exist_ok=True)
    return SAVE[kind](base, folder / "base"), [SAVE[kind](c, folder / f"client-{i}") for i, c in enumerate(clients)]


class Saved:
    """A base and clients, in memory and in files, and a place for what they are merged into."""

    def __init__(self, folder: Path, kind: str = "safetensors", given: tuple[Model, list[Model]] | None = None) -> None:
        self.base, self.clients = given or models()
        self.start, self.files = save_all(kind, self.base, self.clients, folder / "in")
        self.folder, self.new = folder, folder / ("new" if self.start.is_dir() else "new.safetensors")
        self.done: Merge

    def merge(self, rule: Any = "ConFREE", **options: Any) -> Model:
        self.done = aggregate(self.start, self.files, self.new, rule, **{"overwrite": True} | options)
        return load(self.new)

    def merged(self, rule: Rule, **options: Any) -> Model:
        return merged(rule, self.base, self.clients, **options)

    def assert_nothing_is_written(self) -> None:
        assert [path.name for path in self.folder.iterdir()] == ["in"]
