"""Base class of architectures: a body that computes features, and a linear head."""

from typing import ClassVar

from torch import Tensor, nn

from comity._errors import ComityError
from comity.config import MODEL, SAMPLES

SIDES = {1: "features", 2: "channels × time", 3: "channels × height × width"}
"""Names of a sample's dimensions, by their number."""


class Net(nn.Module):
    """A body (samples to features) and a head (features to logits); a subclass sets both, the head last.

    Only the initialisation draws random numbers, from torch's global generator.
    """

    body: nn.Module
    head: nn.Linear
    smallest: ClassVar[int] = 1  # minimum pixels per side, or time steps
    takes: ClassVar[tuple[int, ...]] = (3,)
    """Supported samples, by number of dimensions."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        name, given = type(self).__name__, "×".join(map(str, shape))
        if len(shape) not in self.takes or min(shape) < 1:
            allowed = " or ".join(f"{SAMPLES[dimensions]} of {SIDES[dimensions]}" for dimensions in self.takes)
            known = len(shape) in SAMPLES and len(shape) not in self.takes
            advice = f"; for {SAMPLES[len(shape)]} there is {MODEL[len(shape)]}" if known else ""
            raise ComityError(f"{name} takes {allowed}, all at least 1, got {given}{advice}")
        if min(shape[1:], default=self.smallest) < self.smallest:
            least = f"{self.smallest} steps" if len(shape) == 2 else f"{self.smallest}×{self.smallest} pixels"
            raise ComityError(f"{name} needs {SAMPLES[len(shape)]} of at least {least}, got {given}")
        if classes < 1:
            raise ComityError(f"{name} needs at least 1 class, got {classes}")
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits

    def extra_repr(self) -> str:
        size = sum(p.numel() for p in self.parameters())
        return f"{'×'.join(map(str, self.shape))}, {self.head.out_features} classes, {size:,} parameters"
