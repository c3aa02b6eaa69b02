"""Files that somebody made on purpose: whatever is in them, our own error is all that comes out."""

import contextlib
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SAVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from safetensors.torch import save

from comity import ComityError
from comity.files import aggregate
from comity.files._checkpoint import open_checkpoint

MODEL = {"w": torch.arange(24.0).view(4, 6), "b": torch.ones(3, dtype=torch.bfloat16), "n": torch.tensor(3)}
FEW = settings(
    max_examples=int(os.environ.get("COMITY_FUZZ", "60")),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

numbers = some.integers(-2, 200) | some.sampled_from([2**31, 2**63, 2**64, 10**30]) | some.floats(allow_nan=False)
entries = some.fixed_dictionaries(
    {},
    optional={
        "dtype": some.sampled_from(["F32", "BF16", "I64", "F4", "F8_E4M3", "C64", "X", "", None]),
        "shape": some.lists(numbers, max_size=3) | some.none(),
        "data_offsets": some.lists(numbers, min_size=1, max_size=3) | some.none(),
        "more": some.none(),
    },
)
headers = some.dictionaries(some.sampled_from(["w", "b", "__metadata__", "ü", ""]), entries | some.text(), max_size=4)


def used(path: Path) -> None:
    """Opened, read and merged as far as it goes."""
    told = ""
    try:
        found = open_checkpoint(path)
        for name, entry in found.entries.items():
            if entry.kind in ("F32", "BF16", "F16", "F64") and entry.numel < 10_000:
                found.read(name).double().sum()
        aggregate(None, [path], path.with_name("new.safetensors"), overwrite=True)
    except ComityError as error:
        told = str(error)
    assert "\n" not in told


@FEW
@given(
    header=headers,
    length=some.none() | some.sampled_from([0, 1, 2**40, 2**63, 2**64 - 1]),
    rest=some.binary(max_size=99),
)
def test_safetensors_headers(header: dict[str, Any], length: int | None, rest: bytes, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    file = tmp_path / "client.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + rest)
    used(file)


def flipped(data: bytes, changes: list[tuple[float, int]], cut: float) -> bytes:
    changed = bytearray(data)
    for place, value in changes:
        changed[int(place * (len(changed) - 1))] = value
    return bytes(changed[: int(cut * len(changed)) + 1])


places = some.floats(0, 1, exclude_max=True)
changes = some.lists(some.tuples(places, some.integers(0, 255)), max_size=6)


@pytest.mark.parametrize("kind", ["safetensors", "pt", "npz", "compressed"])
@FEW
@given(changes=changes, cut=some.just(1.0) | places)
def test_some_bytes_changed(kind: str, changes: list[tuple[float, int]], cut: float, tmp_path: Path) -> None:
    model = {name: value for name, value in MODEL.items() if kind in ("safetensors", "pt") or name != "b"}
    file = SAVE[kind](model, tmp_path / "client")
    file.write_bytes(flipped(file.read_bytes(), changes, cut))
    used(file)


@FEW
@given(changes=some.lists(some.tuples(places, some.integers(0, 255)), min_size=1, max_size=6))
def test_a_torch_pickle_changed_inside_a_sound_archive(changes: list[tuple[float, int]], tmp_path: Path) -> None:
    file = SAVE["pt"](MODEL, tmp_path / "sound")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "client.pt", "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("data.pkl"):
                data = flipped(data, changes, 1.0)
            if not info.filename.endswith((".format_version", ".storage_alignment")):
                new.writestr(info.filename, data)
    used(tmp_path / "client.pt")


@FEW
@given(
    header=some.fixed_dictionaries(
        {
            "descr": some.sampled_from(["<f4", ">f4", "<f2", "|O", "<i8", "|V2", "<c8", "x", [["a", "<f4"]]]),
            "fortran_order": some.sampled_from([True, False, None]),
            "shape": some.lists(some.integers(-1, 5) | some.just(10**12), max_size=3).map(tuple),
        }
    ),
    rest=some.binary(max_size=60),
)
def test_npz_headers(header: dict[str, Any], rest: bytes, tmp_path: Path) -> None:
    text = (repr(header) + "\n").encode()
    with zipfile.ZipFile(tmp_path / "client.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + rest)
    used(tmp_path / "client.npz")


nested = some.recursive(some.none() | some.text(max_size=5), some.lists, max_leaves=3)


@FEW
@given(text=some.text(max_size=30) | nested.map(json.dumps))
def test_indices_and_configurations(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "client"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(save(MODEL))
    for content in (text, json.dumps({"weight_map": text, "lora_alpha": text, "alpha_pattern": text})):
        (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8", errors="replace")
        (folder / "adapter_config.json").write_text(content, encoding="utf-8", errors="replace")
        for path in (folder, folder / "model.safetensors.index.json"):
            with contextlib.suppress(ComityError):
                open_checkpoint(path).adapter  # noqa: B018 - read when asked for
