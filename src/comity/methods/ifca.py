import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._clusters import combine
from comity.methods._method import Client, Method, Payload, Server


class IFCA(Method):
    """Several models for everybody, of which each client trains the one that suits it best.

    Ghosh et al., NeurIPS 2020, Algorithm 1 with model averaging: client i takes k = argmin_k f_i(theta_k) over all its
    training samples, trains theta_k, and the server averages within clusters; a cluster without clients stays as it
    is. The K initial models must differ: the others are the first with the numbers of each layer in a new order, drawn
    from the seed, which is as good a draw of any initialisation that fills a layer independently. The paper averages
    without weights; here the rule says. A model that no client picks never moves: then another seed helps. The variant
    that shares the body between the clusters is left out.

    Options:
        clusters: number of models; the paper has 4 for rotated MNIST and 2 for rotated CIFAR
    """

    clusters: int = 4

    def check(self) -> None:
        if self.clusters < 1:
            raise ComityError(f"method.clusters must be at least 1, got {self.clusters}")

    def fit(self, client: Client, received: Payload) -> Payload:
        k = self._nearest(client, received)
        return super().fit(client, {"theta": received["centres"][k]}) | {"cluster": k}

    def _nearest(self, client: Client, received: Payload) -> int:
        losses = []
        for theta in received["centres"]:
            self.load(client, {"theta": theta})
            losses.append(client.loss())
        return int(torch.tensor(losses).nan_to_num(torch.inf).argmin())

    def personal(self, client: Client, received: Payload) -> Tensor:
        return super().personal(client, {"theta": received["centres"][self._nearest(client, received)]})

    def general(self, client: Client, received: Payload) -> None:
        """There are several."""

    def begin(self, server: Server) -> None:
        random, theta = server.random("clusters"), server.theta
        centres = theta.repeat(self.clusters, 1)
        for centre in centres[1:]:
            for layer in server.layout.layers:
                order = torch.randperm(layer.stop - layer.start, generator=random)
                centre[layer.start : layer.stop] = theta[layer.start + order]
        server.store["centres"] = centres

    def send(self, server: Server, cid: int) -> Payload:
        return {"centres": server.store["centres"]}

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        cluster = {cid: reply["cluster"] for cid, reply in replies.items()}
        server.store["centres"] = combine(server, server.store["centres"], cluster, replies)
