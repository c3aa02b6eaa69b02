"""A network as one vector."""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from comity._errors import ComityError
from comity._layout import Layout
from comity.nn._chain import FeatureLoss, Gradients, chain_of
from comity.nn._compiled import CompiledGradients

BUFFERS = "buffers"
BATCHNORM = "batchnorm"
GradientOfBatch = Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]
"""From samples and labels: the mean loss, and its gradient by each parameter."""


def gradients_of(loss: Callable[[Tensor, Tensor], Tensor], params: Sequence[Tensor]) -> GradientOfBatch:
    """A function from a batch to a loss and its gradient by autograd."""

    def find(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():
            value = loss(x, y)
            return value.detach(), list(torch.autograd.grad(value, params))

    return find


class Model:
    """A network as named parts of one float32 vector: its top-level children in order, then its buffers.

    ``read`` and ``write`` move vectors out of and into the network. A part is a child of the network (``body``,
    ``head``, whatever a method adds) or ``buffers``: the running statistics of BatchNorm, which follow the body to the
    server (policy ``average``) or stay with the client (``local``). With ``local_norm`` BatchNorm's parameters stay
    with the client too, as the part ``batchnorm``. Three names stand for several parts: ``shared``, ``personal`` and
    ``all``. Integer counters are not in any vector; see ``counters``. ``empty`` allocates the vectors that ``read``
    returns. ``compiled`` computes gradients in C; it needs a model for which ``can_compile`` is true.
    """

    def __init__(
        self,
        net: nn.Module,
        shared: Sequence[str] = ("body", "head"),
        buffers: str = "average",
        *,
        local_norm: bool = False,
        empty: Callable[[int], Tensor] | None = None,
        compiled: bool = False,
    ) -> None:
        if not {"body", "head"} <= {name for name, _ in net.named_children()}:
            raise ComityError(
                f"model {type(net).__name__} needs two submodules, `body` (images to features) and `head` (features "
                "to logits), and forward(x) = head(body(x)); see docs/reference/models.md"
            )
        if any(name.count(".") == 0 for name, _ in net.named_parameters()):
            raise ComityError(f"model {type(net).__name__} has parameters outside its submodules; put them in `body`")
        self._empty, self._compiled = empty, compiled
        self.held: tuple[weakref.ref[Tensor], list[tuple[int, int]]] | None = None
        """What ``hold`` wrote, with torch's version counters of vector and network; reset by steps in C."""
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and local_norm]
        own = {id(tensor): tensor for layer in norms for tensor in layer.parameters()}
        self._tensors: dict[str, list[Tensor]] = {
            part: [tensor for tensor in child.parameters() if id(tensor) not in own]
            for part, child in net.named_children()
        }
        if own:
            self._tensors[BATCHNORM] = list(own.values())
        self._tensors[BUFFERS] = [tensor for tensor in net.buffers() if tensor.is_floating_point()]
        self._counters = [tensor for tensor in net.buffers() if not tensor.is_floating_point()]

        apart = {"body", "head"} & set(shared)
        for part in ("body", "head"):
            if len(apart) == 1 and not self._tensors[part]:
                raise ComityError(
                    f"the method shares only the {apart.pop()}, and nothing is learnt in the {part} of model "
                    f"{type(net).__name__}; take another model, or name the last linear layer of your own by model.head"
                )
        unknown = set(shared) - set(self._tensors)
        if unknown:
            raise ComityError(f"model {type(net).__name__} has no part {', '.join(sorted(unknown))}")
        together = set(shared) | ({BUFFERS} if "body" in shared and buffers == "average" and not own else set())
        self._groups = {
            "all": tuple(self._tensors),
            "shared": tuple(part for part in self._tensors if part in together),
            "personal": tuple(part for part in self._tensors if part not in together),
        }

    def parts(self, *names: str) -> tuple[str, ...]:
        """The parts with these names, in the order of a vector."""
        wanted = {part for name in names or ("all",) for part in self._groups.get(name, (name,))}
        return tuple(part for part in self._tensors if part in wanted)

    def tensors(self, *names: str) -> list[Tensor]:
        return [tensor for part in self.parts(*names) for tensor in self._tensors[part]]

    def parameters(self, *names: str) -> list[Tensor]:
        """The trainable tensors of these parts: all except the buffers."""
        return [t for part in self.parts(*names) if part != BUFFERS for t in self._tensors[part]]

    def layout(self, *names: str) -> Layout:
        """Names and positions of the trainable tensors in the vector of these parts; buffers follow them."""
        name_of = {id(tensor): name for name, tensor in self.net.named_parameters()}
        return Layout((name_of[id(tensor)], tuple(tensor.shape)) for tensor in self.parameters(*names))

    def variances(self, *names: str) -> dict[str, slice]:
        """Positions of BatchNorm's running variances (never negative) in the vector of these parts, by name."""
        found, start = {}, sum(tensor.numel() for tensor in self.parameters(*names))
        for name, tensor in self.net.named_buffers() if BUFFERS in self.parts(*names) else ():
            if tensor.is_floating_point():
                if name.endswith("running_var"):
                    found[name] = slice(start, start + tensor.numel())
                start += tensor.numel()
        return found

    def size(self, *names: str) -> int:
        return sum(tensor.numel() for tensor in self.tensors(*names))

    def read(self, *names: str) -> Tensor:
        """A copy of these parts as one vector."""
        pieces = [tensor.detach().reshape(-1) for tensor in self.tensors(*names)]
        if not pieces:
            return torch.empty(0)
        lend = self._empty if pieces[0].dtype == torch.float32 else None
        return torch.cat(pieces, out=None if lend is None else lend(sum(map(len, pieces))))

    @torch.no_grad()
    def write(self, vector: Tensor, *names: str) -> None:
        """Write a vector of these parts into the network."""
        for tensor, piece in zip(self.tensors(*names), self.split(vector, *names), strict=True):
            tensor.copy_(piece)

    def hold(self, vector: Tensor) -> None:
        """Write a vector of the whole model, unless it is the one written last and neither has changed since."""
        if self.held is None or self.held[0]() is not vector or self.held[1] != self._versions(vector):
            self.write(vector)
            self.held = weakref.ref(vector), self._versions(vector)

    def _versions(self, vector: Tensor) -> list[tuple[int, int]]:
        return [(id(tensor), tensor._version) for tensor in (vector, *self.tensors())]

    def split(self, vector: Tensor, *names: str) -> list[Tensor]:
        """Views of a vector of these parts, in the shapes of their tensors."""
        tensors = self.tensors(*names)
        if vector.numel() != sum(t.numel() for t in tensors):
            wanted = sum(t.numel() for t in tensors)
            raise ValueError(
                f"a vector of {vector.numel()} numbers for {', '.join(names) or 'all'}, which has {wanted}"
            )
        pieces = torch.split(vector, [t.numel() for t in tensors]) if tensors else ()
        return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]

    @contextmanager
    def training(self, *names: str) -> Iterator[list[Tensor]]:
        """Training mode, with gradients for the parameters of these parts only."""
        params = self.parameters(*names)
        if not params and names in (("body",), ("head",)):
            raise ComityError(f"nothing is learnt in the {names[0]} of model {type(self.net).__name__}; take another")
        for param in self.parameters():
            param.requires_grad_(False)
        for param in params:
            param.requires_grad_(True)
        self.net.train()
        try:
            yield params
        finally:
            for param in self.parameters():
                param.requires_grad_(True)

    @property
    def counters(self) -> Tensor:
        """Batches seen by each BatchNorm layer: integers, always the client's own."""
        return torch.tensor([int(counter) for counter in self._counters], dtype=torch.int64)

    @counters.setter
    def counters(self, values: Tensor) -> None:
        for counter, value in zip(self._counters, values.tolist(), strict=True):
            counter.fill_(value)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    def gradients(self, *names: str, on_features: FeatureLoss | None = None) -> GradientOfBatch:
        """A function from a batch ``(x, y)`` to its loss and the gradient by the parameters of these parts, in order.

        ``on_features`` is added to the cross-entropy of head and body. The result is bit-identical to
        ``torch.autograd.grad``, unless gradients are compiled.
        """
        if (layers := chain_of(self.net)) is not None:
            if self._compiled and on_features is None:
                return CompiledGradients(self.net, layers, self.parts(*names))
            return Gradients(layers, self.parts(*names), on_features)
        if on_features is None:
            return gradients_of(self.loss, self.parameters(*names))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = self.features(x)
            return F.cross_entropy(self.net.get_submodule("head")(z), y) + on_features(z, y)[0]

        return gradients_of(loss, self.parameters(*names))

    def head_gradients(self) -> GradientOfBatch:
        """The same for the head only, from features and labels."""
        head = self.net.get_submodule("head")
        if (layers := chain_of(self.net)) is not None:
            if self._compiled:
                return CompiledGradients(head, layers[-1:], ("head",))
            return Gradients(layers[-1:], ("head",))
        return gradients_of(lambda z, y: F.cross_entropy(head(z), y), self.parameters("head"))

    @cached_property
    def twin(self) -> "Model":
        """A second network, for methods that train two at once. It is kept, because building one takes time."""
        return copy.deepcopy(self)

    def features(self, x: Tensor) -> Tensor:
        body = self.net.get_submodule("body")
        features: Tensor = body(x)
        return features

    def state_dict(self) -> dict[str, Tensor]:
        """The network's tensors under its own names, contiguous, for export."""
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.net.state_dict().items()
        }
