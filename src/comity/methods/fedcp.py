import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods._parts import ByParts, linear_head

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
LAM, LR = 5.0, 0.005  # the paper's


class _Gated(nn.Module):
    """A network whose gate splits each feature between the client's own head and the global head."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "FedCP")
        self.own = copy.deepcopy(self.head)
        features = self.head.in_features
        self.gate = nn.Sequential(nn.Linear(features, 2 * features), nn.LayerNorm(2 * features), nn.ReLU())

    def context(self) -> Tensor:
        """Input of the gate about the client: the normalised sum over classes of its head's rows."""
        return F.normalize(self.own.weight.detach().sum(0), dim=0)

    def classify(self, z: Tensor, context: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        mine, theirs = self.gate(z * context).chunk(2, dim=1)
        r = torch.sigmoid(mine - theirs + noise)  # softmax over the two
        logits: Tensor = self.own(r * z) + self.head((1 - r) * z)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.body(x), self.context())


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two batches under a sum of Gaussian kernels, exp(−d²/2a)."""
    both = torch.cat((x, y))
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    kernel = torch.stack([torch.exp(distances / (-2 * a)) for a in BANDWIDTHS]).sum(0)
    signs = torch.cat((torch.ones(len(x)), -torch.ones(len(y)))).to(x)
    return signs @ kernel @ signs / len(x) ** 2


class FedCP(ByParts):
    """Split each sample's features between a personal and a global head by a learned gate.

    Use: when some features of a sample are general and some are specific to the client.

    Paper: Zhang et al., KDD 2023.

    Equation: With z = b(x), the logits are h_i(r·z) + h_g((1 − r)·z). Here r is the Gumbel-softmax (temperature 1) of
    gate(z·v), and v is the normalised sum of h_i's rows at the start of the round. Body, personal head and gate
    minimise CE plus lam · MMD² between z and b_g(x), with kernels of bandwidth 10, 15, 20 and 50. MMD is the maximum
    mean discrepancy, a distance between distributions. The global head h_g and the received body b_g are fixed.

    The client sends body, gate and the head (h_i + h_g)/2. The rule acts on the body; head and gate are averaged. There
    is no global model.

    Departures:
        - The gate adds Gumbel noise in training only.
        - The pull of the features makes steps proportional to lam · lr. If lam · lr is far above the paper's 5 · 0.005,
          the steps overshoot, and most ReLUs become inactive. So the default lam is smaller at larger learning rates.
        - Under SGD, the gate's input v (the sum of the personal head's rows) never changes and is equal for all
          clients, because the gradients of a softmax layer's rows sum to 0. This is also true of the paper's method.

    Options:
        lam: weight of the pull towards the features of the received body (none = 5 as in the paper, or 5 · 0.005 / lr
            if lr is above 0.005)
    """

    lam: NonNegative | None = None

    shared = ("body", "head", "gate")
    ruled = ("body",)

    def build(self, net: nn.Module) -> nn.Module:
        return _Gated(net)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        model, net = client.model, client.model.net
        assert isinstance(net, _Gated)
        # in training mode like the body: both use the batch's own statistics
        anchor = copy.deepcopy(net.body).train().requires_grad_(False)
        context, random = net.context(), client.random("gumbel")
        lam = LAM * min(1.0, LR / client.lr) if self.lam is None else self.lam

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.body(x)
            noise = torch.rand(z.shape, generator=random).logit(eps=1e-6).to(z)
            value = F.cross_entropy(net.classify(z, context, noise), y)
            return value + lam * mmd(z, anchor(x)) if lam else value

        client.sgd(None, "body", "own", "gate", loss=loss)
        head = model.read("head")
        model.write((model.read("own") + head) / 2, "head")
        reply = self.reply(client)
        model.write(head, "head")
        return reply

    def general(self, client: Client, received: Message) -> Tensor | None:
        return None
