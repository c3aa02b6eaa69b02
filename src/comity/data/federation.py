"""The clients and their data."""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity._errors import ComityError
from comity._options import Count, CountOrZero, ShareBelowOne, ShareBetween, check_arguments
from comity._random import numpy_generator
from comity._uneven import imbalance
from comity.config import CLIENTS
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share
from comity.data.partitions.columns import Natural
from comity.data.partitions.sizes import IID
from comity.data.preprocessing import Moments, Preprocessing, Scaler
from comity.data.sources.synthetic import Synthetic

FEW_TESTS = 10
"""With fewer test samples, one sample is more than ten points of accuracy."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in training format: ``x`` float32 (n, *shape), images in channels_last memory, ``y`` int64 (n,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's samples; ``val`` is empty unless a validation share was requested."""

    id: int
    train: Split
    val: Split
    test: Split
    val_unseen: bool = field(default=True, kw_only=True)
    """Whether training excludes the validation samples."""
    test_ids: Ints = field(default_factory=lambda: np.empty(0, np.int64), kw_only=True)
    """Index of each test sample in the data set; by default test samples are numbered from 0."""

    def __post_init__(self) -> None:
        if not len(self.test_ids):
            object.__setattr__(self, "test_ids", np.arange(len(self.test)))
        if len(self.test_ids) != len(self.test):
            raise ComityError(f"client {self.id}: got {len(self.test_ids)} test_ids for {len(self.test)} test samples")


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients with their data, and the information needed to build a model for them.

    ``shape`` is that of one sample: (features,), (channels, time) or (channels, height, width). Client and class names
    default to their indices.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    clients: tuple[ClientData, ...]
    seed: int
    partition: str
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Decisions that were made where the data were ambiguous, one line each."""
    tests_drawn: bool = False
    """Whether each seed draws its own test samples."""
    folds: int = 0
    """Number of consecutive seeds that together test each sample once; 0 if test samples are drawn or given."""
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the data, one line each."""
    known_imbalance: str | None = None
    """How the data set's classes are imbalanced, or empty; ``None`` if clients were given directly."""
    preprocessing: Preprocessing | None = None
    """Conversion of raw samples to model inputs; ``None`` if clients were given directly or each has its own
    conversion, such as a rotation."""

    def __post_init__(self) -> None:
        for name, count in (("client_names", len(self.clients)), ("class_names", self.classes)):
            names = getattr(self, name) or tuple(map(str, range(count)))
            if len(names) != count:
                raise ComityError(f"federation {self.name}: got {len(names)} {name} for {count}")
            object.__setattr__(self, name, names)

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        shape = "×".join(str(side) for side in self.shape)
        what = f"{self.name}, {shape}, {self.classes} classes, {len(self)} clients"
        return f"Federation({what}, {self.partition}, seed {self.seed})"

    def first(self, count: int) -> "Federation":
        """A federation of the first ``count`` clients, with the fingerprint of the whole."""
        some = replace(self, clients=self.clients[:count], client_names=self.client_names[:count])
        vars(some)["fingerprint"] = self.fingerprint
        return some

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of the data: of the data set if made by ``federate``, otherwise of the clients' samples."""
        splits = [split for client in self.clients for split in (client.train, client.val, client.test)]
        arrays = [each.cpu().contiguous().numpy() for split in splits for each in (split.x, split.y)]
        return _checksum(arrays, self.classes)

    @property
    def counts(self) -> Ints:
        """(clients, classes) number of samples over all splits."""
        return self.count("train") + self.count("val") + self.count("test")

    @property
    def uneven(self) -> bool:
        """Whether classes are so imbalanced that balanced accuracy is the default metric; never for synthetic data."""
        return bool(self.imbalance)

    @property
    def imbalance(self) -> str:
        """How classes are imbalanced, as a clause; empty if they are not."""
        return imbalance(self.counts.tolist()) if self.known_imbalance is None else self.known_imbalance

    @property
    def caveat(self) -> str:
        """Sentence that names the clients whose accuracy is unreliable; empty if there are none."""
        tests, held = (self.counts if self.folds else self.count("test")).sum(1), (self.counts > 0).sum(1)
        few = (tests > 0) & (tests < FEW_TESTS) & (held != 1)
        together = f" in all {self.folds} folds together" if self.folds else ""
        words = f"which have fewer than {FEW_TESTS} test samples{together}, so their result is very uncertain"
        found = ((held == 1, "which hold one class"), (few, words))
        reasons = []
        for chosen, words in found:
            names = np.array(self.client_names)[chosen]
            if len(names) and self.classes > 1:
                shown = ", ".join([*names[:5], "…"] if len(names) > 5 else names)
                reasons.append(f"{shown} ({len(names)} of {len(self)}) {words}")
        return f"Accuracy is very uncertain for clients {'; and '.join(reasons)}." if reasons else ""

    def count(self, split: Literal["train", "val", "test"]) -> Ints:
        """(clients, classes) number of samples in one split."""
        rows = [torch.bincount(getattr(client, split).y, minlength=self.classes) for client in self.clients]
        return torch.stack(rows).numpy()


def natural_clients(dataset: Dataset | Synthetic) -> int | None:
    """Number of clients that the data set itself defines, or None."""
    owner = dataset.owner if isinstance(dataset, Dataset) else None
    return None if owner is None else len(np.unique(owner))


def federate(
    dataset: Dataset | Synthetic,
    partition: Partition | None = None,
    *,
    clients: Count | None = None,
    seed: int = 0,
    test_share: ShareBetween = 0.3,
    val_share: ShareBelowOne = 0.0,
    newcomers: CountOrZero = 0,
) -> Federation:
    """Divide ``dataset`` among ``clients`` and split each client's samples into train, validation and test.

    ``partition`` None means the data set's own partition, or IID if it has none; ``clients`` None means the clients
    that the data set names, or 20. ``test_share`` is taken from the client's samples and ``val_share`` from the rest,
    both stratified by class. A data set's own clients are split into ``folds_for(test_share)`` folds, one per seed, so
    that as many consecutive seeds test each sample once. A data set that marks its test samples keeps that split.
    Samples are standardised by statistics of all clients except the last ``newcomers`` clients.
    """
    check_arguments(federate, "", clients=clients, test_share=test_share, val_share=val_share, newcomers=newcomers)
    if clients is None:
        clients = natural_clients(dataset) if partition is None or isinstance(partition, Natural) else None
        clients = clients or CLIENTS
    drawn_anew = isinstance(dataset, Synthetic)  # no sample is in the data of two seeds
    if isinstance(dataset, Synthetic):
        dataset = dataset.draw(clients, seed)
    if clients * 2 > len(dataset):
        raise ComityError(
            f"clients must be at most {len(dataset) // 2}, got {clients}: {dataset.name} has {len(dataset)} samples "
            "and a client needs 2, one to train on and one to test"
        )
    partition = partition or (Natural() if dataset.owner is not None else IID())
    if "client" in dataset.columns and not isinstance(partition, Natural):
        raise ComityError(
            f"partition must be natural, or left out, got {partition}: {dataset.name} comes with its clients"
        )

    shares = partition.share(dataset, clients, numpy_generator(seed, "partition"))
    _check(shares, dataset, partition, clients)
    tests_drawn = all(share.test is None for share in shares)
    folds = folds_for(test_share) if tests_drawn and isinstance(partition, Natural) and not drawn_anew else 0
    splits = [split_share(k, share, dataset, seed, test_share, val_share, folds) for k, share in enumerate(shares)]
    # sorted, so that the sums have the same bits whichever samples are held out for validation
    taking_part = [np.sort(np.concatenate([train, val])) for train, val, _ in splits[: max(1, clients - newcomers)]]
    least = 0 if dataset.schema is None else dataset.schema.min_count
    sums = (Moments.of(dataset.x[index]).without_few(least) for index in taking_part)
    scaler = Scaler.of(Moments.together(sums, dataset.schema)) if dataset.standardise else None
    pixels = scaler is None and dataset.x.dtype == np.uint8
    prepare = Preprocessing(dataset.shape, scaler, dataset.centred, dataset.schema, pixels)
    names = tuple(share.name or str(k) for k, share in enumerate(shares))
    federation = Federation(
        name=dataset.name,
        shape=dataset.shape,
        classes=dataset.classes,
        clients=tuple(
            client_data(k, dataset, share, split, prepare)
            for k, (share, split) in enumerate(zip(shares, splits, strict=True))
        ),
        seed=seed,
        partition=str(partition),
        client_names=names,
        class_names=tuple(dataset.class_names),
        notes=dataset.notes,
        tests_drawn=tests_drawn,
        folds=folds,
        warnings=dataset.warnings
        + ((f"There is only one client ({names[0]}), so there is no federation to join.",) * (clients == 1)),
        known_imbalance="" if drawn_anew else dataset.imbalance(by_client=isinstance(partition, Natural)),
        preprocessing=None if any(share.transform for share in shares) else prepare,
    )
    vars(federation)["fingerprint"] = fingerprint(dataset)
    return federation


def fingerprint(dataset: Dataset) -> str:
    """Checksum of samples, labels and columns, independent of the file format."""
    columns = [array for name in sorted(dataset.columns) for array in (np.array(name), dataset.columns[name])]
    scaled = [np.array("standardise by sums")] if dataset.standardise else []
    # earlier versions drew the test samples of natural clients: their runs must not be resumed or compared
    folded = [np.array("folds")] if dataset.owner is not None and "test" not in dataset.columns else []
    blocks = [np.array("in time")] if dataset.in_time else []
    return _checksum([dataset.x, dataset.y, *columns, *scaled, *folded, *blocks], dataset.classes)


def _checksum(arrays: Sequence[NDArray[Any]], classes: int) -> str:
    """Checksum over every byte by CRC-32, which takes a third of the time of a hash: it must not slow down loading."""
    digest = hashlib.sha256(str(classes).encode())
    for array in arrays:
        content = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        digest.update(f" {array.dtype.str} {array.shape} {content}".encode())
    return digest.hexdigest()[:16]


def _check(shares: Sequence[Share], dataset: Dataset, partition: Partition, clients: int) -> None:
    """Check the output of a partition, including users' own ones."""
    if len(shares) != clients:
        raise ComityError(f"partition: {partition} made {len(shares)} shares for {clients} clients")
    used = np.concatenate(
        [share.index if share.test is None else np.append(share.index, share.test) for share in shares]
    )
    if len(used) and not 0 <= used.min() <= used.max() < len(dataset):
        raise ComityError(f"partition: {partition} gave out samples that {dataset.name} ({len(dataset)}) does not have")
    if len(np.unique(used)) < len(used):
        raise ComityError(f"partition: {partition} gave {len(used) - len(np.unique(used))} samples out twice")


def split_share(
    id: int, share: Share, dataset: Dataset, seed: int, test_share: float, val_share: float, folds: int
) -> tuple[Ints, Ints, Ints]:
    """Train, validation and test indices of one client; with ``folds`` 0 each seed draws its own test samples."""
    random = numpy_generator(seed, "split", id)
    train, test = share.index, share.test
    if test is None:
        if len(train) < 2:
            raise ComityError(
                f"partition: client {id} got {len(train)} samples; a client needs 2, one to train on and one to test"
            )
        if folds and dataset.in_time:
            train, test = split_block(train, folds, seed % folds)
        elif folds:
            repetition, fold = divmod(seed, folds)
            train, test = split_fold(train, dataset.y, folds, fold, numpy_generator(repetition, "folds", id))
        else:
            train, test = stratified(train, dataset.y, test_share, random)
    if not len(train) or not len(test):
        raise ComityError(
            f"data {dataset.name}: client {id} has {len(train)} train and {len(test)} test samples; 1 of each at least"
        )
    val = train[:0]
    if val_share:
        if len(train) < 2:
            raise ComityError(
                f"val_share must be 0, got {val_share}: client {id} has one train sample and none to spare"
            )
        if dataset.in_time:
            train, val = split_last(train, val_share)
        else:
            train, val = stratified(train, dataset.y, val_share, random)
    return train, val, test


def folds_for(test_share: float) -> int:
    """Number of folds such that one fold is about ``test_share`` of the samples."""
    return max(2, round(1 / test_share))


def split_fold(index: Ints, y: Ints, folds: int, fold: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Split ``index`` (at least 2 samples) into all other folds and this one.

    The same ``random`` gives the same folds: each sample is in exactly one, and fold sizes differ by at most 1, per
    class and overall. With fewer samples than folds, each fold is one sample, and some samples are in two folds.
    """
    shuffled = random.permutation(index)
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    out = np.arange(len(index)) % folds == fold % len(index)
    return np.sort(by_class[~out]), np.sort(by_class[out])


def split_block(index: Ints, folds: int, fold: int) -> tuple[Ints, Ints]:
    """Split ``index`` (at least 2 samples, in time order) into all other blocks of time and this one.

    Block sizes differ by at most 1. With fewer samples than folds, some samples are in two folds.
    """
    index = np.sort(index)
    out = np.array_split(np.arange(len(index)), min(folds, len(index)))[fold % len(index)]
    return np.delete(index, out), index[out]


def split_last(index: Ints, share: float) -> tuple[Ints, Ints]:
    """Split ``index`` (at least 2 samples, in time order) into the first part and the last ``share``."""
    index = np.sort(index)
    out = int(np.clip(np.round(share * len(index)), 1, len(index) - 1))
    return index[:-out], index[-out:]


def stratified(index: Ints, y: Ints, share: float, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Split ``index`` into the remaining part and a part of about ``share`` of every class.

    Both parts get at least one sample. The remaining part keeps at least one sample per class, so classes with one
    sample stay there, unless no class has two: then single samples are taken out, because one part would be empty.
    """
    labels, inverse, sizes = np.unique(y[index], return_inverse=True, return_counts=True)
    wanted = int(np.clip(np.round(share * len(index)), 1, len(index) - 1))
    room = sizes - 1 if sizes.max() > 1 else sizes
    exact = share * sizes
    take = np.minimum(np.floor(exact).astype(np.int64), room)
    # the remainder after rounding down goes to the classes that lost most, ties at random
    order = np.lexsort((random.random(len(labels)), take - exact))
    for label in order[take[order] < room[order]][: wanted - int(take.sum())]:
        take[label] += 1

    shuffled = random.permutation(len(index))
    by_class = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(index)) - np.repeat(starts, sizes)
    out = rank < np.repeat(take, sizes)
    return np.sort(index[by_class[~out]]), np.sort(index[by_class[out]])


def client_data(
    id: int, dataset: Dataset, share: Share, splits: tuple[Ints, Ints, Ints], prepare: Preprocessing
) -> ClientData:
    """One client's samples as model inputs, from the indices of ``split_share``."""
    return ClientData(id, *(_tensors(dataset, index, share, prepare) for index in splits), test_ids=splits[2])


def _tensors(dataset: Dataset, index: Ints, share: Share, prepare: Preprocessing) -> Split:
    x = prepare(dataset.x[index])
    if share.transform is not None and len(index):
        x = share.transform(x)
    return Split(in_training_layout(x), torch.from_numpy(dataset.y[index]))


def in_training_layout(x: Tensor) -> Tensor:
    """The same samples in the memory layout that is fastest for networks."""
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)
