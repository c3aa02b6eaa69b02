"""The tables and figures of the papers: their examples, published numbers, and differences."""

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
from comity._overlay import Overlay, as_entry
from comity._words import number
from comity.compare import COLUMNS, Cell, LoadedStudy
from comity.config import Config, Entries, read_yaml
from comity.results import flatten, show
from comity.studies._grid import (
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
"""Result columns of the files of published numbers; columns of a study's table have the same names."""
PEAK = "peak"
NOT_IN_PAPER = (
    "No configuration of this study is in the paper's tables, so there are no published numbers to compare with; "
    "--scale paper has the paper's setting."
)
MOST_VALUES = 5  # values of the paper that a line lists
NOT_COMPARED = ("eval_every", "general_every", "reference", "control", "metric", "device")
"""Options of a run about how and where it is evaluated, not listed as differences."""


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    item: str
    example: str = ""
    """The example that reproduces it; empty for a figure that is not an experiment."""
    what: str = ""
    published: tuple[str, ...] = ()
    """The files with its numbers."""
    differs: tuple[str, ...] = ()
    """Differences from the paper at every scale."""


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
    """The options that identify the configuration."""
    results: Mapping[str, float]

    def fits(self, options: Mapping[str, Any]) -> bool:
        return all(is_value(options.get(key, ""), value) for key, value in self.options.items())


@cache
def published(name: str) -> tuple[Published, ...]:
    """The rows of a file: a line with its source, then CSV."""
    source, *lines = (FOLDER / f"{name}.csv").read_text().splitlines()
    rows = []
    for row in csv.DictReader(lines):
        options = {key: value for key, value in row.items() if value and _is_option(key)}
        results = {key: float(row[key]) for key in MEASURED if row.get(key)}
        rows.append(Published(source.removeprefix("# "), options, results))
    return tuple(rows)


def _is_option(key: str) -> bool:
    return key not in MEASURED and not key.endswith(" std") and not key.startswith("client ")


def published_for(example: str) -> list[Published]:
    """The published rows of the tables that an example reproduces."""
    names = dict.fromkeys(name for each in items() if each.example == example for name in each.published)
    return [row for name in names for row in published(name)]


def published_table(study: LoadedStudy, example: str) -> str:
    """Published numbers next to those of a study, as a Markdown table, or a line that says that there are none.

    Empty if the example reproduces no table, or no run is finished.
    """
    rows, cells = published_for(example), [cell for cell in study.cells if cell.finished]
    found = [(cell, row) for cell in cells for row in rows if row.fits(_options_of(cell))]
    if not found:
        return f"{NOT_IN_PAPER}\n" if rows and cells else ""
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
    """The data sets that a study reads, without expanding its cells."""
    blocks = [entries, *(entries.get("grid") or [])]
    found = [value for block in blocks for value in (section(block, "sweep").get("data") or [block.get("data")])]
    return list(dict.fromkeys(str(as_entry(each)["name"]) for each in found if each))


def missing(names: Iterable[str], data_dir: Path | None = None) -> dict[str, str]:
    """The data sets that are missing, and how to get each."""
    found = {}
    for name in names:
        try:
            whereabouts(name, data_dir)
        except ComityError as error:
            found[name] = str(error)
    return found


def states() -> dict[str, dict[str, Any]]:
    """Outcomes of the claims on each item, and the time of its example; written by docs/make_results.py."""
    stored: dict[str, dict[str, Any]] = json.loads((FOLDER / "states.json").read_text())
    return stored


@dataclass(frozen=True)
class Row:
    """One line of ``comity reproduce --list``."""

    item: str
    example: str
    needs: tuple[str, ...]
    """The data sets at the paper's scale."""
    missing: tuple[str, ...]
    desk: str
    paper: str
    claims: tuple[str, ...]
    """The outcome of each claim."""
    what: str

    @property
    def marks(self) -> str:
        """One character per claim."""
        return "".join(next(mark for mark, word in MARKS.items() if each.startswith(word)) for each in self.claims)


MARKS = {"~": "shown in part", "✓": "shown", "✗": "contradicted", "○": "no effect larger than", "·": "not tested"}


def times_of(known: Mapping[str, Any]) -> tuple[str, str]:
    """Time on one core at desk scale and at the paper's."""
    desk = f"{known['minutes']} min" if "minutes" in known else "–"
    hours = known.get("hours", 0)
    days = round(hours / 24)
    paper = f"{hours} h" if hours < 100 else f"{days} d" if days < 1000 else f"{round(days / 365)} years"
    return desk, paper if hours else "–"


def overview(data_dir: Path | None = None) -> list[Row]:
    """One row per table and figure."""
    known = states()
    rows = []
    for each in items():
        needs: Sequence[str] = ()
        if each.example:
            entries = read_yaml(examples()[each.example])
            needs = data_of(at_scale(entries, "paper" if "paper" in entries else "desk"))
        state = known.get(each.item, {})
        absent, claims = missing(needs, data_dir), tuple(state.get("claims", ()))
        rows.append(Row(each.item, each.example, tuple(needs), tuple(absent), *times_of(state), claims, each.what))
    return rows


def differences(cells: Sequence[Config], paper: Sequence[Config], hidden: Iterable[str] = ()) -> list[list[str]]:
    """For each cell the options that differ from every paper cell: ``rounds 50 (paper: 500)``; without ``hidden``."""
    left_out = (*NOT_COMPARED, *hidden)

    def options(config: Config) -> dict[str, str]:
        flat = flatten(config.plain(), own_rule=has_own_rule(config))
        return {key: show(value, key) for key, value in flat.items() if key not in left_out}

    theirs: dict[str, dict[str, None]] = {}
    for config in paper:
        for key, text in options(config).items():
            theirs.setdefault(key, {})[text] = None

    def in_words(key: str, text: str) -> str:
        known = list(theirs.get(key, ()))
        listed = ", ".join(known[:MOST_VALUES]) + (", …" if len(known) > MOST_VALUES else "")
        return f"{key} {text}" + (f" (paper: {listed})" if known else "")

    return [
        [in_words(*each) for each in options(config).items() if each[1] not in theirs.get(each[0], ())]
        for config in cells
    ]


def searched(tune: Mapping[str, Any], paper: Mapping[str, Any], cells: Sequence[Config]) -> list[str]:
    """Options that are tuned here, and not among the same values in the paper."""
    texts = []
    for key, values in tune.items():
        if values != (known := paper.get(key)):
            there = dict.fromkeys(show(Overlay(config.plain()).get(key), key) for config in cells)
            of = f"chosen among {show(known)}" if known else ", ".join(there)
            texts.append(f"{key} chosen by validation among {show(values).replace('×', ', ')} (paper: {of})")
    return texts


def report_differences(
    example: str, entries: Entries, cells: Sequence[Config], names: Names, say: Callable[[str], None]
) -> None:
    """Report differences from the paper: in all cells, in some of them, and at every scale."""
    ours = [each for each in items() if each.example == example]
    if not ours:
        return
    lines = [f"  {text}" for text in _differences_in_words(example, entries, cells, names)]
    lines += [f"  at every scale: {text}" for text in dict.fromkeys(text for each in ours for text in each.differs)]
    known = "What differs from the paper:" if lines else "No difference from the paper's setting is known."
    for line in (f"For {', '.join(each.item for each in ours)}. {known}", *lines):
        say(line)
    rows, joined = published_for(example), [cell for cell in cells if not cell.is_local]
    flat = [flatten(cell.plain(), own_rule=has_own_rule(cell)) for cell in joined]
    if rows and not any(row.fits(options) for row in rows for options in flat):
        say(NOT_IN_PAPER)


def _differences_in_words(example: str, entries: Entries, cells: Sequence[Config], names: Names) -> Iterable[str]:
    """Differences of all cells, then of some."""
    whole = read_yaml(examples()[example])
    if "paper" in whole:
        theirs = at_scale(whole, "paper")
        first = {apart_from_seeds(cell).key: cell for cell in reversed(cells) if not cell.is_local}
        kept, paper, tune = list(reversed(first.values())), expand(theirs), section(entries, "tune")
        found = differences(kept, paper, tune)
        shared = [text for text in found[0] if all(text in texts for texts in found)]
        for text in (*shared, *searched(tune, section(theirs, "tune"), paper)):
            yield f"all cells: {text}"
        some: dict[str, list[str]] = {}
        for cell, texts in zip(kept, found, strict=True):
            for text in texts:
                some.setdefault(text, []).append(names.title(cell).rpartition(", seed")[0])
        for text, titles in some.items():
            if text not in shared:
                others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
                yield f"{titles[0]}{others}: {text}"
