"""What is locked, and how it is hashed. ``python tests/locks/make.py`` writes the fixtures; see README.md first."""

import csv
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import adapter
import numpy as np
import scipy
import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
STUDIES = ("guarded", "tuned", "failed")
Locked = dict[str, Any]

# What runs are locked.

BASE: Locked = {
    "data": {"name": "synthetic", "samples": 40, "classes": 4, "label_shift": 0.3, "concept_shift": 0.6, "noise": 1.0},
    "model": {"name": "mlp", "widths": (16,)},
    "clients": 5,
    "rounds": 3,
    "batch_size": 8,
    "lr": 0.2,
    "workers": 1,
    "device": "cpu",
    "eval_every": 1,
    "reference": "none",
}
ALONE: Locked = {"reference": "auto"}
CONV: Locked = {"model": {"name": "lenet5"}, "clients": 3, "rounds": 2}
NORM: Locked = {"model": {"name": "resnet4"}, "clients": 3, "rounds": 2, "lr": 0.01}
DIGITS: Locked = {"data": "digits", "clients": 6, "rounds": 1, "steps": 3}
NEW: Locked = {"clients": 7, "newcomers": 2, "momentum": 0.5, **ALONE}
"""With momentum only autograd can train: Local of newcomers ignored the trainer that was asked for."""
MASKED: Locked = {"masked": True, "clients": 6, "rounds": 2, "min_clients": 2, "max_weight": 1.0}

WITH_RULE = (
    *("FedAvg", "FedProx", "FedBN", "FedPer", "FedRep", "FedBABU", "LG-FedAvg", "FedROD", "FedCP", "GPFL", "FedPAC"),
    *("FedALA", "FedDBE", "Ditto", "pFedMe", "APFL", "Per-FedAvg", "SplitGP", "IFCA", "FeSEM"),
    *("SCAFFOLD", "kNN-Per", "FedAS", "pFedFDA"),
)
OWN_RULE = (
    *("FedAMP", "FedFomo", "FedU", "FedProto", "pFedHN", "FEDORA", "FedMGDA+", "FedFV", "FedCALM", "FedPG", "S-FedPG"),
)
RULES = (
    *("Projection", "ConFREE-released", "MGDA", "FedMGDA+", "FedFV", "FairDescent", "UPGrad", "CAGrad"),
    *("GeometricMedian", "Auto"),
)

RUNS: dict[str, Locked] = {
    **{method: {"method": method, **ALONE} for method in (*WITH_RULE, *OWN_RULE)},
    "Local": {"method": "Local"},
    **{f"{method} + {rule}": {"method": method, "rule": rule} for method in WITH_RULE for rule in ("ConFREE", "CALM")},
    **{f"FedAvg + {rule}": {"rule": rule, "rounds": 2} for rule in RULES},
    "rule by layer": {"method": "FedRep", "rule": {"name": "ConFREE", "scope": "layer"}},
    "FEDORA exp": {"method": {"name": "FEDORA", "lam_form": "exp"}},
    "guard mixture": {"guard": "mixture", "method": "FedRep", **ALONE},
    "guard mixture + CALM": {"guard": "mixture", "rule": "CALM", "refit": 2, "lr": 0.02, **ALONE},
    "guard certified": {"guard": {"name": "certified", "margin": 0.2}, "data": BASE["data"] | {"samples": 99}, **ALONE},
    "masked": MASKED,
    "masked ConFREE": MASKED | {"method": "FedRep", "rule": "ConFREE"},
    "masked CALM": MASKED | {"rule": {"name": "CALM", "scope": "model"}, "sketch": 16},
    "masked with noise": MASKED | {"rule": {"name": "Mean", "by": "uniform"}, "dp_noise": 1.0},
    "masked with dropout": MASKED | {"dropout": 0.3, "rule": "ConFREE", "sketch": 32},
    "masked BatchNorm": MASKED | NORM | {"rounds": 1},
    "newcomers": NEW | {"method": "FedRep", "newcomer_rounds": 2},
    "newcomers guarded": NEW | {"guard": "mixture"},
    "newcomers without rounds": NEW | {"method": "IFCA", "newcomer_rounds": 0},
    **{
        f"attack {kind}": {"attack": kind, "malicious": 0.3, "clients": 6, **ALONE}
        for kind in ("gaussian", "scale", "flip", "inner")
    },
    "Auto and server_lr": {"rule": "Auto", "method": "FedPer", "server_lr": 0.5, "rounds": 4},
    "clip_updates": {"clip_updates": "median", "rule": "ConFREE"},
    "max_share": {"max_share": 0.25, "data": "heart", "clients": None, "model": "logistic", "partition": "natural"},
    "sketch": {"sketch": 64, "rule": "ConFREE"},
    "sketch by error": {"sketch": 0.2, "rule": "CALM", "clip_updates": "median"},
    "store disk": {"store": "disk", "method": "APFL", "model": {"name": "mlp", "widths": (300,)}, "rounds": 2},
    "participation": {"participation": 0.5, "dropout": 0.3, "clients": 6, "rounds": 4, "method": "FedROD"},
    "participation + FedMGDA+": {"participation": 0.6, "clients": 6, "method": "FedMGDA+"},
    "server_momentum": {"server_lr": 0.7, "server_momentum": 0.9, "rule": "CALM"},
    "moment fitted": {"eval_point": "fitted", "method": "FedPer", **ALONE},
    "refit": {"refit": 2, "val_share": 0.25, "method": "FedRep"},
    "val_share": {"val_share": 0.3, "local_on": "train", **ALONE},
    "general every round": {"general_every": 1, "s_acc_share": 0.7},
    "never general": {"general_every": "never"},
    "diverges": {"lr": 1e30, "rule": "ConFREE"},
    "buffers local": NORM | {"buffers": "local"},
    "BatchNorm FedBN": NORM | {"method": "FedBN", "rule": "ConFREE"},
    "BatchNorm newcomer": NORM | {"method": "FedRep", "clients": 4, "newcomers": 1},
    "lenet5 CALM": CONV | {"rule": {"name": "CALM", "scope": "layer"}, **ALONE},
    "cnn": CONV | {"model": "cnn", "rounds": 1},
    "vit-tiny": CONV | {"model": {"name": "vit-tiny", "depth": 1}, "rounds": 1},
    "Adam kept": {"optimizer": "Adam", "optimizer_state": "keep", "lr": 0.01, "lr_decay": 0.9},
    "SGD momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0, "epochs": 0.5, "optimizer_state": "keep"},
    "seed": {"seed": 7, "steps": 4, "test_share": 0.5},
    "data heart": {"data": "heart", "clients": None, "model": None, "rounds": 2, "rule": "ConFREE"},
    **{
        f"partition {name}": DIGITS | {"partition": {"name": name, **options}}
        for name, options in {
            "iid": {}, "pathological": {}, "dirichlet": {"alpha": 0.1}, "rotated": {}, "label-shift": {}, "quantity": {}
        }.items()
    },
}  # fmt: skip
"""By name, what is otherwise than in BASE."""

# Hashes.


def sha(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def of_tensor(tensor: Tensor) -> bytes:
    about = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    return about + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def of_value(value: Any) -> str:
    """Of numbers, texts, lists and mappings. Every bit of a float counts; whether 1 is an int does not."""
    return sha(json.dumps(_canonical(value), sort_keys=True).encode())


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(inner) for inner in value]
    return value if isinstance(value, (str, bool)) or value is None else float(value).hex()


def fields(value: Mapping[Any, Any], depth: int, prefix: str = "") -> Locked:
    """Every field by its name with dots; mappings over clients or layers stay whole."""
    found: Locked = {}
    for key, inner in value.items():
        named = isinstance(inner, Mapping) and inner and not any(map(str.isdigit, inner))
        if depth > 1 and named:
            found |= fields(inner, depth - 1, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = inner
    return found


def columns(rows: list[Mapping[str, Any]], depth: int = 2) -> dict[str, list[Any]]:
    """Each field over all rows."""
    flat = [fields(row, depth) for row in rows]
    return {name: [row.get(name) for row in flat] for name in sorted({name for row in flat for name in row})}


def hashed(values: Mapping[str, Any]) -> Locked:
    """Without the fields that are empty throughout."""
    empty = (None, 0, "", [], {})
    return {
        name: of_value(value)
        for name, value in values.items()
        if value not in empty and not (isinstance(value, list) and all(each in empty for each in value))
    }


# What is locked of each.

UNLOCKED = ("seconds", "written", "versions", "machine", "last.metrics", "best.metrics")
"""Of a run: what differs from time to time, and what the last record has already."""


def lock_run(name: str) -> Locked:
    done = adapter.run(**(BASE | RUNS[name]))
    method, engine = adapter.method_states(done), adapter.engine_states(done)
    found = {"theta": sha(of_tensor(adapter.theta(done)))}
    found["server"] = sha(*sorted(map(of_tensor, adapter.server_states(done))))
    found["method"] = sha(
        *(
            f"{cid} {key} ".encode() + of_tensor(kept[key])
            for cid, kept in sorted(method.items())
            for key in sorted(kept)
        )
    )
    found["engine"] = sha(*(sha(*sorted(map(of_tensor, kept))).encode() for _, kept in sorted(engine.items())))
    over_rounds = hashed(columns(adapter.records(done)))
    told = hashed(fields(adapter.result(done), 2))
    newcomers = adapter.result(done)["newcomers"]
    told = {key: value for key, value in told.items() if not key.startswith("newcomers")}
    told |= {} if newcomers is None else hashed(fields({"newcomers": newcomers}, 3))
    found |= {f"rounds.{key}": value for key, value in over_rounds.items()}
    found |= {f"result.{key}": value for key, value in told.items()}
    found |= {key: of_value(rows) for key, rows in adapter.details(done).items()}
    return {key: value for key, value in found.items() if not key.partition(".")[2].startswith(UNLOCKED)}


def lock_study(name: str) -> Locked:
    """Texts as they are, and the page's data by field."""
    with tempfile.TemporaryDirectory() as there, ZipFile(HERE / "studies" / f"{name}.zip") as stored:
        stored.extractall(there)
        folder = Path(there) / name
        payload, told, tables = adapter.page_payload(folder), adapter.study_answer(folder), adapter.table(folder)
        clients = sha(adapter.client_rows(folder).encode())
    rows = {key: value for key, value in payload.items() if isinstance(value, list) and key != "varying"}
    found = {
        f"payload.{key}": value for key, value in hashed({k: v for k, v in payload.items() if k not in rows}).items()
    }
    for key, value in rows.items():
        found |= {f"payload.{key}.{field}": sha for field, sha in hashed(columns(value, 1)).items()}
    found |= {f"answer.{key}": value for key, value in told.items()}
    header, *lines = csv.reader(tables["csv"].splitlines())
    found |= {f"csv.{title}": list(cells) for title, cells in zip(header, zip(*lines, strict=True), strict=True)}
    return found | {"csv": header, "md": tables["md"].splitlines(), "clients": clients}


WIRES: dict[str, Locked] = {
    "FedRep + ConFREE": {"method": "FedRep", "rule": "ConFREE"},
    "S-FedPG": {"method": "S-FedPG"},
    "masked": {"masked": True, "rule": "ConFREE", "sketch": 16, "min_clients": 4},
}


def lock_wire(name: str) -> Locked:
    """One round; the momentum has clients train by autograd. Masks and keys are random, but not how long they are."""
    options = BASE | {"clients": 4, "rounds": 1, "momentum": 0.5} | WIRES[name]
    found: dict[str, Locked] = {}
    for about, content in adapter.wire(options):  # nodes answer in any order, each its own questions in theirs
        number = sum(name.startswith(about) for name in found) + 1
        if name == "masked":
            content = {key: sorted(b"%d" % len(part) for part in parts) for key, parts in content.items()}
        found[f"{about} {number}"] = {key: sha(*parts) for key, parts in content.items()}
    return {f"{about}.{key}": value for about in sorted(found) for key, value in found[about].items()}


# Files.

Model = dict[str, Tensor]
SHAPES = {
    "bn.bias": (4,),
    "bn.running_mean": (4,),
    "conv.weight": (4, 3, 3, 3),
    "head.bias": (7,),
    "head.weight": (7, 9),
}


def models(dtype: torch.dtype, count: int = 3) -> list[Model]:
    """A base, and clients that pull in different ways."""
    random = torch.Generator().manual_seed(1)
    base = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
    common = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
    clients = [
        {
            name: base[name] + (0.06 if i else -0.06) * common[name] + 0.05 * torch.randn(shape, generator=random)
            for name, shape in SHAPES.items()
        }
        for i in range(count)
    ]
    return [{name: value.to(dtype) for name, value in model.items()} for model in (base, *clients)]


def adapters(dtype: torch.dtype, count: int = 3) -> list[Model]:
    random = torch.Generator().manual_seed(2)

    def one(scale: float, like: Model | None = None) -> Model:
        found = {}
        for module in ("base_model.model.layers.0.q_proj", "base_model.model.layers.0.v_proj"):
            for factor, shape in (("A", (4, 12)), ("B", (10, 4))):
                name = f"{module}.lora_{factor}.weight"
                found[name] = scale * torch.randn(shape, generator=random) + (0 if like is None else like[name])
        return found

    base = one(1.0)
    clients = [one(0.3, base) for _ in range(count)]
    return [{name: value.to(dtype) for name, value in model.items()} for model in (base, *clients)]


def save_sharded(model: Model, folder: Path) -> None:
    folder.mkdir()
    homes = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(model)}
    for shard in set(homes.values()):
        save_file({name: model[name] for name, home in homes.items() if home == shard}, folder / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save_adapter(model: Model, folder: Path) -> None:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(model, folder / "adapter_model.safetensors")


SAVE: dict[str, Callable[[Model, Path], object]] = {
    ".safetensors": save_file,
    ".pt": torch.save,
    ".npz": lambda model, path: np.savez(path, **{name: value.numpy() for name, value in model.items()}),
    "sharded": save_sharded,
    "adapter": save_adapter,
}
FILES: dict[str, tuple[str, torch.dtype, Locked]] = {
    "safetensors Mean": (".safetensors", torch.float32, {"rule": "Mean"}),
    "safetensors ConFREE": (".safetensors", torch.float32, {"rule": {"name": "ConFREE", "c": 0.4}}),
    "bf16 CALM by layer": (".safetensors", torch.bfloat16, {"rule": {"name": "CALM", "scope": "layer"}}),
    "updates without a base": (".safetensors", torch.float64, {"rule": "CALM", "base": None, "server_lr": 0.5}),
    "pt ConFREE": (".pt", torch.float32, {"rule": "ConFREE", "buffers": "keep"}),
    "pt half Mean": (".pt", torch.float16, {"rule": "Mean", "exclude": ("head.*",)}),
    "npz CALM": (".npz", torch.float64, {"rule": "CALM"}),
    "sharded by size": ("sharded", torch.bfloat16, {"rule": "Mean", "sizes": {"c0": 10, "c1": 20, "c2": 5}}),
    "adapter by factor": ("adapter", torch.float32, {"rule": "ConFREE"}),
    "adapter by product": ("adapter", torch.float32, {"rule": "CALM", "lora": "products"}),
    "adapter of a rank": ("adapter", torch.bfloat16, {"rule": "Mean", "lora": "products", "rank": 6}),
}


def lock_files(name: str) -> Locked:
    kind, dtype, options = FILES[name]
    suffix = kind if kind.startswith(".") else ""
    with tempfile.TemporaryDirectory() as folder:
        base, *clients = (Path(folder) / f"{each}{suffix}" for each in ("base", "c0", "c1", "c2"))
        for path, model in zip((base, *clients), (adapters if kind == "adapter" else models)(dtype), strict=True):
            SAVE[kind](model, path)
        merged = adapter.merge(**{"base": base, "clients": clients, "output": Path(folder) / f"new{suffix}"} | options)
        return {key: sha(of_tensor(tensor)) for key, tensor in sorted(merged.items())}


# All of it.

LOCKS: dict[str, tuple[Mapping[str, Any] | tuple[str, ...], Callable[[str], Locked]]] = {
    "runs": (RUNS, lock_run),
    "studies": (STUDIES, lock_study),
    "files": (FILES, lock_files),
    "wire": (WIRES, lock_wire),
}


def machine() -> Locked:
    """What decides the last bits beside the code: libraries, and how the processor rounds."""
    random = torch.Generator().manual_seed(0)
    a, b = torch.randn(33, 65, generator=random), torch.randn(65, 17, generator=random)
    images, kernel = torch.randn(8, 3, 9, 9, generator=random), torch.randn(6, 3, 5, 5, generator=random)
    probes = [a @ b, a.double() @ b.double(), torch.conv2d(images, kernel), a.exp().sum(1), torch.linalg.svdvals(a)]
    probes += [
        torch.from_numpy(a.numpy() @ b.numpy()),
        torch.from_numpy(np.linalg.eigvalsh((a.T @ a).double().numpy())),
    ]
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "rounding": sha(*map(of_tensor, probes)),
    }


FIELDS = "fields"  # in runs.json: the names of all fields, in the order of each run's hashes; - where a run has none


def read(kind: str) -> Locked:
    found: Locked = json.loads((HERE / f"{kind}.json").read_text())
    if (names := found.pop(FIELDS, None)) is None:
        return found
    rows = {name: zip(names, row.split(), strict=True) for name, row in found.items()}
    return {name: {field: value for field, value in row if value != "-"} for name, row in rows.items()}


def write(kind: str, locked: Locked) -> None:
    if kind == "runs":
        names = list(dict.fromkeys(field for entry in locked.values() for field in entry))
        rows = {name: " ".join(entry.get(field, "-") for field in names) for name, entry in locked.items()}
        locked = {FIELDS: names} | rows
    lines = (f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in locked.items())
    (HERE / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in sys.argv[1:] or LOCKS:
        cases, lock = LOCKS[kind]
        write(kind, {name: lock(name) for name in cases})
    write("machine", machine())
