"""The one exception that is the user's to mend, never ours."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 480
"""Characters of an error."""


def one_line(text: object, longest: int = 400) -> str:
    """``text`` as one printable line; what a stranger's file or name says cannot steer a terminal or flood it."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(text).split()))
    return line if len(line) <= longest else f"{line[: longest // 2]} … {line[3 - longest // 2 :]}"


class ComityError(Exception):
    """Bad input: one line that names what was wrong, what was given and what is allowed.

    The command line prints it without a traceback and exits with code 2. What it quotes of a file or a name is cut
    short where it is long.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, LONGEST))


def unknown(kind: str, given: str, known: Iterable[str], hint: str = "") -> ComityError:
    """The error for a name that does not exist, with the nearest ones that do."""
    names = sorted(known)
    by_lower_case = {name.lower(): name for name in names}
    nearest = [by_lower_case[name] for name in get_close_matches(given.lower(), by_lower_case, n=3, cutoff=0.6)]
    if nearest:
        advice = f"did you mean {' or '.join(nearest)}?"
    else:
        advice = f"known: {', '.join(names)}" if names else "there are none"
    return ComityError(f"unknown {kind} {given!r}; {advice}{' ' + hint if hint else ''}")
