"""What every architecture is: a body that makes features and a linear head on top of it."""

from typing import ClassVar

from torch import Tensor, nn

from comity._errors import ComityError


class Net(nn.Module):
    """A body (images to features) and a head (features to logits); a subclass sets both, the head last.

    Nothing in a net draws random numbers but its initialisation, and that only from torch's global generator.
    """

    body: nn.Module
    head: nn.Linear
    smallest: ClassVar[int] = 1
    """The fewest pixels a side that the architecture can take."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        name, given = type(self).__name__, "×".join(map(str, shape))
        if len(shape) != 3 or min(shape) < 1:
            raise ComityError(f"{name} takes images of channels × height × width, all at least 1, got {given}")
        if min(shape[1:]) < self.smallest:
            raise ComityError(f"{name} needs images of at least {self.smallest}×{self.smallest} pixels, got {given}")
        if classes < 1:
            raise ComityError(f"{name} needs at least 1 class, got {classes}")
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits

    def extra_repr(self) -> str:
        size = sum(p.numel() for p in self.parameters())
        return f"{'×'.join(map(str, self.shape))}, {self.head.out_features} classes, {size:,} parameters"
