"""The configuration of a run: command line, YAML file and ``comity.run`` all create a ``Config``.

Its options are declared once, in ``comity._sections``.
"""

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
from comity._overlay import Entries as Entries
from comity._overlay import Overlay as Overlay
from comity._overlay import advice
from comity._sections import AUTO as AUTO
from comity._sections import CLIENTS as CLIENTS
from comity._sections import LOCAL as LOCAL
from comity._sections import MEAN as MEAN
from comity._sections import MODEL as MODEL
from comity._sections import PARTITION as PARTITION
from comity._sections import SAMPLES as SAMPLES
from comity._sections import Data as Data
from comity._sections import Evaluation as Evaluation
from comity._sections import Learning as Learning
from comity._sections import Privacy as Privacy
from comity._sections import Running as Running
from comity._sections import Training as Training
from comity._yaml import FORMER
from comity._yaml import code_in as code_in
from comity._yaml import read_yaml as read_yaml
from comity._yaml import reject_code as reject_code

COMPONENTS = tuple(KINDS)
MLP = "mlp"
"""The default architecture for vectors if a method splits it into body and head, which logistic regression cannot."""
UNNAMED = ("partition", "model", "guard", "extension")  # components that need not be named
REPEATED = 1_000_003
"""XORed with the seed to get the training seed of a repeated local baseline, which differs from all usual seeds."""
ACCURACY = "accuracy"  # the deciding metric by default
BALANCED = "balanced"  # the deciding metric for imbalanced classes
SEARCHED = 0.2  # share of the training samples that a search holds out for validation, unless `val_share` is set


@dataclass(frozen=True, kw_only=True)
class Config(Running, Evaluation, Training, Privacy, Learning, Data):  # dataclass fields start with the last base's
    """The configuration of one run. Every option has a default; a component's options are written with a dot."""

    def __post_init__(self) -> None:
        for name, declared in options(Config).items():
            value = getattr(self, name)
            if name not in COMPONENTS:
                value = convert(value, declared.type, name)
            elif name in UNNAMED and value in (None, "none"):
                value = None
            else:
                value = Component.parse(name, value)
            object.__setattr__(self, name, value)
        _check(self)
        if not self.val_share:  # written down here: the held-out samples affect the results
            others = max(self.method.trait("validation", 0.0), SEARCHED * self.guard_split)
            own = 0.0 if self.guard is None else self.guard.trait("validation", 0.0)  # the guard has its own part
            object.__setattr__(self, "val_share", round(own + others, 9))
        if self.refit is None:
            refits = self.guard is not None and self.guard.trait("refits", False)
            object.__setattr__(self, "refit", -(-self.rounds // 10) if refits else 0)

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "Config":
        """Create a configuration from option names and values; unknown names raise an error."""
        return cls(**_known(Overlay(entries).nested()))

    @classmethod
    def load(cls, path: Path, *, allow_code: bool = False) -> "Config":
        """Load a YAML file; ``allow_code``: it may name users' own classes."""
        return cls.of(read_yaml(path, allow_code=allow_code))

    def plain(self) -> Entries:
        """All options as plain values (numbers, text, lists), as in ``config.yaml``."""
        declared, values = options(Config), vars(self)
        silent = {name for name, each in declared.items() if each.silent and values[name] == each.default}
        return {name: plain(values[name]) for name in declared if name not in silent}

    def with_(self, **changes: Any) -> "Config":
        """A copy with some options changed: ``with_(lr=0.1, **{"rule.c": 0.4})``."""
        return replace(self, **_known(Overlay(changes).nested(vars(self))))

    def differences(self, other: "Config") -> list[str]:
        """Names of the options that affect results and differ between the two: ``lr``, ``method.lam``."""
        mine, theirs = Overlay(self.plain()), Overlay(other.plain())
        names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        renamed = {name for name in names if name in COMPONENTS}
        return [
            name
            for name in names
            if options(Config)[kind := name.partition(".")[0]].decides and (kind == name or kind not in renamed)
        ]

    def title(self, own_rule: bool) -> str:
        """The title of the run, such as ``FedAvg, guarded + Mean``; ``own_rule`` leaves out the rule."""
        method = f"{LOCAL}, repeated" if self.repeats_local else str(self.method)
        return titled(method, "" if own_rule else str(self.rule), self.guard and str(self.guard))

    @property
    def is_local(self) -> bool:
        return bool(self.method.name == LOCAL)

    @property
    def repeats_local(self) -> bool:
        """Whether this is a repeated local baseline, the only one with a training seed."""
        return self.is_local and self.training_seed is not None

    @property
    def seed_for_training(self) -> int:
        """Seed of all random numbers in training; data, splits and evaluation use ``seed``."""
        return self.seed if self.training_seed is None else self.training_seed

    @property
    def last_round(self) -> int:
        """Number of the last round, including refit rounds."""
        return self.rounds + (self.refit or 0)

    def evaluates_in(self, round: int) -> bool:
        """Whether all clients are evaluated in this round: by default five times per run, about a tenth of its time."""
        return round >= self.last_round or round % (self.eval_every or math.ceil(self.rounds / 5)) == 0

    def general_in(self, round: int) -> bool:
        """Whether S-acc and G-acc are measured in this round, if it is evaluated."""
        every = self.general_every
        return every != "never" and (round >= self.last_round or (every > 0 and round % every == 0))

    def local_baseline(self, on: Literal["all", "train"] | None = None, *, repeat: bool = False) -> "Config":
        """The configuration of the local baseline: each client trains by itself under the same conditions.

        ``on``: the samples that it learns from, by default ``local_on``. ``repeat``: use another training seed, to show
        how much of a difference is chance.
        """
        changes = {**LOCAL_OPTIONS, "local_on": on or self.local_on}
        if self.local_lr is not None:
            changes["lr"] = self.local_lr
        if repeat:
            changes["training_seed"] = self.seed ^ REPEATED
        if changes["local_on"] == "all":
            changes["val_share"] = 0.0  # the same Local for every validation share of other methods
        return self.with_(**changes)

    @property
    def key(self) -> str:
        """Hash of the options that affect results."""
        found = ((options(Config)[name], value) for name, value in self.plain().items())
        decisive = {option.hashed or option.name: value for option, value in found if option.decides}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


LOCAL_OPTIONS: Mapping[str, Any] = {
    name: declared.local for name, declared in options(Config).items() if declared.local is not SAME
}
"""Options of the local baseline that differ from the run's own."""


def default(name: str) -> Any:
    return options(Config)[name].default


def unknown_option(name: str, others: Iterable[str] = ()) -> ComityError:
    """The error for a name that is not an option of a run; ``others`` are further allowed names."""
    if name in FORMER:
        return ComityError(f"{name} is a value of track; give --track {name} (in Python track={name!r})")
    known = {*options(Config), *others}
    hint = advice(name, known, {})
    return ComityError(f"unknown option {name!r}; {hint}") if hint else unknown("option", name, known)


def _known(entries: Entries) -> Entries:
    for name in entries:
        if name not in options(Config):
            raise unknown_option(name)
    return entries


def _check(config: Config) -> None:
    """Check combinations of options; single options are checked by their annotations."""
    clients, participation = config.clients, config.participation
    if clients is not None and int(clients * participation + 0.5) < 1:
        raise ComityError(
            f"participation {participation} of {clients} clients selects no client; take at least {0.5 / clients:g}"
        )
    if config.guard is not None and config.is_local:
        raise ComityError(f"guard {config.guard} has no effect on {LOCAL}: its clients use only their own models")
    if config.guard is not None and config.reference == "none":
        raise ComityError(f"guard {config.guard} needs each client's own model; leave reference out")
    if config.guard is not None and config.local_on != "all":
        raise ComityError(
            f"guard {config.guard} needs local_on all, got {config.local_on}; lr auto, and tuning of other options of "
            "local training, is for runs without a guard"
        )
    if config.steps is not None and config.epochs != default("epochs"):
        raise ComityError(f"local work is {config.epochs} epochs or {config.steps} steps per round; give only one")
    if config.dp_noise and not config.masked:
        raise ComityError("--dp-noise needs --masked: noise is added to masked sums")
    if config.data_limit is not None:
        parse_bytes(config.data_limit, "data_limit")
    if config.optimizer != "SGD" and config.momentum:
        raise ComityError(f"momentum is an option of SGD; {config.optimizer} has its own")
