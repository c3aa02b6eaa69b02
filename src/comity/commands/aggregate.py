"""``comity aggregate``."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from comity._components import Component
from comity._options import Count, convert, options
from comity.commands._command import Command
from comity.commands._files import FileInputs
from comity.config import Config, Entries, Overlay

if TYPE_CHECKING:
    from rich.console import Console

    from comity.files import Merge

MUCH = 0.1
"""Relative error of the merged products above which --rank auto is suggested."""

RUN_OPTIONS = [replace(options(Config)["rule"], default="ConFREE"), options(Config)["server_lr"]]


def aggregate(
    inputs: FileInputs,
    *,
    given: Entries,
    output: Path,
    buffers: Literal["average", "keep"] = "average",
    rank: Count | Literal["auto"] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Merge clients' checkpoints into one, by any rule.

    Checkpoints may be larger than memory.

    Examples:
        comity aggregate --base base.safetensors clients/*.safetensors --rule ConFREE --rule.c 0.4 -o new.safetensors
        comity aggregate --base adapters/start adapters/clinic-* --only 'lora_*' -o merged

    Options:
        output: file or folder to write, as safetensors; tensors keep the names, shapes, dtypes and sharding of the base
        buffers: average running_mean and running_var, or keep those of the base
        rank: rank of the new factors with --lora products: a number, or auto for the rank that keeps the product exact;
          by default the rank of the --base adapter
        overwrite: replace an existing output
        quiet: print only errors
    """
    started = time.perf_counter()
    rule, server_lr = RUN_OPTIONS
    chosen = Component.parse("rule", Overlay({"rule": rule.default} | given).nested()["rule"])

    from comity.commands._files import reading
    from comity.commands._terminal import Terminal
    from comity.files import aggregate

    console = Terminal(quiet=quiet)
    with reading(console) as progress:
        done = aggregate(
            **inputs.arguments("aggregate"),
            output=output,
            rule=chosen.build(),
            server_lr=convert(given.get("server_lr", server_lr.default), server_lr.type, "server_lr"),
            buffers=buffers,
            rank=rank,
            overwrite=overwrite,
            progress=progress,
        )
    _print(done, console, time.perf_counter() - started)
    return 0


def _print(done: "Merge", console: "Console", seconds: float) -> None:
    from rich.text import Text

    from comity._memory import peak, show_bytes
    from comity._words import counted
    from comity.commands._inspection import LAYERS, percent

    if done.lost:
        worst = sorted(done.lost.items(), key=lambda pair: -pair[1])
        for layer, lost in worst[:LAYERS]:
            console.print(Text(f"{100 * lost:6.2f} % relative error in {layer}", style="dim"))
        if rest := worst[LAYERS:]:
            line = f"{100 * rest[0][1]:6.2f} % or less in {counted(len(rest), 'more layer')}"
            console.print(Text(line, style="dim"))
        ranks = "–".join(map(str, sorted({min(done.ranks.values()), max(done.ranks.values())})))
        line = f"{100 * done.lost_overall:.2f} % relative error of the merged products at rank {ranks}"
        hint = "; --rank auto is exact" if done.lost_overall > MUCH else ""
        console.print(Text(f"{line}, from truncation and rounding{hint}"), soft_wrap=True)
    clients, layers = counted(len(done.ids), "client"), counted(len(done.layers), "layer")
    ratios = [f"{length:.2f}" for length in done.length_ratio.tolist() if not math.isnan(length)]
    span = "–".join(dict.fromkeys((min(ratios, key=float), max(ratios, key=float)))) if ratios else ""
    facts = [
        f"{done.output}: {clients} merged by {done.rule} in {layers}",
        f"{counted(len(done.dropped), 'file')} left out" if done.dropped else "",
        f"{percent(done.conflict.overall, False)} of client pairs in conflict" if len(done.ids) > 1 else "",
        f"{done.certificate} {done.residual:.0e}" if done.residual else "",
        f"layers {span} times as long as the mean's" if span else "",
        f"{seconds:.1f} s, peak memory {show_bytes(peak())}",
    ]
    console.print(Text("; ".join(fact for fact in facts if fact) + "."), soft_wrap=True)


COMMAND = Command(aggregate, RUN_OPTIONS, order=7)
