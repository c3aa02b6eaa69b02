"""Rules that remember the last update of clients that are absent, or their own last step."""

import json

import torch
from torch import Tensor

from comity.rules._rule import Rule
from comity.rules._updates import ClientUpdates, Id


class Remembering(Rule):
    """A rule that sees, beside the updates, the last ones of clients that took part a short while ago.

    The state holds every remembered row, so it is as large as the updates of ``reach`` rounds.
    """

    def window(self, present: int, seen: int) -> int:
        """How many rounds back an absent client's update still counts.

        It may depend on how many clients are present now and how many were ever seen.
        """
        raise NotImplementedError

    @property
    def reach(self) -> float:
        """The largest window that may come; older updates are forgotten."""
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
        return updates.joined([names[i] for i in absent], self.state["rows"][absent], now - last[absent])

    def remember(self, updates: ClientUpdates, update: Tensor) -> None:
        if self.reach == 0:
            return
        now = int(self.state.get("round", 0))
        rows = {name: (now, updates.row(i)) for i, name in enumerate(updates.ids) if updates.ages[i] == 0}
        if self.state:
            for i, name in enumerate(_decoded(self.state["ids"])):
                last = int(self.state["last"][i])
                if now + 1 - last <= self.reach:
                    rows.setdefault(name, (last, self.state["rows"][i]))
        self.state = {
            "round": torch.tensor(now + 1),
            "ids": torch.tensor(list(json.dumps(list(rows)).encode()), dtype=torch.uint8),
            "last": torch.tensor([last for last, _ in rows.values()], dtype=torch.int64),
            "rows": torch.stack([row for _, row in rows.values()]) if rows else torch.empty(0, updates.layout.size),
        }


LAST_STEP = "last step"


class SeesLastStep(Rule):
    """A rule that sees, behind the updates, the step that it made in the round before."""

    @property
    def remembers(self) -> bool:
        return True

    def recall(self, updates: ClientUpdates) -> ClientUpdates:
        if "step" not in self.state:
            return updates
        return updates.joined([LAST_STEP], self.state["step"][None], torch.ones(1, dtype=torch.int64))

    def remember(self, updates: ClientUpdates, update: Tensor) -> None:
        self.state["step"] = update


def _decoded(text: Tensor) -> list[Id]:
    names: list[Id] = json.loads(bytes(text.tolist()))
    return names
