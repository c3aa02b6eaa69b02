import torch
from torch import Tensor, nn

from comity._options import Count, Positive, Share
from comity.methods._method import Client, Message, Method, Reply
from comity.methods._parts import FreeParameter, linear_head

STEPS = 10
"""Candidate shares of the memory are 1/STEPS apart."""
FAR = 1e30  # distance to an empty slot of the memory
LEAST = 1e-12  # smallest probability, so that its logarithm is finite


class _Remembering(nn.Module):
    """A network whose predictions are mixed with those of a memory of features and classes."""

    def __init__(self, net: nn.Module, k: int, scale: float, places: int) -> None:
        super().__init__()
        self.body, self.head = net.get_submodule("body"), linear_head(net, "kNN-Per")
        self.memory = FreeParameter(places, self.head.in_features)
        self.labels = FreeParameter(places, self.head.out_features)
        self.lam, self.k, self.scale = FreeParameter(1), min(k, places), scale

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        logits: Tensor = self.head(z)
        lam = self.lam.value
        if self.training or not bool(lam > 0):
            return logits
        return ((1 - lam) * logits.softmax(1) + lam * self.neighbours(z)).clamp(min=LEAST).log()

    def neighbours(self, z: Tensor) -> Tensor:
        """Class probabilities from the nearest samples in the memory, weighted by distance."""
        empty = self.labels.value.sum(1) == 0
        near = torch.cdist(z, self.memory.value).masked_fill(empty, FAR).topk(self.k, largest=False)
        weights = (-near.values / self.scale).softmax(1)
        return (weights[:, :, None] * self.labels.value[near.indices]).sum(1)


class KNNPer(Method):
    """Mix FedAvg's prediction with a vote of the client's training samples whose features are most similar.

    Use: when training should be plain FedAvg, and clients can keep a memory of their own samples.

    Paper: Marfoq et al., ICML 2022.

    Equation: p(y | x) = lam · p_knn(y | x) + (1 − lam) · p_global(y | x), with the features z = b(x) of the global
    model. The memory holds the features z_i and classes of the client's training samples. The k nearest of them give
    p_knn(y | x) ∝ Σ exp(−‖z − z_i‖ / scale), where the sum is over those of class y. Only FedAvg's model is trained,
    and the memory never leaves the client.

    Departures:
        - Each client chooses lam from {0, 0.1, …, 1} by the log-loss on its validation samples. If several values are
          equally good, it takes the smallest.
        - The memory holds at most ``places`` samples, drawn at random; the paper keeps all.

    Options:
        lam: weight of the neighbours in the prediction (none = each client chooses; 0 = FedAvg)
        k: number of neighbours
        scale: distance at which a neighbour's weight falls to 1/e
        places: maximum number of samples in a client's memory
    """

    lam: Share | None = None
    k: Count = 10
    scale: Positive = 1.0
    places: Count = 512

    validation = 0.2

    def build(self, net: nn.Module) -> nn.Module:
        return _Remembering(net, self.k, self.scale, self.places)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(None, "shared")
        reply = self.reply(client)
        self.remember(client)
        return reply

    def personal(self, client: Client, received: Message) -> Tensor:
        self.load(client, received)
        self.remember(client)
        return client.model.read()

    @torch.no_grad()
    def remember(self, client: Client) -> None:
        """Fill the memory with the client's training samples and set lam."""
        model, train = client.model, client.data.train
        net = model.net.eval()
        assert isinstance(net, _Remembering)
        chosen = torch.arange(len(train))
        if len(train) > self.places:
            chosen = torch.randperm(len(train), generator=client.random("memory"))[: self.places]
        memory, labels = torch.zeros_like(net.memory.value), torch.zeros_like(net.labels.value)
        memory[: len(chosen)] = torch.cat([model.features(x) for x in torch.split(train.x[chosen], 512)])
        labels[torch.arange(len(chosen)), train.y[chosen]] = 1
        model.write(memory.flatten(), "memory")
        model.write(labels.flatten(), "labels")
        model.write(torch.full((1,), self.share(client)), "lam")

    def share(self, client: Client) -> float:
        """The weight of the memory: the option's value, or the best one on the validation samples."""
        val = client.data.val
        if self.lam is not None or not len(val):
            return self.lam or 0.0
        net = client.model.net
        assert isinstance(net, _Remembering)
        z = torch.cat([client.model.features(x) for x in torch.split(val.x, 512)])
        both = [p[torch.arange(len(val)), val.y] for p in (net.head(z).softmax(1), net.neighbours(z))]
        shares = torch.linspace(0, 1, STEPS + 1)
        likely = torch.stack([torch.lerp(both[0], both[1], float(share)) for share in shares]).clamp(min=LEAST)
        return float(shares[likely.log().mean(1).argmax()])
