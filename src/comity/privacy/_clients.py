"""The client's side of masked updates: its answers, and the checks before each answer."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.engine import BESIDE, Client, ClientState, RunPlan
from comity.methods import Message, Payload, Reply
from comity.privacy._accountant import epsilon_of
from comity.privacy._fixed_point import BOUND, FixedPoint
from comity.privacy._keys import Rejected, derive, hashed
from comity.privacy._ledger import Ledger
from comity.privacy._masks import gaussian
from comity.privacy._messages import (
    AGAINST,
    UPDATES,
    Agreement,
    Coefficients,
    EveryonesKeys,
    KnownColumns,
    MaskedReply,
    MaskedWords,
    Revealed,
    SealedShares,
    Signatures,
    Survivors,
    TakenStep,
)
from comity.privacy._parties import Party, place_of
from comity.privacy._secrets import Secrets, rehearsed
from comity.privacy._weights import LARGEST, objection_to_weights
from comity.rules import COSINE_ROUNDING, LayerSketch, Sketch

OWN_TENSORS = ("update", "origin", "weights", "terms", "known")
"""Tensors that a client keeps for a round, beside the secrets of its masks."""
STEPS: dict[type[Payload], str] = {
    EveryonesKeys: "share",
    Coefficients: "mask",
    TakenStep: "against",
    KnownColumns: "add",
    Survivors: "agree",
    Signatures: "unmask",
}
"""The verb of each message."""
SKETCH, LEAST_SKETCH, HIDING = 1024, 16, 8
"""Default and minimum numbers per sketch, and the minimum ratio of an update's size to its sketch's."""
LEAST_NOISE = 1e-3
"""Smallest noise multiplier: with less, one round has an epsilon above half a million, and sums of 1/z² overflow."""
LARGEST_UPDATE = BOUND / LARGEST
"""Largest number of an update, so that no term with an accepted coefficient exceeds the fixed point."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Clipping and noise for the differential privacy of a uniform mean; the noise of all clients adds up."""

    multiplier: float
    clip: float

    def fewest(self, clients: int) -> int:
        """Minimum number of clients in a sum, so that it has enough noise: two thirds of those that mask together."""
        return -(-2 * clients // 3)

    def added(self, update: NDArray[np.float64], clients: int, key: bytes) -> NDArray[np.float64]:
        """The clipped update with this client's part of the noise."""
        scale = min(1.0, self.clip / max(float(np.linalg.norm(update)), 1e-300))
        deviation = self.multiplier * self.clip / np.sqrt(self.fewest(clients))
        return np.asarray(scale * update + deviation * gaussian(key, len(update)))


@dataclass(frozen=True, kw_only=True)
class MaskedClients:
    """The settings that the clients of a run agree on, and each client's checks before it answers."""

    run: str
    layout: Layout
    """Layout of the parameters in the shared part; buffers follow them."""
    sketch: Sketch | None
    """``None`` if the rule does not compare updates."""
    max_weight: float
    min_clients: int
    noise: Noise | None
    secrets: Callable[[int], Secrets]
    rehearsal: dict[int, Ledger] = field(default_factory=dict)
    """Answers of each client in a rehearsal."""

    def fitted(self, client: Client, received: Message, reply: Reply) -> MaskedReply:
        """The reply of a client after it has fitted; it keeps its update for the sums."""
        secrets, update, sent = self.secrets(client.id), reply.theta - received.theta, hash_of_payload(received)
        ledger = self._ledger(secrets)
        ledger.claim_model(client.round, sent)
        ledger.claim(self.run, str(client.round), "fit")
        if not float(update.abs().max()) <= LARGEST_UPDATE:
            raise Rejected.because("update")
        party = self._announced(secrets, client.round, sent)
        sketch = None
        if self.sketch is not None:
            drawn = _drawn(self.sketch.k, self.layout.size, derive(secrets.group, b"sketch", party.place))
            parameters = update[: self.layout.size]
            sketch = drawn.sketched(lambda _, columns: parameters[None, columns], 1)[0]
        client.secret = _tensors(party.kept) | {"update": update, "origin": received.theta}
        answer = MaskedReply(keys=_tensor(party.kept["announcement"]), size=1, sketch=sketch)
        if self.noise is None:  # without noise, these would reveal what the noise on the sum protects
            answer.size, answer.train_loss, answer.loss = reply.size, reply.train_loss, reply.loss
        else:
            answer.spent = ledger.spent_before(self.run)
        return answer

    def asked(
        self, cid: int, state: ClientState | None, received: Payload, terms: Tensor, round: int
    ) -> tuple[MaskedReply, ClientState]:
        """The reply of a client that is asked for numbers (one matrix or several) outside training.

        It keeps them for the sum. The same matrix is summed once with the same secrets, in any run and round: two sums
        that differ by one client would reveal its numbers.
        """
        if 0 < round < BESIDE:
            raise Rejected.because("turn")
        secrets, state = self.secrets(cid), state or ClientState()
        ledger = self._ledger(secrets)
        for sums in {hash_of(matrix) for matrix in terms.unsqueeze(0).flatten(0, -3) if matrix.any()}:
            ledger.claim_model(0, sums)
        ledger.claim(self.run, str(round), "asked")
        party = self._announced(secrets, round, hash_of_payload(received))
        answer = MaskedReply(keys=_tensor(party.kept["announcement"]), size=1)
        return answer, ClientState(state.method, state.engine, _tensors(party.kept) | {"terms": terms.flatten(0, -2)})

    def _announced(self, secrets: Secrets, round: int, sent: bytes) -> Party:
        """The client's party in this round, with new keys."""
        party = Party(secrets, place_of(self.run, round, sent), {})
        party.announce()
        party.kept["sent"] = sent
        return party

    def _ledger(self, secrets: Secrets) -> Ledger:
        if secrets.answered is None:
            return self.rehearsal.setdefault(secrets.client, Ledger())
        return Ledger(secrets.answered)

    def work(self, cid: int, state: ClientState | None, received: Payload, round: int) -> tuple[Payload, ClientState]:
        """Answer one of the masked verbs."""
        state, secrets = state or ClientState(), self.secrets(cid)
        tensors = {name: tensor for name, tensor in state.secret.items() if name in OWN_TENSORS}
        kept = {name: _bytes(tensor) for name, tensor in state.secret.items() if name not in tensors}
        party = Party(secrets, place_of(self.run, round, kept.get("sent", b"")), kept)
        if not tensors:
            raise Rejected.because("turn")
        sum = received.total if isinstance(received, (Survivors, Signatures)) else UPDATES
        if sum not in (UPDATES, AGAINST):
            raise Rejected.because("form")
        noise = self.noise.multiplier if self.noise is not None and isinstance(received, Coefficients) else 0.0
        # recorded before the answer: if answering fails, the question is not answered later either
        self._ledger(secrets).claim(self.run, str(round), f"{STEPS[type(received)]}{sum or ''}", noise=noise)
        reply: Payload
        match received:
            case EveryonesKeys():
                reply = self._share(party, received)
            case Coefficients():
                reply = self._mask(party, received, tensors)
            case TakenStep():
                reply = self._against(party, received, tensors)
            case KnownColumns():
                reply = self._add(party, received, tensors)
            case Survivors():
                reply = self._agree(party, received, tensors)
            case Signatures():
                reply = self._unmask(party, received)
            case _:
                raise TypeError(f"no masked verb has {type(received).__name__}")
        last = AGAINST if self.noise is None else UPDATES
        if isinstance(received, Signatures) and received.total == last:
            return reply, ClientState(state.method, state.engine)  # the round is over: forget everything about it
        return reply, ClientState(state.method, state.engine, _tensors(kept) | tensors)

    def _share(self, party: Party, received: EveryonesKeys) -> SealedShares:
        everyone = dict(zip(ids_of(received.ids), from_rows(received.keys), strict=True))
        self.check_left(len(everyone), len(everyone))
        sealed, digests = party.share(everyone)
        return SealedShares(sealed=to_rows(sealed), digests=to_rows(digests))

    def _mask(self, party: Party, received: Coefficients, tensors: dict[str, Tensor]) -> MaskedWords:
        """Masked words: the weighted update in fixed point, or which requested columns the client knows."""
        present, terms = ids_of(received.present), tensors.get("terms")
        of_parameters = terms is not None or len(tensors["update"]) == self.layout.size
        rows = [received.coefficients] if of_parameters else [received.coefficients, received.shares]
        if party.me not in present or any(row.shape != (len(present),) for row in rows):
            raise Rejected.because("cohort")
        self.check_left(len(present), len(present))
        for row in rows:
            self._check_weights(row)
        if self._budget_is_spent(party.secrets):
            raise Rejected.because("budget")
        if terms is None:
            words = FixedPoint(len(present)).encode(self._weighted(party, received, tensors["update"], present))
        elif bool((received.coefficients == 1).all()):
            words = np.asarray(terms.any(0).numpy(), dtype=np.uint64)
        else:
            raise Rejected.because("weights-sums")
        party.receive(from_rows(received.sealed))
        masked = party.mask(UPDATES, words, present, hash_of(received.coefficients, received.shares))
        tensors["weights"] = torch.stack(rows)
        return MaskedWords(words=torch.from_numpy(masked.view(np.int64)))

    def _weighted(
        self, party: Party, received: Coefficients, update: Tensor, present: list[int]
    ) -> NDArray[np.float64]:
        """The update times its coefficients, with the client's part of the noise."""
        mine, size, values = present.index(party.me), self.layout.size, update.double().numpy().copy()
        if self.noise is not None:
            values = self.noise.added(values, len(present), self._noise_key(party))
        values[:size] *= float(received.coefficients[mine])
        values[size:] *= float(received.shares[mine])
        return values

    def _budget_is_spent(self, secrets: Secrets) -> bool:
        """Whether this round, which is already recorded, exceeds the site's limit on epsilon."""
        most = secrets.policy.max_epsilon
        if most is None or self.noise is None or secrets.rehearsal:
            return False
        return epsilon_of(self._ledger(secrets).spent_before(""), secrets.policy.delta) > most

    def _noise_key(self, party: Party) -> bytes:
        """Key of the noise, used once. In a rehearsal it is derived from the run's seed, like everything else."""
        secrets = party.secrets
        return derive(secrets.identity, b"noise", party.place) if secrets.rehearsal else os.urandom(32)

    def fewest(self, present: int) -> int:
        """Minimum number of clients in a sum, so that no single one is exposed and the noise suffices."""
        return self.min_clients if self.noise is None else max(self.min_clients, self.noise.fewest(present))

    def check_left(self, survivors: int, present: int) -> None:
        if survivors < self.fewest(present):
            raise Rejected.because("few")

    def _check_weights(self, weights: Tensor) -> None:
        if (code := objection_to_weights(weights.numpy(), self.max_weight, self.min_clients)) is not None:
            raise Rejected.because(code)
        if self.noise is not None and not bool((weights == weights[0]).all()):
            raise Rejected.because("weights-noise")

    def _against(self, party: Party, received: TakenStep, tensors: dict[str, Tensor]) -> MaskedWords:
        """Whether the step increases the client's loss to first order, beyond rounding: one bit, masked."""
        update, origin, size, present = tensors["update"], tensors["origin"], self.layout.size, ids_of(received.present)
        self.check_left(len(present), len(present))
        if received.theta.shape != origin.shape or received.theta.dtype != origin.dtype:
            raise Rejected.because("form")
        step, update = received.theta[:size].double() - origin[:size].double(), update[:size].double()
        against = float(step @ update) < -COSINE_ROUNDING * float(step.norm() * update.norm())
        masked = party.mask(AGAINST, np.array([against], dtype=np.uint64), present, hash_of(received.theta))
        return MaskedWords(words=torch.from_numpy(masked.view(np.int64)))

    def _add(self, party: Party, received: KnownColumns, tensors: dict[str, Tensor]) -> MaskedWords:
        """The requested numbers, exact and masked."""
        present, terms, known = ids_of(received.present), tensors["terms"], received.known
        self.check_left(len(present), len(present))
        if known.dtype != torch.int64 or known.shape != terms.shape[1:]:
            raise Rejected.because("form")
        tensors["known"] = known
        self._check_known(party, present, tensors)
        words = FixedPoint(len(present)).encode_exactly(terms.reshape(-1).numpy())
        masked = party.mask(AGAINST, words, present, hash_of(known))
        return MaskedWords(words=torch.from_numpy(masked.view(np.int64)))

    def _check_known(self, party: Party, left: list[int], tensors: dict[str, Tensor]) -> None:
        """Reject a sum if, after dropouts, fewer than ``min_clients`` may know a column that this client knows."""
        dropped = len(set(party.survivors(UPDATES)) - set(left))
        if bool((tensors["known"][tensors["terms"].any(0)] - dropped < self.min_clients).any()):
            raise Rejected.because("known")

    def _agree(self, party: Party, received: Survivors, tensors: dict[str, Tensor]) -> Agreement:
        """Sign the list of remaining clients, if there are enough of them that no single one is exposed."""
        survivors, present = ids_of(received.survivors), party.present(received.total)
        signature = party.agree(received.total, survivors)
        self.check_left(len(survivors), len(present))
        if received.total == UPDATES:
            for row in tensors["weights"][:, [present.index(cid) for cid in survivors]]:
                self._check_weights(row)
        elif "known" in tensors:
            self._check_known(party, survivors, tensors)
        return Agreement(signature=_tensor(signature))

    def _unmask(self, party: Party, received: Signatures) -> Revealed:
        signatures = dict(zip(ids_of(received.ids), from_rows(received.signatures), strict=True))
        return Revealed(shares=to_rows(party.unmask(received.total, signatures)))


def masked_clients(plan: RunPlan, layout: Layout, has_buffers: bool) -> MaskedClients:
    """The masked clients of a run's configuration, with secrets from its seed unless the site has its own."""
    config, rule, clients = plan.config, plan.rule, len(plan.federation)
    noise = Noise(multiplier=config.dp_noise, clip=config.dp_clip) if config.dp_noise else None
    if noise is not None and noise.multiplier < LEAST_NOISE:
        raise ComityError(
            f"this cannot run masked: dp_noise is {noise.multiplier:g}, which hides nothing; it must be 0 or at least "
            f"{LEAST_NOISE:g}"
        )
    if noise is not None and has_buffers:
        raise ComityError("dp_noise would make BatchNorm's variances negative; keep them at clients with buffers local")
    if noise is not None and noise.clip * (1 + 10 * noise.multiplier) > LARGEST_UPDATE:
        raise ComityError(f"dp_clip is {noise.clip:g}: with its noise an update would be beyond ±{LARGEST_UPDATE:g}")
    return MaskedClients(
        run=config.with_(trainer="auto").key,  # random numbers do not depend on the trainer
        layout=layout,
        sketch=sketch_for(layout.size, config.sketch) if rule.needs_gram else None,
        max_weight=config.max_weight,
        min_clients=config.min_clients,
        noise=noise,
        secrets=plan.node.get("secrets") or (lambda cid: rehearsed(config.seed, clients)[cid]),
    )


def sketch_for(size: int, wanted: float | None) -> Sketch:
    """A sketch of the whole shared part, so small that it reveals little even to someone who knows its directions."""
    most = size // HIDING
    if most < LEAST_SKETCH:
        raise ComityError(
            f"this cannot run masked: the shared part has {size:,} numbers, and a sketch hides an update of at least "
            f"{HIDING * LEAST_SKETCH}; take --rule Mean, which needs none"
        )
    sketch = Sketch.of(min(SKETCH, most) if wanted is None else wanted)
    if sketch.k > most:
        raise ComityError(
            f"this cannot run masked: a sketch of {sketch.k:,} numbers says too much of an update of {size:,}; "
            f"--sketch {most} is the most"
        )
    return sketch


@lru_cache(maxsize=8)
def _drawn(k: int, size: int, key: bytes) -> LayerSketch:
    """The map of one round, drawn once for many clients at one site."""
    return LayerSketch(k, 0, Layout([("model", (size,))]).layers[0], key)


def ids_of(tensor: Tensor) -> list[int]:
    """Parse client ids: unique and in order."""
    if tensor.dtype != torch.int64 or tensor.ndim != 1 or bool((tensor.diff() <= 0).any()) or bool((tensor < 0).any()):
        raise Rejected.because("ids")
    return [int(cid) for cid in tensor.tolist()]


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _tensors(kept: dict[str, bytes]) -> dict[str, Tensor]:
    return {name: _tensor(text) for name, text in kept.items()}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def hash_of(*tensors: Tensor) -> bytes:
    """32-byte hash of tensors with types and shapes, to check that all clients were sent the same."""
    return hashed(*(part for each in tensors for part in (f"{each.dtype} {tuple(each.shape)}".encode(), _bytes(each))))


def hash_of_payload(sent: Payload) -> bytes:
    """Hash of all fields of a message, by name."""
    values = sorted(sent.values().items())
    return hashed(
        *(
            part
            for name, value in values
            for part in (name.encode(), hash_of(value) if isinstance(value, Tensor) else repr(value).encode())
        )
    )


def from_rows(matrix: Tensor) -> list[bytes]:
    return [_bytes(row) for row in matrix]


def to_rows(rows: list[bytes]) -> Tensor:
    return torch.stack([_tensor(row) for row in rows])
