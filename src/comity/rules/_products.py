"""Products of rows, piece by piece: the same bits for rows in memory, in files and on several threads."""

import torch
from torch import Tensor

from comity._layout import Layout
from comity._threads import one_thread

_WIDEST = 32_768  # columns per piece: float32 sums stay short, and the product takes longer than the call
_LARGEST = 2**22  # numbers per piece: 16 MB of a matrix that may be on disk
_NARROWEST, _MOST = 2_048, 2**25  # least columns per piece (cutting a row is a call) and most numbers
_NARROW = 4_096  # up to so many columns products are float64
_BAND, _WIDE_BAND = 16, 64  # columns of a Gram matrix computed at once; the part above the diagonal is mirrored
_FEW = 64  # up to so many rows the narrower bands are faster, in float32


def piece_width(count: int) -> int:
    """Number of columns of ``count`` rows to read at once. The same pieces give the same bits."""
    count = max(1, count)
    return max(1, min(_WIDEST, max(_LARGEST // count, min(_NARROWEST, _MOST // count))))


def lower_products(U: Tensor) -> Tensor:
    """(N, N) products of a piece's rows with each other, finite or not; entries above the diagonal are meaningless."""
    # A layer with few columns may have a singular Gram matrix. Float64 keeps it singular at no extra cost.
    U = U.double() if U.shape[1] <= _NARROW else at_least_float32(U)
    G = torch.empty(len(U), len(U), dtype=U.dtype, device=U.device)
    band = _BAND if len(U) <= _FEW and U.dtype == torch.float32 else _WIDE_BAND
    for i in range(0, len(U), band):
        torch.mm(U[i:], U[i : i + band].mT, out=G[i:, i : i + band])
    return G


def mirrored(G: Tensor) -> Tensor:
    """Symmetric matrix from the lower triangle of G."""
    return G.tril() + G.tril(-1).mT


def at_least_float32(U: Tensor) -> Tensor:
    return U if U.dtype in (torch.float32, torch.float64) else U.float()


def layer_lengths(layout: Layout, vector: Tensor) -> Tensor:
    """(L,) length of each layer of a vector."""
    norm = torch.linalg.vector_norm
    with one_thread():  # pieces in the rows' own precision, summed in float64
        pieces = [torch.split(layer.reshape(-1), 2**16) for layer in layout.split(vector)]
        lengths = [norm(torch.stack([norm(piece) for piece in layer]).double()) for layer in pieces]
    return torch.stack(lengths).cpu()
