import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._options import NonNegative, ShareAboveZero
from comity.methods._method import WHOLE, Client, Message, Method, Payload, Reply, Server, verb
from comity.methods._parts import FreeParameter, linear_head


class _Shifted(nn.Module):
    """A network whose head gets the features plus a vector of the client."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "FedDBE")
        self.shift = FreeParameter(self.head.in_features)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x) + self.shift.value)
        return logits


class FedDBEMessage(Message):
    consensus: Tensor | None = None  # mean features that all clients are pulled towards; None at first


class MeanFeatures(Payload):
    mean: Tensor
    size: int  # number of training samples


class FedDBE(Method[FedDBEMessage, Reply]):
    """Share the whole model, align the clients' mean features, and let each client shift its own features.

    Use: when clients' features differ mainly by a shift.

    Paper: Zhang et al., NeurIPS 2023 ("Eliminating domain bias"), with FedAvg.

    Equation: With z = b(x), a client predicts by h(z + p_i). The shift p_i starts at 0, is trained with body and head,
    and stays with the client. The loss is CE(h(z + p_i), y) + kappa · mean over features of ½ (m − z̄)², where z̄ is
    the common mean of features. m is a running mean of z, which starts at 0 in each round: m ← (1 − mu) m + mu ·
    mean(z) per batch, with a gradient through the new batch only.

    The common mean z̄ is measured before the first round and then stays fixed. For this, each client does one round of
    local training from the initial model, with p_i = 0 and kappa = 0, and sends the mean of z over its samples; z̄ is
    the average of these means, weighted by size. The global model has p = 0.

    Departures:
        - The mean that a client sends before the first round is over all its samples, as in the paper's equation.
          Public code sends the running mean, which for mu 1 is the mean of one batch.

    Options:
        kappa: strength of the pull towards the common mean of features (0 = off)
        mu: weight of a new batch in the running mean of features; the paper uses kappa 50 with mu 1 for its CNN, and
            kappa 1 with mu 0.1 for ResNet-18
    """

    kappa: NonNegative = 50.0
    mu: ShareAboveZero = 1.0

    shared = WHOLE
    trained = (*WHOLE, "shift")

    def build(self, net: nn.Module) -> nn.Module:
        return _Shifted(net)

    @verb
    def mean_features(self, client: Client, received: FedDBEMessage) -> MeanFeatures:
        """Step 0: mean features over a client's samples after one training of the initial model."""
        self.load(client, received)
        client.sgd(None, *WHOLE)
        client.model.net.eval()
        data = client.data.train
        with torch.no_grad():
            z = torch.cat([client.model.features(x) for x in torch.split(data.x, 512)])
        return MeanFeatures(mean=z.mean(0), size=len(data))

    def fit(self, client: Client, received: FedDBEMessage) -> Reply:
        self.load(client, received)
        net, consensus = client.model.net, received.consensus
        assert isinstance(net, _Shifted)
        m = torch.zeros(())

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal m
            z: Tensor = net.body(x)
            value = F.cross_entropy(net.head(z + net.shift.value), y)
            if consensus is None:
                return value
            m = (1 - self.mu) * m.detach() + self.mu * z.mean(0)
            pull: Tensor = self.kappa * (m - consensus).square().mean() / 2
            return value + pull

        client.sgd(None, *self.trained, loss=loss)
        return self.reply(client)

    def general(self, client: Client, received: FedDBEMessage) -> Tensor | None:
        self.load(client, received)
        client.model.write(torch.zeros(client.model.size("shift")), "shift")
        return client.model.read()

    def begin(self, server: Server) -> None:
        if self.kappa:
            answers = server.ask(self.mean_features, {cid: self.send(server, cid) for cid in server.clients})
            sizes = torch.tensor([float(answer.size) for answer in answers.values()])
            server.store["consensus"] = (sizes / sizes.sum()) @ torch.stack([a.mean for a in answers.values()])

    def send(self, server: Server, cid: int) -> FedDBEMessage:
        return FedDBEMessage(theta=server.theta, consensus=server.store.get("consensus"))
