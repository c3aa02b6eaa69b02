import torch
from torch import Tensor

from comity._options import Count
from comity.methods._clusters import combine
from comity.methods._method import Client, Method, Question, Reply, Server


class Centres(Question):
    centres: Tensor  # (clusters, P): the model of each cluster, one per row


class ClusterReply(Reply):
    cluster: int  # the cluster that the client trained


class IFCA(Method[Centres, ClusterReply]):
    """Train several global models; each client trains the one with the lowest loss on its data.

    Use: when clients form a few clear groups.

    Paper: Ghosh et al., NeurIPS 2020, Algorithm 1 with model averaging.

    Equation: Client i evaluates all models theta_k on its training samples and trains the one with the lowest loss, k =
    argmin_k f_i(theta_k). The server averages within clusters. The model of a cluster without clients does not change.

    Departures:
        - The initial models must differ. The first is the common initial model. The others are copies of it with the
          weights of each layer shuffled at random; the seed decides how.
        - The paper averages without weights. Here the rule decides the weights.
        - A model that no client chooses never changes. If this happens, try another seed.
        - The paper's variant that shares the body between clusters is left out.

    Options:
        clusters: number of models; the paper has 4 for rotated MNIST and 2 for rotated CIFAR
    """

    clusters: Count = 4

    def fit(self, client: Client, received: Centres) -> ClusterReply:
        k = self._nearest(client, received)
        self.assemble(client, received.centres[k])
        client.sgd()
        return self.reply(client, cluster=k)

    def _nearest(self, client: Client, received: Centres) -> int:
        losses = []
        for theta in received.centres:
            self.assemble(client, theta)
            losses.append(client.loss())
        return int(torch.tensor(losses).nan_to_num(torch.inf).argmin())

    def personal(self, client: Client, received: Centres) -> Tensor:
        self.assemble(client, received.centres[self._nearest(client, received)])
        return client.model.read()

    def general(self, client: Client, received: Centres) -> None:
        """None: there are several models."""

    def begin(self, server: Server) -> None:
        random, theta = server.random("clusters"), server.theta
        centres = theta.repeat(self.clusters, 1)
        for centre in centres[1:]:
            for layer in server.layout.layers:
                order = torch.randperm(layer.stop - layer.start, generator=random)
                centre[layer.start : layer.stop] = theta[layer.start + order]
        server.store["centres"] = centres

    def send(self, server: Server, cid: int) -> Centres:
        return Centres(centres=server.store["centres"])

    def objection(self, server: Server, cid: int, reply: ClusterReply) -> str | None:
        return None if 0 <= reply.cluster < self.clusters else f"sent cluster {reply.cluster} of {self.clusters}"

    def merge(self, server: Server, replies: dict[int, ClusterReply]) -> None:
        cluster = {cid: reply.cluster for cid, reply in replies.items()}
        server.store["centres"] = combine(server, server.store["centres"], cluster, replies)
