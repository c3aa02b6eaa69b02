from typing import Literal

from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods.fedrep import FedRep
from comity.rules import CALM, Projection, Rule


class FedCALM(FedRep):
    """Share a body whose update increases no client's loss in any layer (to first order), and keep a personal head.

    Use: when updates conflict in some layers of a deep network and not in others.

    Paper: Zheng et al., CVPR 2025.

    Equation: The server combines the body's updates by the CALM rule, layer by layer.

    Departures:
        - Only the supplement is public, and no code. It is not known whether the authors scale updates first; as
          printed, CALM's optimisation problem makes long steps in layers with short updates (``scale``).
        - The supplement does not describe the client. Its Eq. 9, and Eqs. 2-3 of ConFREE by the same authors, suggest
          FedRep's client, which trains the head and then the body (``local="alternate"``). ``local="joint"`` trains
          both together, as FedPer does.

    Options:
        eps: margin by which every client should gain in every layer, as in CALM
        C: price of missing the margin, as in CALM; best values in section 9.2 of the paper: CIFAR10 0.1 for the CNN, 1
            for ResNet4, 10 for deeper ones; CIFAR100 10; Flowers102 100 for CNN and ResNet4, 10 for deeper ones;
            CINIC10 1
        scale: the literal constraint (none) or one relative to the layer's updates (layer), as in CALM
        stages: 2 for the projection and then CALM's optimisation problem, 1 for the projection only (the paper's Only
            Proj)
        local: train head and body one after the other, or together
        head_epochs: epochs of the head before the body is trained, with local alternate; the paper does not give it
    """

    eps: NonNegative = 0.1
    C: NonNegative = 10.0
    scale: Literal["none", "layer"] = "none"
    stages: Literal[1, 2] = 2
    local: Literal["alternate", "joint"] = "alternate"

    def own_rule(self) -> Rule:
        if self.stages == 1:
            return Projection(scope="layer")
        return CALM(eps=self.eps, C=self.C, scale=self.scale)

    def fit(self, client: Client, received: Message) -> Reply:
        if self.local == "alternate":
            return super().fit(client, received)
        self.load(client, received)
        client.sgd()
        return self.reply(client)
