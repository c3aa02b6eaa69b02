from typing import Literal

import torch

from comity._options import Count
from comity.methods._clusters import combine, k_means, reseed
from comity.methods._method import Client, Message, Method, Reply, Server
from comity.methods.fedamp import squared_distances


class FeSEM(Method):
    """Train several models; each is the centre of the clients whose models are nearest to it.

    Use: when clients form a few groups and IFCA, where each client evaluates all models, costs too much.

    Paper: Long et al., WWWJ 2023 (multi-center federated learning).

    Equation: E-step: client i joins the cluster with the nearest centre, r_i = argmin_k ‖w_i − c_k‖² over all
    parameters. M-step: the rule combines the models of a cluster's clients to its centre c_k. Then each client trains
    from its centre. In the first round, clients train the common initial model; k-means on the results gives the first
    clusters.

    Departures:
        - k-means is initialised by k-means++ and restarted several times.
        - An empty cluster gets the client that is farthest from the centre of its own cluster.
        - Only the clients of a round move centres; absent clients stay in their clusters.
        - A client that has not replied yet starts from the mean of all clients' centres.

    Options:
        clusters: number of models
        personal_model: model that a client uses: its cluster's centre, or its model after local training
    """

    clusters: Count = 4
    personal_model: Literal["centre", "post_local"] = "centre"

    def general(self, client: Client, received: Message) -> None:
        """None: there are several models."""

    def begin(self, server: Server) -> None:
        server.store["cluster"] = torch.full((len(server.clients),), -1)
        server.store["centres"] = server.theta.repeat(self.clusters, 1)

    def send(self, server: Server, cid: int) -> Message:
        k = int(server.store["cluster"][cid])
        return Message(theta=server.theta if k < 0 else server.store["centres"][k])

    def welcome(self, server: Server, cid: int, last: Reply | None) -> Message:
        """The mean of the centres first, then the centre nearest to the newcomer's trained model."""
        if last is None:
            return Message(theta=server.theta)
        centres, size = server.store["centres"], server.layout.size
        far = torch.linalg.vector_norm((centres - last.theta)[:, :size], dim=1)
        return Message(theta=centres[int(far.argmin())])

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        cids, size = sorted(replies), server.layout.size
        cluster, centres = server.store["cluster"].clone(), server.store["centres"].clone()
        W = torch.stack([replies[cid].theta for cid in cids])
        Q = squared_distances(torch.cat([W, centres])[:, :size], server.layout)[: len(cids)]
        if (cluster < 0).all():
            cluster[cids] = k_means(Q[:, : len(cids)], self.clusters, server.random("k-means"))
        else:
            distance, cluster[cids] = Q[:, len(cids) :].min(1)
            far = torch.zeros(len(cluster), dtype=Q.dtype).index_put((torch.tensor(cids),), distance)
            for k, cid in reseed(cluster, far, self.clusters).items():
                centres[k] = replies[cid].theta
        centres = combine(server, centres, {cid: int(cluster[cid]) for cid in cids}, replies)
        sizes = torch.bincount(cluster[cluster >= 0], minlength=self.clusters)
        server.theta = (sizes / sizes.sum()) @ centres
        server.store["cluster"], server.store["centres"] = cluster, centres
