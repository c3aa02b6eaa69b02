"""Shared code of methods that align features with common class prototypes."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comity.methods._messages import Message, Reply
from comity.methods._sides import Client, Server
from comity.nn import FeatureLoss


class Prototypes(Message):
    prototypes: Tensor | None = None  # (classes, features): mean features per class; None in the first round
    known: Tensor | None = None  # (classes,) which classes have a prototype


class PrototypesReply(Reply):
    prototypes: Tensor  # (classes, features): mean features per class after training
    counts: Tensor  # (classes,) samples per class


def class_means(client: Client) -> tuple[Tensor, Tensor, Tensor]:
    """Mean features and number of training samples per class, and the mean squared length of features."""
    net, data = client.model.net.eval(), client.data.train
    with torch.no_grad():
        Z = torch.cat([client.model.features(x) for x in torch.split(data.x, 512)])
        members = F.one_hot(data.y, net.get_submodule("head")(Z[:1]).shape[1])
    counts = members.sum(0)
    return members.T.to(Z) @ Z / counts.clamp(min=1)[:, None], counts, Z.square().sum() / len(Z)


def alignment(received: Prototypes, lam: float) -> FeatureLoss:
    """lam · MSE(z, c_y), where c_y is the prototype of the sample's class; 0 for classes without a prototype."""
    prototypes = received.prototypes
    some = None if received.known is None or bool(received.known.all()) else received.known.float()[:, None]

    def pull(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if prototypes is None or not lam:
            return z.new_zeros(()), torch.zeros_like(z)
        away = z - prototypes.index_select(0, y)
        if some is not None:
            away = away * some.index_select(0, y)
        # rounded like autograd
        return lam * away.square().mean(), away * (2 * float(np.float32(lam) / np.float32(z.numel())))

    return pull


def prototypes_objection(reply: PrototypesReply) -> str | None:
    """Reason to reject a client's prototypes, or None."""
    if reply.prototypes.dim() != 2 or reply.counts.shape != reply.prototypes.shape[:1]:
        return "sent prototypes and counts that do not fit together"
    if bool((reply.counts < 0).any()) or int(reply.counts.sum()) != reply.size:
        return "sent counts that are below 0 or do not add up to its samples"
    return None


def merge_prototypes(server: Server, replies: Mapping[int, PrototypesReply]) -> None:
    """Average prototypes over all clients' samples per class; classes without samples in this round stay unchanged."""
    store = server.store
    counts, prototypes = (
        torch.stack([getattr(replies[cid], name) for cid in sorted(replies)]) for name in ("counts", "prototypes")
    )
    seen = counts.sum(0) > 0
    new = torch.einsum("nc,ncd->cd", counts.to(prototypes), prototypes) / counts.sum(0).clamp(min=1)[:, None]
    store["prototypes"] = torch.where(seen[:, None], new, store.get("prototypes", new))
    store["known"] = seen | store.get("known", seen)
