"""A bad file is named in one line and nothing is written, or it is left out and that is said."""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import SAVE, SHAPES, Saved, assert_close, load, models, save_all, save_sharded
from safetensors.torch import load_file, save_file

from comity import ComityError
from comity.commands import command
from comity.files import aggregate, inspect
from comity.rules import ConFREE, DroppedWarning

Make = Callable[[Path], Path]  # makes a bad file at a path without a suffix


def _file(suffix: str, write: Callable[[Path], object]) -> Make:
    def make(path: Path) -> Path:
        write(path.with_suffix(suffix))
        return path.with_suffix(suffix)

    return make


def _bytes(suffix: str, data: bytes) -> Make:
    return _file(suffix, lambda path: path.write_bytes(data))


def _torch(content: object, **options: bool) -> Make:
    return _file(".pt", lambda path: torch.save(content, path, **options))


def _renamed(kind: str, suffix: str) -> Make:
    return lambda path: SAVE[kind](models()[1][0], path).rename(path.with_suffix(suffix))


def _changed(kind: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Make:
    """A client whose model is changed before it is saved."""

    def make(path: Path) -> Path:
        model = {name: value.clone() for name, value in models()[1][0].items()}
        change(model)
        return SAVE[kind](model, path)

    return make


def _with(value: float, name: str = "head.weight") -> Make:
    return _changed("safetensors", lambda model: model[name].view(-1)[3].fill_(value))


def _damaged(kind: str, damage: Callable[[bytes, Path], bytes] = lambda data, _: data[: 9 * len(data) // 10]) -> Make:
    """By default cut short."""

    def make(path: Path) -> Path:
        file = SAVE[kind](models()[1][0], path)
        file.write_bytes(damage(file.read_bytes(), file))
        return file

    return make


def _flip_array(data: bytes, file: Path) -> bytes:
    """The header says what it should; the bytes behind it do not unpack."""
    start = 2000 + next(i.header_offset for i in zipfile.ZipFile(file).infolist() if i.filename == "head.weight.npy")
    return data[:start] + bytes(byte ^ 0x5A for byte in data[start : start + 100]) + data[start + 100 :]


def _repacked(change: Callable[[str, bytes], bytes], compression: int = 0) -> Make:
    """A torch file whose archive is packed anew."""

    def pack(path: Path) -> None:
        with zipfile.ZipFile(SAVE["pt"](models()[1][0], path)) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                new.writestr(info.filename, change(info.filename, old.read(info)), compression)

    return _file(".pth", pack)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return print, ("this must never be printed",)


def _write_long_header(path: Path) -> None:
    """A header of 200 MB that takes 200 kB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\2\0" + (200_000_000).to_bytes(4, "little") + bytes(200_000_000))


def _index(change: Callable[[dict[str, str]], object]) -> Make:
    def make(path: Path) -> Path:
        folder = save_sharded(models()[1][0], path)
        index = folder / "model.safetensors.index.json"
        homes = json.loads(index.read_text())["weight_map"]
        change(homes)
        index.write_text(json.dumps({"weight_map": homes}))
        return folder

    return make


BAD: dict[str, tuple[Make, str]] = {
    "not there": (lambda p: p.with_suffix(".safetensors"), "no such file"),
    "no known name": (_bytes("", b"x"), "must end in one of"),
    "empty": (_bytes(".safetensors", b""), "not a safetensors file, or cut short"),
    "text": (_bytes(".safetensors", b"hello, this is no model " * 9), "not a safetensors file"),
    "cut short": (_damaged("safetensors"), "cut short"),
    "torch cut short": (_damaged("pt"), "cut short"),
    "npz cut short": (_damaged("npz"), "cut short"),
    "corrupt npz": (_damaged("compressed", _flip_array), "'head.weight' cannot be read"),
    "torch as safetensors": (_renamed("pt", ".safetensors"), "not a safe"),
    "safetensors as torch": (_renamed("safetensors", ".pt"), "not a torch"),
    "npz as torch": (_renamed("npz", ".pt"), "not a torch"),
    "torch as npz": (_renamed("pt", ".npz"), "holds no arrays"),
    "pickle": (_bytes(".pt", pickle.dumps({"w": 1})), "not a torch .*1.6 or newer"),
    "evil pickle": (_torch({"w": torch.ones(2), "x": Evil()}), "more than tensors and plain values"),
    "evil array": (_file(".npz", lambda p: np.savez(p, w=np.array([Evil()], dtype=object))), "Python objects"),
    "packed torch": (_repacked(lambda _, data: data, zipfile.ZIP_DEFLATED), "a compressed archive"),
    "big-endian torch": (
        _repacked(lambda name, data: b"big" if name.endswith("byteorder") else data),
        "its byte order is not little-endian",
    ),
    "short storage": (_repacked(lambda name, data: data[:-4] if "/data/" in name else data), "goes beyond its bytes"),
    "expanded": (
        _changed("pt", lambda m: m.update({"head.bias": torch.ones(1).expand(70)})),
        "an expanded view of F32",
    ),
    "old torch": (_torch(models()[1][0], _use_new_zipfile_serialization=False), "not a torch .*1.6 or newer"),
    "no tensors": (_torch({"a": 1}), "no state dict"),
    "long header": (_file(".npz", _write_long_header), r"version \(2, 0\)"),
    "pipe": (_file(".pt", os.mkfifo), "it is not a file"),
    "missing": (_changed("safetensors", lambda m: m.pop("head.bias")), "'head.bias' is missing"),
    "shape": (_changed("pt", lambda m: m.update({"head.bias": torch.ones(71)})), r"has shape \(71,\), not \(70,\)"),
    "one more": (_changed("npz", lambda m: m.update({"tail.bias": torch.ones(2)})), "'tail.bias' is not in"),
    "whole numbers": (_changed("pt", lambda m: m.update({"head.bias": torch.ones(70).int()})), "'head.bias' is I32"),
    "nan": (_with(float("nan")), r"'head.weight' has NaN or infinite entries \(1\)"),
    "infinite": (_with(float("inf")), r"'head.weight' has NaN or infinite entries \(1\)"),
    "too long": (_with(1e25), "too long for float32"),
    "nan in a buffer": (_with(float("nan"), "bn.running_var"), "'bn.running_var' has NaN or infinite"),
    "empty folder": (_file("", Path.mkdir), "no weight files"),
    "index without": (_index(lambda homes: homes.clear()), "weight_map"),
    "index elsewhere": (_index(lambda homes: homes.update({"bn.bias": "../x.safetensors"})), "not the name of a"),
    "index of less": (_index(lambda homes: homes.pop("bn.bias")), "'bn.bias' is in .*, but not in both"),
    "index of more": (_index(lambda homes: homes.update({"x": homes["bn.bias"]})), "'x' is in .*, but not in both"),
    "shard gone": (_index(lambda homes: homes.update({"bn.bias": "gone.safetensors"})), "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_client(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, told = BAD[case]
    base, clients = models()
    saved = Saved(tmp_path, given=(base, clients[1:]))
    bad = make(tmp_path / "in" / "bad")
    saved.files.insert(1, bad)
    with pytest.raises(ComityError, match=told) as error:
        saved.merge()
    assert "\n" not in str(error.value)
    assert str(bad) in str(error.value)
    saved.assert_nothing_is_written()
    with pytest.warns(DroppedWarning, match=told):
        found = saved.merge(ConFREE(0.4), skip_bad=True)
    assert list(saved.done.dropped) == ["bad"]
    assert saved.done.ids == ("client-0", "client-1", "client-2")
    assert_close(found, saved.merged(ConFREE(0.4)))
    assert "never be printed" not in capsys.readouterr().out


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("case", ["not there", "cut short", "evil pickle", "nan"])
def test_a_bad_base_or_no_client_left(case: str, skip: bool, saved: Saved, tmp_path: Path) -> None:
    bad = BAD[case][0](tmp_path / "in" / "bad")
    for start, files in ((bad, saved.files), (saved.start, [bad])):
        with pytest.raises(ComityError, match=str(bad)):
            aggregate(start, files, saved.new, skip_bad=skip)
    saved.assert_nothing_is_written()


def test_several_bad_ones_are_counted(saved: Saved) -> None:
    for file in saved.files[1:3]:
        file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(ComityError, match=r"client-1.*\(1 more files are bad\)"):
        saved.merge()
    with pytest.warns(DroppedWarning) as warned:
        found = inspect(saved.start, saved.files, skip_bad=True)
    assert list(found.dropped) == ["client-1", "client-2"]
    assert len(warned) == 2


def test_of_updates_the_odd_one_out_is_bad(tmp_path: Path) -> None:
    base, clients = models()
    saved = Saved(tmp_path, given=(base, [clients[0] | {"head.bias": torch.ones(3)}, *clients[1:]]))
    with pytest.raises(ComityError, match=r"client-0.*has shape \(3,\)"):
        aggregate(None, saved.files, saved.new)
    with pytest.warns(DroppedWarning):
        assert list(aggregate(None, saved.files, saved.new, skip_bad=True).dropped) == ["client-0"]


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_that_changes_meanwhile(skip_bad: bool, saved: Saved) -> None:
    """After the rule has weighed the clients none can be left out any more."""

    def change(done: int, total: int) -> None:
        if done > total / 2:
            shutil.copy(saved.files[1], saved.files[0])

    with pytest.raises(ComityError, match=r"client-0.*changed while it was being read"):
        saved.merge(skip_bad=skip_bad, progress=change)
    saved.assert_nothing_is_written()


# What is asked for.


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"only": ["lora_*"]}, "--only 'lora_.' fits no tensor"),
        ({"exclude": ["nothing"]}, "--exclude 'nothing' fits no tensor"),
        ({"exclude": ["*"]}, "no floating tensor of it is left to merge"),
        ({"buffers": "drop"}, r"buffers must be average \| keep, got 'drop'"),
        ({"lora": "sums"}, "lora must be .* got 'sums'"),
        ({"memory": "much"}, "memory must be an amount such as 2GB"),
        ({"memory": "0.5 KiB"}, "of memory at least"),
        ({"lora": "products"}, "no PEFT adapter"),
        ({"rule": "Confre"}, "did you mean ConFREE"),
        ({"rule": {"name": "ConFREE", "c": 2}}, r"rule\.c must be at least 0 and below 1, got 2"),
        ({"rule": ConFREE(length="search")}, "only a run can do"),
        ({"rule": "FedFV"}, "needs the clients' losses: a column loss"),
    ],
)
def test_wrong_options(options: dict[str, Any], told: str, saved: Saved) -> None:
    with pytest.raises(ComityError, match=told):
        saved.merge(**options)
    saved.assert_nothing_is_written()


def test_wrong_outputs(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    folder, shards = save_all("sharded", base, clients, tmp_path / "shards")
    taken = tmp_path / "taken.safetensors"
    save_file({"a": torch.ones(1)}, taken)
    (tmp_path / "folder.safetensors").mkdir()
    for inputs, output, told in [
        ((start, files), "new.pt", "must end in .safetensors, the only format that is written"),
        ((start, files), "new", "must end in .safetensors"),
        ((start, files), "taken.safetensors", "give --overwrite"),
        ((start, files), "in/client-0.safetensors", "one of the inputs"),
        ((folder, shards), "new.safetensors", "must be a folder"),
        ((folder, shards), "new.pt", "must be a folder"),
        ((folder, shards), "shards/base/inner", "one of the inputs, in one"),
        ((start, [files[0], files[0]]), "new.safetensors", "given twice"),
        ((start, [start, files[0]]), "new.safetensors", "base and a client"),
        ((start, []), "new.safetensors", "no client files"),
    ]:
        with pytest.raises(ComityError, match=told):
            aggregate(*inputs, tmp_path / output)
    with pytest.raises(ComityError, match="it cannot be replaced"):
        aggregate(start, files, tmp_path / "folder.safetensors", overwrite=True)
    index = folder / "model.safetensors.index.json"
    for output in (tmp_path, tmp_path / "shards", folder / "..", folder):  # nothing that was read is ever replaced
        with pytest.raises(ComityError, match="a folder with one"):
            aggregate(index, shards, output, overwrite=True)
    with pytest.raises(ComityError, match="one of the inputs"):
        aggregate(folder, shards, folder, overwrite=True)
    assert load(taken).keys() == {"a"}
    aggregate(start, files, taken, overwrite=True)
    assert SHAPES.keys() <= load(taken).keys()
    for _ in range(2):
        aggregate(folder, shards, tmp_path / "new", overwrite=True)
    assert SHAPES.keys() <= load(tmp_path / "new").keys()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(ComityError, match=r"holds 'notes.txt' too"):
        aggregate(folder, shards, tmp_path / "new", overwrite=True)
    assert (tmp_path / "new" / "notes.txt").read_text() == "mine"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"in", "shards", "taken.safetensors", "folder.safetensors", "new"}


def test_shards_that_would_get_one_name(tmp_path: Path) -> None:
    base = save_sharded(models()[0], tmp_path / "base")
    index = base / "model.safetensors.index.json"
    second = "model-00002-of-00002.safetensors"
    torch.save(load_file(base / second), base / "model-00001-of-00002.bin")
    index.write_text(index.read_text().replace(second, "model-00001-of-00002.bin"))
    with pytest.raises(ComityError, match="two of its files would be written under one name"):
        aggregate(base, [save_sharded(models()[1][0], tmp_path / "client")], tmp_path / "new")


def test_a_full_disk(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comity.files._merge.os.fsync", full)
    with pytest.raises(ComityError, match=r"could not be written \(No space left on device"):
        saved.merge()
    saved.assert_nothing_is_written()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "-o is missing"),
        (["--base", "a", "-o", "x.pt"], "takes the clients' files"),
        (["--as-updates", "-o", "x.pt"], "takes the clients' files"),
        (["a", "b", "-o", "x.pt"], "give the model that the clients started from with --base, or say --as-updates"),
        (["a", "--base", "b", "--as-updates", "-o", "x.pt"], "with --base, or say --as-updates"),
        (["a", "--base=b", "-o", "x.pt", "--buffers", "drop"], "--buffers must be average | keep"),
        (["a", "--base=b", "-o", "x.pt", "--memory", "10MB"], "Python and torch alone take"),
        (["a", "--base=b", "-o", "x.pt", "--rule.z", "1"], "unknown option 'z' of rule ConFREE"),
    ],
)
def test_wrong_commands(arguments: list[str], told: str) -> None:
    with pytest.raises(ComityError) as error:
        command("aggregate", arguments)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
