"""Text features: the words and letter trigrams of a text, hashed to a fixed number of features.

Nothing is learnt from the texts, so all sites get the same features without a shared word list.
"""

import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

TEXT_FEATURES = 1024
"""Number of features of a text column, unless its schema gives another number."""
LETTERS = 3
_WORD = re.compile(r"\w+|[^\w\s]")


def pieces(text: str) -> Iterator[str]:
    """The words, signs and letter trigrams of a text, in lower case."""
    words = " ".join(text.lower().split())
    yield from (f"word {word}" for word in _WORD.findall(words))
    within = f" {words} "
    yield from (within[place : place + LETTERS] for place in range(len(within) - LETTERS + 1))


def hashed(texts: Sequence[str], width: int) -> NDArray[np.float32]:
    """(texts, width): 1 where a text contains a piece whose CRC-32 has this remainder, otherwise 0."""
    found = np.zeros((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        found[row, [zlib.crc32(piece.encode(errors="replace")) % width for piece in pieces(text)]] = 1
    return found
