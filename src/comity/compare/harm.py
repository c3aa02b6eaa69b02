"""What joining does to each client: who gains, who is harmed, and how both are counted over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal, TypeVar

from comity._words import MOST_LISTED, MOST_NAMED, listed, number
from comity.results import ZERO, Newcomers, Result, Transfer

K = TypeVar("K")

FALSE = 0.05
"""Among the clients that are called harmed beyond chance, the share that is expected to be called so wrongly."""
POINTS_DIGITS = 1  # of one client's gain: a test set of 100 samples cannot show more


def transfer(
    joined: Mapping[int, float],
    alone: Mapping[int, float],
    only_local: Mapping[int, int] | None = None,
    only_joined: Mapping[int, int] | None = None,
    *,
    local_on: Literal["all", "train"] = "all",
) -> Transfer | None:
    """Each client's accuracy against its accuracy alone; ``None`` without a client that has both.

    ``only_local`` and ``only_joined``: how many of a client's tests only one of its two models got right.

    FEDORA (Wu et al., KDD 2023). A client whose Local model has no hit at all has no relative accuracy and is left out
    of that mean.
    """
    every = {client: joined[client] - alone[client] for client in sorted(joined.keys() & alone.keys())}
    gain = {client: value for client, value in every.items() if not math.isnan(value)}
    if not gain:
        return None
    p_values = {c: float(mcnemar(n, (only_joined or {})[c])) for c, n in (only_local or {}).items() if c in gain}
    relative = [value / alone[client] for client, value in gain.items() if alone[client] > 0]
    return Transfer(
        local=fmean(alone[client] for client in gain),
        relative_accuracy=fmean(relative) if relative else math.nan,
        positive_transfer=sum(value > ZERO for value in gain.values()) / len(gain),
        harmed=[client for client, value in gain.items() if value < -ZERO],
        gain=gain,
        beyond_chance=beyond_chance(p_values),
        only_local=dict(only_local or {}),
        only_joined=dict(only_joined or {}),
        local_on=local_on,
    )


def mcnemar(only_local: Any, only_joined: Any) -> Any:
    """The exact one-sided McNemar test: p-values of "the second model is not worse", for counts or arrays of them.

    On a client's test samples only two counts matter: how many only the local baseline predicts correctly, and how many
    only the method. If both models are equally good, each sample on which they differ goes to either side with
    probability ½. (The mid-p variant has more power but may exceed its level.)
    """
    from scipy.special import bdtr  # for which lists and errors should not wait

    return bdtr(only_joined, only_local + only_joined, 0.5)


def resampled(counts: Sequence[tuple[int, int]], test_share: float) -> float:
    """The p-value of "the second model is not worse", from its counts on several random splits of the same samples.

    The t-test of Nadeau and Bengio (Machine Learning, 2003): J splits that test on a share of the samples overlap, so
    the variance of the mean difference is not σ²/J but σ²(1/J + share/(1 − share)). For σ² the larger one of two
    estimates is taken, that of the differences seen and McNemar's, the mean number of samples on which models differ.
    """
    from scipy.special import stdtr

    lost, splits = [local - joined for local, joined in counts], len(counts)
    spread = max(variance(lost), fmean(map(sum, counts)))
    if spread == 0:
        return 1.0
    error = math.sqrt(spread * (1 / splits + test_share / (1 - test_share)))
    return float(stdtr(splits - 1, -fmean(lost) / error))


def beyond_chance(p_values: Mapping[K, float]) -> list[K]:
    """Whose loss is more than chance; of those named, a share of at most ``FALSE`` is expected to be named wrongly.

    The procedure of Benjamini and Hochberg, for independent tests, as those of clients with samples of their own.
    """
    ascending = sorted(p_values.values())
    below = [p for rank, p in enumerate(ascending, 1) if p <= FALSE * rank / len(ascending)]
    return [key for key, p in p_values.items() if below and p <= below[-1]]


@dataclass(frozen=True)
class HarmedClient:
    """A client that does worse than alone."""

    client: int
    seed: int | None
    """``None`` where the client is the same one in every seed."""
    gain: float
    beyond_chance: bool | None = None
    """Whether the loss is more than the luck of its test samples; ``None`` where that was not counted."""
    name: str = ""

    def __str__(self) -> str:
        return (self.name or f"{self.client}") + ("" if self.seed is None else f" of seed {self.seed}")

    @property
    def loss(self) -> str:
        """In points."""
        return number(-100 * self.gain, POINTS_DIGITS)


def _over_seeds(counts: Sequence[tuple[int, int]], test_share: float | None) -> float:
    """The p-value of one client's counts in several seeds.

    Where each seed draws its own tests, a ``test_share`` of the client's samples, by the t-test for overlapping splits.
    Where the tests are the same in all seeds, twice the mean of the seeds' p-values, which is a p-value however much
    they depend on each other (Vovk and Wang, Biometrika 2020).
    """
    p_values = [float(mcnemar(*each)) for each in counts]
    if len(counts) == 1:
        return p_values[0]
    return min(1.0, 2 * fmean(p_values)) if test_share is None else resampled(counts, test_share)


@dataclass(frozen=True)
class Balance:
    """How many clients gain by joining and which are harmed, over the seeds of one method and rule.

    Where all seeds have the same partition, client 3 is the same client in all of them and its gains are averaged.
    Where each seed has a partition of its own, the clients of all seeds are counted side by side.
    """

    clients: int
    gaining: int
    harmed: list[HarmedClient]
    """Worst first."""
    seeds: int
    pooled: bool
    """Whether the clients of several seeds are counted side by side."""
    counted: bool = False
    """Whether it is known of the harmed who is so beyond chance."""

    @classmethod
    def of(
        cls,
        transfers: Mapping[int, Transfer],
        *,
        same_clients: bool,
        names: Mapping[int, Sequence[str]] | None = None,
        test_share: float | None = None,
    ) -> "Balance | None":
        """From each client's gain by seed, with the clients' names by seed; ``None`` where no gain is known.

        ``test_share``: of a client's samples, where each seed draws its own tests from them.
        """
        pooled = len(transfers) > 1 and not same_clients
        counted = all(known.only_local.keys() >= known.gain.keys() for known in transfers.values())
        found: dict[tuple[int, int | None], list[float]] = {}
        counts: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for seed, known in transfers.items():
            for client, gain in known.gain.items():
                key = client, seed if pooled else None
                found.setdefault(key, []).append(gain)
                if counted:
                    counts.setdefault(key, []).append((known.only_local[client], known.only_joined[client]))
        if not found:
            return None
        means = {key: fmean(each) for key, each in found.items()}
        named = beyond_chance({key: _over_seeds(each, test_share) for key, each in counts.items()})

        def name(client: int, seed: int | None) -> str:
            known = (names or {}).get(next(iter(transfers)) if seed is None else seed, ())
            return known[client] if client < len(known) else ""

        worse = [
            HarmedClient(*key, gain, key in named if counted else None, name(*key))
            for key, gain in means.items()
            if gain < -ZERO
        ]
        return cls(
            clients=len(means),
            gaining=sum(gain > ZERO for gain in means.values()),
            harmed=sorted(worse, key=lambda client: client.gain),
            seeds=len(transfers),
            pooled=pooled,
            counted=counted,
        )

    @classmethod
    def of_run(cls, result: Result | Newcomers, names: Sequence[str] = ()) -> "Balance | None":
        """Of the clients of one run alone, or of its newcomers; ``None`` where it was compared with no Local."""
        return None if result.transfer is None else cls.of({0: result.transfer}, same_clients=True, names={0: names})

    @property
    def beyond_chance(self) -> list[HarmedClient]:
        """Worst first."""
        return [harm for harm in self.harmed if harm.beyond_chance]

    @property
    def sentence(self) -> str:
        """“17 of 20 clients gain over training alone, 4 look worse, 1 beyond chance (client 7)”."""
        start = (
            f"{self.gaining} of {self.clients} clients {'gains' if self.gaining == 1 else 'gain'} over training alone"
        )
        if not self.harmed:
            return f"{start}, nobody looks worse"
        worse = f"{start}, {len(self.harmed)} {'looks' if len(self.harmed) == 1 else 'look'} worse"
        if not self.counted:
            return f"{worse}{_names(self.harmed)}"
        sure = self.beyond_chance
        return f"{worse}, {len(sure) or 'none'} beyond chance{_names(sure)}"

    @property
    def named(self) -> str:
        """The harmed clients, worst first, with what each loses."""
        names = ", ".join(
            f"{harm} (−{harm.loss}{', beyond chance' if harm.beyond_chance else ''})"
            for harm in self.harmed[:MOST_LISTED]
        )
        more = f" and {len(self.harmed) - MOST_LISTED} more" if len(self.harmed) > MOST_LISTED else ""
        return f"Clients {names}{more}" if self.harmed else "Nobody"

    @property
    def remarks(self) -> list[str]:
        """What to keep in mind beside the sentence, each a sentence of its own."""
        remarks = []
        if self.pooled:
            remarks.append(f"The {self.clients} clients are those of {self.seeds} seeds, each with its own partition.")
        if self.harmed:
            worst = (self.beyond_chance or self.harmed)[0]
            remarks.append(f"Most is lost by client {worst}: {worst.loss} points.")
            if not self.counted:
                remarks.append("Whether that is more than the chance of a few test samples was not counted.")
        return remarks


def _names(clients: Sequence[HarmedClient]) -> str:
    """“ (clients 3 and 7)”; nothing where they are too many to name."""
    if not 0 < len(clients) <= MOST_NAMED:
        return ""
    names = listed(map(str, sorted(clients, key=lambda harm: (harm.seed or 0, harm.client))))
    return f" (client{'' if len(clients) == 1 else 's'} {names})"
