"""The clients' models of a local baseline, for comparison and as a fallback."""

from collections.abc import Mapping
from threading import local
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.data import Split
from comity.engine._client import Client, ClientState
from comity.methods import Message

if TYPE_CHECKING:
    from comity.engine._site import Site


class LocalModels:
    """The clients' models in a local baseline."""

    def __init__(self, site: "Site", states: Mapping[int, ClientState]) -> None:
        """``site`` is the baseline's; ``states`` has the states of the clients that took part."""
        self.site, self._states = site, states
        self._known: dict[int, dict[int, Tensor]] = {}
        self._workers = local()

    def has(self, cid: int) -> bool:
        return cid in self._states

    def on_own(self, cid: int, split: Split) -> Tensor:
        """Like ``predict``, computed once for samples that are evaluated repeatedly."""
        known = self._known.setdefault(cid, {})
        if id(split) not in known:
            known[id(split)] = self.predict(cid, split)
        return known[id(split)]

    def predict(self, cid: int, split: Split) -> Tensor:
        """Log-probabilities (samples, classes)."""
        client = self._client(cid)
        client.model.write(self._vector(client))
        return client.predict(split)

    def vector(self, cid: int) -> Tensor:
        """The client's whole model."""
        return self._vector(self._client(cid))

    def _client(self, cid: int) -> Client:
        if cid not in self._states:
            raise ComityError(f"client {cid} has no model of its own: it took no part in the local baseline's training")
        if not hasattr(self._workers, "model"):
            self._workers.model = self.site.model()
        return self.site.client(cid, self._workers.model, self._states[cid], verb="evaluate")

    def _vector(self, client: Client) -> Tensor:
        return self.site.method.personal(client, Message(theta=torch.empty(0)))
