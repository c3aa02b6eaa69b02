"""Look for words that readers had to read twice, in texts that users see: ``python docs/check_words.py``.

Texts are the pages, the examples, the strings, docstrings and comments of the package, the templates of the report, and
the files of the repository that people read. Code in them is left out.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/comity", "examples", "evidence", ".github")
FILES = ("CITATION.cff", "Dockerfile", "Makefile", "mkdocs.yml", "pyproject.toml", "constraints.txt")
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
    r"whom (?:it|joining|that) (?:helps|harms|hurts)": "which clients gain, which clients are harmed",
    r"abroad|at home": "on other clients' data, on its own data",
}
"""What not to write, as patterns of whole words, and what to write in its place."""
_PATTERN = re.compile(
    "|".join(rf"(?P<w{i}>\b(?:{words})\b)" for i, words in enumerate(WORDS)).replace(" ", r"\s+"), flags=re.IGNORECASE
)
_CODE = re.compile(r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\)", flags=re.MULTILINE | re.DOTALL)


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file for people, each with the line that it begins in."""
    content = file.read_text()
    if file.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], _prose(token.string)
        nodes = list(ast.walk(ast.parse(content)))
        calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "field"]
        stored = {
            keyword.value for call in calls for keyword in call.keywords if keyword.arg == "name"
        }  # names in files
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in stored:
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
    kinds = (".py", ".js", ".html", ".yaml", ".tpl", ".md", ".ipynb", ".toml", ".yml")
    folders = (file for name in FOLDERS for file in (ROOT / name).rglob("*") if file.suffix in kinds)
    single = (ROOT / name for name in FILES)
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *folders, *filter(Path.is_file, single)])


def main() -> int:
    code = 0
    for file in files():
        name, found = file.relative_to(ROOT).as_posix(), list(findings(file))
        for line, words, better in found:
            code = 1
            print(f"{name}:{line}: {words!r}; better: {better}")
    return code


if __name__ == "__main__":
    sys.exit(main())
