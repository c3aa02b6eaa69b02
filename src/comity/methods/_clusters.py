"""Shared code of methods with one model per cluster."""

from collections.abc import Mapping

import torch
from torch import Tensor

from comity.methods._messages import Reply
from comity.methods._sides import Server


def combine(server: Server, centres: Tensor, cluster: Mapping[int, int], replies: Mapping[int, Reply]) -> Tensor:
    """Combine each cluster's models with the rule; a cluster without members keeps its model."""
    combined = centres.clone()
    for k in sorted(set(cluster.values())):
        members = {cid: replies[cid] for cid, its in cluster.items() if its == k}
        combined[k] = server.aggregate(members, base=centres[k], group=f"cluster {k}").theta
    return combined


def k_means(Q: Tensor, clusters: int, random: torch.Generator, restarts: int = 10) -> Tensor:
    """(N,) the cluster of each point with squared distances ``Q``: the best of several runs of Lloyd's algorithm.

    The squared distance from point i to a cluster's mean is the mean of Q_ij minus half the mean of Q_jl over members,
    so no vectors are needed.
    """
    best, least = torch.zeros(len(Q), dtype=torch.int64), float("inf")
    for _ in range(restarts):
        seeds = _seeds(Q, clusters, random)
        labels = Q[:, seeds].argmin(1)
        for _ in range(100):
            members = torch.nn.functional.one_hot(labels, clusters).to(Q)
            mean = members / members.sum(0)  # (N, K), nan in the columns of empty clusters
            far = (Q @ mean - (mean * (Q @ mean)).sum(0) / 2).nan_to_num(torch.inf)
            before, labels = labels, far.argmin(1)
            reseed(labels, far.gather(1, labels[:, None])[:, 0], clusters)
            if torch.equal(labels, before):
                break
        spread = float(far.gather(1, labels[:, None]).sum())
        if spread < least:
            best, least = labels, spread
    return best


def _seeds(Q: Tensor, clusters: int, random: torch.Generator) -> list[int]:
    """k-means++ seeding: a random point, then each next one with probability proportional to its squared distance."""
    seeds = [int(torch.randint(len(Q), (), generator=random))]
    while len(seeds) < clusters and (far := Q[:, seeds].amin(1)).any():
        seeds.append(int(torch.multinomial(far, 1, generator=random)))
    return seeds


def reseed(labels: Tensor, far: Tensor, clusters: int) -> dict[int, int]:
    """Move to each empty cluster the point farthest (``far``) from its centre, unless that is the only one there.

    Changes ``labels`` in place and returns the moved point of each such cluster. Points that may not move have ``far``
    0; points without a cluster have label -1.
    """
    moved = {}
    for k in range(clusters):
        sizes = torch.bincount(labels[labels >= 0], minlength=clusters)
        candidates = torch.where(sizes[labels] > 1, far, 0.0)
        if sizes[k] == 0 and candidates.any():
            i = int(candidates.argmax())
            labels[i], far[i] = k, 0.0
            moved[k] = i
    return moved
