"""``comity aggregate``."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from comity._components import Component
from comity._options import convert, options
from comity.commands._command import Command, Repeated
from comity.config import Config, Entries, nested

if TYPE_CHECKING:
    from rich.console import Console

    from comity.files import Merge

RUN_OPTIONS = [replace(options(Config)["rule"], default="ConFREE"), options(Config)["server_lr"]]


def aggregate(
    base: Path | None = None,
    clients: tuple[Path, ...] = (),
    *,
    given: Entries,
    output: Path,
    as_updates: bool = False,
    only: Repeated = (),
    exclude: Repeated = (),
    weights: Path | None = None,
    buffers: Literal["average", "keep"] = "average",
    lora: Literal["factors", "products"] = "factors",
    memory: str = "2GB",
    skip_bad: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Merge clients' checkpoints into one by any rule, at any size.

    Examples:
        comity aggregate base.safetensors clients/*.safetensors --rule ConFREE --rule.c 0.4 -o new.safetensors
        comity aggregate adapters/start adapters/clinic-* --only 'lora_*' -o merged

    Options:
        base: the model that the clients started from: a safetensors, torch (.pt, .pth, .bin, .ckpt) or npz file, an
            index of shards, or a folder with one model or one PEFT adapter
        clients: the clients' models, in any of these forms
        output: the new model, or the update; names, shapes, dtypes, metadata and files as in BASE
        as_updates: there is no BASE; the files are the updates themselves
        only: tensors that take part, by name or its end after a dot, 'lora_*'; may be repeated
        exclude: tensors that do not; may be repeated
        weights: CSV file with the columns name and size (and loss, for rules that need it)
        buffers: what becomes of running_mean and running_var
        lora: what of PEFT adapters is merged: A and B each for itself, or the products BA
        memory: the most that the process may take
        skip_bad: leave bad files out and say so; without it they stop the command with nothing written
        overwrite: replace an output that exists
        quiet: print nothing but errors
    """
    started = time.perf_counter()
    rule, server_lr = RUN_OPTIONS
    chosen = Component.parse("rule", nested({"rule": rule.default} | given)["rule"])

    from rich.console import Console

    from comity.commands._files import inputs, memory_left, progress, warnings_as_lines
    from comity.files import aggregate

    console = Console(quiet=quiet)
    with warnings_as_lines(), progress(console) as bar:
        done = aggregate(
            *inputs(base, clients, as_updates, "aggregate"),
            output,
            chosen.build(),
            server_lr=convert(given.get("server_lr", server_lr.default), server_lr.type, "server_lr"),
            buffers=buffers,
            overwrite=overwrite,
            only=only,
            exclude=exclude,
            lora=lora,
            sizes=weights,
            memory=memory_left(memory),
            skip_bad=skip_bad,
            progress=bar,
        )
    _print(done, console, time.perf_counter() - started)
    return 0


def _print(done: "Merge", console: "Console", seconds: float) -> None:
    from rich.text import Text

    from comity.files._memory import peak, show_bytes
    from comity.files._show import LAYERS
    from comity.files._words import percent, several

    if done.lost:
        worst = sorted(done.lost.items(), key=lambda pair: -pair[1])
        for layer, lost in worst[:LAYERS]:
            console.print(Text(f"{100 * lost:6.2f} % lost in {layer}", style="dim"))
        if rest := worst[LAYERS:]:
            line = f"{100 * rest[0][1]:6.2f} % or less in {several(len(rest), 'more layer')}"
            console.print(Text(line, style="dim"))
        line = f"{100 * done.lost_overall:.2f} % of the merged products is lost"
        console.print(Text(f"{line} by keeping their rank and by rounding (relative error)"), soft_wrap=True)
    clients, layers = several(len(done.ids), "client"), several(len(done.layers), "layer")
    stretch = [f"{length:.2f}" for length in done.stretch.tolist() if not math.isnan(length)]
    span = "–".join(dict.fromkeys((min(stretch, key=float), max(stretch, key=float)))) if stretch else ""
    facts = [
        f"{done.output}: {clients} merged by {done.rule} in {layers}",
        f"{several(len(done.dropped), 'file')} left out" if done.dropped else "",
        f"{percent(done.conflict.overall, False)} of pairs and layers in conflict" if len(done.ids) > 1 else "",
        f"{done.certificate} {done.residual:.0e}" if done.residual else "",
        f"layers {span} times as long as the mean's" if span else "",
        f"{seconds:.1f} s, peak memory {show_bytes(peak())}",
    ]
    console.print(Text("; ".join(fact for fact in facts if fact) + "."), soft_wrap=True)


COMMAND = Command(aggregate, RUN_OPTIONS)
