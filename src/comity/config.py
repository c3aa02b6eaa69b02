"""Everything that decides a run, in one place: command line, YAML file and ``comity.run`` all make a ``Config``."""

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from comity._components import Component, convert, find, plain
from comity._errors import ComityError, unknown

COMPONENTS = ("data", "partition", "model", "method", "rule")
LOCAL = "Local"
"""The method in which each client trains alone."""


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
        "how samples are shared out; `comity list partitions`. By default dirichlet, or the data set's own",
    )
    clients: int = _option(20, "data", "number of clients")
    test_share: float = _option(0.3, "data", "share of a client's samples that is kept for testing")
    val_share: float = _option(0.0, "data", "share of the rest that is kept for validation; some methods need one")

    model: Any = _option("cnn", "learning", "architecture; `comity list models`, or the path of your own class")
    method: Any = _option("FedAvg", "learning", "how clients learn and what they share; `comity list methods`")
    rule: Any = _option("Mean", "learning", "how the server combines updates; `comity list rules`")
    rounds: int = _option(50, "learning", "number of rounds")
    participation: float = _option(1.0, "learning", "share of the clients that is sampled in a round")
    dropout: float = _option(0.0, "learning", "chance that a sampled client is lost after it trained")
    attack: Literal["none", "gaussian", "scale"] = _option(
        "none", "learning", "what malicious clients upload: Gaussian noise (A1) or their update times 100 (A2)"
    )
    malicious: float = _option(0.1, "learning", "share of malicious clients when there is an attack")
    buffers: Literal["average", "local"] = _option(
        "average", "learning", "BatchNorm statistics: averaged, or each its own"
    )

    epochs: int = _option(1, "local training", "epochs a round")
    batch_size: int = _option(10, "local training", "samples a step")
    lr: float = _option(0.05, "local training", "learning rate")
    lr_decay: float = _option(1.0, "local training", "factor on the learning rate after each round")
    momentum: float = _option(0.0, "local training", "momentum of SGD")
    weight_decay: float = _option(0.0, "local training", "weight decay")
    clip: float = _option(0.0, "local training", "largest norm of a gradient; 0 for no limit")
    optimizer: str = _option("SGD", "local training", "any optimiser of torch.optim")
    optimizer_state: Literal["reset", "keep"] = _option("reset", "local training", "optimiser state between rounds")

    eval_every: int = _option(
        1, "evaluation", "rounds between evaluations of all clients; the last is always evaluated"
    )
    general_every: int = _option(0, "evaluation", "rounds between S-acc and G-acc; 0 for the last round alone")
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
    workers: int = _option(0, "running", "clients trained side by side; 0 for one a core", decides=False)
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
    checkpoint_every: int = _option(10, "running", "rounds between checkpoints", decides=False)
    save_models: bool = _option(False, "running", "save each client's model at the end", decides=False)
    tensorboard: bool = _option(False, "running", "write TensorBoard events into the run folder", decides=False)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in COMPONENTS:
                value = None if value is None and f.name == "partition" else Component.parse(f.name, value)
            else:
                value = convert(value, hints[f.name], f.name)
            object.__setattr__(self, f.name, value)
        if not self.val_share:
            # written down here, so that Local beside a method that validates trains on as many samples
            _, method = find("method", self.method.name)
            object.__setattr__(self, "val_share", getattr(method, "validation", 0.0))
        _check(self)

    @classmethod
    def of(cls, entries: dict[str, Any]) -> "Config":
        """From plain entries, as YAML has them; a key that is not known is refused."""
        known = {f.name for f in fields(cls)}
        for key in entries:
            if key not in known:
                raise unknown("option", key, known)
        return cls(**entries)

    @classmethod
    def load(cls, path: Path) -> "Config":
        return cls.of(read_yaml(path))

    def plain(self) -> dict[str, Any]:
        """Complete and plain: what ``config.yaml`` holds."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def with_(self, **changes: Any) -> "Config":
        return replace(self, **changes)

    @property
    def is_local(self) -> bool:
        return bool(self.method.name == LOCAL)

    def alone(self) -> "Config":
        """The run that this one is compared with: each client trains alone, under the same conditions."""
        return self.with_(
            method=LOCAL, rule="Mean", moment=None, reference="none", save_models=False, tensorboard=False, out=None
        )

    @property
    def key(self) -> str:
        """The same for two configurations that give the same numbers."""
        decisive = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.metadata["decides"]}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        entries = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ComityError(f"config {path} could not be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ComityError(f"config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict):
        raise ComityError(f"config {path} must hold `option: value` lines")
    return entries


def default(name: str) -> Any:
    found = next(f for f in fields(Config) if f.name == name)
    assert found.default is not MISSING
    return found.default


def _check(c: Config) -> None:
    def demand(holds: bool, key: str, allowed: str) -> None:
        if not holds:
            raise ComityError(f"{key} must be {allowed}, got {getattr(c, key)}")

    for key in ("clients", "rounds", "batch_size", "eval_every", "checkpoint_every"):
        demand(getattr(c, key) >= 1, key, "at least 1")
    for key in ("epochs", "general_every", "workers", "weight_decay", "clip"):
        demand(getattr(c, key) >= 0, key, "at least 0")
    demand(0 < c.participation <= 1, "participation", "above 0 and at most 1")
    if int(c.clients * c.participation + 0.5) < 1:
        raise ComityError(
            f"participation {c.participation} of {c.clients} clients selects nobody; take at least {0.5 / c.clients:g}"
        )
    demand(0 <= c.dropout < 1, "dropout", "at least 0 and below 1")
    demand(0 < c.malicious < 1, "malicious", "above 0 and below 1")
    demand(c.lr > 0, "lr", "above 0")
    demand(0 < c.lr_decay <= 1, "lr_decay", "above 0 and at most 1")
    demand(0 <= c.momentum < 1, "momentum", "at least 0 and below 1")
    if c.optimizer != "SGD" and c.momentum:
        raise ComityError(f"momentum is an option of SGD; {c.optimizer} has its own")
