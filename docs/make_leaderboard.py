"""The numbers of docs/explanation/leaderboard.md, from the committed results of ``comity bench``.

python docs/make_leaderboard.py runs/leaderboard    # merges a benchmark's run folders; it need not be finished
"""

import csv
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import measured

from comity._federations import natural
from comity._words import counted, listed, markdown_cell, number
from comity.compare import (
    ClientRow,
    FederationClients,
    Leaderboard,
    Result,
    Row,
    benchmark_clients_csv,
    read_results,
    results_csv,
)
from comity.metrics import DECIDING
from comity.report import draw_benchmark, read_benchmark
from comity.studies import LEADERBOARD

CLIENTS = measured.FOLDER / "leaderboard-clients.csv"
SETUP = measured.FOLDER / "leaderboard.json"
PICTURE = measured.DOCS / "images" / "leaderboard.png"
EMPTY = "*The benchmark has not been run yet.*"


def keep(folder: Path) -> None:
    """Merge a benchmark's folder, which is only read, into the committed results: its federations replace theirs."""
    found = read_benchmark(folder)
    old = read_results(LEADERBOARD, stored=False) if LEADERBOARD.is_file() else []
    seeds = {each.federation: each.seeds for each in old}
    rows = [each for each in found.board.results.values() if each.seeds >= seeds.get(each.federation, 0)]
    new = Leaderboard(rows).ranked[0]  # a federation that is under way has some configurations, or fewer seeds
    results = [each for each in old if each.federation not in new]
    clients = read_clients({each.federation: each.metric for each in results})
    results += [each for each in rows if each.federation in new]
    clients += [each for each in found.clients if each.federation in new]
    results.sort(key=lambda each: each.federation)
    clients.sort(key=lambda each: each.federation)
    # Hours and searches of results that are replaced still count, unless all of their batch are.
    batches = json.loads(SETUP.read_text()) if SETUP.is_file() else []
    batches = [each for each in batches if not set(each["federations"]) <= set(new)]
    batches.append({"federations": new, **found.setup})
    LEADERBOARD.write_text(results_csv(results))
    CLIENTS.write_text(benchmark_clients_csv(clients))
    SETUP.write_text(json.dumps(batches, indent=2, ensure_ascii=False) + "\n")
    draw_benchmark(replace(found, board=Leaderboard(results), clients=clients), PICTURE, "FedAvg, guarded")
    board.cache_clear()


def read_clients(metrics: Mapping[str, str]) -> list[FederationClients]:
    """The committed clients of some federations, whose metrics are given."""
    found = {name: FederationClients(name, DECIDING[metric], {}) for name, metric in metrics.items()}
    for row in csv.DictReader(CLIENTS.read_text().splitlines()) if found else ():
        if (federation := row.pop("federation")) in found:
            rows = found[federation].configurations.setdefault(row.pop("configuration"), {})
            name, state = row.pop("client"), row.pop("state")
            numbers: dict[str, Any] = {key: float(value) for key, value in row.items()}
            more: dict[str, Any] = {"seed": None, "detectable": math.nan, "constant": False, "state": state}
            rows[name] = ClientRow(client=len(rows), name=name, **numbers, **more)
    return list(found.values())


@cache
def board() -> Leaderboard | None:
    return Leaderboard(read_results(LEADERBOARD, stored=False)) if LEADERBOARD.is_file() else None


def leaderboard_ranks() -> str:
    """One row per configuration: mean rank, federations with a significant gain or loss, clients that are worse."""
    found = board()
    if found is None:
        return EMPTY
    lines = [
        "| configuration | mean rank [95 % CI] | gains / loses on | clients worse | s per run |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in found.rows:
        seconds = [each.seconds for each in row.results.values() if each.seconds == each.seconds]
        cost = number(median(seconds), 1) if seconds else "–"  # some federations ran on a busier machine
        lines.append(f"| {' | '.join([*map(markdown_cell, found.row_texts(row)), cost])} |")
    return "\n".join(lines)


def leaderboard_gains() -> str:
    """One row per configuration, one column per federation: gain in points, bold if significant; clients worse."""
    found = board()
    if found is None:
        return EMPTY
    heads = [f"{name}<br>*{found.metrics[name]}*" for name in found.federations]
    lines = [f"| configuration | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for row in found.rows:
        cells = [_cell(row.results.get(name)) for name in found.federations]
        lines.append(f"| {markdown_cell(row.configuration)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None:
        return "–"
    gain = result.text(result.gain)
    gain = gain if result.direction == "noise" else f"**{gain}**"
    return f"{gain} ({result.worse})" if result.worse else gain


def leaderboard_notes() -> str:
    """The notes of ``comity bench`` but for those that the page itself says."""
    found = board()
    kept = (
        [] if found is None else [each for each in found.notes if not each.startswith(("Clients:", "Metrics differ"))]
    )
    return "\n".join(f"- {note}" for note in kept)


def leaderboard_count(configuration: str, what: str) -> str:
    """A number of one row in words: ``worse``, ``gaining`` or ``losing``."""
    row = _row(configuration)
    if row is None:
        return "–"
    return f"{row.worse} of {counted(row.clients, 'client')}" if what == "worse" else str(getattr(row, what))


def leaderboard_rank(configuration: str) -> str:
    row, found = _row(configuration), board()
    return "–" if row is None or found is None else found.row_texts(row)[1]


def leaderboard_gain(configuration: str, federation: str) -> str:
    """Mean gain over local training on one federation, with its interval."""
    row = _row(configuration)
    return "–" if row is None or federation not in row.results else row.results[federation].interval


def leaderboard_size() -> str:
    found = board()
    if found is None:
        return EMPTY
    clients = max(row.clients for row in found.rows)
    return f"{len(found.federations)} federations with {clients} clients"


def leaderboard_embedded(configuration: str) -> str:
    """Clients that are worse in the federations that come with comity, and how many there are."""
    row, shipped = _row(configuration), {"heart", *(name for name, each in natural().items() if each.embedded)}
    if row is None:
        return "–"
    results = [each for name, each in row.results.items() if name in shipped]
    return f"{sum(each.worse for each in results)} of {counted(sum(each.clients for each in results), 'client')}"


def _row(configuration: str) -> Row | None:
    found = board()
    return None if found is None else next((row for row in found.rows if row.configuration == configuration), None)


def leaderboard_answer() -> str:
    found = board()
    return EMPTY if found is None else found.answer


def leaderboard_setup() -> str:
    """Conditions, hardware, versions, seeds and hours in one paragraph."""
    found = board()
    if found is None or not SETUP.is_file():
        return EMPTY
    batches = json.loads(SETUP.read_text())
    for each in batches:
        each.pop("federations")
    hours = sum(float(each.pop("core hours")) for each in batches)
    ends = [each.pop("rates at an end of those tried", "0 of 0").split(" of ") for each in batches]
    at_an_end, searches = (sum(map(int, counts)) for counts in zip(*ends, strict=True))
    known = {name: listed(sorted({each[name] for each in batches if name in each})) for name in batches[-1]}
    again = ", including runs that were repeated" if len(batches) > 1 else ""
    seeds = sorted({each.seeds for each in found.results.values()})
    shown = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    federations: dict[str, set[str]] = {}
    for each in found.results.values():
        federations.setdefault(each.conditions, set()).add(each.federation)
    most, *fewer = sorted(federations, key=lambda text: -len(federations[text]))
    others = [f"; {listed(sorted(federations[text]))} {_difference(text, most)}" for text in fewer]
    words = [
        f"{len(found.federations)} federations, {shown} seeds per configuration. The runs took {number(hours, 1)} core "
        f"hours on a machine shared with other programs{again}. The search for learning rates is not counted.",
        "Versions and number of cores: " + ", ".join(f"{name} {value}" for name, value in known.items()) + ".",
        f"Conditions: {most}{''.join(others)}.",
        f"In {at_an_end} of {searches} searches the chosen learning rate is the smallest or largest that was tried; "
        "a better one may lie beyond.",
    ]  # fmt: skip
    return "\n".join(f"- {each}" for each in words)


def _difference(conditions: str, most: str) -> str:
    """How conditions differ from those of most federations: “with rounds=20 and without max_clients”."""
    own, usual = (re.split(", (?=[a-z_.]+=)", text) for text in (conditions, most))
    changed = [each for each in own if each not in usual]
    names = {each.partition("=")[0] for each in own}
    lacking = [name for name in (each.partition("=")[0] for each in usual) if name not in names]
    parts = [f"{word} {listed(each)}" for word, each in (("with", changed), ("without", lacking)) if each]
    return " and ".join(parts)


if __name__ == "__main__":
    import make_results  # which fills pages in

    for folder in sys.argv[1:]:
        make_results.make_leaderboard.keep(Path(folder))
    page = measured.DOCS / "explanation" / "leaderboard.md"
    page.write_text(make_results.page(page.read_text()))
