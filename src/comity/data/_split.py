"""A client's samples into two parts of the same class mix."""

import numpy as np

from comity.data._dataset import Ints


def stratified(index: Ints, y: Ints, share: float, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Split ``index`` into the part that stays and the part taken out, about ``share`` of every class.

    Both parts hold at least one sample. A class keeps at least one sample in the part that stays, so a class with one
    sample stays whole, unless no class has two: then single samples are taken out, since one part would be empty.
    """
    if len(index) < 2:
        raise ValueError("two samples at least")
    labels, inverse, sizes = np.unique(y[index], return_inverse=True, return_counts=True)
    wanted = int(np.clip(np.round(share * len(index)), 1, len(index) - 1))
    room = sizes - 1 if sizes.max() > 1 else sizes
    exact = share * sizes
    take = np.minimum(np.floor(exact).astype(np.int64), room)
    # what rounding down left over goes to the classes that lost most by it, ties at random
    order = np.lexsort((random.random(len(labels)), take - exact))
    for label in order[take[order] < room[order]][: wanted - int(take.sum())]:
        take[label] += 1

    shuffled = random.permutation(len(index))
    by_class = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(index)) - np.repeat(starts, sizes)
    out = rank < np.repeat(take, sizes)
    return np.sort(index[by_class[~out]]), np.sort(index[by_class[out]])
