"""What a server does with the update that a rule has combined."""

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from comity._options import Positive, Range, check


@dataclass(eq=False)
class ServerStep:
    """The server's learning rate and momentum, on top of any rule.

    Paper: FedAvgM, Hsu, Qi and Brown, 2019.

    Equation: v ← momentum·v + d for the rule's update d, and the step lr·v.

    Options:
        lr: the server's learning rate
        momentum: the server's momentum
    """

    lr: Positive = 1.0
    momentum: Annotated[float, Range(least=0, below=1)] = 0.0
    state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    """What it remembers between rounds: saved and set again, it goes on as if it had never stopped."""

    def __post_init__(self) -> None:
        check(self, "server")

    def __call__(self, update: Tensor) -> Tensor:
        if self.momentum:
            if "velocity" in self.state:
                update = self.momentum * self.state["velocity"] + update
            self.state["velocity"] = update
        return update if self.lr == 1 else self.lr * update
