"""Everything that decides a run, in one place: command line, YAML file and ``comity.run`` all make a ``Config``.

Options come as *entries*, a mapping by name. A component's own options stand under its name,
``{"rule": {"name": "ConFREE", "c": 0.4}}``, or beside it with a dot, ``{"rule": "ConFREE", "rule.c": 0.4}``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from comity._catalogue import KINDS, find, spelling
from comity._components import Component, plain
from comity._errors import ComityError, unknown
from comity._options import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    ShareAboveZero,
    ShareBelowOne,
    ShareBetween,
    convert,
    options,
)

COMPONENTS = tuple(KINDS)
PARTITION = "dirichlet"
"""The partition of data that come without one of their own, where none is named."""

Entries = dict[str, Any]

LOCAL = "Local"
"""The method that every run is compared with: each client trains alone."""
MEAN = "Mean"
"""The rule that other rules are compared with."""
LOCAL_OPTIONS: Mapping[str, Any] = {
    "method": LOCAL,
    "rule": MEAN,
    "server_lr": 1.0,
    "server_momentum": 0.0,
    "max_share": 1.0,
    "clip_updates": "none",
    "moment": None,
    "reference": "none",
}
"""What the Local that goes with a run has otherwise; all other options that decide numbers are the run's own."""


def _option(default: Any, group: str, help: str, *, decides: bool = True) -> Any:
    """``decides``: whether another value may give other numbers, and so makes another run."""
    return field(default=default, metadata={"group": group, "help": help, "decides": decides})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run. Every option has a default that works; a component's own options follow its name with a dot."""

    data: Any = _option("digits", "data", "data set by name; `comity list data`")
    data_dir: Path | None = _option(None, "data", "folder with data sets; by default $COMITY_DATA", decides=False)
    partition: Any = _option(
        None,
        "data",
        f"how samples are shared out; `comity list partitions`. By default {PARTITION}, or the data set's own",
    )
    clients: Count = _option(20, "data", "number of clients")
    test_share: ShareBetween = _option(0.3, "data", "share of a client's samples that is kept for testing")
    val_share: ShareBelowOne = _option(
        0.0, "data", "share of the rest that is kept for validation; some methods need one"
    )

    model: Any = _option("cnn", "learning", "architecture; `comity list models`, or the path of your own class")
    method: Any = _option("FedAvg", "learning", "how clients learn and what they share; `comity list methods`")
    rule: Any = _option("Mean", "learning", "how the server combines updates; `comity list rules`")
    server_lr: Positive = _option(1.0, "learning", "factor on the rule's update: the server's learning rate")
    server_momentum: ShareBelowOne = _option(0.0, "learning", "momentum of the server's steps along the rule's updates")
    rounds: Count = _option(50, "learning", "number of rounds")
    participation: ShareAboveZero = _option(1.0, "learning", "share of the clients that is sampled in a round")
    dropout: ShareBelowOne = _option(0.0, "learning", "chance that a sampled client is lost after it trained")
    attack: Literal["none", "gaussian", "scale"] = _option(
        "none", "learning", "what malicious clients upload: Gaussian noise (A1) or their update times 100 (A2)"
    )
    malicious: ShareBetween = _option(0.1, "learning", "share of malicious clients when there is an attack")
    max_share: ShareAboveZero = _option(
        1.0, "learning", "largest share of a combination's weight that a client's declared size may give it"
    )
    clip_updates: Literal["none", "median"] = _option(
        "none", "learning", "scale updates that are longer than the round's median down to it, before the rule"
    )
    buffers: Literal["average", "local"] = _option(
        "average", "learning", "BatchNorm statistics: averaged, or each its own"
    )

    epochs: CountOrZero = _option(1, "local training", "epochs a round")
    batch_size: Count = _option(10, "local training", "samples a step")
    lr: Positive = _option(0.05, "local training", "learning rate")
    lr_decay: ShareAboveZero = _option(1.0, "local training", "factor on the learning rate after each round")
    momentum: ShareBelowOne = _option(0.0, "local training", "momentum of SGD")
    weight_decay: NonNegative = _option(0.0, "local training", "weight decay")
    clip: NonNegative = _option(0.0, "local training", "largest norm of a gradient; 0 for no limit")
    optimizer: str = _option("SGD", "local training", "any optimiser of torch.optim")
    optimizer_state: Literal["reset", "keep"] = _option("reset", "local training", "optimiser state between rounds")

    eval_every: Count = _option(
        1, "evaluation", "rounds between evaluations of all clients; the last is always evaluated"
    )
    general_every: CountOrZero | Literal["never"] = _option(
        0, "evaluation", "rounds between S-acc and G-acc, and the last; 0 for the last round alone, or never"
    )
    moment: Literal["received", "fitted"] | None = _option(
        None, "evaluation", "judge models as received or as fitted; by default as the method says"
    )
    reference: str = _option(
        "auto",
        "evaluation",
        "Local to compare with: auto (trained once and cached), none, or a run folder",
        decides=False,
    )

    seed: int = _option(0, "running", "decides every random number")
    workers: CountOrZero = _option(0, "running", "clients trained side by side; 0 for one a core", decides=False)
    device: str = _option("cpu", "running", "torch device")
    out: Path | None = _option(
        None, "running", "run folder; by default runs/<method>-<rule>-<data>-<seed>", decides=False
    )
    store: Literal["memory", "disk"] = _option(
        "memory",
        "running",
        "where each client's tensors lie: disk for more clients or larger models than memory holds",
        decides=False,
    )
    checkpoint_every: Count = _option(10, "running", "rounds between checkpoints", decides=False)
    save_models: bool = _option(False, "running", "save each client's model at the end", decides=False)
    tensorboard: bool = _option(False, "running", "write TensorBoard events into the run folder", decides=False)

    def __post_init__(self) -> None:
        for name, option in options(Config).items():
            value = getattr(self, name)
            if name not in COMPONENTS:
                value = convert(value, option.type, name)
            elif value is not None or name != "partition":
                value = Component.parse(name, value)
            object.__setattr__(self, name, value)
        _check(self)
        if not self.val_share:
            # written down here, so that Local beside a method that validates trains on as many samples
            method = find("method", self.method.name).load()
            object.__setattr__(self, "val_share", getattr(method, "validation", 0.0))

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "Config":
        """From entries; a name that is no option is refused."""
        return cls(**_checked_names(nested(entries)))

    @classmethod
    def load(cls, path: Path) -> "Config":
        return cls.of(read_yaml(path))

    def plain(self) -> Entries:
        """Complete, in numbers, text and lists: what ``config.yaml`` holds."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def with_(self, **changes: Any) -> "Config":
        """The same run but for ``changes``, which are entries: ``with_(lr=0.1, **{"rule.c": 0.4})``."""
        changes = _checked_names(nested(changes, self))
        return replace(self, **changes)

    def differences(self, other: "Config") -> list[str]:
        """The options that decide a run and that the two have otherwise: ``lr``, ``method.lam``."""
        decisive = {f.name for f in fields(Config) if f.metadata["decides"]}
        mine, theirs = flat(self.plain()), flat(other.plain())
        names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        renamed = {name for name in names if name in COMPONENTS}
        return [
            name
            for name in names
            if (kind := name.partition(".")[0]) in decisive and (kind == name or kind not in renamed)
        ]

    @property
    def is_local(self) -> bool:
        return bool(self.method.name == LOCAL)

    def general_in(self, round: int) -> bool:
        """Whether S-acc and G-acc are measured in this round, if it is evaluated."""
        every = self.general_every
        return every != "never" and (round >= self.rounds or (every > 0 and round % every == 0))

    def alone(self) -> "Config":
        """The run that this one is compared with: each client trains alone, under the same conditions."""
        return self.with_(**LOCAL_OPTIONS, save_models=False, tensorboard=False, out=None)

    @property
    def key(self) -> str:
        """The same for two configurations that give the same numbers."""
        decisive = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.metadata["decides"]}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def default(name: str) -> Any:
    return options(Config)[name].default


def _checked_names(entries: Entries) -> Entries:
    for name in entries:
        if name not in options(Config):
            raise unknown("option", name, options(Config))
    return entries


def _check(config: Config) -> None:
    """What concerns two options at once; each one by itself is checked by its annotation."""
    clients, participation = config.clients, config.participation
    if int(clients * participation + 0.5) < 1:
        raise ComityError(
            f"participation {participation} of {clients} clients selects nobody; take at least {0.5 / clients:g}"
        )
    if config.optimizer != "SGD" and config.momentum:
        raise ComityError(f"momentum is an option of SGD; {config.optimizer} has its own")


# Entries.


def read_yaml(path: Path) -> Entries:
    try:
        entries = yaml.load(Path(path).read_text(encoding="utf-8"), _LOADER)
    except OSError as error:
        raise ComityError(f"config {path} could not be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ComityError(f"config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise ComityError(f"config {path} must hold `option: value` lines")
    return entries


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times as fast where libyaml is there


def flat(entries: Mapping[str, Any]) -> Entries:
    """A component's options beside its name, each with a dot."""
    result: Entries = {}
    for key, value in entries.items():
        if key in COMPONENTS and isinstance(value, (Component, Mapping)) and "name" in (entry := plain_entry(value)):
            result |= {key if name == "name" else f"{key}.{name}": inner for name, inner in entry.items()}
        else:
            result[key] = value
    return result


def nested(entries: Mapping[str, Any], before: Config | None = None) -> Entries:
    """A component's options under its name; options without one go to the component ``before``, or to the default."""
    result = {key: value for key, value in entries.items() if "." not in key}
    for key, value in entries.items():
        kind, dot, option = key.partition(".")
        if dot:
            if kind not in COMPONENTS:
                raise ComityError(f"{kind} has no options of its own, got {key}")
            chosen = result.get(kind) or getattr(before, kind, None) or default_component(kind)
            result[kind] = plain_entry(chosen) | {option: value}
    return result


def over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Entries:
    """``upper`` laid over ``lower``. Where ``upper`` names another component, the options of the former one go."""
    below, above = flat(lower), flat(upper)

    def replaced(kind: str) -> bool:
        names = (below.get(kind), above.get(kind))
        same = all(isinstance(name, str) for name in names) and spelling(str(names[0])) == spelling(str(names[1]))
        return kind in above and not same

    kept = {key: value for key, value in below.items() if "." not in key or not replaced(key.partition(".")[0])}
    return kept | above


def default_component(kind: str) -> str:
    """The component that is meant where options are given without a name."""
    return str(default(kind) or PARTITION)


def plain_entry(chosen: Any) -> Entries:
    """A component as a mapping: ``"Ditto"`` as ``{"name": "Ditto"}``."""
    if isinstance(chosen, Component):
        return chosen.plain()
    return dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
