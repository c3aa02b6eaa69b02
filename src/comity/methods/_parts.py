"""What methods whose network has more parts than a body and a head have in common."""

import torch
from torch import Tensor, nn

from comity._errors import ComityError
from comity._layout import Layer, Layout
from comity.methods._method import Payload, Server
from comity.rules import Mean


def linear_head(net: nn.Module, method: str) -> nn.Linear:
    """The head of a network, which this method needs to be one linear layer."""
    head = net.get_submodule("head")
    if not isinstance(head, nn.Linear):
        raise ComityError(f"method {method} needs a model whose head is one linear layer, got {type(head).__name__}")
    return head


def aggregate_parts(server: Server, replies: dict[int, Payload], *parts: str) -> Tensor:
    """``theta`` after a round in which the run's rule acts on these parts and the others are plainly averaged."""
    layout = server.layout
    theta = server.theta.clone()
    ruled = [layer for layer in layout.layers if layer.name.partition(".")[0] in parts]
    plain = [layer for layer in layout.layers if layer.name.partition(".")[0] not in parts]
    # buffers lie behind the parameters and follow the body
    for layers, buffers, rule in ((ruled, range(layout.size, len(theta)), None), (plain, range(0), Mean())):
        index = torch.cat([_places(layer) for layer in layers] + [torch.tensor(buffers, dtype=torch.int64)])
        theta[index] = server.aggregate(
            {cid: reply["theta"][index] for cid, reply in replies.items()},
            replies,
            base=theta[index],
            layout=Layout((layer.name, layer.shape) for layer in layers),
            rule=rule,
        )
    return theta


def _places(layer: Layer) -> Tensor:
    return torch.arange(layer.start, layer.stop)
