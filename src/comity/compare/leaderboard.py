"""The leaderboard of a benchmark: one row per configuration, one column per federation, and average ranks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from comity._federations import natural
from comity._words import counted, listed, markdown_cell, number
from comity.compare.benchmark import Kind, Result
from comity.compare.ranks import MeanRank, critical_difference, friedman, mean_ranks
from comity.config import LOCAL

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

HEADINGS = ("configuration", "mean rank [95 % CI]", "gains / loses on", "clients worse")
OWN_HEADINGS = ("federation", "gain [95 % CI]", "worse / undecided / not worse", "s per run")


@dataclass(frozen=True)
class Row:
    """One configuration over all federations."""

    configuration: str
    kind: Kind
    rank: MeanRank | None
    """``None`` for controls, and where a result is missing."""
    results: dict[str, Result]
    close: bool
    """Whether its mean rank is within the critical difference of the best."""

    @property
    def stored(self) -> bool:
        return all(result.stored for result in self.results.values())

    @property
    def worse(self) -> int:
        return sum(result.worse for result in self.results.values())

    @property
    def clients(self) -> int:
        return sum(result.clients for result in self.results.values())

    @property
    def gaining(self) -> int:
        """Federations with a mean gain that is significant by itself."""
        return sum(result.direction == "gain" for result in self.results.values())

    @property
    def losing(self) -> int:
        return sum(result.direction == "loss" for result in self.results.values())


class Leaderboard:
    """Results of several configurations on several federations; fresh ones replace stored ones."""

    def __init__(self, results: Iterable[Result], stored: Iterable[Result] = ()) -> None:
        fresh = {(each.federation, each.configuration): each for each in results}
        conditions = {each.federation: each.conditions for each in fresh.values()}
        old = {(each.federation, each.configuration): each for each in stored}
        self.results = {key: each for key, each in old.items() if conditions.get(key[0]) == each.conditions} | fresh
        """By federation and configuration."""
        self.other_conditions = {
            name for (name, _), each in old.items() if conditions.get(name, each.conditions) != each.conditions
        }
        """Federations whose stored results are not shown, because they were made under other conditions."""
        self.federations = list(dict.fromkeys(federation for federation, _ in fresh))

    @cached_property
    def by_configuration(self) -> dict[str, dict[str, Result]]:
        found: dict[str, dict[str, Result]] = {}
        for federation in self.federations:
            for (name, configuration), result in self.results.items():
                if name == federation:
                    found.setdefault(configuration, {})[federation] = result
        return found

    @cached_property
    def ranked(self) -> tuple[list[str], list[str]]:
        """Federations and configurations whose results are complete; ranks are made of these.

        While results are missing, the federation or the configuration that lacks the largest share of them is left out:
        a federation that is under way, or a configuration that does not run everywhere.
        """
        known = self.by_configuration
        names = [name for name, of in known.items() if next(iter(of.values())).kind != "control"]
        federations = list(self.federations)
        while federations and names:
            lacking = {each: sum(each not in known[name] for name in names) / len(names) for each in federations}
            absent = {name: sum(each not in known[name] for each in federations) / len(federations) for name in names}
            worst, most = max(lacking, key=lambda each: lacking[each]), max(absent, key=lambda name: absent[name])
            if not lacking[worst]:
                break
            if lacking[worst] > absent[most]:
                federations.remove(worst)
            else:
                names.remove(most)
        return federations, names

    @cached_property
    def _scores(self) -> list[list[float]]:
        federations, names = self.ranked
        return [[self.by_configuration[name][each].gain for name in names] for each in federations]

    @cached_property
    def critical_difference(self) -> float:
        federations, names = self.ranked
        return critical_difference(len(names), max(1, len(federations)))

    @cached_property
    def p_value(self) -> float:
        """p-value of equal ranks of all configurations (Friedman's test)."""
        return friedman(self._scores) if self._scores else 1.0

    @cached_property
    def rows(self) -> list[Row]:
        """Rows by mean rank, then rows without a rank, then controls."""
        names = self.ranked[1]
        known = dict(zip(names, mean_ranks(self._scores), strict=True)) if names and self._scores else {}
        best = min((rank.mean for rank in known.values()), default=math.nan)
        rows = []
        for name, results in self.by_configuration.items():
            rank = known.get(name)
            close = rank is not None and rank.mean - best <= self.critical_difference
            rows.append(Row(name, next(iter(results.values())).kind, rank, results, close))
        return sorted(rows, key=lambda row: (row.kind == "control", row.rank.mean if row.rank else math.inf))

    @property
    def own(self) -> list[Row]:
        """Configurations that were run here, if others are stored."""
        rows = self.rows if any(row.stored for row in self.rows) else []
        return [row for row in rows if row.kind == "configuration" and not row.stored]

    @property
    def metrics(self) -> dict[str, str]:
        """The metric that decides, by federation."""
        return {each.federation: each.measured.label for each in self.results.values()}

    # In words and as text.

    @property
    def answer(self) -> str:
        """Sentence about the user's own configurations, and the best one by rank, with its significance."""
        ranked = [row for row in self.rows if row.rank is not None]
        if not ranked:
            return "No configuration is complete yet."
        first = ranked[0]
        assert first.rank is not None
        others, critical = sum(row.close for row in ranked) - 1, number(self.critical_difference, 1)
        words = f"{first.configuration} has the best mean rank, {_rank(first.rank)} of {len(ranked)}"
        words += f" over {len(self.ranked[0])} federations" if len(self.ranked[0]) > 1 else ""
        if self.critical_difference >= len(ranked) - 1 > 0:
            words += f"; with so few federations no difference is significant (critical difference {critical})"
        elif others:
            words += f"; {others} others are within the critical difference of {critical}"
        return " ".join([*map(self._place, self.own), f"{words}."])

    def _place(self, row: Row) -> str:
        rank = "no mean rank" if row.rank is None else f"mean rank {_rank(row.rank)} of {len(self.ranked[1])}"
        return (
            f"{row.configuration} has {rank}. Its mean gain over local training is significant on {row.gaining} of "
            f"{counted(len(row.results), 'federation')}, its mean loss on {row.losing}; {row.worse} of "
            f"{counted(row.clients, 'client')} are worse."
        )

    @property
    def notes(self) -> list[str]:
        seeds = sorted({each.seeds for each in self.results.values() if not each.stored})
        federations, names = self.ranked
        runs = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "0"
        notes = [
            f"{runs} seeds per configuration; three consecutive seeds test each sample once. Gains are in points of "
            "the metric that decides on each federation, or in its own unit, with 95 % confidence intervals.",
            "Clients: worse / undecided / not worse, each against its own local training, corrected for all clients.",
            "Metrics differ, so gains are not averaged over federations; ranks are. In brackets: 95 % interval by a "
            "bootstrap over federations.",
            f"Critical difference (Nemenyi, 5 %): {number(self.critical_difference, 1)} among {len(names)} rows on "
            f"{counted(len(federations), 'federation')}; Friedman's test: p = {self.p_value:.2g}. A * marks mean ranks "
            "that are worse than the best by more than the critical difference.",
        ]
        if numeric := [each for each in self.federations if each in natural() and natural()[each].thresholds]:
            asked = listed(f"{each} ({', '.join(map(str, natural()[each].thresholds))})" for each in numeric)
            notes.append(
                f"Numeric targets are divided into classes at these thresholds, as comity has no regression: {asked}."
            )
        if old := sorted({each.seeds for each in self.results.values() if each.stored}):
            shown = f"{old[0]}" if len(old) == 1 else f"{old[0]} to {old[-1]}"
            notes.append(
                f"Rows marked “stored” were not run here: they are the committed leaderboard's ({shown} seeds)."
            )
        if self.other_conditions:
            notes.append(
                f"Stored results of {listed(sorted(self.other_conditions))} are not shown: other conditions than here."
            )
        if left := [each for each in self.federations if each not in federations]:
            notes.append(f"Not in the ranks, because results are missing: {listed(left)}.")
        return notes

    def markdown(self) -> str:
        """The ranks, and one table with gains and clients for each federation."""
        heads = [*HEADINGS, *self.federations]
        lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
        units = [self.metrics.get(each, "") for each in self.federations]
        lines.append(f"| *metric* | | | | {' | '.join(f'*{unit}*' for unit in units)} |")
        for row in self.rows:
            cells = [self._cell(row.results.get(each)) for each in self.federations]
            lines.append(f"| {' | '.join([*map(markdown_cell, self.row_texts(row)), *cells])} |")
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.box import SIMPLE
        from rich.table import Table
        from rich.text import Text

        for row in self.own:
            cells = Table(title=Text(row.configuration), title_justify="left", title_style="bold", box=SIMPLE)
            cells.padding, cells.pad_edge, cells.show_edge = (0, 1, 0, 0), False, False
            for heading in OWN_HEADINGS:
                cells.add_column(heading, justify="left" if heading == OWN_HEADINGS[0] else "right", no_wrap=True)
            for name, result in row.results.items():
                tally = Text(result.tally, style="red" if result.worse else "")
                cells.add_row(Text(name), result.interval, tally, number(result.seconds, 1))
            yield cells
            yield Text()
        own = {row.configuration for row in self.own}
        drawn = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        drawn.pad_edge = drawn.show_edge = False
        for heading in HEADINGS:
            drawn.add_column(heading, justify="left" if heading == HEADINGS[0] else "right", no_wrap=True)
        for row in self.rows:
            name, rank, balance, worse = self.row_texts(row)
            style = "red" if row.worse else "dim" if row.kind == "control" else ""
            bold = "bold" if row.configuration in own else ""
            drawn.add_row(Text(name), rank, balance, Text(worse, style=style), style=bold)
        yield drawn
        for note in self.notes:
            yield Text(note, style="dim")

    def row_texts(self, row: Row) -> tuple[str, str, str, str]:
        """Name, rank, federations with a significant gain or loss, and clients that are worse."""
        name = f"{row.configuration} (stored)" if row.stored else row.configuration
        rank = "–" if row.rank is None else _rank(row.rank) + ("" if row.close else " *")
        balance = "–" if row.configuration == LOCAL else f"{row.gaining} / {row.losing}"
        return name, rank, balance, f"{row.worse} of {row.clients}" if row.clients else "–"

    @staticmethod
    def _cell(result: Result | None) -> str:
        if result is None:
            return "–"
        return result.interval + (f"<br>{result.tally}" if result.tally else "")


def _rank(rank: MeanRank) -> str:
    interval = "" if rank.low is None or rank.high is None else f" [{number(rank.low, 1)}, {number(rank.high, 1)}]"
    return number(rank.mean, 1) + interval
