"""Which replies the server takes."""

import torch
from torch import Tensor

from comity.methods import Payload


def objection(sent: Payload, reply: Payload) -> str | None:
    """Why this reply to what was ``sent`` cannot be used, in words that follow "client 3"; ``None`` if it can."""
    tensors, before = reply.tensors(), sent.tensors()
    if bad := [name for name, tensor in tensors.items() if not _finite(tensor)]:
        return f"sent {', '.join(bad)} that is not finite"
    both = [name for name in tensors if name in before]
    if other := [name for name in both if tensors[name].shape != before[name].shape]:
        return f"sent {', '.join(other)} of another shape"
    return None


def _finite(tensor: Tensor) -> bool:
    """As ``isfinite().all()``, ten times as fast."""
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).isfinite().all())
