"""How much memory and time a merge of large checkpoints takes, beside reading the files twice.

    python benchmarks/files.py                      # 20 clients of 1.2 GB, 25 GB of disk
    python benchmarks/files.py --size 100MB         # the same with less

Makes sharded bf16 checkpoints of a language model's shapes, merges them by ``comity aggregate`` in a process of its
own, reads them twice for comparison, several times in turn, and deletes them. "From disk", the page cache forgets them
before each merge and each reading, not between the two passes of either; "cached", it never does. The latter is left
out where the files take more than half of the memory. To start Python and torch takes a second and is not counted.
"""

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from comity._memory import parse_bytes, show_bytes

WIDTH, INNER, WORDS, SHARDS = 1024, 2816, 16_000, 3

WORKER = """
import json, sys, time
import comity.files
from comity.commands import command
from comity._memory import peak
started = time.perf_counter(), time.process_time()
command("aggregate", json.loads(sys.argv[1]))
seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
print(json.dumps({"seconds": seconds, "peak": peak(), "cpu": cpu}))
"""


ROWS: dict[str, Callable[[dict[str, float]], float]] = {
    "seconds": lambda run: run["seconds"],
    "seconds of the processor, both cores": lambda run: run["cpu"],
    "seconds for reading twice and doing nothing": lambda run: run["twice"],
    "ratio": lambda run: run["seconds"] / run["twice"],
}


def shapes(size: int) -> dict[str, tuple[int, ...]]:
    """Layers of a decoder until they make up ``size`` bytes of bf16."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, WIDTH)}
    block = {
        "input_layernorm": (WIDTH,),
        **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    for k in range(max(1, round((size / 2 - WORDS * WIDTH) / sum(map(_numel, block.values()))))):
        found |= {f"model.layers.{k}.{name}.weight": shape for name, shape in block.items()}
    return found


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def make(folder: Path, layers: dict[str, tuple[int, ...]], client: int | None, noise: torch.Tensor) -> None:
    """A sharded checkpoint: the base, or the base moved by what a client learnt, all windows on one long noise."""
    names = list(layers)
    shards = [names[k::SHARDS] for k in range(SHARDS)]
    homes = {}
    folder.mkdir(parents=True)
    for k, own in enumerate(shards):
        file = f"model-{k + 1:05d}-of-{SHARDS:05d}.safetensors"
        tensors = {}
        for name in own:
            numel, place = _numel(layers[name]), names.index(name)
            numbers = 0.05 * noise[31 * place :][:numel]
            if client is not None:
                numbers.add_(noise[31 * place + 9 :][:numel], alpha=0.004 if client % 4 else -0.004)
                numbers.add_(noise[31 * place + 104_729 * (client + 1) :][:numel], alpha=0.008)
            tensors[name] = numbers.bfloat16().view(layers[name])
            homes[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))


def forget(folder: Path) -> None:
    """Out of the page cache, these files only."""
    for file in _files(folder):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(file for file in folder.rglob("*.safetensors") if "new" not in file.parts)


def read_twice(folder: Path) -> float:
    buffer = bytearray(2**23)
    started = time.perf_counter()
    for _ in range(2):
        for path in _files(folder):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--size", default="1.2GB", help="of each checkpoint")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--rule", default="ConFREE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    layers = shapes(parse_bytes(options.size))
    size = 2 * sum(map(_numel, layers.values()))
    needed, free = (options.clients + 2) * size, shutil.disk_usage(options.folder).free
    if needed > 0.95 * free:
        fits = 0.9 * free / (options.clients + 2)
        sys.exit(
            f"{show_bytes(needed)} of disk are needed and {show_bytes(free)} are free: --size {fits / 1e6:.0f}MB fits"
        )
    folder = Path(tempfile.mkdtemp(prefix="comity-files-", dir=options.folder))
    try:
        reach = max(map(_numel, layers.values())) + 31 * len(layers) + 104_729 * (options.clients + 1)
        noise = torch.randn(reach, generator=torch.Generator().manual_seed(0))
        make(folder / "base", layers, None, noise)
        for i in range(options.clients):
            make(folder / f"client-{i:02d}", layers, i, noise)
        clients = [str(folder / f"client-{i:02d}") for i in range(options.clients)]
        arguments = ["--base", str(folder / "base"), *clients, "--rule", options.rule, "--memory", options.memory]
        command = [sys.executable, "-c", WORKER, json.dumps([*arguments, "-o", str(folder / "new"), "--overwrite"])]
        total = sum(file.stat().st_size for file in _files(folder))
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        kinds = ["from disk", *(["cached"] if total < whole / 2 else [])]
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _, kind in itertools.product(range(options.repeats), kinds):
            prepare = forget if kind == "from disk" else (lambda _: None)
            prepare(folder)
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            prepare(folder)
            runs[kind].append(json.loads(lines[-1]) | {"twice": read_twice(folder)})
            print(lines[-2], kind, runs[kind][-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        shutil.rmtree(folder)
    print(f"\n{processor()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}, n = {options.repeats}\n")
    print(f"{options.clients} clients and a base, {show_bytes(size)} of bf16 each, {len(layers)} layers")
    every = [run for own in runs.values() for run in own]
    peak = show_bytes(max(run["peak"] for run in every))
    print(f"limit {options.memory}, peak memory of the process with pages of mapped files {peak} at most\n")
    print("| |", *(f"{kind} |" for kind in kinds))
    print("|---|" + "---|" * len(kinds))
    for name, value in ROWS.items():
        print(f"| {name} |", *(f"{spread([value(run) for run in runs[kind]])} |" for kind in kinds))


def spread(values: list[float]) -> str:
    """The median, and from where to where."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
