import torch
from torch import Tensor

from comity._options import CountOrZero, NonNegative, Share
from comity.methods._method import Client, Method, Question, Reply, Server

WORST = 1e6  # the validation loss of a model that diverged


class OthersModels(Question):
    ids: Tensor  # whose models these are
    models: Tensor  # (k, P), a row each
    mean: Tensor | None = None  # of the last round's models, where it is evaluated


class WeighedReply(Reply):
    ids: Tensor
    weights: Tensor  # how much each of these clients' models helped


class FedFomo(Method[OthersModels, WeighedReply]):
    """Let each client download a few other models and move towards those that lower its validation loss.

    Use: when clients have validation samples and can download several models per round.

    Paper: Zhang et al., ICLR 2021.

    Equation: The client measures its validation loss L of several models: those that it downloads, and its own after
    its last training. Let theta_0 be the model from which that training started. Model n has the weight (L(theta_0) −
    L(theta_n)) / ‖theta_n − theta_0‖. The client trains from theta_0 + Σ weight (theta_n − theta_0), over the models
    with positive weights, scaled to sum to 1.

    The server sums all weights, also negative ones, per pair of clients, and sends each client the models whose sums
    for this client are largest. The personal model is the one after the client's last training.

    Departures:
        - If no model is better, the client keeps its own. In the authors' code it returns to the model from which its
          last training started. So there, a client whose validation loss has stopped falling never moves again.
        - Each downloaded model is replaced by a random one with probability epsilon, as in the authors' code.
        - FedFomo has no global model, but the supplement of the FedPG paper reports the accuracy of one. The FedPG
          authors' code averages the online clients' models before these train; ``common`` averages them after training.

    Options:
        models: number of models that a client downloads per round
        epsilon: probability, in the first round, that a downloaded model is chosen at random
        epsilon_decay: decrease of epsilon per round
        common: also send the mean of the last round's models, so that a global model can be evaluated; clients do not
            use it
    """

    models: CountOrZero = 5
    epsilon: Share = 0.3
    epsilon_decay: NonNegative = 0.05
    common: bool = False

    mixes_models = True
    validation = 0.2

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep |= {"own": client.model.read("shared"), "before": client.model.read("shared")}

    def fit(self, client: Client, received: OthersModels) -> WeighedReply:
        own = client.keep["own"]
        models = torch.cat([own[None], received.models])
        weights = self.weights(client, client.keep["before"], models)
        positive = weights.clamp(min=0)
        mixed = (positive / positive.sum()).to(models) @ models if bool(positive.any()) else own
        client.keep["before"] = mixed
        self.assemble(client, mixed)
        client.sgd()
        client.keep["own"] = client.model.read("shared")
        return self.reply(client, ids=received.ids, weights=weights[1:])

    def weights(self, client: Client, before: Tensor, models: Tensor) -> Tensor:
        """How much better each model is than ``before`` on the validation data, by their distance; float64."""

        def loss(theta: Tensor) -> float:
            self.assemble(client, theta)
            return client.loss(client.data.val)

        size = client.model.layout("shared").size  # BatchNorm's statistics, behind it, are no distance
        losses = torch.tensor([loss(theta) for theta in (before, *models)], dtype=torch.float64)
        losses = losses.nan_to_num(nan=WORST, posinf=WORST)  # no help, and no harm
        gain = losses[0] - losses[1:]
        distance = torch.linalg.vector_norm((models - before)[:, :size], dim=1).double()
        return torch.where(distance > 0, gain / distance, 0.0)

    def personal(self, client: Client, received: OthersModels) -> Tensor:
        self.assemble(client, client.keep["own"])
        return client.model.read()

    def general(self, client: Client, received: OthersModels) -> Tensor | None:
        return received.mean

    def begin(self, server: Server) -> None:
        count = len(server.clients)
        server.store["W"] = server.theta.repeat(count, 1)
        server.store["heard"] = torch.zeros(count, dtype=torch.bool)
        server.store["helped"] = torch.zeros(count, count, dtype=torch.float64)
        if self.common:
            server.store["mean"] = server.theta

    def send(self, server: Server, cid: int) -> OthersModels:
        ids = torch.tensor(self.choose(server, cid), dtype=torch.int64)
        return OthersModels(ids=ids, models=server.store["W"][ids], mean=server.store.get("mean"))

    def choose(self, server: Server, cid: int) -> list[int]:
        """Whose models a client gets: those that helped it most so far, ties at random, and a few at random."""
        random, table = server.random(f"models for {cid}"), server.store["helped"]
        helped = table[cid] if cid < len(table) else torch.zeros(len(table))  # nobody has helped a newcomer yet
        others = [j for j in server.clients if bool(server.store["heard"][j]) and j != cid]
        shuffled = [others[i] for i in torch.randperm(len(others), generator=random).tolist()]
        places = min(self.models, len(others))
        epsilon = self.epsilon - self.epsilon_decay * (server.round - 1)
        explored = int((torch.rand(places, generator=random) < epsilon).sum())
        best = sorted(shuffled, key=lambda j: -float(helped[j]))[: places - explored]
        return best + [j for j in shuffled if j not in best][:explored]

    def objection(self, server: Server, cid: int, reply: WeighedReply) -> str | None:
        count = len(server.clients)
        if reply.ids.shape != reply.weights.shape or bool(((reply.ids < 0) | (reply.ids >= count)).any()):
            return f"sent weights of clients that are not 0 to {count - 1}"
        return None

    def merge(self, server: Server, replies: dict[int, WeighedReply]) -> None:
        for cid, reply in replies.items():
            server.store["W"][cid], server.store["heard"][cid] = reply.theta, True
            server.store["helped"][cid, reply.ids] += reply.weights
        if self.common:
            server.store["mean"] = server.store["W"][list(replies)].mean(0)
