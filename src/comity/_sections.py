"""The options of a run, each declared once, in sections: name, type, range, default, help.

A ``Config`` inherits all sections, so code that needs one section can take that type: ``Training``, ``Privacy``, …
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from comity._options import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Range,
    ShareAboveZero,
    ShareBelowOne,
    ShareBetween,
    option,
)
from comity._overlay import DEFAULTS

PARTITION = DEFAULTS["partition"]  # for data without clients of their own, if no partition is given
CLIENTS = 20  # if neither the data nor the user specifies it
SAMPLES = {1: "vectors", 2: "series", 3: "images"}  # kind of samples, by number of dimensions
MODEL = {1: "logistic", 2: "cnn1d", 3: DEFAULTS["model"]}  # default model by number of dimensions
LOCAL = "Local"  # the method that every run is compared with: each client trains by itself
MEAN = DEFAULTS["rule"]  # the rule that other rules are compared with
AUTO = "auto"  # a learning rate to be chosen by validation, in a study of each method
Tracker = Literal["wandb", "mlflow", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The federation: which samples there are, and which client holds them."""

    section: ClassVar[str] = "data"

    data: Any = option(DEFAULTS["data"], "name of a data set (see `comity list data`), or path of a file or folder")
    data_dir: Path | None = option(None, "folder of data sets; by default $COMITY_DATA", decides=False)
    data_limit: str | None = option(
        None, "memory limit of the data set, such as 20GB; by default 3/4 of the machine's", decides=False
    )
    partition: Any = option(
        None, f"how samples are divided (see `comity list partitions`); by default {PARTITION}, or the data set's own"
    )
    clients: Count | None = option(None, f"number of clients; by default those in the data set, or {CLIENTS}")
    newcomers: CountOrZero = option(
        0, "number of clients, the last ones, that do not train with the others but join afterwards"
    )
    test_share: ShareBetween = option(
        0.3,
        "share of a client's samples held out for testing; if the data set defines the clients, each seed tests one "
        "fold of a cross-validation instead (0.3 gives 3 folds)",
    )
    val_share: ShareBelowOne = option(
        0.0, "share of the non-test samples held out for validation; set automatically if needed"
    )


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What clients learn together: model, method, rule, and what happens in a round."""

    section: ClassVar[str] = "learning"

    model: Any = option(
        None,
        "architecture (see `comity list models`), or dotted path of your own class; by default "
        + ", ".join(f"{name} for {SAMPLES[dimensions]}" for dimensions, name in MODEL.items()),
    )
    method: Any = option(DEFAULTS["method"], "how clients learn and share (see `comity list methods`)", local=LOCAL)
    rule: Any = option(MEAN, "how the server combines updates (see `comity list rules`)", local=MEAN)
    server_lr: Positive = option(1.0, "server learning rate: the combined update is multiplied by it", local=1.0)
    server_momentum: ShareBelowOne = option(0.0, "momentum of the server's steps", local=0.0)
    rounds: Count = option(50, "number of rounds")
    participation: ShareAboveZero = option(1.0, "participation rate: share of the clients sampled per round")
    dropout: ShareBelowOne = option(0.0, "probability that a sampled client drops out after training")
    attack: Literal["none", "gaussian", "scale", "flip", "inner"] = option(
        "none",
        "what malicious clients send: random noise (gaussian), their update times 100 (scale) or times −1 (flip), or "
        "together −2 times the mean honest update (inner)",
    )
    malicious: ShareBetween = option(0.1, "share of malicious clients when there is an attack")
    max_share: ShareAboveZero = option(
        1.0, "maximum weight of a client, whatever number of samples it reports", local=1.0
    )
    clip_updates: Literal["none", "median"] = option(
        "none", "shrink updates whose norm is above the round's median norm to that median", local="none"
    )
    sketch: Count | ShareBetween | None = option(
        None,
        "estimate inner products of updates from random sketches: a whole number, such as 1024, is a sketch's size "
        "per layer; a number below 1, such as 0.1, is the standard error of cosines; by default products are exact",
        local=None,
    )
    guard: Any = option(
        None,
        "protect clients: held-out samples decide whether a client uses its own model, the federated one or a mixture "
        "(see `comity list guards`)",
        local=None,
    )
    guard_split: bool = option(
        False,
        "reserve a part of the validation samples for tuning, not for the guard; set by a study that tunes",
        local=False,
        silent=True,
    )
    refit: CountOrZero | None = option(
        None,
        "additional final rounds that also train on validation samples; by default 0, or 10 % of --rounds with --guard "
        "mixture",
        local=0,
    )
    buffers: Literal["average", "local"] = option("average", "BatchNorm statistics: averaged, or local to the client")
    extension: Any = option(
        None, "dotted path of your own subclass of comity.engine.Extension", local=None, silent=True
    )


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What the server may see of the clients' updates."""

    section: ClassVar[str] = "privacy"

    masked: bool = option(
        False,
        "secure aggregation: the server sees only the masked sum of updates and random sketches of them (not audited "
        "by a cryptographer)",
        local=False,
    )
    max_weight: ShareAboveZero = option(
        0.5,
        "largest allowed share of one client in a masked sum: its squared weight / sum of squared weights",
        local=0.5,
    )
    min_clients: Annotated[int, Range(least=2)] = option(5, "smallest number of clients in a masked sum", local=5)
    dp_noise: NonNegative = option(
        0.0, "noise multiplier of differential privacy: noise std / --dp-clip; 0 is off; needs --masked", local=0.0
    )
    dp_clip: Positive = option(1.0, "norm to which clients clip their updates with --dp-noise", local=1.0)
    dp_delta: ShareBetween = option(1e-5, "delta of the (epsilon, delta) guarantee of --dp-noise", local=1e-5)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Local training: the steps that a client takes in a round."""

    section: ClassVar[str] = "local training"

    epochs: CountOrZero | NonNegative = option(1, "epochs per round; 0.5 is half of one")
    steps: Count | None = option(None, "steps per round, the same for every client, instead of epochs")
    batch_size: Count = option(10, "samples per step")
    lr: Positive = option(0.05, f"learning rate, or {AUTO} to choose it by validation (comity run and study)")
    lr_decay: ShareAboveZero = option(1.0, "factor on the learning rate after each round")
    momentum: ShareBelowOne = option(0.0, "momentum of SGD")
    weight_decay: NonNegative = option(0.0, "weight decay")
    clip: NonNegative = option(0.0, "maximum norm of a gradient; 0 for no limit")
    optimizer: str = option("SGD", "name of an optimiser in torch.optim")
    optimizer_state: Literal["reset", "keep"] = option("reset", "optimiser state between rounds")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how models are evaluated, and what they are compared with."""

    section: ClassVar[str] = "evaluation"

    eval_every: Count | None = option(
        None, "rounds between evaluations; by default a fifth of all rounds. The last round is always evaluated"
    )
    general_every: CountOrZero | Literal["never"] = option(
        0,
        "rounds between measurements of S-acc (accuracy on the tests of the client and some others), G-acc (accuracy "
        "on all clients' tests), balanced accuracy and AUC; 0: only in the last round; never: no S-acc and G-acc",
    )
    general_validation: bool = option(
        False,
        "also measure S-acc, G-acc and the global model on validation samples; set by a study with --tune-by",
        decides=False,
        local=False,
        silent=True,
    )
    s_acc_share: ShareAboveZero = option(0.4, "share of the other clients whose tests S-acc includes (c in FedPG)")
    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"] | None = option(
        None,
        "metric that compares each client's model with its local one; by default accuracy, or balanced accuracy if "
        "classes are imbalanced (one class above 60 %)",
    )
    margin: NonNegative = option(
        0.02, "largest loss, by the metric, that still counts as not worse; 0.02 is 2 percentage points", decides=False
    )
    eval_point: Literal["received", "fitted"] | None = option(
        None,
        "evaluation point: a client's model before (received) or after (fitted) its local training in the round; by "
        "default that of the method",
        local=None,
        hashed="moment",
    )
    local_on: Literal["all", "train"] = option(
        "all", "samples that the local baseline is trained on: all, or without validation samples as in most papers"
    )
    local_lr: Positive | None = option(
        None, "learning rate of the local baseline; by default --lr", local=None, silent=True
    )
    newcomer_rounds: CountOrZero = option(5, "rounds of local training of a newcomer before it is evaluated", local=5)
    reference: str = option(
        "auto", "local baseline: auto (trained once and cached), none, or a run folder", decides=False, local="none"
    )
    control: str = option(
        "auto",
        "second local baseline with another training seed, which shows the random variation of training: auto (trained "
        "once and cached), none, or a run folder",
        decides=False,
        local="none",
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Where and how a run is computed, and what it writes."""

    section: ClassVar[str] = "running"

    seed: int = option(0, "random seed of the whole run: data splits, initial model, batches and so on")
    training_seed: int | None = option(
        None,
        "random seed of training only (initial model, batches); by default --seed",
        local=None,
        silent=True,
    )
    workers: CountOrZero = option(0, "clients trained in parallel; 0 for one per core", decides=False)
    device: str = option("auto", "torch device; auto is cuda if available, otherwise cpu")
    trainer: Literal["auto", "autograd", "bfloat16", "chain", "compiled"] = option(
        "auto",
        "how gradients are computed: by PyTorch (autograd), by PyTorch with layers in bfloat16, by formulas for plain "
        "layers (chain), or by these formulas in C (compiled); by default the fastest in float32 that fits model and "
        "machine",
        silent=True,
    )
    out: Path | None = option(
        None, "output folder; comity run's default is runs/METHOD-RULE-DATA-SEED", decides=False, local=None
    )
    store: Literal["memory", "disk"] = option(
        "memory", "where client tensors are kept; disk if they do not fit into memory", decides=False
    )
    checkpoint_every: Count = option(10, "rounds between checkpoints", decides=False)
    save_models: bool | None = option(
        None,
        "save each client's model at the end; by default for a single run with --out, if the models are small (at most "
        "100 clients and 200 MB)",
        decides=False,
        local=False,
    )
    track: tuple[Tracker, ...] = option(
        (), "also log to these trackers; install with pip install 'comity[NAME]'", decides=False, local=()
    )
