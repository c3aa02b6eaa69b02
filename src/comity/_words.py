"""Numbers and lists as text in a uniform style, and escaped cells of files for other programs."""

import re
from collections.abc import Iterable

MOST_NAMED, MOST_LISTED = 4, 12
"""Maximum number of clients or configurations that a sentence, and a list, name individually."""


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a true minus sign; a number that rounds to zero has no sign."""
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return (f"{0:.{digits}f}" if float(text) == 0 else text).replace("-", "−")


def listed(parts: Iterable[str]) -> str:
    """“a, b and c”."""
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def capital(text: str) -> str:
    """The text with its first letter capitalised."""
    return text[:1].upper() + text[1:]


def markdown_cell(text: str) -> str:
    """Text for a Markdown cell, without HTML, links or column breaks."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("](", "]\\(").replace("|", "\\|")


def csv_cell(value: object) -> object:
    """A cell of a CSV file. Text that a spreadsheet would read as a formula gets an apostrophe."""
    formula = isinstance(value, str) and re.match(r"[=@\t\r]|[-+](?!\.?\d[\d.e+-]*$)", value)
    return f"'{value}" if formula else value


def counted(count: int, noun: str) -> str:
    """“1 seed”, “2 seeds”."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
