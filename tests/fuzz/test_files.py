"""Checkpoints, adapters and shards of others for ``inspect`` and ``aggregate``: none ends the process."""

import contextlib
import io
import json
import os
import shutil
import struct
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from comity.__main__ import main
from comity.files import inspect
from fuzz.harness import NUMBERS, attempt, check_error, damaged, fuzz

ROOM = Path(tempfile.mkdtemp())
BASE = {"body.weight": torch.arange(12.0).reshape(3, 4), "head.bias": torch.ones(3), "counter": torch.tensor(7)}


def client(k: int) -> dict[str, torch.Tensor]:
    return {name: tensor + k if tensor.is_floating_point() else tensor for name, tensor in BASE.items()}


@cache
def content(kind: str) -> bytes:
    """A whole checkpoint."""
    file = io.BytesIO()
    if kind == "safetensors":
        return save(client(1))
    if kind == "npz":
        np.savez(file, **{name: tensor.numpy() for name, tensor in client(1).items()})
    else:
        torch.save({"state_dict": client(1), "epoch": 3}, file)
    return file.getvalue()


def tried(*arguments: str) -> None:
    """Both commands give a result, or one short line and nothing written."""
    for command, more in (("inspect", []), ("aggregate", ["-o", "new.safetensors"])):
        out, err = io.StringIO(), io.StringIO()
        before = sorted(Path.cwd().rglob("*"))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = attempt(lambda: main([command, *arguments, *more]))  # noqa: B023
        assert code in (0, 1, 2), code
        lines = err.getvalue().splitlines()
        assert len(lines) == 1 or code == 0, lines
        for line in lines:
            assert line.startswith("comity: ")
            check_error(line)
        if code:
            assert sorted(Path.cwd().rglob("*")) == before


@contextlib.contextmanager
def room() -> Any:
    """An empty folder with a base and an honest client."""
    folder = ROOM / "room"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(BASE, folder / "base.safetensors")
    save_file(client(2), folder / "honest.safetensors")
    with contextlib.chdir(folder):
        yield folder


@fuzz(
    "checkpoints, damaged",
    st.sampled_from(["safetensors", "npz", "pt"]).flatmap(
        lambda kind: st.tuples(st.just(kind), damaged(content(kind)))
    ),
)
def test_a_damaged_checkpoint(made: tuple[str, bytes]) -> None:
    kind, bad = made
    with room():
        Path(f"bad.{kind}").write_bytes(bad)
        tried("--base", "base.safetensors", "honest.safetensors", f"bad.{kind}")


# Headers that lie.

SIDES = st.sampled_from([0, 1, 3, 4, -1, 12, 2**31, 2**62, 2**63, 10**30, 1.5, "3", None])
HEADER = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F64", "I64", "BF16", "F8_E4M3", "X", "", None, 3, "F4"]),
        "shape": st.lists(SIDES, max_size=4) | st.sampled_from([None, "x", {}, [[3]]]),
        "data_offsets": st.lists(st.sampled_from([*NUMBERS, -1, 48, 60, 68, None]), max_size=3),
    },
)


@fuzz(
    "checkpoints, forged headers",
    st.lists(st.tuples(st.sampled_from([*BASE, "", "\x1b[2J", "__metadata__"]), HEADER), max_size=3),
)
def test_a_forged_safetensors_header(changes: list[tuple[str, dict[str, Any]]]) -> None:
    whole = content("safetensors")
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    for name, change in changes:
        header[name] = header.get(name, {}) | change
    text = json.dumps(header).encode()
    with room():
        Path("bad.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size :])
        tried("--base", "base.safetensors", "honest.safetensors", "bad.safetensors")


ORDERS = [b"big", b"little", b"BIG", b"", b"little\n", b"x" * 1000, None]
PICKLES = [
    b"\x80\x02}q\x00.",
    b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    b"\x80\x02" + b"(" * 5000 + b".",
    b"\x80\x02]q\x00" + b"h\x00a" * 100 + b".",
    b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b".",
    None,
]


@fuzz(
    "checkpoints, forged archives",
    st.sampled_from(ORDERS),
    st.sampled_from(PICKLES),
    st.sampled_from(["", "extra", "twice", "deflated", "short", "absolute", "nested", "no version"]),
    st.sampled_from(["byteorder", "BYTEORDER", "x/byteorder"]),
)
def test_a_forged_torch_archive(order: bytes | None, pickle: bytes | None, more: str, name: str) -> None:
    """``torch.load`` ended the process on a byte order that is not the machine's."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content("pt"))) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            data, place = old.read(info), info.filename
            if place.endswith("byteorder"):
                if order is None:
                    continue
                data, place = order, place.replace("byteorder", name)
            elif place.endswith("data.pkl") and pickle is not None:
                data = pickle
            elif "/data/" in place and more == "short":
                data = data[:3]
            elif place.endswith("version") and more == "no version":
                continue
            how = zipfile.ZIP_DEFLATED if more == "deflated" else zipfile.ZIP_STORED
            new.writestr(f"/{place}" if more == "absolute" else f"a/{place}" if more == "nested" else place, data, how)
            if more == "twice" and "/data/" in place:
                with pytest.warns(UserWarning, match="Duplicate"):
                    new.writestr(place, b"\0" * 5)
        if more == "extra":
            new.writestr("archive/data/99", b"x")
            new.writestr(".format_version", b"1")
    with room():
        Path("bad.pt").write_bytes(file.getvalue())
        tried("--base", "base.safetensors", "honest.safetensors", "bad.pt")


# Adapters, shards and links.

NUMBER = [0, -1, 1, 2.5, 1e308, 10**400, True, None, "8", ""]
ODD = st.sampled_from([*NUMBER, [], {}, [[1]], {"x": 8}, {"x": 10**400}, {"(a+)+": 1}])
SHARDS = [
    *("a\0b.safetensors", "../base.safetensors", "/etc/passwd", "", ".", "loop.safetensors", "honest.safetensors", 3),
    *("x" * 300 + ".npz", "pipe.safetensors", "missing.safetensors", "\x1b[2J.safetensors", "a/b.safetensors", None),
    "folder.safetensors",
]


def links(folder: Path) -> None:
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "folder.safetensors").mkdir()
    os.mkfifo(folder / "pipe.safetensors")


@fuzz(
    "adapters",
    st.dictionaries(st.sampled_from(["lora_alpha", "peft_type", "alpha_pattern", "use_rslora", "use_dora", "r"]), ODD),
    st.booleans(),
)
def test_an_adapter(config: dict[str, Any], whole: bool) -> None:
    tensors = {
        f"base_model.model.x.lora_{side}.weight": torch.ones(shape) for side, shape in (("A", (2, 4)), ("B", (3, 2)))
    }
    usual = {"lora_alpha": 8, "peft_type": "LORA"}
    with room():
        for k, name in enumerate(("start", "one", "bad")):
            Path(name).mkdir()
            save_file({key: tensor * (k + 1) for key, tensor in tensors.items()}, f"{name}/adapter_model.safetensors")
            text = json.dumps((usual | config if whole else config) if name == "bad" else usual)
            Path(name, "adapter_config.json").write_text(text)
        tried("--base", "start", "one", "bad", "--lora", "products")


@fuzz("shards and links", st.lists(st.sampled_from(SHARDS), min_size=1, max_size=3), st.booleans())
def test_an_index_of_shards(names: list[Any], named: bool) -> None:
    with room() as folder:
        links(folder)
        weights = dict(zip(BASE, names, strict=False))
        Path("model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
        tried("--base", "base.safetensors", "honest.safetensors", "model.safetensors.index.json")
        if named:
            given = [str(name) for name in names if name not in ("", None) and "\0" not in str(name)]
            tried("--base", "base.safetensors", *given)


@pytest.mark.parametrize("path", ["a\0b.safetensors", "loop.safetensors", "pipe.safetensors", "loop.safetensors/x.npz"])
def test_a_path_that_is_none(path: str) -> None:
    with room() as folder:
        links(folder)
        with pytest.raises(Exception, match=r"loop|pipe|a\?b") as caught:
            inspect("base.safetensors", [path])
        assert type(caught.value).__name__ == "ComityError"
