import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload, Server
from comity.rules import min_norm


def class_means(client: Client) -> tuple[Tensor, Tensor, Tensor]:
    """Mean features and number of training samples of each class, and the mean squared length of features."""
    net, data = client.model.net.eval(), client.data.train
    with torch.no_grad():
        Z = torch.cat([client.model.features(x) for x in torch.split(data.x, 512)])
        members = F.one_hot(data.y, net.get_submodule("head")(Z[:1]).shape[1])
    counts = members.sum(0)
    return members.T.to(Z) @ Z / counts.clamp(min=1)[:, None], counts, Z.square().sum() / len(Z)


def head_weights(H: Tensor, V: Tensor) -> Tensor:
    """(N, N): row i is the a on the simplex with the smallest Σ_j a_j² V_j + ‖H_i − Σ_j a_j H_j‖²."""
    # R has the distances of H in N dimensions; the norm of Aa, squared, is the objective
    R = torch.linalg.qr(H.flatten(1).double().T, mode="r").R.numpy()
    rows = []
    for i in range(len(V)):
        A = np.vstack((R - R[:, [i]], np.diag(np.sqrt(V.double().numpy()))))
        rows.append(min_norm(A / max(np.linalg.norm(A, axis=0).max(), np.finfo(float).tiny)).x)
    return torch.from_numpy(np.stack(rows))


class FedPAC(Method):
    """Share the body, pull features towards common class prototypes, and mix each client's head from all heads.

    Xu, Tong and Huang, ICLR 2023. The head is fitted first, then the body under CE + lam · MSE(z, c_y), where c_y is
    the prototype of the sample's class (without one there is no pull): the mean over all clients' samples of that
    class, in PFLlib the mean of the clients' means. With the body as received a client measures H_i[k] = P_i(k) μ_i,k,
    V_i = (E‖z‖² − Σ_k ‖H_i[k]‖²) / n_i. Its new head is Σ_j a_j h_j, a the minimiser on the simplex of
    Σ_j a_j² V_j + ‖H_i − Σ_j a_j H_j‖², found exactly: public code repairs eigenvalues and cuts off small weights,
    needlessly. Heads of a round's clients are mixed; an absent client's stays as it was last mixed. The rule
    acts on the body. Authors' settings: momentum 0.5, weight decay 5e-4, lr 0.01 and 0.1 for the head, 5 epochs; PFLlib
    has one rate for both.

    Options:
        lam: weight of the pull of features towards the prototypes
        head_epochs: epochs of the head before the body is trained
        head_lr: learning rate of the head, or none for the run's own
    """

    lam: float = 1.0
    head_epochs: int = 1
    head_lr: float | None = 0.1

    shared = ("body",)

    def check(self) -> None:
        if self.lam < 0:
            raise ComityError(f"method.lam must be at least 0, got {self.lam}")
        if self.head_epochs < 0:
            raise ComityError(f"method.head_epochs must be at least 0, got {self.head_epochs}")
        if self.head_lr is not None and self.head_lr <= 0:
            raise ComityError(f"method.head_lr must be above 0, got {self.head_lr}")

    def load(self, client: Client, received: Payload) -> None:
        super().load(client, received)
        if "head" in received:
            client.model.write(received["head"], "head")

    def fit(self, client: Client, received: Payload) -> Payload:
        self.load(client, received)
        model, size = client.model, len(client.data.train)
        means, counts, length = class_means(client)  # comparable between clients: the body is still the common one
        H = means * counts[:, None] / size
        V = float(length - H.square().sum()) / size

        def aligned(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            pull = (z - received["prototypes"][y]).square() * received["known"][y, None]
            logits = model.net.get_submodule("head")(z)
            loss: Tensor = F.cross_entropy(logits, y) + self.lam * pull.mean()
            return loss

        client.sgd(self.head_epochs, "head", lr=self.head_lr)
        client.sgd(None, "body", loss=aligned if self.lam and "prototypes" in received else None)
        statistics = {"prototypes": class_means(client)[0], "counts": counts, "H": H, "V": max(V, 0.0)}
        return self.reply(client) | {"head": model.read("head")} | statistics

    def send(self, server: Server, cid: int) -> Payload:
        payload = super().send(server, cid) | {k: server.store[k] for k in ("prototypes", "known") if k in server.store}
        mixed = server.store.get(f"head/{cid}")
        return payload if mixed is None else payload | {"head": mixed}

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        super().merge(server, replies)
        cids, store = sorted(replies), server.store

        def stacked(name: str) -> Tensor:
            return torch.stack([replies[cid][name] for cid in cids])

        counts, prototypes = stacked("counts"), stacked("prototypes")
        seen = counts.sum(0) > 0
        new = torch.einsum("nc,ncd->cd", counts.to(prototypes), prototypes) / counts.sum(0).clamp(min=1)[:, None]
        store["prototypes"] = torch.where(seen[:, None], new, store.get("prototypes", new))
        store["known"] = seen | store.get("known", seen)

        weights = head_weights(stacked("H"), torch.tensor([replies[cid]["V"] for cid in cids]))
        heads = weights.to(torch.float32) @ stacked("head")
        store |= {f"head/{cid}": head for cid, head in zip(cids, heads, strict=True)}
