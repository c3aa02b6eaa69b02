"""Client state between messages: in Flower's context, or on the site's disk.

A ClientApp is a new process for every message. Flower passes ``context.state`` from one to the next and never sends it
anywhere, but holds it in the SuperNode's memory for one `flwr run`. With ``--node-config "keep='/var/lib/comity'"`` it
is on disk, beside the site's own model, in one folder per client that only the SuperNode's user can read. It then
survives a restart of the SuperNode or the server.

A restarted server resumes from its last checkpoint and repeats later questions. So a client keeps up to three states:
the one that the server's checkpoint needs, the one before the newest question, and the one after it.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.app import Context
from safetensors import safe_open
from torch import Tensor

from comity._errors import ComityError
from comity._write import atomically
from comity.engine import ClientState, write_tensors
from comity.flower._wire import Arrays, Place, tensors

FIRST = "first"
"""Entry beside each state with the first question of its run."""


AHEAD = 300 * 10**9
"""Nanoseconds by which a server's clock may be ahead of the site's."""


class Label(NamedTuple):
    """The question that produced a state: the server's start and the question's number. Later questions are larger."""

    start: int
    step: int
    run: str


@dataclass(frozen=True)
class Kept:
    """The state after a question, and the first question of the run."""

    state: ClientState
    first: Label


class Keep:
    """One client's private states in the runs of one configuration."""

    def __init__(self, context: Context, key: str, cid: int, one_way: bool = False) -> None:
        self.context, self.name = context, f"keep-{key}"
        self.one_way = one_way
        """Whether the client never goes back: two answers to one question would reveal what masks hide."""
        folder = context.node_config.get("keep")
        self.folder = Path(str(folder)).expanduser() / f"client-{cid}" if folder is not None else None

    def read(self, place: Place) -> ClientState | None:
        """The state before the question at this place; ``None`` if the client was never asked before."""
        kept, now = self.states, time.time_ns() + AHEAD
        # a run with a fast clock says nothing about when another one began
        known = [label for label in kept if label.run == place.run or label.start <= now]
        if known and max(known)[:2] > (place.starts[-1], place.step):
            raise ComityError("this question is late: a newer one was answered before it")
        mine = [label for label in kept if label.run == place.run]
        if self.one_way and mine and not place.follows(*max(mine)[:2]):
            raise ComityError("updates are masked in this run: a question is answered only once, so it cannot go back")
        if found := [label for label in kept if place.follows(label.start, label.step)]:
            return kept[max(found)].state
        if any(place.follows(*each.first[:2]) for each in kept.values()):
            raise ComityError(
                "the server went back to a round that this site no longer keeps; give it a newer checkpoint, or remove "
                "the site's keep folder to have it begin again"
            )
        return None

    def write(self, place: Place, state: ClientState) -> None:
        """Keep the state after the question at this place, and those that the server may still go back to."""
        kept, new = self.states, Label(place.starts[-1], place.step, place.run)
        found = [label for label in kept if place.follows(label.start, label.step)]
        saved = [label for label in found if label.step <= place.saved]
        needed = {max(labels): kept[max(labels)] for labels in (found, saved) if labels}
        needed[new] = Kept(state, min((each.first for each in needed.values()), default=new))
        flat: dict[str, Tensor] = {}
        for label, each in needed.items():  # the new one is the last
            name = f"{label.run}/{label.start}/{label.step}"
            flat |= {f"{name}/{key}": tensor for key, tensor in each.state.flat().items()}
            flat[f"{name}/{FIRST}"] = torch.tensor(each.first[:2])
        in_memory = {f"{name}/secret/{key}": tensor for key, tensor in state.secret.items()}
        if self.folder is None:
            in_memory |= flat
        else:
            self._save(self.folder / f"{self.name}.safetensors", flat)
        self.context.state[self.name] = Arrays().record(in_memory)
        self.states = needed

    def newest(self, run: str) -> ClientState | None:
        """The state after the last question of a run."""
        kept = {label: each for label, each in self.states.items() if label.run == run}
        return kept[max(kept)].state if kept else None

    @cached_property
    def states(self) -> dict[Label, Kept]:
        """All kept states, from the folder and Flower's context."""
        flat: dict[str, Tensor] = {}
        file = None if self.folder is None else self.folder / f"{self.name}.safetensors"
        if file is not None and file.exists():
            with safe_open(file, framework="pt") as opened:
                if "by question" in (opened.metadata() or {}):  # an earlier version's belongs to another run
                    # cloned, so that it is in memory as before
                    flat = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        if self.name in self.context.state.array_records:
            flat |= tensors(self.context.state.array_records[self.name])
        states: dict[Label, dict[str, Tensor]] = {}
        for name, tensor in flat.items():
            run, start, step, key = name.split("/", 3)
            states.setdefault(Label(int(start), int(step), run), {})[key] = tensor
        kept = {}
        for label, each in states.items():
            if FIRST in each:  # otherwise a secret is left of a state that is no longer in the folder
                start, step = each.pop(FIRST).tolist()
                kept[label] = Kept(ClientState.of(each), Label(start, step, label.run))
        return kept

    def _save(self, file: Path, tensors: Mapping[str, Tensor]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.parent.chmod(0o700)
        with atomically(file) as part:
            os.close(os.open(part, os.O_CREAT | os.O_WRONLY, 0o600))  # before it has content
            write_tensors(part, tensors, {"by question": ""})
            part.chmod(0o600)
