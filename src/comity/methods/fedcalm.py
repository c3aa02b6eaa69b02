from typing import Literal

from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods.fedrep import FedRep
from comity.rules import CALM, Projection, Rule


class FedCALM(FedRep):
    """Share the body and keep a personal head. Updates should harm no client in any layer (to first order).

    Use: when updates conflict in some layers of a deep network and not in others.

    Paper: Zheng et al., CVPR 2025.

    Equation: The client trains the head and then the body, as in FedRep (our choice; the supplement does not describe
    this). The server combines the body's updates by the rule CALM, layer by layer.

    Departures:
        - We had only the paper's supplement, and found no code. We do not know whether the authors scale updates first.
          As printed, CALM makes long steps in layers with short updates; the option ``scale`` changes this.
        - The supplement does not describe local training. Its Eq. 9, and Eqs. 2-3 of ConFREE by the same authors,
          suggest that the client trains the head and then the body, as in FedRep (``local="alternate"``).
          ``local="joint"`` trains both together, as in FedPer.

    Options:
        eps: margin by which the step should help every client in every layer, as in the rule CALM
        C: penalty for falling short of the margin, as in the rule CALM. Best values in the paper (section 9.2): CIFAR10
            0.1 (CNN), 1 (ResNet4), 10 (deeper networks); CIFAR100 10; Flowers102 100 (CNN, ResNet4), 10 (deeper
            networks); CINIC10 1
        scale: unit of eps, as in the rule CALM: absolute, as printed in the paper (none), or the mean length of the
            layer's updates (layer)
        stages: 1: the projection only (Only Proj in the paper); 2: the projection and CALM's optimisation problem
        local: train head and body one after the other, or together
        head_epochs: epochs of training the head, before the body is trained (only with local=alternate); the paper does
            not give a number
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
