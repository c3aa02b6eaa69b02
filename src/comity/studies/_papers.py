"""The tables and figures of the papers: which example stands for each, what was published, and what differs."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._options import convert
from comity._overlay import Overlay, as_entry
from comity._words import number
from comity.compare import COLUMNS, Cell, LoadedStudy
from comity.config import Config, Entries, read_yaml
from comity.results import show
from comity.studies._grid import (
    SCALES,
    Names,
    apart_from_seeds,
    at_scale,
    examples,
    expand,
    has_own_rule,
    is_value,
    section,
)

FOLDER = Path(str(files("comity"))) / "examples" / "published"
MEASURED = ("accuracy", "S-acc", "G-acc", "global", "relative", "gaining")
"""Columns of the files of published numbers that are results; columns of a study's table have the same names."""
PEAK = "peak"
MOST_VALUES = 5  # of the paper that a line names
UNTOLD = ("eval_every", "general_every", "data_limit", "track", "save_models")
"""Options of a run that change no comparison."""


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    item: str
    example: str = ""
    """The example that stands for it; empty for a figure that is no experiment."""
    what: str = ""
    published: tuple[str, ...] = ()
    """The files with its numbers."""
    differs: tuple[str, ...] = ()
    """What differs from the paper at every scale."""


@cache
def items() -> tuple[Item, ...]:
    def flat(lines: Iterable[Any]) -> Iterable[str]:
        for line in lines:
            yield from line if isinstance(line, list) else [line]

    return tuple(
        Item(**each | {"published": tuple(each.get("published", ())), "differs": tuple(flat(each.get("differs", ())))})
        for each in read_yaml(FOLDER / "papers.yaml")["items"]
    )


@dataclass(frozen=True)
class Published:
    """A row of a published table."""

    source: str
    options: Mapping[str, str]
    """The options that say which configuration it is."""
    results: Mapping[str, float]

    def fits(self, options: Mapping[str, Any]) -> bool:
        return all(is_value(options.get(key, ""), value) for key, value in self.options.items())


@cache
def published(name: str) -> tuple[Published, ...]:
    """The rows of a file: a line that names its source, then CSV."""
    source, *lines = (FOLDER / f"{name}.csv").read_text().splitlines()
    rows = []
    for row in csv.DictReader(lines):
        options = {key: value for key, value in row.items() if value and _is_option(key)}
        results = {key: float(row[key]) for key in MEASURED if row.get(key)}
        rows.append(Published(source.removeprefix("# "), options, results))
    return tuple(rows)


def _is_option(key: str) -> bool:
    return key not in MEASURED and not key.endswith(" std") and not key.startswith("client ")


def beside(study: LoadedStudy, example: str) -> str:
    """Published numbers beside those of a study, as a Markdown table; empty if no cell is one of the paper's."""
    names = list(dict.fromkeys(name for each in items() if each.example == example for name in each.published))
    found = [
        (cell, row)
        for cell in study.cells
        for row in (row for name in names for row in published(name))
        if cell.finished and row.fits(_options_of(cell))
    ]
    if not found:
        return ""
    columns = {column.name: column for column in COLUMNS}
    measured = [name for name in MEASURED if any(name in row.results for _, row in found)]
    heads = ["", *(f"{columns[name].heading}: {who}" for name in measured for who in ("paper", "here"))]
    heads += ["largest over rounds, by test: here"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for cell, row in found:
        title = ", ".join(filter(None, [cell.label, cell.setting.label]))
        texts = [
            text
            for name in measured
            for text in (number(row.results[name]) if name in row.results else "–", str(columns[name].entry(cell)))
        ]
        lines.append(f"| {' | '.join([title, *texts, str(columns[PEAK].entry(cell))])} |")
    sources = ". ".join(dict.fromkeys(row.source for _, row in found))
    note = "The largest test accuracy over rounds is optimistic: it chooses the round by the test."
    return "\n".join([*lines, "", f"Paper: {sources}. {note}"]) + "\n"


def _options_of(cell: Cell) -> Mapping[str, Any]:
    run = cell.finished[0]
    options: Entries = Overlay(run.options) | cell.options
    return options if cell.rule_label else {key: value for key, value in options.items() if key != "rule"}


def data_of(entries: Mapping[str, Any]) -> list[str]:
    """The data sets that a study reads, without making its cells."""
    blocks = [entries, *(entries.get("grid") or [])]
    found = [value for block in blocks for value in (section(block, "sweep").get("data") or [block.get("data")])]
    return list(dict.fromkeys(str(as_entry(each)["name"]) for each in found if each))


def missing(names: Iterable[str], data_dir: Path | None = None) -> dict[str, str]:
    """Of these data sets those that are not here, and how to get each."""
    found = {}
    for name in names:
        try:
            whereabouts(name, data_dir)
        except ComityError as error:
            found[name] = str(error)
    return found


def states() -> dict[str, dict[str, Any]]:
    """What came of each item, and how long its example takes; docs/make_results.py writes it."""
    stored: dict[str, dict[str, Any]] = json.loads((FOLDER / "states.json").read_text())
    return stored


def overview(data_dir: Path | None = None) -> list[tuple[str, ...]]:
    """One row per table and figure: its name, command, data sets, time and state."""
    known = states()
    rows = []
    for each in items():
        if not each.example:
            rows.append((each.item, "–", "–", "–", each.what))
            continue
        entries = read_yaml(examples()[each.example])
        needs = {scale: data_of(at_scale(entries, scale)) for scale in SCALES if scale in entries or scale == "desk"}
        data = needs.get("paper") or needs["desk"]
        absent = missing(data, data_dir)
        needed = ", ".join(f"{name} (missing)" if name in absent else name for name in data)
        state = known.get(each.item, {})
        rows.append((each.item, each.example, needed, state.get("time", "–"), state.get("state", "not tested")))
    return rows


def differences(cells: Sequence[Config], paper: Sequence[Config], tune: Mapping[str, Any]) -> dict[int, list[str]]:
    """For each cell by its place what no cell of the paper has; the key -1 has what all cells share."""

    def options(config: Config) -> Entries:
        flat = Overlay(config.plain())
        hidden = (*UNTOLD, "seed", "out", "workers", *(["rule"] if has_own_rule(config) else []))
        return {
            key: value
            for key, value in flat.without(hidden).items()
            if key not in tune and key.partition(".")[0] not in ("data_dir",)
        }

    theirs: dict[str, list[str]] = {}
    for config in paper:
        for key, value in options(config).items():
            texts = theirs.setdefault(key, [])
            if (text := show(value, key)) not in texts:
                texts.append(text)
    lines: list[dict[str, str]] = []
    for config in cells:
        own = {}
        for key, value in options(config).items():
            if show(value, key) not in theirs.get(key, []):
                known = theirs.get(key, [])
                listed = ", ".join(known[:MOST_VALUES]) + (", …" if len(known) > MOST_VALUES else "")
                own[key] = f"{key} {show(value, key)}" + (f" (paper: {listed})" if known else "")
        lines.append(own)
    shared = [text for key, text in lines[0].items() if all(each.get(key) == text for each in lines)] if lines else []
    shared += [
        f"{key} chosen by validation among {', '.join(map(str, convert(values, list[str], key)))}"
        f" (paper: {', '.join(map(str, dict.fromkeys(_value(config, key) for config in paper)))})"
        for key, values in tune.items()
        if isinstance(values, (list, tuple))
    ]
    return {-1: shared} | {
        place: rest
        for place, own in enumerate(lines)
        if (rest := [text for text in own.values() if text not in shared])
    }


def _value(config: Config, key: str) -> Any:
    return Overlay(config.plain()).get(key)


def report_differences(
    example: str, entries: Entries, cells: Sequence[Config], names: Names, say: Callable[[str], None]
) -> None:
    """Say what differs from the paper: in all cells, in some of them, and at every scale."""
    whole = read_yaml(examples()[example])
    ours = [each for each in items() if each.example == example]
    if not ours:
        return
    say(f"For {', '.join(each.item for each in ours)}.")
    if "paper" in whole:
        first = {apart_from_seeds(cell).key: cell for cell in reversed(cells) if not cell.is_local}
        kept = list(reversed(first.values()))
        found = differences(kept, expand(at_scale(whole, "paper")), section(entries, "tune"))
        for text in found.pop(-1):
            say(f"  differs: {text}")
        for place, texts in found.items():
            say(f"  {names.title(kept[place]).rpartition(', seed')[0]} differs: {', '.join(texts)}")
    for text in dict.fromkeys(text for each in ours for text in each.differs):
        say(f"  differs: {text}")
