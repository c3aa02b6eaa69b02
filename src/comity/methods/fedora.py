import math
from typing import Annotated, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from comity._options import Count, Range
from comity.methods._method import Client, Message, Method, Payload, Question, Reply, Server, verb

LEAST = 1e-8  # the slides' ε, the smallest λ
SHARPNESS = 10.0  # the released code's factor in exp(10 Σ cos ζ)


class Basis(Payload):
    basis: Tensor  # (p, d): leading directions of a client's samples, one per row


class PulledReply(Reply):
    pull: float  # strength of the pull towards the received model


class FEDORA(Method[Message, PulledReply]):
    """Pull each client's model towards a mixture of similar clients' models, if this lowers its validation loss.

    Use: when clients' inputs vary along a continuum (angles, devices, seasons) and each has validation samples.

    Paper: Wu et al., KDD 2023.

    Equation: Once, before the first round, client k sends the first p left singular vectors of its samples (a basis).
    From the bases the server computes the similarities w_kk' = exp(10 Σ_i cos ζ_i), where ζ_i are the principal angles
    between the bases of k and k'. For each k it keeps the two largest and sets the others to 0.

    In each round the server computes a mixture θ̂_k for each client: θ̂_k = β Σ_k' w_kk' θ̂_k' / D_kk + (1 − β) θ_k,
    where D holds the row sums of W and β = alpha/(1 + alpha). The solution is Θ̂ = (1 − β)(I − β D⁻¹W)⁻¹ Θ. A client
    without neighbours has θ̂_k = θ_k.

    The client trains from its own θ_k. After each optimiser step it subtracts lr·λ_k (θ_k − θ̂_k), where λ_k = exp(δ/2)
    with δ = ℓ_val(θ_k) − ℓ_val(θ̂_k), or λ_k = 0 if δ < 0. It uses θ_k. No rule applies, because models are mixed per
    client.

    With K clients, R rounds, d parameters and d_in pixels, 2KR·d + K·p·d_in numbers travel in total.

    Departures:
        - The default is the form of the authors' code, which produced the published numbers, but without labels: in the
          authors' code, and in ``FEDORA.released()``, labels are part of the description of a client's data.
        - ``similarity="cosines", neighbours=None, lam_form="difference"`` is the form of the authors' slides. The
          similarities are w_kk' = Σ cos ζ_i over all clients, and the loss has the term λ_k ‖θ_k − θ̂_k‖² with λ_k =
          max(1e-8, δ). On rotated images all cosines are between 0.77 and 0.99, so all similarities are nearly equal,
          and the result equals that of Local.
        - δ, the difference of the validation losses, is a mean over samples; the authors' code sums over batches. The
          two are equal for the authors' single batch of 64 samples.
        - The pull never moves a model beyond its mixture.

    Options:
        p: number of singular vectors that describe a client's data
        labels: include one-hot labels in the description of the data; this reveals the class proportions to the server
        similarity: similarity of two clients: the sum of the cosines of the principal angles, or its exponential
        neighbours: number of clients in a client's mixture: the most similar ones (none = all)
        alpha: strength of the mixing, β = alpha/(1 + alpha) (0 = none; 4 as in the released code)
        propagation: how the mixtures are computed: in closed form, or by iteration
        lam_form: pull towards the mixture. difference: a term of the loss, weighted by the difference of the validation
            losses. exp: an extra step after each optimiser step, weighted by exp(difference / 2)
        absent: models of absent clients: left out (restrict), or the last known ones are used (last)
    """

    p: Count = 1
    labels: bool = False
    similarity: Literal["cosines", "exp"] = "exp"
    neighbours: Count | None = 2
    alpha: Annotated[float, Range(least=0, most=10_000)] = 4.0
    propagation: Literal["closed", "iterated"] = "closed"
    lam_form: Literal["difference", "exp"] = "exp"
    absent: Literal["restrict", "last"] = "restrict"

    mixes_models = True
    validation = 0.2

    @classmethod
    def released(cls) -> Self:
        """Settings of the authors' code: ``run(method={"name": "FEDORA"} | vars(FEDORA.released()))``."""
        return cls(labels=True)

    @classmethod
    def slides(cls) -> Self:
        """Settings on the authors' slides."""
        return cls(similarity="cosines", neighbours=None, lam_form="difference")

    # The client half.

    def start(self, client: Client) -> None:
        client.keep["own"] = client.model.read()

    @verb
    def basis(self, client: Client, received: Question) -> Basis:
        """Step 0: the first p left singular vectors of the samples (columns), as rows; zeros if there are fewer."""
        x, y = client.data.train.x, client.data.train.y
        X = x.flatten(1).double()
        if self.labels:
            with torch.no_grad():
                classes = client.model.net.eval()(x[:1]).shape[1]
            X = torch.cat([X, F.one_hot(y, classes)], 1)
        wide = len(X) < X.shape[1]  # the smaller Gram matrix costs a fraction of a decomposition of X
        squares, vectors = torch.linalg.eigh(X @ X.mT if wide else X.mT @ X)
        rank = min(self.p, int((squares > 1e-12 * squares[-1]).sum()))
        leading = vectors.mT.flip(0)[:rank]
        basis = X.new_zeros(self.p, X.shape[1])
        basis[:rank] = F.normalize(leading @ X) if wide else leading
        return Basis(basis=basis.float())

    def fit(self, client: Client, received: Message) -> PulledReply:
        model, own, hat = client.model, client.keep["own"], received.theta
        model.write(own)
        client.origin = model.read("shared")
        loss = client.loss(client.data.val)
        model.write(hat, "shared")
        pull = self.pull(loss - client.loss(client.data.val))
        model.write(own)
        apart = self.lam_form == "exp"
        client.sgd(None, "shared", pull=(hat, min(pull, 1 / client.lr)), pull_apart=apart)
        client.keep["own"] = model.read()
        return PulledReply(theta=model.read("shared"), size=len(client.data.train), pull=pull)

    def pull(self, delta: float) -> float:
        """Strength of the pull towards θ̂ if its loss is lower than that of θ by ``delta``."""
        if self.lam_form == "difference":
            return 2 * max(LEAST, delta)
        return math.exp(min(delta / 2, 100.0)) if delta >= 0 else 0.0

    def personal(self, client: Client, received: Message) -> Tensor:
        return client.keep["own"]

    # The server half.

    def begin(self, server: Server) -> None:
        count, theta = len(server.clients), server.theta
        replies = server.ask(self.basis, {cid: Question() for cid in server.clients})
        nothing = torch.zeros_like(next(iter(replies.values())).basis)
        bases = [replies[cid].basis if cid in replies else nothing for cid in server.clients]
        similarity = self.similarities(torch.stack(bases))
        server.store |= {"bases": torch.stack(bases), "similarity": similarity, "hat": theta.repeat(count, 1)}
        if self.absent == "last":
            server.store |= {"theta": theta.repeat(count, 1), "heard": torch.zeros(count, dtype=torch.bool)}

    def similarities(self, bases: Tensor) -> Tensor:
        """(K, K) similarities W from bases (K, p, d); k receives from the clients in row k. ``exp`` up to a factor."""
        K, p, _ = bases.shape
        B = bases.flatten(0, 1).double()
        cosines: Tensor = torch.linalg.svdvals((B @ B.mT).view(K, p, K, p).transpose(1, 2)).clamp(max=1.0)
        W = cosines.sum(-1).fill_diagonal_(0.0)
        if self.similarity == "exp":
            W = torch.where(W > 0, (SHARPNESS * (W - W.max())).exp(), 0.0)
        if self.neighbours is not None:
            far = torch.argsort(W, dim=1, descending=True, stable=True)[:, self.neighbours :]
            W = W.scatter(1, far, 0.0)
        return W

    def mixture(self, W: Tensor) -> Tensor:
        """(K, K) X in Θ̂ = X Θ; rows are nonnegative and sum to 1."""
        one, beta = torch.eye(len(W), dtype=W.dtype), self.alpha / (1 + self.alpha)
        D = W.sum(1, keepdim=True)
        P = torch.where(D > 0, W / D, one)
        if self.propagation == "closed":
            closed: Tensor = torch.linalg.solve(one - beta * P, (1 - beta) * one)
            return closed
        X = one
        for _ in range(math.ceil(math.log(1e-10) / math.log(beta)) if beta else 1):  # the error is at most 2 βᵐ
            X = beta * P @ X + (1 - beta) * one
        return X

    def send(self, server: Server, cid: int) -> Message:
        return Message(theta=server.store["hat"][cid])

    def welcome(self, server: Server, cid: int, last: PulledReply | None) -> Message:
        """The fixed point for the newcomer, chosen by its basis; no other client receives from it."""
        hat, name = server.store["hat"], f"newcomer/{cid}"
        if name not in server.store:
            basis = server.ask(self.basis, {cid: Question()})[cid].basis
            server.store[name] = self.similarities(torch.cat([server.store["bases"], basis[None]]))[-1, :-1]
        w = server.store[name]
        theirs = (w / w.sum()).to(hat) @ hat if bool(w.any()) else hat.mean(0)
        return Message(theta=theirs if last is None else last.theta.lerp(theirs, self.alpha / (1 + self.alpha)))

    def merge(self, server: Server, replies: dict[int, PulledReply]) -> None:
        store, cids = server.store, torch.tensor(sorted(replies))
        Theta = torch.stack([replies[cid].theta for cid in sorted(replies)])
        if self.absent == "last":
            store["theta"][cids], store["heard"][cids] = Theta, True
            cids, Theta = store["heard"].nonzero()[:, 0], store["theta"][store["heard"]]
        X = self.mixture(store["similarity"][cids][:, cids])
        store["hat"][cids] = X.to(Theta) @ Theta
        server.record.method["pull"] = {str(cid): reply.pull for cid, reply in sorted(replies.items())}
