from typing import Literal

import torch
from torch import Tensor, nn

from comity._options import NonNegative
from comity.methods._method import WHOLE, Client, Method, Server
from comity.methods._parts import FreeParameter, linear_head
from comity.methods._prototypes import (
    Prototypes,
    PrototypesReply,
    alignment,
    class_means,
    merge_prototypes,
    prototypes_objection,
)

NO_PROTOTYPE = -1e30  # logit of a class without a prototype


class _NearestPrototype(nn.Module):
    """A network that predicts the class with the nearest prototype, or by its head while there are no prototypes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "FedProto")
        self.prototypes = FreeParameter(self.head.out_features, self.head.in_features)
        self.known = FreeParameter(self.head.out_features)

    def forward(self, x: Tensor) -> Tensor:
        z, C, known = self.body(x), self.prototypes.value, self.known.value > 0
        logits: Tensor = self.head(z)
        # −‖z − C_k‖² up to ‖z‖², which is the same for all classes
        return torch.where(known, 2 * z @ C.T - C.square().sum(1), NO_PROTOTYPE) if bool(known.any()) else logits


class FedProto(Method[Prototypes, PrototypesReply]):
    """Share only mean features per class (prototypes); each client trains its own model with features near them.

    Use: when clients may not send models, or when traffic must be very small.

    Paper: Tan et al., AAAI 2022.

    Equation: A client sends C_i,k, the mean of z = b_i(x) over its samples of class k, with the number of these
    samples. The server averages them to the prototypes C_k, weighted by these numbers. The loss is CE + lam · MSE(z,
    C_y); a class without a prototype has no pull. A client predicts the class whose C_k is nearest to z. No model is
    averaged, so no rule applies.

    Departures:
        - The pull acts on the features of each sample, as in the authors' code. In the paper's equation it acts on the
          client's class means.
        - The server's prototype is the weighted mean of the clients' prototypes, as in the authors' code. The paper
          divides it once more by the number of clients.
        - Prototypes are measured after a client's training; the authors' code measures them during training.
        - A client can predict any class that has a prototype; in the authors' code, only the classes that it has
          itself.
        - All clients have the same architecture; the paper allows different ones.

    Options:
        lam: weight of the pull towards the prototypes (with answer=head, 0 equals Local)
        answer: how a client predicts: by the nearest prototype, or with its head
    """

    lam: NonNegative = 1.0
    answer: Literal["prototype", "head"] = "prototype"

    mixes_models = True
    shared = ()

    def build(self, net: nn.Module) -> nn.Module:
        return _NearestPrototype(net) if self.answer == "prototype" else net

    def load(self, client: Client, received: Prototypes) -> None:
        super().load(client, received)
        if self.answer == "prototype" and received.prototypes is not None and received.known is not None:
            client.model.write(received.prototypes.flatten(), "prototypes")
            client.model.write(received.known.float(), "known")

    def fit(self, client: Client, received: Prototypes) -> PrototypesReply:
        self.load(client, received)
        plain = not self.lam and self.answer == "head"
        client.sgd(None, *WHOLE, on_features=None if plain else alignment(received, self.lam))
        prototypes, counts, _ = class_means(client)
        return self.reply(client, prototypes=prototypes, counts=counts)

    def send(self, server: Server, cid: int) -> Prototypes:
        store = server.store
        return Prototypes(theta=server.theta, prototypes=store.get("prototypes"), known=store.get("known"))

    def objection(self, server: Server, cid: int, reply: PrototypesReply) -> str | None:
        return prototypes_objection(reply)

    def merge(self, server: Server, replies: dict[int, PrototypesReply]) -> None:
        merge_prototypes(server, replies)
