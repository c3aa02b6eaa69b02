"""Base class of partitions: a data set in, one share per client out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from comity._options import check
from comity.data._dataset import Dataset, Ints


@dataclass(frozen=True, eq=False)
class Share:
    """One client's share: the indices of its samples and an optional transform of its images.

    ``transform`` takes and returns the client's (n, C, H, W) float images. ``test`` holds the indices of test samples
    if the data set marks them; otherwise the federation splits ``index`` into train and test. ``name`` is the client's
    name, by default its index.
    """

    index: Ints
    transform: Callable[[Tensor], Tensor] | None = None
    test: Ints | None = None
    name: str = ""


class Partition(ABC):
    """A way to divide a data set among clients; subclasses are frozen dataclasses whose fields are their options."""

    def __post_init__(self) -> None:
        check(self, "partition")

    @abstractmethod
    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> Sequence[Share]:
        """One share per client; no sample in two shares, all random numbers from ``random``."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self._set_options().items())})"

    def _set_options(self) -> dict[str, object]:
        """The options that have an effect, for titles."""
        return {key: value for key, value in vars(self).items() if not (value is None or value is False or value == ())}


def deal(dataset: Dataset, counts: Ints, random: np.random.Generator) -> list[Share]:
    """Shares with ``counts[client, class]`` samples, drawn without replacement."""
    dealt = []
    for label in range(dataset.classes):
        shuffled = random.permutation(np.flatnonzero(dataset.y == label))
        dealt.append(np.split(shuffled, np.cumsum(counts[:, label]))[:-1])
    return [Share(np.concatenate(hand)) for hand in zip(*dealt, strict=True)]


def apportion(total: int, weights: NDArray[Any]) -> Ints:
    """Integers in proportion to ``weights`` that sum to ``total`` (largest remainders)."""
    exact = total * weights / weights.sum()
    whole: Ints = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole
