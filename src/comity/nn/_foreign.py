"""Networks that were not written for comity: from torchvision, timm, the hub or a notebook."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from comity._catalogue import user_code
from comity._errors import ComityError, unknown


def foreign(make: Callable[..., nn.Module] | str, shape: tuple[int, ...], classes: int, head: str | None = None) -> Any:
    """Any network, by ``package.module:name`` or as a function; it gets the number of classes if it takes it.

    Options:
        head: name of its last linear layer, such as fc; by default it is found by a trial run
    """
    if isinstance(make, str):
        name, make = make, user_code("model", make, ":")
        if not callable(make):
            raise ComityError(f"model {name!r} is no class or function that creates a network")
    parameters = inspect.signature(make).parameters
    known = {"num_classes": classes, "classes": classes, "shape": shape}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    given = {key: known[key] for key in known if key in parameters or (takes_all and key == "num_classes")}
    net = make(**given)
    if not isinstance(net, nn.Module):
        raise ComityError(f"model must be a torch.nn.Module or make one, got a {type(net).__name__}")
    return with_head(net, shape, classes, head)


def with_head(net: nn.Module, shape: tuple[int, ...], classes: int, head: str | None = None) -> nn.Module:
    """The network as ``body`` and ``head``: unchanged if it has both, split at its last linear layer, or all body."""
    if head is None and {"body", "head"} <= {name for name, _ in net.named_children()}:
        return net
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    if head is not None and head not in layers:
        raise unknown("linear layer", head, layers, of="(model.head)")
    path = _found(net, layers, shape) if head is None else head
    if path is None:
        return Whole(net, NoHead())
    last = layers[path]
    owner, _, name = path.rpartition(".")
    if path:
        setattr(net.get_submodule(owner), name, nn.Identity())
    if last.out_features != classes:
        last = nn.Linear(last.in_features, classes, bias=last.bias is not None)
    return Whole(net if path else nn.Identity(), last)  # the network may be just that layer


def _found(net: nn.Module, layers: dict[str, nn.Linear], shape: tuple[int, ...]) -> str | None:
    """The linear layer whose output is the network's own."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output}))
        for name, layer in layers.items()
    ]
    was_training, like = net.training, next(net.parameters(), torch.empty(0))
    try:
        with torch.inference_mode():
            answer = _logits(net.eval()(torch.zeros(2, *shape, device=like.device)))
    except Exception as error:  # an untrusted network may raise anything
        raise ComityError(
            f"model {type(net).__name__} cannot take samples of {'×'.join(map(str, shape))}: {error}"
        ) from error
    finally:
        net.train(was_training)
        for hook in hooks:
            hook.remove()
    return next((name for name, output in reversed(outputs.items()) if output is answer), None)


def draws_random_numbers(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network draws random numbers in training, as dropout does; found by running a copy."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        before = torch.get_rng_state()
        try:
            copy.deepcopy(net).train()(torch.zeros(2, *shape))
        except Exception:  # training itself will report the error
            return False
        return not torch.equal(before, torch.get_rng_state())


def _logits(output: Any) -> Tensor:
    """The logits of an output; Hugging Face's networks return an object."""
    logits: Tensor = getattr(output, "logits", output)
    return logits


class _Features(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return _logits(self.net(x))


class NoHead(nn.Identity):
    """Placeholder for a network without a head that can be separated from its body."""

    @property
    def in_features(self) -> int:
        raise ComityError("this method needs a model with a head: name its last linear layer, model.head")


class Whole(nn.Module):
    """A network split into body and last linear layer, or all body for methods that need no head."""

    def __init__(self, net: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = _Features(net), head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
