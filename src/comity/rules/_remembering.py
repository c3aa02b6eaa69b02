"""Rules that remember the last updates of absent clients."""

import json
from typing import Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.rules._read import Rows
from comity.rules._rows import Updates
from comity.rules._rule import CAUTIONED, Rule
from comity.rules._updates import NO_ROWS, ClientUpdates, Id


class Remembering(Rule):
    """A rule that also uses the last updates of clients that took part recently.

    The state keeps the updates of ``reach`` rounds in memory. Rows of the last round are stored as given, without a
    copy; if ``base`` is set, they are models that started from it.
    """

    def window(self, present: int, seen: int) -> int:
        """Number of rounds for which an absent client's update is used.

        It may depend on the number of clients present now and on the number of clients seen so far.
        """
        raise NotImplementedError

    @property
    def reach(self) -> float:
        """The largest possible window; older updates are forgotten."""
        return torch.inf

    @property
    def remembers(self) -> bool:
        return self.reach > 0

    def recall(self, updates: ClientUpdates) -> ClientUpdates:
        if not self.state:
            return updates
        present = updates.members.ids
        now, last = int(self.state["round"]), self.state["last"]
        names = _decoded(self.state["ids"])
        window = self.window(len(present), len({*names, *present}))
        absent = [i for i, name in enumerate(names) if name not in present and now - int(last[i]) <= window]
        if not absent:
            return updates
        if not isinstance(updates, Updates):
            raise ComityError(NO_ROWS)
        return updates.joined([names[i] for i in absent], [self._row(i) for i in absent], now - last[absent])

    def remember(self, updates: Updates, update: Tensor) -> None:
        if self.reach == 0:
            return
        now = int(self.state.get("round", 0))
        rows = {name: (now, updates.given(i)) for i, name in enumerate(updates.ids) if updates.ages[i] == 0}
        if self.state:
            for i, name in enumerate(_decoded(self.state["ids"])):
                last = int(self.state["last"][i])
                if name not in rows and now + 1 - last <= self.reach:
                    rows[name] = (last, self._row(i))
        self.state = {name: kept for name, kept in self.state.items() if name == CAUTIONED} | {
            "round": torch.tensor(now + 1),
            "ids": torch.tensor(list(json.dumps(list(rows)).encode()), dtype=torch.uint8),
            "last": torch.tensor([last for last, _ in rows.values()], dtype=torch.int64),
        }
        self.state |= {f"row/{i}": row for i, (_, row) in enumerate(rows.values())}
        if updates.base is not None:
            self.state["base"] = updates.base

    def _row(self, i: int) -> Tensor:
        """(P,) the remembered update at index ``i``."""
        row, fresh = self.state[f"row/{i}"], int(self.state["last"][i]) == int(self.state["round"]) - 1
        return row - self.state["base"] if fresh and "base" in self.state else row

    def __call__(self, updates: Rows, **given: Any) -> Any:
        answer = super().__call__(updates, **given)
        self.state = {name: tensor.clone() for name, tensor in self.state.items()}  # the caller's may change
        return answer


def _decoded(text: Tensor) -> list[Id]:
    names: list[Id] = json.loads(bytes(text.tolist()))
    return names
