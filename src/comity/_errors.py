"""The exception for bad input by the user."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

LONGEST = 480
"""Maximum characters of an error."""


def printable(text: str) -> str:
    """``text`` without control and bidirectional characters, which could affect a terminal or reorder a line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in _BLANKS else "?" for letter in text)


_BLANKS = "\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"


def one_line(text: object, longest: int = 400) -> str:
    """``text`` as one printable line of limited length, safe for untrusted files and names."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= longest else f"{line[: longest // 2]} … {line[3 - longest // 2 :]}"


def complain(text: object) -> None:
    """Print one line to standard error."""
    print(f"comity: {one_line(text)}", file=sys.stderr, flush=True)


class ComityError(Exception):
    """Bad input: one line that names what was wrong, what was given and what is allowed.

    The command line prints it without a traceback and exits with code 2. Long quoted values are shortened.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, LONGEST))


def unknown(
    kind: str, given: str, known: Iterable[str], hint: str = "", *, of: str = "", short: Mapping[str, str] | None = None
) -> ComityError:
    """The error for an unknown name, with the closest known ones; ``short`` has some of them by shorter names.

    ``of`` follows the name, as in "unknown option 'c' of rule Mean". Leading dashes are not compared, because they
    would make short options similar.
    """
    names = sorted(known)
    by_spelling = {_bare(name): name for name in names} | {_bare(name): full for name, full in (short or {}).items()}
    nearest = [by_spelling[name] for name in get_close_matches(_bare(given), by_spelling, n=3, cutoff=0.6)]
    if nearest:
        advice = f"did you mean {' or '.join(nearest)}?"
    else:
        advice = f"known: {', '.join(names)}" if names else "there are none"
    return ComityError(f"unknown {kind} {given!r}{' ' + of if of else ''}; {advice}{' ' + hint if hint else ''}")


def _bare(name: str) -> str:
    return name.lower().lstrip("-")


def install(extra: str) -> str:
    """The command that adds an extra to this installation of comity: from a clone, a URL or by name."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    pip = _from_here(Path(sys.executable).with_name("pip"))
    try:
        origin = json.loads(distribution("comity").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # only on the path
        origin = {}
    url = origin.get("url", "")
    if origin.get("dir_info", {}).get("editable"):
        return f"{pip} install -e '{_from_here(Path(url2pathname(urlparse(url).path)))}[{extra}]'"
    kind = origin.get("vcs_info", {}).get("vcs")
    return f"{pip} install 'comity[{extra}]{' @ ' * bool(url)}{f'{kind}+' if kind else ''}{url}'"


def _from_here(path: Path) -> str:
    """The shortest path from the working directory."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
