"""Numbers and lists in words, the same way wherever they are shown."""

from collections.abc import Iterable

MOST_NAMED, MOST_LISTED = 4, 12
"""Clients or configurations that a sentence, and a list, name one by one."""


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a true minus sign; what rounds to zero has no sign."""
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return (f"{0:.{digits}f}" if float(text) == 0 else text).replace("-", "−")


def listed(parts: Iterable[str]) -> str:
    """“a, b and c”."""
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def capital(text: str) -> str:
    """The text with a capital at its beginning; the rest as it is."""
    return text[:1].upper() + text[1:]


def counted(count: int, noun: str) -> str:
    """“1 seed”, “2 seeds”."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
