"""Look for words that readers had to read twice, in texts that users see: ``python docs/check_words.py``.

Texts are the pages, the strings and docstrings of the package, and the templates of the report. Code in them is left
out. A file may hold as many findings as ``LEFT`` says, and no more: whoever rewrites it lowers its number.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = "(?:MB|ms|once|twice|one|bytes|seconds?|epochs?|steps?|classes|pixels|evaluations?)"
WORDS = {
    r"told": "reported; distinguished; predicted correctly",
    r"beyond chance": "statistically significant",
    r"strangers?": "untrusted",
    r"liars?": "malicious clients",
    r"(?:go|goes|went|going|gone) on": "resume, continue",
    r"alike": "similar, equal",
    r"(?:than|over|from|to|with) alone": "the local baseline, local training",
    r"clients? (?:is|are|was|were) lost|lost clients?": "dropped out",
    r"stretch(?:es)?": "length ratio",
    r"moments? of (?:evaluation|judgement)": "evaluation point",
    r"refus(?:e|es|ed|ing|al)": "reject, rejected",
    rf"{UNIT} an? (?:round|client|step|core|side|seed|batch|run|sample|class)": "per round, per client, per step",
    r"times a (?:round|run|step)": "times per round",
    r"steps? (?:is|are|goes|go|went) against|whom a step": "clients whose loss the step increases",
    r"abroad|at home": "on other clients' data, on its own data",
}
"""What not to write, as patterns of whole words, and what to write in its place."""
LEFT: dict[str, int] = {
    "docs/reference/models.md": 1,
    "src/comity/privacy/__init__.py": 1,
    "src/comity/privacy/_keys.py": 3,
    "src/comity/privacy/_parties.py": 1,
}
"""Findings that are still there, by file."""

_PATTERN = re.compile(
    "|".join(rf"(?P<w{i}>\b(?:{words})\b)" for i, words in enumerate(WORDS)).replace(" ", r"\s+"), flags=re.IGNORECASE
)
_CODE = re.compile(r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\)", flags=re.MULTILINE | re.DOTALL)


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file for people, each with the line that it begins in."""
    content = file.read_text()
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, _prose(node.value)
    elif file.suffix == ".js":
        for quoted in re.finditer(r'"[^"\n]*"|`[^`]*`', content):
            yield content.count("\n", 0, quoted.start()) + 1, re.sub(r"\$\{[^}]*\}", "", quoted[0])
    else:
        yield 1, _prose(content)


def _prose(text: str) -> str:
    """Without code, with as many lines."""
    return _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)


def findings(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, words and what to write in their place."""
    for line, text in texts(file):
        for match in _PATTERN.finditer(text):
            better = list(WORDS.values())[int(str(match.lastgroup)[1:])]
            yield line + text.count("\n", 0, match.start()), " ".join(match[0].split()), better


def files() -> list[Path]:
    kinds = (".py", ".js", ".html", ".yaml", ".tpl")
    package = (file for file in (ROOT / "src/comity").rglob("*") if file.suffix in kinds)
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *package])


def main() -> int:
    code = 0
    for file in files():
        name, found = file.relative_to(ROOT).as_posix(), list(findings(file))
        if len(found) > LEFT.get(name, 0):
            code = 1
            print("\n".join(f"{name}:{line}: {words!r}; better: {better}" for line, words, better in found))
    return code


if __name__ == "__main__":
    sys.exit(main())
