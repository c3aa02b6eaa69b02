"""A model that somebody else made, or that was damaged, is rejected in one line; no code of it is run."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from comity import ComityError, load_model


@pytest.fixture
def copy(heart: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(heart, tmp_path / "model"))


def at(*path: Any) -> Callable[[Any, Any], None]:
    """What sets the value at this place of ``model.json``."""

    def put(info: Any, value: Any) -> None:
        for step in path[:-1]:
            info = info[step]
        info[path[-1]] = value

    return put


@pytest.mark.parametrize(
    ("put", "value", "why"),
    [
        (at("format"), 2, "has the format 2; this comity reads 1; it needs a newer comity"),
        (at("format"), "x", "has the format x"),
        (at("more"), 1, "unknown field `more`"),
        (at("model"), {"name": "os.system"}, "names the model 'os.system', which is code"),
        (at("experts", 1, "method"), {"name": "evil.Method"}, "names the method 'evil.Method', which is code"),
        (at("model"), {"name": "mlp", "widths": [10**9, 10**9]}, "is missing; the model has"),
        (at("model"), {"name": "nix"}, "unknown model"),
        (at("model"), {}, "model must be a name"),
        (at("experts", 0, "weight"), 0.9, "do not sum to 1"),
        (at("experts", 0, "weight"), None, "float"),
        (at("experts", 0, "weight"), -0.1, ">= 0"),
        (at("experts", 0, "name"), "federated", "twice"),
        (at("experts", 0, "shares"), [0.5], "no shares of own"),
        (at("experts", 0, "shares"), None, "no shares of own"),
        (at("experts"), [], "length >= 1"),
        (at("inputs", "shape"), [2**24, 2**24], "too large"),
        (at("inputs", "shape"), [23], "schema has 25 features"),
        (at("inputs", "scaled"), False, "the model has none"),
        (at("inputs", "schema", "columns", "age", "kind"), "code", "code"),
        (at("classes"), ["no", "no"], "twice"),
        (at("classes"), ["a", "b"], "not those of the schema"),
        (at("metric"), "luck", "luck"),
        (at("digest"), "0" * 64, "is not the file that model.json was written for"),
    ],
)
def test_a_model_that_cannot_be_is_rejected_in_one_line(copy: Path, put: Any, value: Any, why: str) -> None:
    info = json.loads((copy / "model.json").read_text())
    put(info, value)
    (copy / "model.json").write_text(json.dumps(info))
    with pytest.raises(ComityError, match=why) as error:
        load_model(copy)
    assert "\n" not in str(error.value)


def rewrite(copy: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change tensors as somebody would who also writes the digest."""
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    info = json.loads((copy / "model.json").read_text())
    info["digest"] = hashlib.sha256((copy / "model.safetensors").read_bytes()).hexdigest()
    (copy / "model.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("own.head.weight", lambda tensor: tensor[:, 1:].clone(), "the model has"),
        ("own.head.weight", lambda tensor: tensor * torch.nan, "not finite"),
        ("own.head.weight", lambda tensor: 2 * tensor, "does not give its stored predictions"),
        ("own.head.weight", lambda tensor: tensor.double(), "is of type"),
        ("scaler.factor", lambda tensor: tensor.float(), "is of type"),
        ("scaler.factor", lambda tensor: tensor / 0, "not finite"),
        ("more", lambda _: torch.zeros(1), "the model has none"),
        ("check.x", lambda _: torch.zeros(8, 25, 2), "the model has"),
    ],
)
def test_numbers_that_do_not_fit_are_rejected(copy: Path, name: str, change: Any, why: str) -> None:
    rewrite(copy, lambda tensors: tensors.update({name: change(tensors.get(name))}))
    with pytest.raises(ComityError, match=why):
        load_model(copy)


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100, None], ids=str)
def test_a_file_that_is_none_is_rejected(copy: Path, file: str, content: bytes | None) -> None:
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(ComityError, match="model"):
        load_model(copy)
