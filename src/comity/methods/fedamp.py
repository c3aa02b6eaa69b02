import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from comity._layout import Layout
from comity._options import NonNegative, Positive, Range
from comity.methods._method import Client, Message, Method, Reply, Server
from comity.rules import Updates


class FedAMP(Method):
    """Pull each client's model towards a mixture of all models, in which similar models have more weight.

    Use: when clients form groups that are not known in advance.

    Paper: Huang et al., AAAI 2021.

    Equation: The server computes u_i = Σ_j ξ_ij w_j with ξ_ij = alpha/sigma · exp(−‖w_i − w_j‖²/sigma) for j ≠ i and
    ξ_ii = 1 − Σ_j≠i ξ_ij. The client minimises f(w) + lam/(2 alpha) · ‖w − u_i‖², starting from its last model.

    ``form="cosine"`` is HeurFedAMP: ξ_ij = (1 − ξ_ii) softmax_j(sigma cos(w_i, w_j)) with a fixed ξ_ii.

    Departures:
        - By default sigma is the median of the squared distances between models; with form=cosine, it is the inverse of
          the median of 1 − cos. With a fixed sigma, large models are so far apart that all weights ξ_ij become 0, and
          FedAMP becomes Local.
        - With the default sigma, alpha is multiplied by sigma and divided by the number of other clients. So the
          mixture does not depend on the scale of the models. The paper's alpha 1e4 and sigma 1e6 with 100 clients
          correspond to alpha 1 here.
        - The pull lam/alpha is constant. In the paper it starts at 1e-4 and grows as alpha decays. A constant 1e-4
          gives the result of Local; with 1, accuracy falls if clients differ.
        - A client's own model has at least the weight ``self_weight`` in its mixture.
        - Clients that have never replied are left out of all mixtures.

    Options:
        form: similarity of two models: by distance (FedAMP) or by angle (HeurFedAMP)
        lam: the paper's lambda; the strength of the pull towards the mixture is lam/alpha (0 = Local)
        alpha: the paper's alpha_k: weight of the other clients in the mixture
        sigma: width of the similarity kernel (none = from the median distance of the models)
        self_weight: minimum weight of a client's own model in its mixture; with form=cosine, exactly this weight
    """

    form: Literal["distance", "cosine"] = "distance"
    lam: NonNegative = 0.1
    alpha: Positive = 1.0
    sigma: Positive | None = None
    self_weight: Annotated[float, Range(least=0, below=1)] = 0.1

    mixes_models = True

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["w"] = client.model.read("shared")

    def fit(self, client: Client, received: Message) -> Reply:
        self.assemble(client, client.keep["w"])
        client.sgd(None, "shared", pull=(received.theta, self.lam / self.alpha))
        client.keep["w"] = client.model.read("shared")
        return self.reply(client)

    def personal(self, client: Client, received: Message) -> Tensor:
        self.assemble(client, client.keep["w"])
        return client.model.read()

    def begin(self, server: Server) -> None:
        W = server.theta.repeat(len(server.clients), 1)
        server.store |= {"W": W, "U": W.clone(), "heard": torch.zeros(len(W), dtype=torch.bool)}

    def send(self, server: Server, cid: int) -> Message:
        return Message(theta=server.store["U"][cid])

    def welcome(self, server: Server, cid: int, last: Reply | None) -> Message:
        """The mean of all models first, then the newcomer's own mixture; its model enters no other mixture."""
        W, heard = server.store["W"], server.store["heard"]
        if last is None:
            return Message(theta=W[heard].mean(0))
        W, heard = torch.cat([W, last.theta[None]]), torch.cat([heard, heard.new_zeros(1)])
        return Message(theta=self.attention(W[:, : server.layout.size], heard, server.layout)[-1].to(W) @ W)

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        W, heard = server.store["W"], server.store["heard"]
        for cid, reply in replies.items():
            W[cid], heard[cid] = reply.theta, True
        server.store["U"] = self.attention(W[:, : server.layout.size], heard, server.layout).to(W) @ W

    def attention(self, W: Tensor, heard: Tensor, layout: Layout) -> Tensor:
        """(N, N) ξ from the models' parameters; columns of clients without a reply are 0 except on the diagonal."""
        if self.form == "cosine":
            W = W / torch.linalg.vector_norm(W, dim=1, keepdim=True)  # then 1 − cos is half the squared distance
        Q = squared_distances(W, layout)
        others = heard & ~torch.eye(len(W), dtype=torch.bool)
        if not bool(others.any()):
            return torch.eye(len(W), dtype=Q.dtype)
        if self.sigma is None:
            known = others & heard[:, None]
            scale = float(Q[known if bool(known.any()) else others].median().clamp(min=torch.finfo(Q.dtype).tiny))
        else:
            scale = 2 / self.sigma if self.form == "cosine" else self.sigma
        likeness = (-Q / scale).masked_fill(~others, -math.inf)
        if self.form == "cosine":
            xi = (1 - self.self_weight) * likeness.softmax(1).nan_to_num()  # 0 in rows without other clients
        else:
            most = 1 - self.self_weight
            unit = others.sum(1, keepdim=True).clamp(min=1) if self.sigma is None else self.sigma
            xi = self.alpha / unit * likeness.exp()
            xi = xi * (most / xi.sum(1, keepdim=True).clamp(min=most))
        return xi + torch.diag(1 - xi.sum(1))


def squared_distances(rows: Tensor, layout: Layout) -> Tensor:
    """(N, N) float64. Centred first, because models are close together and far from 0; rounding errors become 0."""
    G: Tensor = Updates(rows - rows.mean(0), layout=layout).grams.sum(0)
    lengths = G.diagonal()
    both = lengths[:, None] + lengths
    squares = both - 2 * G
    return squares.where(squares > torch.finfo(rows.dtype).eps * both, 0.0)
