"""What a run holds in memory, and clients' tensors on disk: the same run, with less in memory."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from comity import ComityError, Config
from comity.engine import build, run, write_tensors
from comity.engine._disk import LEAST, Disk
from comity.engine._reuse import Vectors
from helpers import assert_same


@pytest.fixture
def wide(tiny: dict[str, Any]) -> dict[str, Any]:
    """Models large enough to be put on disk."""
    return tiny | {"model": {"name": "mlp", "widths": (300,)}}


@pytest.mark.parametrize("method", ["FedAvg", "Ditto", "FEDORA"])
def test_where_tensors_lie_changes_no_bit(wide: dict[str, Any], method: str, tmp_path: Path) -> None:
    plain = run(**wide, method=method)
    held = run(**wide, method=method, store="disk", out=tmp_path / "run")
    assert held.site.model().size() * 4 > LEAST
    assert_same(plain, held)
    assert not list((tmp_path / "run").glob(".comity-*"))  # files without names
    resumed = run(**(wide | {"rounds": 5}), method=method, store="disk", out=tmp_path / "other", stop=lambda: True)
    assert resumed.server.round == 1 or not resumed.done
    resumed = run(**(wide | {"rounds": 5}), method=method, store="disk", out=tmp_path / "other", resume=True)
    assert_same(resumed, run(**(wide | {"rounds": 5}), method=method))


def test_looking_moves_nothing(wide: dict[str, Any]) -> None:
    done = run(**wide, method="Ditto", store="disk")
    before = {cid: state.flat() for cid, state in done.server.link.states().items()}
    done.server.evaluate(general=True)
    for cid, state in done.server.link.states().items():
        assert all(state.flat()[name] is tensor for name, tensor in before[cid].items())


def test_small_tensors_stay_and_large_ones_are_copies(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    small, large = torch.randn(10), torch.randn(LEAST).view(4, -1)
    assert disk.hold(small) is small
    held = disk.hold(large)
    assert torch.equal(held, large)
    large.zero_()
    assert held.abs().max() > 0
    assert not list(tmp_path.iterdir())
    mapped = [line for line in Path("/proc/self/smaps").read_text().splitlines() if str(tmp_path) in line]
    assert mapped


def test_memory_is_lent_again_when_nobody_looks_at_it() -> None:
    vectors = Vectors()
    first, second = vectors.empty(2**14), vectors.empty(2**14)
    places = {first.data_ptr(), second.data_ptr()}
    part = first.fill_(7.0)[3:5]
    del first, second
    third = vectors.empty(2**14).fill_(0.0)
    assert third.data_ptr() in places
    assert vectors.empty(2**14).data_ptr() not in places  # one is in use, and a part of the other still looked at
    assert part.tolist() == [7.0, 7.0]


@pytest.mark.parametrize(
    "more", [{}, {"rule": "ConFREE"}, {"rule": {"name": "Mean", "length": "search"}}, {"sketch": 64}], ids=str
)
def test_replies_are_gone_with_their_round(wide: dict[str, Any], more: dict[str, Any]) -> None:
    _, server = build(Config(**wide, **more))
    merge, seen = server.method.merge, []

    def watched(given: Any, replies: dict[int, Any]) -> None:
        seen.extend(weakref.ref(reply) for reply in replies.values())
        seen.extend(weakref.ref(reply.theta) for reply in replies.values())
        merge(given, replies)

    server.method.merge = watched
    gc.collect()
    gc.disable()  # a circle of references would keep them until some later time
    try:
        server.step()
        assert seen
        assert not [ref for ref in seen if ref() is not None]
    finally:
        gc.enable()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ComityError, match=r"no room for 262,144 bytes in .*: No space left on device"):
        Disk(tmp_path).hold(torch.zeros(LEAST))


def test_a_checkpoint_is_a_safetensors_file(tmp_path: Path) -> None:
    tensors = {
        "b": torch.tensor([True, False, True]),
        "h": torch.arange(3, dtype=torch.float16),
        "n": torch.tensor(7),
        "x": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "none": torch.empty(0, 3),
    }
    write_tensors(tmp_path / "x", tensors, {"round": "1"})
    back = load_file(tmp_path / "x")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)


PEAK = """
import sys
from comity.engine import run
def peak():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0])
most = 0
def stop():
    global most
    most = max(most, peak())
    return False
clients, store = int(sys.argv[1]), sys.argv[2]
data = {"name": "synthetic", "samples": 4, "classes": 2, "size": 8}
run(data=data, model={"name": "mlp", "widths": (4000,)}, clients=clients, rounds=2, method="Ditto", store=store,
    reference="none", stop=stop, workers=1)
print(most)
"""


@pytest.mark.slow
def test_memory_grows_by_a_row_a_client_and_on_disk_not_at_all() -> None:
    """1.1 MB a model: Ditto keeps one, and what it sends has another."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")

    def peak(clients: int, store: str) -> int:
        at_once = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back, so that it is not counted
        command = [sys.executable, "-c", PEAK, str(clients), store]
        return int(subprocess.run(command, capture_output=True, check=True, env=at_once).stdout) * 1024

    row = 4 * (64 * 4000 + 4000 + 4000 * 2 + 2)
    few, many, disk = peak(10, "memory"), peak(110, "memory"), peak(110, "disk")
    assert 1.9 * 100 * row < many - few < 2.2 * 100 * row
    assert disk - few < 0.3 * 100 * row
