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
from comity.engine import run, write_tensors
from comity.engine._disk import LEAST, Disk
from helpers import Options, assert_reproducible, assert_same, build


@pytest.fixture
def wide(tiny: Options) -> Options:
    """Models large enough to be put on disk."""
    return tiny | {"model": {"name": "mlp", "widths": (300,)}}


@pytest.mark.parametrize("method", ["FedAvg", "Ditto", "FEDORA"])
def test_where_tensors_lie_changes_no_bit(wide: Options, method: str, tmp_path: Path) -> None:
    options = wide | {"method": method, "store": "disk"}
    held = assert_reproducible(options, tmp_path / "run")
    assert held.site.model().size() * 4 > LEAST
    assert_same(held, run(**(options | {"store": "memory"})))
    assert not list((tmp_path / "run").glob(".comity-*"))  # files without names


def test_looking_moves_nothing(wide: Options) -> None:
    done = run(**wide, method="Ditto", store="disk")
    before = {cid: state.flat() for cid, state in done.server.link.states().items()}
    done.server.evaluate(general=True)
    for cid, state in done.server.link.states().items():
        assert all(state.flat()[name] is tensor for name, tensor in before[cid].items())


@pytest.mark.parametrize(
    "more", [{}, {"rule": "ConFREE"}, {"rule": {"name": "Mean", "length": "search"}}, {"sketch": 64}], ids=str
)
def test_replies_are_gone_with_their_round(wide: Options, more: Options) -> None:
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


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
