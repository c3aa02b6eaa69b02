"""The options of a run, each declared once, in sections: name, type, range, default, help.

A room that needs one section takes it: a ``Config`` is a ``Training``, a ``Privacy`` and so on.
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

PARTITION = DEFAULTS["partition"]  # the partition of data that come without one of their own, where none is named
CLIENTS = 20  # how many clients there are where neither the data nor anybody says it
SAMPLES = {1: "vectors", 2: "series", 3: "images"}  # what samples are, by the number of their dimensions
MODEL = {1: "logistic", 2: "cnn1d", 3: DEFAULTS["model"]}  # by the dimensions of samples
LOCAL = "Local"  # the method that every run is compared with: each client trains by itself
MEAN = DEFAULTS["rule"]  # the rule that other rules are compared with
AUTO = "auto"  # A learning rate that is not known yet: a study of each method chooses it by validation
Tracker = Literal["wandb", "mlflow", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The federation: which samples there are, and which client holds them."""

    section: ClassVar[str] = "data"

    data: Any = option(DEFAULTS["data"], "data set by name, `comity list data`, or the path of a file or folder")
    data_dir: Path | None = option(None, "folder with data sets; by default $COMITY_DATA", decides=False)
    data_limit: str | None = option(
        None, "memory limit of the data set, such as 20GB; by default 3/4 of the machine's", decides=False
    )
    partition: Any = option(
        None, f"how samples are divided, `comity list partitions`; by default {PARTITION}, or the data set's own"
    )
    clients: Count | None = option(None, f"number of clients; by default those that the data name, or {CLIENTS}")
    newcomers: CountOrZero = option(0, "number of clients, the last ones, that join only after training")
    test_share: ShareBetween = option(
        0.3,
        "share of a client's samples that is held out for testing; where the data name the clients, consecutive seeds "
        "test the folds of a cross-validation, 3 by default",
    )
    val_share: ShareBelowOne = option(0.0, "share of the rest that is held out for validation; some methods need one")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What clients learn together: model, method, rule, and what happens in a round."""

    section: ClassVar[str] = "learning"

    model: Any = option(
        None,
        "architecture, `comity list models`, or the path of your own class; by default "
        + ", ".join(f"{name} for {SAMPLES[dimensions]}" for dimensions, name in MODEL.items()),
    )
    method: Any = option(DEFAULTS["method"], "how clients learn and share; `comity list methods`", local=LOCAL)
    rule: Any = option(MEAN, "how the server combines updates; `comity list rules`", local=MEAN)
    server_lr: Positive = option(1.0, "server learning rate: factor on the rule's update", local=1.0)
    server_momentum: ShareBelowOne = option(0.0, "server momentum along the rule's updates", local=0.0)
    rounds: Count = option(50, "number of rounds")
    participation: ShareAboveZero = option(1.0, "participation rate: share of the clients sampled per round")
    dropout: ShareBelowOne = option(0.0, "probability that a sampled client drops out after training")
    attack: Literal["none", "gaussian", "scale", "flip", "inner"] = option(
        "none",
        "what malicious clients upload: Gaussian noise (A1), their update times 100 (A2) or −1 (flip), or in collusion "
        "−2 times the honest mean (inner)",
    )
    malicious: ShareBetween = option(0.1, "share of malicious clients when there is an attack")
    max_share: ShareAboveZero = option(1.0, "largest weight that a client's declared size may give it", local=1.0)
    clip_updates: Literal["none", "median"] = option(
        "none", "scale updates that are longer than the round's median down to it, before the rule", local="none"
    )
    sketch: Count | ShareBetween | None = option(
        None,
        "random measurements per layer from which rules estimate inner products, such as 1024, or the standard error "
        "of cosines, such as 0.1; by default products are exact",
        local=None,
    )
    guard: Any = option(
        None, "what each client uses after training, chosen on held-out samples; `comity list guards`", local=None
    )
    guard_split: bool = option(
        False,
        "leave a part of the validation samples to others than the guard; a study sets it where it tunes",
        local=False,
        silent=True,
    )
    refit: CountOrZero | None = option(
        None, "final rounds that train on validation samples too; by default 10 % under the guard mixture", local=0
    )
    buffers: Literal["average", "local"] = option("average", "BatchNorm statistics: averaged, or local to the client")
    extension: Any = option(
        None, "dotted path of your own subclass of comity.engine.Extension, applied to the run", local=None, silent=True
    )


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What the server may see of the clients' updates."""

    section: ClassVar[str] = "privacy"

    masked: bool = option(
        False,
        "secure aggregation: the server sees a masked sum and sketches only (not audited by a cryptographer)",
        local=False,
    )
    max_weight: ShareAboveZero = option(
        0.5, "largest share of one client in the squared weights of a masked sum", local=0.5
    )
    min_clients: Annotated[int, Range(least=2)] = option(5, "smallest number of clients in a masked sum", local=5)
    dp_noise: NonNegative = option(
        0.0, "noise multiplier for differential privacy: noise std divided by --dp-clip (0 = off)", local=0.0
    )
    dp_clip: Positive = option(1.0, "length to which clients clip their updates with --dp-noise", local=1.0)
    dp_delta: ShareBetween = option(1e-5, "delta of the epsilon that is reported with --dp-noise", local=1e-5)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Local training: the steps that a client takes in a round."""

    section: ClassVar[str] = "local training"

    epochs: CountOrZero | NonNegative = option(1, "epochs per round; 0.5 is half of one")
    steps: Count | None = option(None, "steps per round, the same for every client, in place of epochs")
    batch_size: Count = option(10, "samples per step")
    lr: Positive = option(0.05, f"learning rate; {AUTO}, in comity run and study, chooses it by validation")
    lr_decay: ShareAboveZero = option(1.0, "factor on the learning rate after each round")
    momentum: ShareBelowOne = option(0.0, "momentum of SGD")
    weight_decay: NonNegative = option(0.0, "weight decay")
    clip: NonNegative = option(0.0, "largest norm of a gradient; 0 for no limit")
    optimizer: str = option("SGD", "any optimiser of torch.optim")
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
        "rounds between S-acc, G-acc, balanced accuracy and AUC; 0 for the last round only, never for no S and G",
    )
    general_validation: bool = option(
        False,
        "measure S-acc, G-acc and the common model on validation samples too; a study sets it where it tunes by them",
        decides=False,
        local=False,
        silent=True,
    )
    s_acc_share: ShareAboveZero = option(0.4, "share of the other clients whose tests count in S-acc (FedPG's c)")
    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"] | None = option(
        None, "metric that decides who is better; by default accuracy, or balanced accuracy where classes are uneven"
    )
    margin: NonNegative = option(
        0.02, "largest loss that still counts as not worse; 0.02 is 2 points of accuracy", decides=False
    )
    moment: Literal["received", "fitted"] | None = option(
        None, "evaluate models as received or as fitted; by default as the method says", local=None
    )
    local_on: Literal["all", "train"] = option(
        "all", "samples that the local baseline learns from: all, or without validation samples as in most papers"
    )
    local_lr: Positive | None = option(
        None, "learning rate of the local baseline; by default lr", local=None, silent=True
    )
    newcomer_rounds: CountOrZero = option(5, "rounds in which a newcomer fits before it is evaluated", local=5)
    reference: str = option(
        "auto", "local baseline: auto (trained once and cached), none, or a run folder", decides=False, local="none"
    )
    control: str = option(
        "auto",
        "local training repeated, which shows training luck: auto (trained once and cached), none, or a run folder",
        decides=False,
        local="none",
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Where and how a run is computed, and what it writes."""

    section: ClassVar[str] = "running"

    seed: int = option(0, "decides every random number")
    training_seed: int | None = option(
        None,
        "decides the random numbers of training alone, such as initial model and batches; by default the seed",
        local=None,
        silent=True,
    )
    workers: CountOrZero = option(0, "clients trained in parallel; 0 for one per core", decides=False)
    device: str = option("auto", "torch device; auto is cuda where there is one, else cpu")
    trainer: Literal["auto", "autograd", "chain", "compiled"] = option(
        "auto", "how local training is computed; by default the fastest that fits model and machine", silent=True
    )
    out: Path | None = option(None, "run folder; by default runs/METHOD-RULE-DATA-SEED", decides=False, local=None)
    store: Literal["memory", "disk"] = option(
        "memory", "where client tensors are kept; disk if they do not fit into memory", decides=False
    )
    checkpoint_every: Count = option(10, "rounds between checkpoints", decides=False)
    save_models: bool | None = option(
        None,
        "save each client's model at the end; by default where a single run has a folder and they are small",
        decides=False,
        local=False,
    )
    track: tuple[Tracker, ...] = option(
        (), "also log the run to one or several of these; each needs the extra of its name", decides=False, local=()
    )
