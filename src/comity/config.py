"""Everything that decides a run, in one place: command line, YAML file and ``comity.run`` all make a ``Config``.

Options come as *entries*, a mapping by name. A component's own options stand under its name,
``{"rule": {"name": "ConFREE", "c": 0.4}}``, or beside it with a dot, ``{"rule": "ConFREE", "rule.c": 0.4}``.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from comity._catalogue import KINDS, spelling
from comity._components import Component, plain
from comity._errors import ComityError, unknown
from comity._memory import parse_bytes
from comity._options import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Range,
    ShareAboveZero,
    ShareBelowOne,
    ShareBetween,
    convert,
    options,
)

COMPONENTS = tuple(KINDS)
PARTITION = "dirichlet"
"""The partition of data that come without one of their own, where none is named."""
CLIENTS = 20
"""How many clients there are where neither the data nor anybody says it."""
SAMPLES = {1: "vectors", 2: "series", 3: "images"}
"""What samples are, by the number of their dimensions."""
MODEL = {1: "logistic", 2: "cnn1d", 3: "cnn"}
"""The architecture for samples of so many dimensions, where none is named."""
UNNAMED = {"partition": PARTITION, "model": MODEL[3], "guard": "certified"}
"""Components that need not be named, and what options are about where they are not and the data are not known yet."""

Entries = dict[str, Any]

LOCAL = "Local"
"""The method that every run is compared with: each client trains alone."""
TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Options that log a run elsewhere."""
AUTO = "auto"
"""A learning rate that is not known yet: a study of each method chooses it by validation."""
MEAN = "Mean"
"""The rule that other rules are compared with."""
LOCAL_OPTIONS: Mapping[str, Any] = {
    "method": LOCAL,
    "rule": MEAN,
    "server_lr": 1.0,
    "server_momentum": 0.0,
    "max_share": 1.0,
    "clip_updates": "none",
    "sketch": None,
    "moment": None,
    "newcomer_rounds": 5,
    "reference": "none",
    "guard": None,
    "refit": 0,
    "masked": False,
    "max_weight": 0.5,
    "min_clients": 3,
    "dp_noise": 0.0,
    "dp_clip": 1.0,
    "dp_delta": 1e-5,
}
"""What the Local that goes with a run has otherwise; all other options that decide numbers are the run's own."""


def _option(default: Any, group: str, help: str, *, decides: bool = True) -> Any:
    """``decides``: whether another value may give other numbers, and so makes another run."""
    return field(default=default, metadata={"group": group, "help": help, "decides": decides})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run. Every option has a default that works; a component's own options follow its name with a dot."""

    data: Any = _option("digits", "data", "data set by name, `comity list data`, or the path of a file or folder")
    data_dir: Path | None = _option(None, "data", "folder with data sets; by default $COMITY_DATA", decides=False)
    data_limit: str | None = _option(
        None,
        "data",
        "most memory that the data set may take, such as 20GB; by default three quarters of the machine's",
        decides=False,
    )
    partition: Any = _option(
        None,
        "data",
        f"how samples are shared out; `comity list partitions`. By default {PARTITION}, or the data set's own",
    )
    clients: Count | None = _option(
        None, "data", f"number of clients; by default those that the data name, or {CLIENTS}"
    )
    newcomers: CountOrZero = _option(
        0, "data", "how many of the clients, the last ones, are held out of training and join after it"
    )
    test_share: ShareBetween = _option(0.3, "data", "share of a client's samples that is kept for testing")
    val_share: ShareBelowOne = _option(
        0.0, "data", "share of the rest that is kept for validation; some methods need one"
    )

    model: Any = _option(
        None,
        "learning",
        "architecture; `comity list models`, or the path of your own class. By default "
        + ", ".join(f"{name} for {SAMPLES[dimensions]}" for dimensions, name in MODEL.items()),
    )
    method: Any = _option("FedAvg", "learning", "how clients learn and what they share; `comity list methods`")
    rule: Any = _option("Mean", "learning", "how the server combines updates; `comity list rules`")
    server_lr: Positive = _option(1.0, "learning", "factor on the rule's update: the server's learning rate")
    server_momentum: ShareBelowOne = _option(0.0, "learning", "momentum of the server's steps along the rule's updates")
    rounds: Count = _option(50, "learning", "number of rounds")
    participation: ShareAboveZero = _option(1.0, "learning", "share of the clients that is sampled in a round")
    dropout: ShareBelowOne = _option(0.0, "learning", "chance that a sampled client is lost after it trained")
    attack: Literal["none", "gaussian", "scale", "inner"] = _option(
        "none",
        "learning",
        "what malicious clients upload: Gaussian noise (A1), their update times 100 (A2), or in collusion "
        "−2 times the honest mean (inner)",
    )
    malicious: ShareBetween = _option(0.1, "learning", "share of malicious clients when there is an attack")
    max_share: ShareAboveZero = _option(
        1.0, "learning", "largest share of a combination's weight that a client's declared size may give it"
    )
    clip_updates: Literal["none", "median"] = _option(
        "none", "learning", "scale updates that are longer than the round's median down to it, before the rule"
    )
    sketch: Count | ShareBetween | None = _option(
        None,
        "learning",
        "rules see each layer of an update as so many random measurements, such as 1024, or below 1 as many as give "
        "cosines this standard error; by default they see the products of whole updates",
    )
    guard: Any = _option(
        None,
        "learning",
        "what keeps clients from being worse off than alone: mixture, certified or none; `comity list guards`",
    )
    refit: CountOrZero | None = _option(
        None,
        "learning",
        "rounds at the end on all samples, those for validation too; by default a tenth under the guard mixture",
    )
    buffers: Literal["average", "local"] = _option(
        "average", "learning", "BatchNorm statistics: averaged, or each its own"
    )

    masked: bool = _option(
        False, "privacy", "show the server no update: sketches of them where the rule compares them, and a masked sum"
    )
    max_weight: ShareAboveZero = _option(
        0.5, "privacy", "largest share of a masked sum's weight that clients let one of them have"
    )
    min_clients: Annotated[int, Range(least=2)] = _option(
        3, "privacy", "fewest clients that must count in a masked sum"
    )
    dp_noise: NonNegative = _option(
        0.0, "privacy", "noise in a masked uniform mean over dp_clip, for differential privacy; 0 for none"
    )
    dp_clip: Positive = _option(1.0, "privacy", "length to which clients clip their updates where there is dp_noise")
    dp_delta: ShareBetween = _option(1e-5, "privacy", "delta of the epsilon that is reported where there is dp_noise")

    epochs: CountOrZero | NonNegative = _option(1, "local training", "epochs a round; 0.5 is half of one")
    steps: Count | None = _option(None, "local training", "steps a round, for every client alike, in place of epochs")
    batch_size: Count = _option(10, "local training", "samples a step")
    lr: Positive = _option(
        0.05, "local training", f"learning rate; {AUTO}, in comity run and study, chooses it by validation"
    )
    lr_decay: ShareAboveZero = _option(1.0, "local training", "factor on the learning rate after each round")
    momentum: ShareBelowOne = _option(0.0, "local training", "momentum of SGD")
    weight_decay: NonNegative = _option(0.0, "local training", "weight decay")
    clip: NonNegative = _option(0.0, "local training", "largest norm of a gradient; 0 for no limit")
    optimizer: str = _option("SGD", "local training", "any optimiser of torch.optim")
    optimizer_state: Literal["reset", "keep"] = _option("reset", "local training", "optimiser state between rounds")

    eval_every: Count | None = _option(
        None,
        "evaluation",
        "rounds between evaluations of all clients; by default a fifth of all rounds. The last is always evaluated",
    )
    general_every: CountOrZero | Literal["never"] = _option(
        0,
        "evaluation",
        "rounds between S-acc, G-acc, balanced accuracy and AUC; 0 for the last round alone, or never for S and G",
    )
    s_acc_share: ShareAboveZero = _option(
        0.4, "evaluation", "share of the other clients whose tests join a client's own in S-acc (FedPG's c)"
    )
    moment: Literal["received", "fitted"] | None = _option(
        None, "evaluation", "judge models as received or as fitted; by default as the method says"
    )
    local_on: Literal["all", "train"] = _option(
        "all",
        "evaluation",
        "samples that Local learns from: all that a client has, or as most papers do without its validation samples",
    )
    newcomer_rounds: CountOrZero = _option(
        5, "evaluation", "rounds of its own in which a newcomer fits what it is given, before it is judged"
    )
    reference: str = _option(
        "auto",
        "evaluation",
        "Local to compare with: auto (trained once and cached), none, or a run folder",
        decides=False,
    )

    seed: int = _option(0, "running", "decides every random number")
    workers: CountOrZero = _option(0, "running", "clients trained side by side; 0 for one a core", decides=False)
    device: str = _option("auto", "running", "torch device; auto is cuda where there is one, else cpu")
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
    wandb: bool = _option(False, "running", "log to Weights & Biases (needs the extra wandb)", decides=False)
    mlflow: bool = _option(False, "running", "log to MLflow (needs the extra mlflow)", decides=False)

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
        return cls(**_checked_names(nested(entries)))

    @classmethod
    def load(cls, path: Path, *, allow_code: bool = False) -> "Config":
        """From a YAML file; ``allow_code``: it may name classes that do not come with comity."""
        return cls.of(read_yaml(path, allow_code=allow_code))

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
        changes: Entries = {"local_on": on or self.local_on, "save_models": False, "out": None}
        changes |= dict.fromkeys(TRACKERS, False)
        if changes["local_on"] == "all":
            changes["val_share"] = 0.0  # the same Local for every share that other methods hold out
        return self.with_(**LOCAL_OPTIONS, **changes)

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


# Entries.


def read_yaml(path: Path | None, *, allow_code: bool = False) -> Entries:
    """A file of options of a run or a study; ``allow_code``: it may name classes that do not come with comity."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_YAML + 1)
    except OSError as error:
        raise ComityError(f"config {path} could not be read: {error.strerror}") from error
    if len(content) > MOST_YAML:
        raise ComityError(f"config {path} is larger than {MOST_YAML // 10**6} MB")
    try:
        entries = parse_yaml(content.decode())
    except (yaml.YAMLError, ValueError) as error:  # a number or a date that is none is a ValueError
        raise ComityError(f"config {path} is not YAML: {error}") from error
    if not isinstance(entries, dict):
        raise ComityError(f"config {path} must hold `option: value` lines")
    if not allow_code:
        refuse_code(entries, f"config {path}")
    return entries


MOST_YAML = 10**6
"""Bytes of a file."""
_DEEPEST, _LONGEST, _MOST_VALUES = 20, 20_000, 100_000
"""Levels of a file, characters of one value, and values where each alias counts as what it stands for."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times as fast where libyaml is there
_TAG = "tag:yaml.org,2002:"
_PLAIN = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value")}


def parse_yaml(text: str) -> Any:
    """YAML of text, numbers, lists and mappings, each key once; a file cannot grow beyond its own size in memory."""
    depth = 0
    for event in yaml.parse(text, _LOADER):  # before anything is built, which goes as deep as the file does
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} levels")
        if tag := getattr(event, "tag", None):
            raise ValueError(f"it has the tag {tag}; only text, numbers, lists and mappings are taken")
        if len(getattr(event, "value", "")) > _LONGEST:
            raise ValueError(f"it has a value of more than {_LONGEST} characters")
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None or _values(node, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {_MOST_VALUES} values" if node else "it is empty")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many values a node holds; what is odd about its keys is refused."""
    if node not in known:
        known[node] = _MOST_VALUES + 1  # for a node that holds itself
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            odd = [key for key, _ in node.value if key.tag not in (f"{_TAG}str", f"{_TAG}merge")]
            if odd:
                raise ValueError(f"the name of an option must be text, got {str(odd[0].value)[:80]}")
            if twice := [name for name, times in names.items() if times > 1]:
                raise ValueError(f"{twice[0]} is there twice")
            inner = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif node.tag not in _PLAIN:
            raise ValueError(f"{node.value[:80]} is {node.tag.removeprefix(_TAG)}; put it in quotes if it is text")
        known[node] = 1 + sum(_values(each, known) for each in inner)
    return known[node]


def refuse_code(entries: Any, where: str) -> None:
    """Refuse a name of a class that does not come with comity: to import it is to run whatever its module says.

    What a person types on the command line or in Python is theirs to choose; a file may be somebody else's.
    """
    for kind, name in code_in(entries):
        raise ComityError(
            f"{where} names the {kind} {name!r}, which is code that does not come with comity; "
            "if you trust the file and that code, give --allow-code (in Python allow_code=True)"
        )


def code_in(entries: Any) -> list[tuple[str, str]]:
    """Kind and dotted name of each class in a run's or study's entries that does not come with comity."""
    return [(kind, name) for kind, name in _named(entries) if "." in name or ":" in name]


def _named(entries: Any) -> Iterator[tuple[str, str]]:
    """All names of methods, rules, models, partitions and callbacks, wherever they stand in a run's or study's file."""
    if isinstance(entries, (list, tuple)):
        for entry in entries:
            yield from _named(entry)
    elif isinstance(entries, Mapping):
        for key, value in entries.items():
            kind = str(key).removesuffix(".name")
            if kind in (*COMPONENTS, "callbacks") and kind != "data":  # data sets are files, which are only read
                yield from ((kind, name) for name in _names(value))
            yield from _named(value)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Mapping):
        yield from _names(value.get("name"))


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
            entry = plain_entry(chosen)
            if isinstance(chosen, Component) and chosen.given is not None:
                entry["name"] = chosen.given
            result[kind] = entry | {option: value}
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
    return str(default(kind) or UNNAMED[kind])


def plain_entry(chosen: Any) -> Entries:
    """A component as a mapping: ``"Ditto"`` as ``{"name": "Ditto"}``."""
    if isinstance(chosen, Component):
        return chosen.plain()
    return dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
