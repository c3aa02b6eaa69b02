import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload, Server
from comity.rules import Mean, Rule

WORST = 1e6


class FedFomo(Method):
    """Each client downloads a few others' models and moves towards those that do better on its validation data.

    Zhang et al., ICLR 2021. Of a model theta_n, downloaded or the client's own as last trained, the weight is
    (L(before) − L(theta_n)) / ‖theta_n − before‖, with L the validation loss and `before` the model that its last
    training set out from. The positive weights, scaled to sum to 1, make before + Σ weight (theta_n − before), from
    where the client trains on. When no model does better, it goes on with its own; the authors' code goes back to
    `before`, where a client whose validation loss has stopped falling stays for good. The server adds the weights with
    their signs to its table of who helped whom and sends the models that helped most, each place going to another at
    random with a chance of epsilon (authors' code). A client's own model is as its last training left it.

    Options:
        models: how many other clients' models are downloaded
        epsilon: chance of a random model in the first round
        epsilon_decay: by how much that chance falls every round
    """

    models: int = 5
    epsilon: float = 0.3
    epsilon_decay: float = 0.05

    validation = 0.2

    def check(self) -> None:
        if self.models < 0:
            raise ComityError(f"method.models must be at least 0, got {self.models}")
        if not 0 <= self.epsilon <= 1:
            raise ComityError(f"method.epsilon must be at least 0 and at most 1, got {self.epsilon}")
        if self.epsilon_decay < 0:
            raise ComityError(f"method.epsilon_decay must be at least 0, got {self.epsilon_decay}")

    def own_rule(self) -> Rule:
        return Mean()  # nothing is averaged: clients choose their own weights

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep |= {"own": client.model.read("shared"), "before": client.model.read("shared")}

    def fit(self, client: Client, received: Payload) -> Payload:
        ids, own = received["ids"], client.keep["own"]
        models = torch.stack([own, *(received[str(cid)] for cid in ids.tolist())])
        weights = self.weights(client, client.keep["before"], models)
        positive = weights.clamp(min=0)
        mixed = (positive / positive.sum()).to(models) @ models if bool(positive.any()) else own
        client.keep["before"] = mixed
        self.load(client, {"theta": mixed})
        client.sgd()
        client.keep["own"] = client.model.read("shared")
        return self.reply(client) | {"ids": ids, "weights": weights[1:]}

    def weights(self, client: Client, before: Tensor, models: Tensor) -> Tensor:
        """How much better each model is than ``before`` on the validation data, by their distance; float64."""

        def loss(theta: Tensor) -> float:
            self.load(client, {"theta": theta})
            return client.loss(client.data.val)

        size = client.model.layout("shared").size  # BatchNorm's statistics, behind it, are no distance
        losses = torch.tensor([loss(theta) for theta in (before, *models)], dtype=torch.float64)
        losses = losses.nan_to_num(nan=WORST, posinf=WORST)  # a model that diverged is no help, and no harm
        gain = losses[0] - losses[1:]
        distance = torch.linalg.vector_norm((models - before)[:, :size], dim=1).double()
        return torch.where(distance > 0, gain / distance, 0.0)

    def personal(self, client: Client, received: Payload) -> Tensor:
        return super().personal(client, {"theta": client.keep["own"]})

    def general(self, client: Client, received: Payload) -> None:
        return None

    def begin(self, server: Server) -> None:
        count = len(server.clients)
        server.store["W"] = server.theta.repeat(count, 1)
        server.store["heard"] = torch.zeros(count, dtype=torch.bool)
        server.store["helped"] = torch.zeros(count, count, dtype=torch.float64)

    def send(self, server: Server, cid: int) -> Payload:
        chosen = self.choose(server, cid)
        return {"ids": torch.tensor(chosen, dtype=torch.int64)} | {str(j): server.store["W"][j] for j in chosen}

    def choose(self, server: Server, cid: int) -> list[int]:
        """Whose models a client gets: those that helped it most so far, ties at random, and a few at random."""
        random, helped = server.random(f"models for {cid}"), server.store["helped"][cid]
        others = [j for j in server.clients if bool(server.store["heard"][j]) and j != cid]
        shuffled = [others[i] for i in torch.randperm(len(others), generator=random).tolist()]
        places = min(self.models, len(others))
        epsilon = self.epsilon - self.epsilon_decay * (server.round - 1)
        explored = int((torch.rand(places, generator=random) < epsilon).sum())
        best = sorted(shuffled, key=lambda j: -float(helped[j]))[: places - explored]
        return best + [j for j in shuffled if j not in best][:explored]

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        for cid, reply in replies.items():
            server.store["W"][cid], server.store["heard"][cid] = reply["theta"], True
            server.store["helped"][cid, reply["ids"]] += reply["weights"]
