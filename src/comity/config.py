"""Everything that decides a run, in one place: command line, YAML file and ``comity.run`` all make a ``Config``."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from comity._catalogue import KINDS
from comity._components import Component, plain
from comity._errors import ComityError, unknown
from comity._labels import titled
from comity._memory import parse_bytes
from comity._options import SAME, convert, options
from comity._overlay import Entries, Overlay
from comity._sections import (
    AUTO,
    CLIENTS,
    LOCAL,
    MEAN,
    MODEL,
    PARTITION,
    SAMPLES,
    TRACKERS,
    UNNAMED,
    Data,
    Evaluation,
    Learning,
    Privacy,
    Running,
    Training,
)
from comity._yaml import code_in, read_yaml, refuse_code

# fmt: off
__all__ = [
    "Config", "Data", "Evaluation", "Learning", "Privacy", "Running", "Training",
    "Entries", "Overlay", "code_in", "default", "read_yaml", "refuse_code", "unknown_option",
    "AUTO", "CLIENTS", "COMPONENTS", "LOCAL", "LOCAL_OPTIONS", "MEAN", "MODEL", "PARTITION", "SAMPLES", "UNNAMED",
]
# fmt: on

COMPONENTS = tuple(KINDS)


@dataclass(frozen=True, kw_only=True)
class Config(Running, Evaluation, Training, Privacy, Learning, Data):  # a dataclass lists the last base's fields first
    """One run. Every option has a default that works; a component's own options follow its name with a dot."""

    def __post_init__(self) -> None:
        for name, option in options(Config).items():
            value = getattr(self, name)
            if name not in COMPONENTS:
                value = convert(value, option.type, name)
            elif name in UNNAMED and value in (None, "none"):
                value = None
            else:
                value = Component.parse(name, value)
            object.__setattr__(self, name, value)
        _check(self)
        if not self.val_share:  # written down here: which samples are held out decides the numbers
            users = [chosen for chosen in (self.guard, self.method) if chosen]
            object.__setattr__(self, "val_share", max(user.trait("validation", 0.0) for user in users))
        if self.refit is None:
            refits = self.guard is not None and self.guard.trait("refits", False)
            object.__setattr__(self, "refit", -(-self.rounds // 10) if refits else 0)

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "Config":
        """From entries; a name that is no option is refused."""
        return cls(**_known(Overlay(entries).nested()))

    @classmethod
    def load(cls, path: Path, *, allow_code: bool = False) -> "Config":
        """From a YAML file; ``allow_code``: it may name classes that do not come with comity."""
        return cls.of(read_yaml(path, allow_code=allow_code))

    def plain(self) -> Entries:
        """Complete, in numbers, text and lists: what ``config.yaml`` holds."""
        values = ((option, getattr(self, option.name)) for option in options(Config).values())
        return {
            option.name: plain(value) for option, value in values if not (option.silent and value == option.default)
        }

    def with_(self, **changes: Any) -> "Config":
        """The same run but for ``changes``, which are entries: ``with_(lr=0.1, **{"rule.c": 0.4})``."""
        return replace(self, **_known(Overlay(changes).nested(vars(self))))

    def differences(self, other: "Config") -> list[str]:
        """The options that decide a run and that the two have otherwise: ``lr``, ``method.lam``."""
        mine, theirs = Overlay(self.plain()), Overlay(other.plain())
        names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        renamed = {name for name in names if name in COMPONENTS}
        return [
            name
            for name in names
            if options(Config)[kind := name.partition(".")[0]].decides and (kind == name or kind not in renamed)
        ]

    def title(self, own_rule: bool) -> str:
        """What the run is called: ``FedAvg, guarded + Mean``; ``own_rule``: no rule can be chosen for it."""
        return titled(str(self.method), "" if own_rule else str(self.rule), self.guard and str(self.guard))

    @property
    def is_local(self) -> bool:
        return bool(self.method.name == LOCAL)

    @property
    def last_round(self) -> int:
        """With those in which clients train on their validation samples too."""
        return self.rounds + (self.refit or 0)

    def evaluates_in(self, round: int) -> bool:
        """Whether all clients are evaluated in this round. Five times a run cost about a tenth of its time at most."""
        return round >= self.last_round or round % (self.eval_every or math.ceil(self.rounds / 5)) == 0

    def general_in(self, round: int) -> bool:
        """Whether S-acc and G-acc are measured in this round, if it is evaluated."""
        every = self.general_every
        return every != "never" and (round >= self.last_round or (every > 0 and round % every == 0))

    def alone(self, on: Literal["all", "train"] | None = None) -> "Config":
        """The run that this one is compared with: each client trains alone, under the same conditions.

        ``on``: which of its samples it learns from, by default ``local_on``.
        """
        changes = {**LOCAL_OPTIONS, "local_on": on or self.local_on}
        if changes["local_on"] == "all":
            changes["val_share"] = 0.0  # the same Local for every share that other methods hold out
        return self.with_(**changes)

    @property
    def key(self) -> str:
        """The same for two configurations that give the same numbers."""
        decisive = {name: value for name, value in self.plain().items() if options(Config)[name].decides}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


LOCAL_OPTIONS: Mapping[str, Any] = {
    option.name: option.local for option in options(Config).values() if option.local is not SAME
}
"""What the local baseline of a run uses; all other options are the run's own."""


def default(name: str) -> Any:
    return options(Config)[name].default


def unknown_option(name: str, others: Iterable[str] = ()) -> ComityError:
    """The error for a name that is no option of a run; ``others`` may be given beside those."""
    if name in TRACKERS:
        return ComityError(f"{name} is a value of track; give --track {name} (in Python track={name!r})")
    return unknown("option", name, {*options(Config), *others})


def _known(entries: Entries) -> Entries:
    for name in entries:
        if name not in options(Config):
            raise unknown_option(name)
    return entries


def _check(config: Config) -> None:
    """What concerns two options at once; each one by itself is checked by its annotation."""
    clients, participation = config.clients, config.participation
    if clients is not None and int(clients * participation + 0.5) < 1:
        raise ComityError(
            f"participation {participation} of {clients} clients selects nobody; take at least {0.5 / clients:g}"
        )
    if config.guard is not None and config.is_local:
        raise ComityError(f"guard {config.guard} has nothing to do for {LOCAL}, whose clients are alone already")
    if config.guard is not None and config.reference == "none":
        raise ComityError(f"guard {config.guard} needs each client's own model; leave reference out")
    if config.guard is not None and config.local_on != "all":
        raise ComityError(f"guard {config.guard} needs local_on all, got {config.local_on}")
    if config.steps is not None and config.epochs != default("epochs"):
        raise ComityError(f"local work is {config.epochs} epochs or {config.steps} steps a round; give one of the two")
    if config.dp_noise and not config.masked:
        raise ComityError("dp_noise is added to masked sums; give masked too")
    if config.data_limit is not None:
        parse_bytes(config.data_limit, "data_limit")
    if config.optimizer != "SGD" and config.momentum:
        raise ComityError(f"momentum is an option of SGD; {config.optimizer} has its own")
