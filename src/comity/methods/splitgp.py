from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._options import NonNegative, Share
from comity.methods._method import Client, Message, Method, Reply
from comity.methods._parts import linear_head
from comity.nn import BUFFERS

CLIENT_PART = ("body", "exit", BUFFERS)


class _Threshold(nn.Module):
    """The exit threshold as a parameter, so that the global model can be one whose early exit is closed."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.entropy = nn.Parameter(torch.tensor([value]))


class _TwoExits(nn.Module):
    """A network in which samples leave by the client's early exit if it is certain, otherwise by the server's head."""

    def __init__(self, net: nn.Module, threshold: float) -> None:
        super().__init__()
        self.body, self.head = _split(net)
        first = next(module for module in self.head.modules() if isinstance(module, nn.Linear))
        self.exit = nn.Linear(first.in_features, linear_head(net, "SplitGP").out_features)
        self.gate = _Threshold(threshold)

    def exits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.exit(z), self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        early, late = self.exits(x)
        log_p = F.log_softmax(early, dim=1)
        entropy = -(log_p.exp() * log_p).sum(1, keepdim=True)
        return torch.where(entropy <= self.gate.entropy, early, late)


def _split(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The client's and the server's part: cut after the convolutions, or after the body if nothing follows them."""
    body, head = net.get_submodule("body"), linear_head(net, "SplitGP")
    layers = list(body.named_children()) if isinstance(body, nn.Sequential) else []
    cut = next((i + 1 for i, (_, layer) in enumerate(layers) if isinstance(layer, nn.Flatten)), len(layers))
    before, after = (nn.Sequential(OrderedDict(part)) for part in (layers[:cut], layers[cut:]))
    if not list(before.parameters()) or not list(after.parameters()):
        return body, head
    return before, nn.Sequential(OrderedDict([*after.named_children(), ("head", head)]))


class SplitGP(Method):
    """Split the network into a mostly personal client part with an early exit, and a global server part.

    Use: when devices are weak: they answer easy samples themselves and send only hard ones to the server.

    Paper: Han et al., INFOCOM 2023.

    Equation: The client part consists of the convolutions φ and the early exit κ, a linear layer. The server part θ is
    the rest of the network. They minimise gamma · CE(κ(φ(x)), y) + (1 − gamma) · CE(θ(φ(x)), y). Then θ is averaged,
    and φ_k ← lam · φ_k + (1 − lam) · average; κ_k is mixed in the same way. The early exit κ answers a sample if the
    entropy of its prediction is at most ``threshold`` (nats), otherwise θ does. The global model is θ on the average φ.

    Departures:
        - A client mixes its own part with the average when it receives the average, before training. Absent clients
          keep their part.
        - A client uses the model after its last training, as in the FedPG papers.
        - BatchNorm's statistics belong to the client part.
        - The server combines all parts by the run's rule instead of averaging them.
        - A network is split before its head if it has no convolutions, or no layers between them and the head.

    Options:
        gamma: weight of the early exit's loss
        lam: weight of the client's own values when it mixes its part with the average (1 = own part only, 0 = the
            average)
        threshold: a sample takes the early exit if the entropy of the prediction there is at most this (in nats); the
            paper tunes it between 0.05 and 2.3
        personal_model: model that a client uses: the mixture with the newest average, or the model after local training
    """

    gamma: Share = 0.5
    lam: Share = 0.2
    threshold: NonNegative = 0.2
    personal_model: Literal["mixture", "post_local"] = "post_local"

    shared = ("body", "head", "exit")

    def build(self, net: nn.Module) -> nn.Module:
        return _TwoExits(net, self.threshold)

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["own"] = client.model.read(*CLIENT_PART)

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        average = client.model.read(*CLIENT_PART)
        client.model.write(torch.lerp(average, client.keep["own"], self.lam), *CLIENT_PART)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        net = client.model.net
        assert isinstance(net, _TwoExits)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            early, late = net.exits(x)
            return self.gamma * F.cross_entropy(early, y) + (1 - self.gamma) * F.cross_entropy(late, y)

        client.sgd(None, "body", "head", "exit", loss=loss)
        client.keep["own"] = client.model.read(*CLIENT_PART)
        return self.reply(client)

    def general(self, client: Client, received: Message) -> Tensor | None:
        super().load(client, received)
        client.model.write(torch.tensor([-1.0]), "gate")  # entropy is never negative
        return client.model.read()
