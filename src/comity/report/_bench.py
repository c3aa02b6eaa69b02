"""The page of a benchmark: ranks, one row per configuration, one column per federation, and all clients below."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from comity import __version__
from comity._labels import slug
from comity._words import counted, number
from comity._write import write_text
from comity.compare import (
    ClientRow,
    FederationClients,
    Leaderboard,
    LoadedStudy,
    Result,
    Row,
    benchmark_clients_csv,
    benchmark_studies,
    clients_of,
    read_results,
    results_csv,
    results_of,
)
from comity.metrics import Metric
from comity.report._assets import styles
from comity.report._page import templates

FOLDS = 3
"""Number of seeds that test each sample once: configurations with fewer are not shown yet."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STRONG = 0.6
"""Colour strength of the largest gain or loss of a table."""


@dataclass(frozen=True)
class Benchmark:
    """The leaderboard of a benchmark's folder, with its clients."""

    board: Leaderboard
    clients: list[FederationClients]
    setup: dict[str, str]
    remarks: list[str] = field(default_factory=list)


def read_benchmark(out: str | Path, stored: Path | None = None, remarks: Sequence[str] = ()) -> Benchmark:
    """The results so far of the studies in a benchmark's folder, next to the stored results of an earlier one."""
    results: list[Result] = []
    clients: list[FederationClients] = []
    setup: dict[str, dict[str, None]] = {}
    seconds, tuned = 0.0, []
    for name, folder in benchmark_studies(out).items():
        study = LoadedStudy(folder)
        tuned += [search.at_an_end for search in study.tuning]
        data = str(study.settings[0].options.get("data")) if study.settings else name
        name = data if slug(data) == name else name
        least = min(FOLDS, max((len(cell.finished) for cell in study.cells), default=0))
        results += results_of(name, study, least)
        found = clients_of(name, study, least) if study.settings else None
        clients += [found] if found is not None else []
        for run in study.runs:
            if run.result is not None:
                seconds += run.result.seconds.train + run.result.seconds.aggregate + run.result.seconds.evaluate
                machine = run.result.machine
                known = run.result.versions | {key: machine.get(key) for key in ("python", "system", "cores")}
                for key, value in known.items():
                    if value is not None:
                        setup.setdefault(key, {})[str(value)] = None
    about = {key: ", ".join(values) for key, values in setup.items()} | {"core hours": number(seconds / 3600, 1)}
    about |= {"rates at an end of those tried": f"{sum(tuned)} of {len(tuned)}"} if tuned else {}
    earlier = read_results(stored) if stored is not None and stored.is_file() else []
    return Benchmark(Leaderboard(results, earlier), clients, about, list(remarks))


def write_benchmark(out: str | Path, stored: Path | None = None, remarks: Sequence[str] = ()) -> Benchmark:
    """Write ``leaderboard.html``, ``.md``, ``.csv`` and, with matplotlib, ``.png`` to a benchmark's folder."""
    folder, found = Path(out), read_benchmark(out, stored, remarks)
    write_text(folder / "leaderboard.csv", results_csv(found.board.results.values()))
    write_text(folder / "clients.csv", benchmark_clients_csv(found.clients))
    write_text(folder / "leaderboard.md", found.board.markdown())
    write_text(folder / "leaderboard.html", bench_page(found))
    if find_spec("matplotlib") is not None:
        draw_benchmark(found, folder / "leaderboard.png")
    return found


def draw_benchmark(found: Benchmark, file: Path, beside: str | None = None) -> None:
    """Draw each client's gain by federation as PNG: FedAvg next to the configuration ``beside``; needs matplotlib."""
    from comity.report._bench_figure import draw_clients

    draw_clients(found.board, found.clients, file, beside)


def _title(ranked: Sequence[Row]) -> str:
    """The winner, if there is one: the first row, if no other is within the critical difference."""
    if len(ranked) < 2:
        return "Benchmark"
    if sum(row.close for row in ranked) > 1:
        return "No clear winner"
    return f"Best mean rank: {ranked[0].configuration}"


def bench_page(found: Benchmark) -> str:
    """One self-contained HTML page, light or dark, without a script."""
    board = found.board
    ranked = [row for row in board.rows if row.rank is not None]
    conditions = list(dict.fromkeys(each.conditions for each in board.results.values()))
    return (
        templates()
        .get_template("bench.html")
        .render(
            title=_title(ranked),
            policy=POLICY,
            styles=styles(),
            board=board,
            ranked=ranked,
            place=_Places(len(ranked), board.critical_difference),
            tables=[_Heat.of(each) for each in found.clients],
            remarks=found.remarks,
            setup=found.setup,
            conditions=conditions,
            counts={
                "federations": counted(len(board.federations), "federation"),
                "clients": counted(_clients(board.results), "client"),
            },
            version=__version__,
        )
    )


def _clients(results: Mapping[tuple[str, str], Result]) -> int:
    most: dict[str, int] = {}
    for (federation, _), result in results.items():
        most[federation] = max(most.get(federation, 0), result.clients)
    return sum(most.values())


@dataclass(frozen=True)
class _Places:
    """Positions of ranks, in percent of the width."""

    count: int
    critical: float

    def __call__(self, rank: float | None) -> float:
        return 0.0 if rank is None else round(100 * (rank - 1) / max(1, self.count - 1), 2)

    @property
    def width(self) -> float:
        return min(100.0, round(100 * self.critical / max(1, self.count - 1), 2))


@dataclass(frozen=True)
class _Heat:
    """Heat map of gains over local training: one row per client, one column per configuration."""

    name: str
    metric: Metric
    configurations: list[str]
    rows: list[tuple[str, str, str, list[dict[str, str] | None]]]
    """Client, samples, local score, and one cell per configuration."""

    @classmethod
    def of(cls, each: FederationClients) -> "_Heat":
        metric, names = each.metric, list(each.configurations)
        clients = sorted({client for rows in each.configurations.values() for client in rows})
        every = [abs(row.gain) for rows in each.configurations.values() for row in rows.values()]
        largest = sorted(every)[int(0.95 * (len(every) - 1))] if every else 1.0
        found = []
        for client in clients:
            mine = [rows.get(client) for rows in each.configurations.values()]
            first = next(row for row in mine if row is not None)
            digits = 1 if metric.unit == "%" else metric.digits
            local = number(metric.points * first.local, digits)
            cells = [None if row is None else _heat_cell(row, metric, largest or 1.0) for row in mine]
            found.append((client, f"{first.train:.0f} + {first.tests}", local, cells))
        return cls(each.federation, metric, names, found)


def _heat_cell(row: ClientRow, metric: Metric, largest: float) -> dict[str, str]:
    digits = 0 if metric.unit == "%" else max(0, metric.digits - 1)
    gain, low, high = (metric.points * value for value in (row.gain, row.low, row.high))
    share = 0.0 if math.isnan(row.gain) else min(1.0, abs(row.gain) / largest)
    words = f"{number(gain, digits + 1, sign=True)}"
    if math.isfinite(low) and math.isfinite(high):
        words += f" [{number(low, digits + 1, sign=True)}, {number(high, digits + 1, sign=True)}]"
    return {
        "text": number(gain, digits, sign=True),
        "title": f"{words}, {row.state}",
        "state": row.state.replace(" ", "-"),
        "strength": f"{100 * STRONG * share:.0f}%",
        "side": "harm" if row.gain < 0 else "good",
    }
