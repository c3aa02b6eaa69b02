"""Option files: YAML of text, numbers, lists and mappings, possibly untrusted."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from comity._catalogue import KINDS
from comity._errors import ComityError
from comity._options import convert
from comity._overlay import Entries

FORMER = ("tensorboard", "wandb", "mlflow")
"""Boolean options of earlier versions, now values of ``track``."""
RENAMED = {"moment": "eval_point"}
"""Options by their names in files of earlier versions."""
MOST_YAML = 10**6
"""Maximum bytes of a file."""
_DEEPEST, _LONGEST, _MOST_VALUES = 20, 20_000, 100_000
"""Maximum levels of a file, characters of one value, and values with aliases expanded."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times as fast, if libyaml is available
_TAG = "tag:yaml.org,2002:"
_PLAIN = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value")}


def read_yaml(path: Path | None, *, allow_code: bool = False) -> Entries:
    """Read a file of options of a run or a study; ``allow_code``: it may name users' own classes."""
    if path is None:
        return {}
    entries = read_mapping(path, "config")
    if not allow_code:
        reject_code(entries, f"config {path}")
    before = {name: convert(entries.pop(name), bool, name) for name in FORMER if name in entries}
    if any(before.values()):
        entries.setdefault("track", [name for name, chosen in before.items() if chosen])
    return {RENAMED.get(name, name): value for name, value in entries.items()}


def read_mapping(path: Path, what: str) -> Entries:
    """Read and check a YAML file of `name: value` lines; errors call it ``what``."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_YAML + 1)
    except OSError as error:
        raise ComityError(f"{what} {path} could not be read: {error.strerror}") from error
    if len(content) > MOST_YAML:
        raise ComityError(f"{what} {path} is larger than {MOST_YAML // 10**6} MB")
    try:
        entries = _parsed(content.decode())
    except (yaml.YAMLError, ValueError) as error:  # an invalid number or date is a ValueError
        raise ComityError(f"{what} {path} is not YAML: {_reason(error)}") from error
    if not isinstance(entries, dict):
        raise ComityError(f"{what} {path} must hold `option: value` lines")
    return entries


def _reason(error: Exception) -> str:
    """The place and the problem, without the parser's own terms."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error)


def _parsed(text: str) -> Any:
    """Parse YAML of text, numbers, lists and mappings with unique keys; limits the expansion in memory."""
    depth = 0
    for event in yaml.parse(text, _LOADER):  # before anything is built, which recurses as deep as the file
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} levels")
        if tag := getattr(event, "tag", None):
            raise ValueError(f"it has the tag {tag}; only text, numbers, lists and mappings are taken")
        if len(getattr(event, "value", "")) > _LONGEST:
            raise ValueError(f"it has a value of more than {_LONGEST} characters")
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None or _values(node, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {_MOST_VALUES} values" if node else "it is empty")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Number of values in a node, with aliases expanded; rejects non-text keys."""
    if node not in known:
        known[node] = _MOST_VALUES + 1  # for a node that contains itself
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            odd = [key for key, _ in node.value if key.tag not in (f"{_TAG}str", f"{_TAG}merge")]
            if odd:
                raise ValueError(f"the name of an option must be text, got {str(odd[0].value)[:80]}")
            if twice := [name for name, times in names.items() if times > 1]:
                raise ValueError(f"{twice[0]} is there twice")
            inner = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif node.tag not in _PLAIN:
            raise ValueError(f"{node.value[:80]} is {node.tag.removeprefix(_TAG)}; put it in quotes if it is text")
        known[node] = 1 + sum(_values(each, known) for each in inner)
    return known[node]


def reject_code(entries: Any, where: str) -> None:
    """Reject names of users' own classes in a file: importing them would execute their code.

    Names typed on the command line or in Python are trusted; a file may come from someone else.
    """
    for kind, name in code_in(entries):
        raise ComityError(
            f"{where} names the {kind} {name!r}, which is code that does not come with comity; "
            "if you trust the file and that code, give --allow-code (in Python allow_code=True)"
        )


def code_in(entries: Any) -> list[tuple[str, str]]:
    """Kind and dotted name of each class outside comity in a run's or study's entries."""
    if isinstance(entries, (list, tuple)):
        return [each for entry in entries for each in code_in(entry)]
    found: list[tuple[str, str]] = []
    for key, value in entries.items() if isinstance(entries, Mapping) else ():
        kind = str(key).removesuffix(".name")
        if kind in (*KINDS, "callbacks") and kind != "data":  # data sets are files, which are only read
            found += [(kind, name) for name in _names(value) if "." in name or ":" in name]
        found += code_in(value)
    return found


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Mapping):
        yield from _names(value.get("name"))
