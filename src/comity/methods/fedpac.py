import numpy as np
import torch
from torch import Tensor

from comity._options import CountOrZero, NonNegative, Positive
from comity.methods._method import Client, Method, Server
from comity.methods._prototypes import (
    Prototypes,
    PrototypesReply,
    alignment,
    class_means,
    merge_prototypes,
    prototypes_objection,
)
from comity.rules import min_norm


def head_weights(H: Tensor, V: Tensor) -> Tensor:
    """(N, N): row i is the a on the simplex that minimises Σ_j a_j² V_j + ‖H_i − Σ_j a_j H_j‖²."""
    # R preserves the distances of H in N dimensions; ‖Aa‖² is the objective
    R = torch.linalg.qr(H.flatten(1).double().T, mode="r").R.numpy()
    rows = []
    for i in range(len(V)):
        A = np.vstack((R - R[:, [i]], np.diag(np.sqrt(V.double().numpy()))))
        rows.append(min_norm(A / max(np.linalg.norm(A, axis=0).max(), np.finfo(float).tiny)).x)
    return torch.from_numpy(np.stack(rows))


class FedPACMessage(Prototypes):
    head: Tensor | None = None  # the head mixed for this client; None before its first reply


class FedPACReply(PrototypesReply):
    head: Tensor
    H: Tensor
    V: float


class FedPAC(Method[FedPACMessage, FedPACReply]):
    """Share the body, pull features towards common class means, and give each client a mixture of all heads.

    Use: when classes look similar at all clients but have different frequencies.

    Paper: Xu, Tong and Huang, ICLR 2023.

    Equation: The head is trained first. Then the body is trained under CE + lam · MSE(z, c_y), where c_y is the
    prototype (mean feature) of the sample's class; a class without a prototype has no pull.

    With the received body, a client measures H_i[k] = P_i(k) μ_i,k and V_i = (E‖z‖² − Σ_k ‖H_i[k]‖²) / n_i, where
    P_i(k) is its share of class k and μ_i,k the mean feature of the class. Its new head is Σ_j a_j h_j, where a
    minimises Σ_j a_j² V_j + ‖H_i − Σ_j a_j H_j‖² on the simplex. The sums are over the clients of the round; an absent
    client keeps its last mixture. The rule acts on the body.

    Departures:
        - A prototype (mean feature of a class) is the mean over all clients' samples of the class; PFLlib takes the
          mean of the clients' means.
        - The weights of the heads are computed exactly. Public code approximates them: it changes eigenvalues and sets
          small weights to 0.

    Options:
        lam: weight of the pull towards the prototypes
        head_epochs: epochs of the head before the body is trained
        head_lr: learning rate of the head (none = the run's --lr, as in PFLlib); the authors take 0.1, and 0.01 for the
            body
    """

    lam: NonNegative = 1.0
    head_epochs: CountOrZero = 1
    head_lr: Positive | None = None

    shared = ("body",)

    def load(self, client: Client, received: FedPACMessage) -> None:
        super().load(client, received)
        if received.head is not None:
            client.model.write(received.head, "head")

    def fit(self, client: Client, received: FedPACMessage) -> FedPACReply:
        self.load(client, received)
        model, size = client.model, len(client.data.train)
        means, counts, length = class_means(client)  # comparable across clients: the body is still the shared one
        H = means * counts[:, None] / size
        V = float(length - H.square().sum()) / size
        client.sgd(self.head_epochs, "head", lr=self.head_lr)
        pulled = self.lam and received.prototypes is not None
        client.sgd(None, "body", on_features=alignment(received, self.lam) if pulled else None)
        prototypes = class_means(client)[0]
        return self.reply(client, head=model.read("head"), prototypes=prototypes, counts=counts, H=H, V=max(V, 0.0))

    def send(self, server: Server, cid: int) -> FedPACMessage:
        store = server.store
        return FedPACMessage(
            theta=server.theta,
            head=store.get(f"head/{cid}"),
            prototypes=store.get("prototypes"),
            known=store.get("known"),
        )

    def objection(self, server: Server, cid: int, reply: FedPACReply) -> str | None:
        return "sent a variance below 0" if reply.V < 0 else prototypes_objection(reply)

    def merge(self, server: Server, replies: dict[int, FedPACReply]) -> None:
        super().merge(server, replies)
        merge_prototypes(server, replies)
        cids, store = sorted(replies), server.store

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(replies[cid], name) for cid in cids])

        weights = head_weights(stacked("H"), torch.tensor([replies[cid].V for cid in cids]))
        heads = weights.to(torch.float32) @ stacked("head")
        store |= {f"head/{cid}": head for cid, head in zip(cids, heads, strict=True)}
