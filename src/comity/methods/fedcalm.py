from typing import Literal

from comity.methods._method import Client, Payload
from comity.methods.fedrep import FedRep
from comity.rules import CALM, Projection, Rule


class FedCALM(FedRep):
    """A shared body that works against nobody, layer by layer, under personal heads.

    Zheng et al., CVPR 2025: the CALM rule on the body's updates. The supplement is silent on the client; its Eq. 9 and
    ConFREE's Eqs. 2-3 by the same authors suggest FedRep's, head first and then body (`alternate`); `joint` trains both
    together, as FedPer does. `stages=1` stops after the projection (the paper's Only Proj).

    Options:
        eps: each client's share of every layer's update, as in CALM
        C: price of falling short of it, as in CALM
        scale: the literal constraint (none) or one relative to the layer's updates (layer), as in CALM
        stages: 2 for projection and programme, 1 for the projection alone
        local: train head and body one after the other, or together
        head_epochs: epochs of the head before the body is trained
    """

    eps: float = 0.1
    C: float = 10.0
    scale: Literal["none", "layer"] = "none"
    stages: Literal[1, 2] = 2
    local: Literal["alternate", "joint"] = "alternate"

    def own_rule(self) -> Rule:
        if self.stages == 1:
            return Projection(scope="layer")
        return CALM(eps=self.eps, C=self.C, scale=self.scale)

    def fit(self, client: Client, received: Payload) -> Payload:
        if self.local == "alternate":
            return super().fit(client, received)
        self.load(client, received)
        client.sgd()
        return self.reply(client)
