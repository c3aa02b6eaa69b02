"""Products of rows, piece by piece: the same bits for rows in memory, in files and on several threads."""

import torch
from torch import Tensor

from comity._layout import Layout
from comity._threads import one_thread

_WIDEST = 32_768  # columns in a piece: float32 sums stay short, and the product outweighs the call
_LARGEST = 2**22  # numbers in a piece: 16 MB of a matrix that may lie on disk
_NARROWEST, _MOST = 2_048, 2**25  # columns of a piece at least, since cutting each row is a call, up to so many numbers
_NARROW = 4_096  # columns up to which products are float64
_BAND, _WIDE_BAND = 16, 64  # columns of a Gram matrix computed at once; what lies above the diagonal is mirrored
_FEW = 64  # rows up to which the narrower bands are faster, in float32


def piece_width(count: int) -> int:
    """How many columns of ``count`` rows are read at once. The same pieces give the same bits."""
    count = max(1, count)
    return max(1, min(_WIDEST, max(_LARGEST // count, min(_NARROWEST, _MOST // count))))


def lower_products(U: Tensor) -> Tensor:
    """(N, N) of the rows of a piece with each other, finite or not; what lies above the diagonal means nothing."""
    # A layer with few columns may have a singular Gram matrix; in float64 it costs nothing and stays one.
    U = U.double() if U.shape[1] <= _NARROW else at_least_float32(U)
    G = torch.empty(len(U), len(U), dtype=U.dtype, device=U.device)
    band = _BAND if len(U) <= _FEW and U.dtype == torch.float32 else _WIDE_BAND
    for i in range(0, len(U), band):
        torch.mm(U[i:], U[i : i + band].mT, out=G[i:, i : i + band])
    return G


def mirrored(G: Tensor) -> Tensor:
    """Symmetric, from what lies below the diagonal and on it."""
    return G.tril() + G.tril(-1).mT


def at_least_float32(U: Tensor) -> Tensor:
    return U if U.dtype in (torch.float32, torch.float64) else U.float()


def layer_lengths(layout: Layout, vector: Tensor) -> Tensor:
    """(L,) the length of each layer of a vector."""
    norm = torch.linalg.vector_norm
    with one_thread():  # pieces in the rows' own precision, put together in float64
        pieces = [torch.split(layer.reshape(-1), 2**16) for layer in layout.split(vector)]
        lengths = [norm(torch.stack([norm(piece) for piece in layer]).double()) for layer in pieces]
    return torch.stack(lengths).cpu()
