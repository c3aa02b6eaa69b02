"""The client's side where updates are masked: what it tells, what it checks first, and what it never tells."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layer, Layout
from comity.engine import Client, ClientState, RunPlan
from comity.methods import Message, Payload, Reply
from comity.privacy._fixed_point import BOUND, FixedPoint
from comity.privacy._keys import Refused, derive
from comity.privacy._masks import gaussian
from comity.privacy._messages import (
    AGAINST,
    UPDATES,
    Coefficients,
    EveryonesKeys,
    MaskedReply,
    MaskedWords,
    Revealed,
    SealedShares,
    Survivors,
    TakenStep,
)
from comity.privacy._parties import Party, hashed, place_of
from comity.privacy._secrets import Secrets, rehearsed
from comity.privacy._weights import objection_to_weights
from comity.rules import COSINE_ROUNDING, LayerSketch, Sketch

OWN_TENSORS = ("update", "origin", "coefficients")
"""What a client keeps of a round beside the secrets of its masks."""
SKETCH = 1024
"""Numbers of a sketch where the run does not say."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Differential privacy of a uniform mean: updates are clipped, and the noise of all clients adds up."""

    multiplier: float
    clip: float

    def fewest(self, clients: int) -> int:
        """So many of a cohort must be left for the sum to have noise enough: two thirds."""
        return -(-2 * clients // 3)

    def added(self, update: NDArray[np.float64], clients: int, key: bytes) -> NDArray[np.float64]:
        """The update, clipped, with this client's part of the noise."""
        scale = min(1.0, self.clip / max(float(np.linalg.norm(update)), 1e-300))
        deviation = self.multiplier * self.clip / np.sqrt(self.fewest(clients))
        return np.asarray(scale * update + deviation * gaussian(key, len(update)))


@dataclass(frozen=True, kw_only=True)
class MaskedClients:
    """What the clients of a run agree on, and what each checks before it answers."""

    run: str
    layout: Layout
    """Of the parameters in the shared part; buffers lie behind them."""
    sketch: Sketch | None
    """``None`` where the rule compares no updates."""
    by_layer: bool
    max_weight: float
    min_clients: int
    noise: Noise | None
    secrets: Callable[[int], Secrets]

    def fitted(self, client: Client, received: Message, reply: Reply) -> MaskedReply:
        """What leaves a client after it fitted; it keeps its update for the sums."""
        last, round = client.engine_keep.get("masked_round"), client.round
        if last is not None and round <= int(last):
            raise Refused(f"was asked to fit in round {round} after round {int(last)}")
        secrets, update = self.secrets(client.id), reply.theta - received.theta
        if not float(update.abs().max()) <= BOUND:
            raise Refused(f"its update is not within ±{BOUND:g}")
        kept: dict[str, bytes] = {}
        keys = Party(secrets, place_of(self.run, round), kept).announce()
        sketch = None
        if self.sketch is not None:
            key = derive(secrets.group, b"sketch", place_of(self.run, round))
            sketch = self._sketch(update[: self.layout.size], key)
        client.secret = _tensors(kept) | {"update": update, "origin": received.theta}
        told = MaskedReply(keys=_tensor(keys), size=1, sketch=sketch)
        if self.noise is None:  # noise on the sum would be worth nothing if these told the same without any
            told.size, told.train_loss, told.loss = reply.size, reply.train_loss, reply.loss
        client.engine_keep["masked_round"] = torch.tensor(round)
        return told

    @property
    def sketched(self) -> Layout:
        """Layers as the sketch has them: one, of the whole model, where the rule needs no more."""
        return self.layout if self.by_layer else Layout([("model", (self.layout.size,))])

    def _sketch(self, update: Tensor, key: bytes) -> Tensor:
        """(L, k) of its update; the map is drawn once where many clients are at one site."""
        assert self.sketch is not None
        sketch = torch.zeros(len(self.sketched), self.sketch.k, dtype=torch.float64)
        for place, layer in enumerate(self.sketched.layers):
            part = _drawn(self.sketch.k, place, layer, key).sketched(lambda _, columns: update[None, columns], 1)
            sketch[place, : part.shape[1]] = part[0]
        return sketch

    def work(self, cid: int, state: ClientState | None, received: Payload, round: int) -> tuple[Payload, ClientState]:
        """The answer to one of the masked verbs."""
        state = state or ClientState()
        tensors = {name: tensor for name, tensor in state.secret.items() if name in OWN_TENSORS}
        kept = {name: _bytes(tensor) for name, tensor in state.secret.items() if name not in tensors}
        party = Party(self.secrets(cid), place_of(self.run, round), kept)
        reply: Payload
        match received:
            case EveryonesKeys():
                reply = self._share(party, received)
            case Coefficients():
                reply = self._mask(party, received, tensors)
            case TakenStep():
                reply = self._against(party, received, tensors)
            case Survivors():
                reply = self._unmask(party, received, tensors)
            case _:
                raise TypeError(f"no masked verb has {type(received).__name__}")
        done = self.noise is not None or (isinstance(received, Survivors) and received.total == AGAINST)
        if isinstance(received, Survivors) and done:
            return reply, ClientState(state.method, state.engine)  # the round is over: it forgets all of it
        return reply, ClientState(state.method, state.engine, _tensors(kept) | tensors)

    def _share(self, party: Party, received: EveryonesKeys) -> SealedShares:
        self.check_left(len(received.ids), len(received.ids))
        everyone = dict(zip(received.ids.tolist(), from_rows(received.keys), strict=True))
        return SealedShares(sealed=to_rows(party.share(everyone)))

    def _mask(self, party: Party, received: Coefficients, tensors: dict[str, Tensor]) -> MaskedWords:
        """Its weighted update in fixed point, masked."""
        present, size, update = received.present.tolist(), self.layout.size, _own(tensors, "update")
        weights = received.coefficients
        if len(update) > size:
            weights = torch.cat([weights, received.shares[None]])
        if weights.shape[1] != len(present) or party.me not in present:
            raise Refused("was sent coefficients of others than those who mask together")
        self._check_weights(weights)
        mine, count = present.index(party.me), len(present)
        values = update.double().numpy().copy()
        if self.noise is not None:
            values = self.noise.added(values, count, self._noise_key(party))
        for layer, weight in zip(
            self.layout.layers, received.coefficients[:, mine].expand(len(self.layout)).tolist(), strict=True
        ):
            values[layer.start : layer.stop] *= weight
        values[size:] *= float(received.shares[mine])
        words = FixedPoint(count).encode(values)
        party.receive(from_rows(received.sealed))
        about = hash_of(received.coefficients, received.shares)
        masked = party.mask(UPDATES, words, present, about)
        tensors["coefficients"] = weights
        return MaskedWords(words=torch.from_numpy(masked.view(np.int64)))

    def _noise_key(self, party: Party) -> bytes:
        """Of one use. In a rehearsal it follows from the run's seed, as everything does there."""
        secrets = party.secrets
        return derive(secrets.identity, b"noise", party.place) if secrets.rehearsal else os.urandom(32)

    def check_left(self, survivors: int, present: int) -> None:
        """Refuse a sum of so few of those who were to be summed that one might stand out, or the noise be too small."""
        fewest = self.min_clients if self.noise is None else max(self.min_clients, self.noise.fewest(present))
        if survivors < fewest:
            raise Refused(f"{survivors} clients are left; {fewest} are the fewest")

    def _check_weights(self, weights: Tensor) -> None:
        if (why := objection_to_weights(weights.numpy(), self.max_weight, self.min_clients)) is not None:
            raise Refused(f"does not lend its update to these coefficients: {why}")
        if self.noise is not None and not bool((weights == weights[0, 0]).all()):
            raise Refused("does not lend its update to these coefficients: with noise they must all be the same")

    def _against(self, party: Party, received: TakenStep, tensors: dict[str, Tensor]) -> MaskedWords:
        """Whether the step points against its own update, more so than by rounding: one bit, masked."""
        update, size = _own(tensors, "update").double(), self.layout.size
        step = received.theta[:size].double() - _own(tensors, "origin")[:size].double()
        against = float(step @ update[:size]) < -COSINE_ROUNDING * float(step.norm() * update[:size].norm())
        words = np.array([against], dtype=np.uint64)
        masked = party.mask(AGAINST, words, received.present.tolist(), hash_of(received.theta))
        return MaskedWords(words=torch.from_numpy(masked.view(np.int64)))

    def _unmask(self, party: Party, received: Survivors, tensors: dict[str, Tensor]) -> Revealed:
        """Shares, where those who are left are enough for nobody to stand out."""
        survivors, present = received.survivors.tolist(), party.present(received.total)
        self.check_left(len(survivors), len(present))
        if received.total == UPDATES:
            left = [present.index(cid) for cid in survivors if cid in present]
            self._check_weights(_own(tensors, "coefficients")[:, left])
        return Revealed(shares=to_rows(party.unmask(received.total, survivors)))


def masked_clients(plan: RunPlan, layout: Layout, has_buffers: bool) -> MaskedClients:
    """As a run's configuration has them, with secrets that follow from its seed unless the site has its own."""
    config, rule, clients = plan.config, plan.rule, len(plan.federation)
    noise = Noise(multiplier=config.dp_noise, clip=config.dp_clip) if config.dp_noise else None
    if noise is not None and has_buffers:
        raise ComityError("dp_noise would make BatchNorm's variances negative; keep them at clients with buffers local")
    return MaskedClients(
        run=config.with_(trainer="auto").key,  # what is drawn does not depend on how training is computed
        layout=layout,
        sketch=Sketch.of(config.sketch or SKETCH) if rule.needs_gram else None,
        by_layer=rule.scope == "layer",
        max_weight=config.max_weight,
        min_clients=config.min_clients,
        noise=noise,
        secrets=plan.node.get("secrets") or (lambda cid: rehearsed(config.seed, clients)[cid]),
    )


@lru_cache(maxsize=8)
def _drawn(k: int, place: int, layer: Layer, key: bytes) -> LayerSketch:
    """The map of one layer in one round."""
    return LayerSketch(k, place, layer, key)


def _own(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise Refused("was asked out of turn, again, or for another round")
    return tensors[name]


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _tensors(kept: dict[str, bytes]) -> dict[str, Tensor]:
    return {name: _tensor(text) for name, text in kept.items()}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def hash_of(*tensors: Tensor) -> bytes:
    """What both sides have been told, in 32 bytes."""
    return hashed(*map(_bytes, tensors))


def from_rows(matrix: Tensor) -> list[bytes]:
    return [_bytes(row) for row in matrix]


def to_rows(rows: list[bytes]) -> Tensor:
    return torch.stack([_tensor(row) for row in rows])
