import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods._parts import ByParts, FreeParameter, linear_head


class _Valve(nn.Module):
    """Scale and shift features depending on a condition vector."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        return F.relu(z * (self.scale(condition) + 1) + self.shift(condition))


class _Conditioned(nn.Module):
    """A network whose head gets features modulated by the client's condition."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "GPFL")
        self.embedding = nn.Embedding(self.head.out_features, self.head.in_features)
        self.valve = _Valve(self.head.in_features)
        self.condition = FreeParameter(self.head.in_features)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.valve(self.body(x), self.condition.value))
        return logits


class GPFL(ByParts):
    """Learn personal features for the client's head, and global features that class embeddings guide.

    Use: when a client's features should serve its own task and still distinguish all classes.

    Paper: Zhang et al., ICCV 2023.

    Equation: The body b, a class embedding E (one row per class) and a valve V are shared; the head h_i stays with the
    client. The valve scales and shifts features z = b(x) depending on a condition c: V(z, c) = ReLU(z ⊙ (γ(c) + 1) +
    β(c)), where γ and β are a linear layer, ReLU and LayerNorm each. Personal features are z_P = V(z, Σ_k P_i(k) E_k),
    where P_i(k) is the client's share of class k. Global features are z_G = V(z, mean of E's rows).

    The loss is CE(h_i(z_P), y) + CE(cosines of z_G with E's rows, y) + lam · ‖z_G − E_y‖ + mu/2 · (‖E‖² + ‖V‖²). The
    conditions, and E_y in the third term, use the received E. The client predicts by h_i(z_P). The rule acts on the
    body; E and V are averaged. There is no global model.

    Departures:
        - The distance between global features and class embedding is a mean over samples. Public code takes the norm of
          the differences of a whole batch, which is about √b times as large for b samples.
        - The valve's conditions are computed from the received class embedding. In public code they are 0 in the first
          round and later computed from the client's last class embedding.

    Options:
        lam: weight of the distance between global features and class embedding; the paper tunes it from 1e-4 to 0.01
        mu: weight decay of class embedding and valve (which scales and shifts features), added to the run's; the paper
            tunes it from 0 to 0.1
    """

    lam: NonNegative = 0.01
    mu: NonNegative = 0.01

    shared = ("body", "embedding", "valve")
    ruled = ("body",)

    def build(self, net: nn.Module) -> nn.Module:
        return _Conditioned(net)

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        E = _net(client).embedding.weight.detach()
        counts = torch.bincount(client.data.train.y, minlength=len(E))
        client.model.write((counts / counts.sum()) @ E, "condition")

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        net, guides = _net(client), client.model.parameters("embedding", "valve")
        E = net.embedding.weight.detach().clone()
        common = E.mean(0)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.body(x)
            own = F.cross_entropy(net.head(net.valve(z, net.condition.value)), y)
            generic = net.valve(z, common)
            angle = F.cross_entropy(F.normalize(generic) @ F.normalize(net.embedding.weight).T, y)
            distance = torch.linalg.vector_norm(generic - E[y], dim=1).mean()
            decay = torch.stack([guide.square().sum() for guide in guides]).sum()
            total: Tensor = own + angle + self.lam * distance + self.mu / 2 * decay
            return total

        client.sgd(None, "body", "head", "embedding", "valve", loss=loss)
        return self.reply(client)


def _net(client: Client) -> _Conditioned:
    assert isinstance(client.model.net, _Conditioned)
    return client.model.net
