"""Shared code of methods whose network has more parts than a body and a head."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from comity._errors import ComityError
from comity._layout import Layer, Layout
from comity.methods._method import Method, Reply, Server
from comity.nn import BUFFERS
from comity.rules import Mean


class FreeParameter(nn.Module):
    """Parameters of the network outside any layer, such as a vector per client."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(shape))


def linear_head(net: nn.Module, method: str) -> nn.Linear:
    """The network's head, which this method requires to be one linear layer."""
    head = net.get_submodule("head")
    if not isinstance(head, nn.Linear):
        raise ComityError(f"method {method} needs a model whose head is one linear layer, got {type(head).__name__}")
    return head


class ByParts(Method):
    """A method whose rule acts on the parts ``ruled``; the other shared parts are plainly averaged."""

    ruled: ClassVar[tuple[str, ...]]

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        layout, theta = server.layout, server.theta.clone()
        layers: dict[str, list[Layer]] = {}
        for layer in layout.layers:
            layers.setdefault(layer.name.partition(".")[0], []).append(layer)
        places = {part: slice(inside[0].start, inside[-1].stop) for part, inside in layers.items()}
        places[BUFFERS] = slice(layout.size, len(theta))

        def take(vector: Tensor, chosen: list[str]) -> Tensor:
            return torch.cat([vector[places[part]] for part in chosen])

        ruled = [part for part in layers if part in self.ruled]
        plain = [part for part in layers if part not in self.ruled]
        for chosen, rule in (([*ruled, BUFFERS], None), (plain, Mean())):
            if chosen:
                combined = server.aggregate(
                    replies,
                    {cid: take(reply.theta, chosen) for cid, reply in replies.items()},
                    base=take(theta, chosen),
                    layout=Layout((layer.name, layer.shape) for part in chosen for layer in layers.get(part, ())),
                    rule=rule,
                ).theta
                sizes = [places[part].stop - places[part].start for part in chosen]
                for part, piece in zip(chosen, torch.split(combined, sizes), strict=True):
                    theta[places[part]] = piece
        server.theta = theta
