"""Processes of their own: how much memory they take, and what a kill leaves behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import assert_close, load, merged, models, save_all
from safetensors.torch import load_file, save_file

from comity.files import aggregate
from comity.rules import ConFREE, Mean

OVERHEAD = 40e6  # what allocators and thread stacks may take beyond the limit

MEASURED = """
import json, sys
from comity.commands import command
from comity._memory import peak
command("aggregate", json.loads(sys.argv[1]))
print(peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_stays_under_the_limit(tmp_path: Path) -> None:
    """Updates of 600 MB in float32, in a process that may take 420 MB, of which Python and torch take 280."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(15_000_000, generator=generator).bfloat16()
    for i in range(11):
        save_file({"large": noise.roll(i), "small": noise[i : i + 1000].clone()}, tmp_path / f"{i}.safetensors")
    files = [str(tmp_path / f"{i}.safetensors") for i in range(11)]
    arguments = ["--base", *files, "--memory", "420MB", "-o", str(tmp_path / "new.safetensors")]
    command = [sys.executable, "-c", MEASURED, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) < 420e6 + OVERHEAD, done.stdout
    assert load_file(tmp_path / "new.safetensors")["large"].shape == (15_000_000,)


KILLED = """
import os, signal, sys
from comity.files import aggregate

def dying(done, total):
    if done > 0.9 * total:
        os.kill(os.getpid(), signal.SIGKILL)

aggregate(sys.argv[1], sys.argv[3:], sys.argv[2], overwrite=True, progress=dying)
"""


@pytest.mark.parametrize("kind", ["safetensors", "sharded"])
def test_killed_in_the_middle(kind: str, tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all(kind, base, clients, tmp_path / "in")
    new = tmp_path / f"new{start.suffix}"
    if kind == "safetensors":  # one is there already, and stays
        aggregate(start, files, new, "Mean")
    before = {new.name} if new.exists() else set()
    command = [sys.executable, "-c", KILLED, str(start), str(new), *map(str, files)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == {"in", f".{new.name}.part"} | before
    if before:
        assert_close(load(new), merged(Mean(), base, clients))
    aggregate(start, files, new, ConFREE(0.4), overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in", new.name}
    assert_close(load(new), merged(ConFREE(0.4), base, clients))
