from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._options import Count, NonNegative
from comity.methods._method import WHOLE, Client, Message, Reply
from comity.methods._parts import ByParts, linear_head


class _TwoHeads(nn.Module):
    """A network whose logits are those of the global head plus those of the client's own head, which starts at 0."""

    def __init__(self, net: nn.Module, hidden: int) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "FedROD")
        features, classes = self.head.in_features, self.head.out_features
        self.own = nn.Linear(features, classes)
        self.hypernetwork = nn.Sequential()
        zeroed = [self.own]
        if hidden:
            zeroed.append(nn.Linear(hidden, (features + 1) * classes))
            self.hypernetwork.extend((nn.Linear(classes, hidden), nn.ReLU(), zeroed[1]))
        for layer in zeroed:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        logits: Tensor = self.head(z) + self.own(z)
        return logits


def balanced_softmax(logits: Tensor, y: Tensor, counts: Tensor, gamma: float = 1.0) -> Tensor:
    """Cross-entropy of softmax(logits + gamma · log counts); classes that the client lacks are left out."""
    if gamma == 0:
        return F.cross_entropy(logits, y)
    prior = gamma * counts.clamp(min=1).log()
    absent = torch.finfo(logits.dtype).min  # not −inf, so that no value becomes nan
    return F.cross_entropy((logits + prior).masked_fill(counts == 0, absent), y)


class FedROD(ByParts):
    """Train a global model with a class-balanced loss, and a personal head that is added to the global head.

    Use: when clients differ in class proportions and you want both a global and a personal model.

    Paper: Chen and Chao, ICLR 2022.

    Equation: Body and global head h_g minimise the balanced softmax CE(h_g(z) + gamma · log n_c, y), where n_c is the
    client's number of samples of class c; classes that the client lacks are left out. The personal head h_i minimises
    CE(h_g(z) + h_i(z), y) with z and h_g(z) held constant. The client predicts with h_g + h_i, the global model with
    h_g.

    With ``head="hypernetwork"``, h_i = H(class frequencies of the client). The hypernetwork H is shared and averaged,
    so even clients that never took part have a personal head. The rule acts on body and global head.

    Departures:
        - Each batch makes one step for both losses, with the run's learning rate. This is our choice.
        - The personal head starts at 0. This is our choice.
        - A client uses the newest global model with its own head, as in PFLlib. ``--eval-point fitted`` evaluates the
          model after local training instead. Then the personal head can lag behind the features, because the personal
          loss does not train the body.

    Options:
        head: personal head: a linear layer that the client keeps, or a head that a shared hypernetwork generates from
            the client's class frequencies
        gamma: power of the class counts in the balanced softmax (0 = plain cross-entropy)
        hidden: width of the hypernetwork's hidden layer
    """

    head: Literal["linear", "hypernetwork"] = "linear"
    gamma: NonNegative = 1.0
    hidden: Count = 32

    shared = (*WHOLE, "hypernetwork")  # empty without that option
    ruled = WHOLE

    def build(self, net: nn.Module) -> nn.Module:
        return _TwoHeads(net, self.hidden if self.head == "hypernetwork" else 0)

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        self._generate(client)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        model, net, counts = client.model, _net(client), _counts(client)
        own = model.parameters("own")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.body(x)
            generic = net.head(z)
            head = model.split(net.hypernetwork(counts / counts.sum()), "own") if self.head == "hypernetwork" else own
            personal = generic.detach() + F.linear(z.detach(), *head)
            return balanced_softmax(generic, y, counts, self.gamma) + F.cross_entropy(personal, y)

        client.sgd(None, *WHOLE, "hypernetwork" if self.head == "hypernetwork" else "own", loss=loss)
        self._generate(client)
        return self.reply(client)

    def general(self, client: Client, received: Message) -> Tensor | None:
        super().load(client, received)
        client.model.write(torch.zeros(client.model.size("own")), "own")
        return client.model.read()

    def _generate(self, client: Client) -> None:
        """Write the head that the hypernetwork generates for this client into the model."""
        if self.head == "hypernetwork":
            counts = _counts(client)
            with torch.no_grad():
                client.model.write(_net(client).hypernetwork(counts / counts.sum()), "own")


def _net(client: Client) -> _TwoHeads:
    assert isinstance(client.model.net, _TwoHeads)
    return client.model.net


def _counts(client: Client) -> Tensor:
    """(classes,) number of the client's training samples per class."""
    return torch.bincount(client.data.train.y, minlength=_net(client).head.out_features).float()
