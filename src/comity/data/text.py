"""Text as features: which words and which three letters in a row it holds, hashed to a fixed number of places.

Nothing is learnt from the texts, so each site gets the same features without a common list of words.
"""

import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

TEXT_FEATURES = 1024
"""Features of a column of text, unless its schema names another number."""
LETTERS = 3
_WORD = re.compile(r"\w+|[^\w\s]")


def pieces(text: str) -> Iterator[str]:
    """The words and signs of a text, and every three letters in a row, whatever their case."""
    words = " ".join(text.lower().split())
    yield from (f"word {word}" for word in _WORD.findall(words))
    within = f" {words} "
    yield from (within[place : place + LETTERS] for place in range(len(within) - LETTERS + 1))


def hashed(texts: Sequence[str], width: int) -> NDArray[np.float32]:
    """(texts, width): 1 where a text holds a piece whose CRC-32 has this remainder, else 0."""
    found = np.zeros((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        found[row, [zlib.crc32(piece.encode(errors="replace")) % width for piece in pieces(text)]] = 1
    return found
