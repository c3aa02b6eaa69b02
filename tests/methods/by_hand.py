"""What tests of methods share: training written out, and comparisons of vectors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from comity import Config
from comity.engine import Client, Run, Server
from comity.methods import Method
from comity.nn import Model
from helpers import Options, build, client_of, keeps, site_of


def sgd_step(loss: Tensor, params: Sequence[Tensor], lr: float) -> None:
    """One step of plain SGD on this loss."""
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads, strict=True):
            p.add_(g, alpha=-lr)


def loss_gradient(model: Model, x: Tensor, y: Tensor, *parts: str) -> Tensor:
    """The gradient of the loss by the parameters of these parts, as one vector without buffers."""
    grads = torch.autograd.grad(model.loss(x, y), model.parameters(*parts))
    return torch.cat([grad.reshape(-1) for grad in grads])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def noisy(vector: Tensor, seed: int = 0, scale: float = 0.3) -> Tensor:
    return vector + scale * drawn(*vector.shape, seed=seed)


def kept(run: Run, key: str = "personal") -> list[Tensor]:
    """One entry of what each client keeps."""
    return [keep[key] for keep in keeps(run).values()]


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether all pairs are bit-identical."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def at_work(
    options: Options, method: Any, cid: int = 0, trainer: Any = "auto", **more: Any
) -> tuple[Client, Model, Method]:
    """A client before its first round, another copy of the initial model, and the method."""
    site = site_of(Config(**options, method=method, **more), trainer=trainer)
    return client_of(site, cid), site.model(), site.method


def server_of(options: Options, method: str, **more: Any) -> Server:
    """A server before its first round."""
    _, server = build(Config(**options, method={"name": method} | more))
    server.method.begin(server)
    return server
