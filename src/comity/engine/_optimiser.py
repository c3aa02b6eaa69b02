"""The optimiser of local training."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor

from comity import config
from comity._errors import ComityError, unknown


class Training(config.Training):
    """Training options of a client: the section of ``Config`` with its torch objects. ``lr`` is the first one."""

    @classmethod
    def of(cls, section: config.Training) -> "Training":
        optimiser_class(section.optimizer)  # rejects an unknown optimiser
        return cls(**{field.name: getattr(section, field.name) for field in fields(cls)})

    def rate(self, round: int) -> float:
        return self.lr * self.lr_decay ** max(round - 1, 0)

    @property
    def plain(self) -> bool:
        """Whether a step needs only the gradient and the weights."""
        return self.optimizer == "SGD" and not self.momentum and not self.clip

    def optimiser(self, params: Sequence[Tensor], lr: float) -> "Optimiser":
        if self.optimizer == "SGD":
            return SGD(params, lr, self.momentum, self.weight_decay, self.clip)
        return TorchOptimiser(self.optimizer, params, lr, self.weight_decay, self.clip)


class Optimiser(Protocol):
    state: list[Tensor]
    """State that survives between rounds if ``optimizer_state`` is ``keep``."""

    def step(self, grads: list[Tensor]) -> None: ...


def _clip(grads: list[Tensor], limit: float) -> None:
    if limit > 0:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))


class SGD:
    """Bit-identical to ``torch.optim.SGD``, without an optimiser object's overhead per step."""

    def __init__(self, params: Sequence[Tensor], lr: float, momentum: float, weight_decay: float, clip: float) -> None:
        self.params, self.lr = list(params), lr
        self.momentum, self.weight_decay, self.clip = momentum, weight_decay, clip
        self.state: list[Tensor] = []

    @torch.no_grad()
    def step(self, grads: list[Tensor]) -> None:
        _clip(grads, self.clip)
        if self.weight_decay:
            torch._foreach_add_(grads, self.params, alpha=self.weight_decay)
        if self.momentum:
            if self.state:
                torch._foreach_mul_(self.state, self.momentum)
                torch._foreach_add_(self.state, grads)
            else:
                self.state = [grad.clone() for grad in grads]
            grads = self.state
        torch._foreach_add_(self.params, grads, alpha=-self.lr)


class TorchOptimiser:
    """Any other optimiser of ``torch.optim``, by name."""

    def __init__(self, name: str, params: Sequence[Tensor], lr: float, weight_decay: float, clip: float) -> None:
        self.params, self.clip = list(params), clip
        self.inner = optimiser_class(name)(self.params, lr=lr, weight_decay=weight_decay)  # type: ignore[call-arg]

    @property
    def state(self) -> list[Tensor]:
        return [value for p in self.params for _, value in sorted(self.inner.state[p].items())]

    @state.setter
    def state(self, tensors: list[Tensor]) -> None:
        kept = iter(tensors)
        blank = [torch.zeros_like(p) for p in self.params]
        before = [p.detach().clone() for p in self.params]
        self.step(blank)  # creates the entries of the state, so that they can be filled
        with torch.no_grad():
            torch._foreach_copy_(self.params, before)
        for p in self.params:
            for key in sorted(self.inner.state[p]):
                self.inner.state[p][key].copy_(next(kept))

    def step(self, grads: list[Tensor]) -> None:
        _clip(grads, self.clip)
        for p, grad in zip(self.params, grads, strict=True):
            p.grad = grad
        self.inner.step()
        for p in self.params:
            p.grad = None


def optimiser_class(name: str) -> type[torch.optim.Optimizer]:
    known = {
        name: cls
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
    }
    if name not in known:
        raise unknown("optimizer", name, known)
    if name in {"LBFGS", "SparseAdam"}:
        raise ComityError(f"optimizer {name} cannot take a gradient of one batch at a time; use SGD or Adam")
    return known[name]
