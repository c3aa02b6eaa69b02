"""A study in parts, for arrays of tasks that know nothing of each other."""

from collections.abc import Sequence

from comity._errors import ComityError
from comity.config import Config
from comity.studies._grid import local_of


def part(cells: Sequence[Config], shard: str) -> list[Config]:
    """The cells of one shard, ``3/16``; which they are depends on the study and on nothing that is done of it.

    Those that are measured against the same Local stay together, if there are as many such families as shards.
    """
    which, slash, count = shard.partition("/")
    if not (slash and which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count)):
        raise ComityError(f"shard must be like 3/16, the third of 16 parts, got {shard!r}")
    families: dict[str, list[Config]] = {}
    for cell in cells:
        families.setdefault(local_of(cell).key if cell.reference == "auto" else cell.key, []).append(cell)
    pieces = list(families.values())
    if len(pieces) < int(count):
        pieces = [[cell] for family in pieces for cell in family]
    first, last = (len(pieces) * edge // int(count) for edge in (int(which) - 1, int(which)))
    return [cell for piece in pieces[first:last] for cell in piece]
