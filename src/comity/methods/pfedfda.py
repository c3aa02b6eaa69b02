import torch
import torch.nn.functional as F
from torch import Tensor

from comity._options import Share
from comity.methods._messages import Message, Reply
from comity.methods._method import Client, Method, Server
from comity.methods._parts import linear_head

EPS = 1e-4
"""Keeps covariances and class shares away from 0."""
FOLDS = 2
STEPS = 10
"""Candidate values of beta are 1/STEPS apart."""


class Gaussians(Message):
    means: Tensor | None = None  # (classes, features); None in the first round
    covariance: Tensor | None = None  # (features, features), shared by all classes


class GaussiansReply(Reply):
    means: Tensor
    covariance: Tensor


class PFedFDA(Method[Gaussians, GaussiansReply]):
    """Share the body; classify with one Gaussian of the features per class, adapted to each client.

    Use: when clients have few samples and their features differ.

    Paper: McLaughlin and Su, NeurIPS 2024.

    Equation: Features of class k are modelled as N(mu_k, Sigma). This gives the head: weights Sigma⁻¹ mu_k and biases
    −½ mu_kᵀ Sigma⁻¹ mu_k + log(share of class k at the client). The body is trained under the fixed head of the global
    mu and Sigma.

    A client then estimates mu and Sigma from its own features and mixes them with the global ones: beta · own + (1 −
    beta) · global. Cross-validation chooses beta. The client uses the head of this mixture. The server averages the
    clients' mu and Sigma, weighted by size.

    Departures:
        - Means and covariance have the same beta: the best of {0, 0.1, …, 1} by log-loss over two folds. The authors
          search by L-BFGS and can use two different betas.

    Options:
        beta: weight of the client's own features in its Gaussians (none = each client chooses; 0 = global only)
    """

    beta: Share | None = None

    shared = ("body",)

    def fit(self, client: Client, received: Gaussians) -> GaussiansReply:
        self.assemble(client, received.theta)
        common = self.common(client, received)
        self.write_head(client, *common)
        client.sgd(None, "body")
        means, covariance = self.adapt(client, *common)
        self.write_head(client, means, covariance)
        return self.reply(client, means=means.float(), covariance=covariance.float())

    def personal(self, client: Client, received: Gaussians) -> Tensor:
        self.assemble(client, received.theta)
        self.write_head(client, *self.adapt(client, *self.common(client, received)))
        return client.model.read()

    def common(self, client: Client, received: Gaussians) -> tuple[Tensor, Tensor]:
        """The global Gaussians; in the first round random means, equal for all clients, and unit covariance."""
        if received.means is not None and received.covariance is not None:
            return received.means.double(), received.covariance.double()
        head = linear_head(client.model.net, "pFedFDA")
        random = torch.Generator().manual_seed(0)
        means = torch.randn(head.out_features, head.in_features, generator=random, dtype=torch.float64)
        return means, torch.eye(head.in_features, dtype=torch.float64)

    def write_head(self, client: Client, means: Tensor, covariance: Tensor) -> None:
        weights, biases = gaussian_head(means, covariance, class_shares(client.data.train.y, len(means)))
        client.model.write(torch.cat([weights.flatten(), biases]).float(), "head")

    @torch.no_grad()
    def adapt(self, client: Client, means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """The client's Gaussians, between those of its own features and the global ones."""
        client.model.net.eval()
        x, y = client.data.train.x, client.data.train.y
        Z = torch.cat([client.model.features(some) for some in torch.split(x, 512)]).double()
        beta = best_beta(Z, y, means, covariance) if self.beta is None else self.beta
        return between(beta, gaussians(Z, y, means), (means, covariance))

    def send(self, server: Server, cid: int) -> Gaussians:
        store = server.store
        return Gaussians(theta=server.theta, means=store.get("means"), covariance=store.get("covariance"))

    def objection(self, server: Server, cid: int, reply: GaussiansReply) -> str | None:
        if reply.means.dim() != 2 or reply.covariance.shape != (reply.means.shape[1],) * 2:
            return "sent means and a covariance that do not fit together"
        return None

    def merge(self, server: Server, replies: dict[int, GaussiansReply]) -> None:
        server.theta = server.aggregate(replies).theta
        total = sum(reply.size for reply in replies.values())
        for name in ("means", "covariance"):
            rows = [getattr(replies[cid], name) * (replies[cid].size / total) for cid in sorted(replies)]
            server.store[name] = torch.stack(rows).sum(0)


def class_shares(y: Tensor, classes: int) -> Tensor:
    shares = y.bincount(minlength=classes).double() / len(y) + EPS
    return shares / shares.sum()


def gaussian_head(means: Tensor, covariance: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (classes, features) and biases (classes,) of the classifier for these Gaussians."""
    size = len(covariance)
    steady = (1 - EPS) * covariance + EPS * covariance.trace() / size * torch.eye(size, dtype=covariance.dtype)
    weights = torch.linalg.solve(steady, means.T).T
    return weights, -0.5 * (means * weights).sum(1) + shares.log()


def gaussians(Z: Tensor, y: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariance of features; a class with at most FOLDS samples keeps its given mean."""
    counts = y.bincount(minlength=len(means))
    own = F.one_hot(y, len(means)).to(Z).T @ Z / counts.clamp(min=1)[:, None]
    own = torch.where((counts > FOLDS)[:, None], own, means)
    away = Z - own[y]
    return own, away.T @ away / max(len(Z) - 1, 1) + EPS * torch.eye(Z.shape[1], dtype=Z.dtype)


def between(beta: float, own: tuple[Tensor, Tensor], common: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.lerp(common[0], own[0], beta), torch.lerp(common[1], own[1], beta)


def best_beta(Z: Tensor, y: Tensor, means: Tensor, covariance: Tensor) -> float:
    """The weight of the client's own features with the lowest cross-validated log-loss."""
    place = F.one_hot(y, len(means)).cumsum(0)[torch.arange(len(y)), y]  # index of a sample within its class
    fold, betas = place % FOLDS, torch.linspace(0, 1, STEPS + 1).tolist()
    losses = torch.zeros(len(betas), dtype=Z.dtype)
    for left_out in range(FOLDS):
        train, test = fold != left_out, fold == left_out
        if not bool(train.any() and test.any()):
            return 0.0
        own, shares = gaussians(Z[train], y[train], means), class_shares(y, len(means))
        for i, beta in enumerate(betas):
            weights, biases = gaussian_head(*between(beta, own, (means, covariance)), shares)
            losses[i] += F.cross_entropy(Z[test] @ weights.T + biases, y[test], reduction="sum")
    return float(betas[int(losses.argmin())])
