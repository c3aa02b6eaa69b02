"""Writes the table of docs/guard.md, and docs/results/guard.csv, from a study's folder:
``comity reproduce guard --out studies/guard && python docs/make_guard.py studies/guard``.
"""

import csv
import sys
from pathlib import Path

from comity.results.schema import LOSS, OWN, TEST_SAMPLES, UNGUARDED
from comity.results.study import Cell, LoadedStudy

HERE = Path(__file__).parent
CSV = HERE / "results" / "guard.csv"
PAGE = HERE / "guard.md"
START, END = "<!-- made by docs/make_guard.py -->\n", "<!-- end -->\n"


def line(cell: Cell) -> dict[str, str]:
    """One method on one data set: means over clients and seeds in percent, and clients of all seeds counted."""
    shares: dict[str, list[float]] = {"Local": [], "federated": [], "guarded": []}
    behind, beyond = {"federated": 0, "guarded": 0}, 0
    losses: dict[str, list[float]] = {"Local": [], "guarded": []}
    local = cell.setting.local
    for run in cell.finished:
        alone, tests = cell.alone(run), run.by_client(TEST_SAMPLES)
        used = {"Local": alone, "federated": run.by_client(UNGUARDED), "guarded": run.by_client(OWN)}
        for name, accuracy in used.items():
            shares[name] += accuracy.values()
        for name in behind:
            behind[name] += sum((used[name][client] - alone[client]) * tests[client] < -1.5 for client in alone)
        beyond += len(cell.transfers[run.seed].beyond_chance)
        losses["guarded"] += run.by_client(LOSS).values()
        losses["Local"] += local.runs[run.seed].by_client(LOSS).values() if local is not None else []
    entry = {"data": str(cell.setting.options["data"]), "method": cell.method_label.replace(", guarded", "")}
    entry |= {name: f"{100 * sum(each) / len(each):.1f}" for name, each in shares.items()}
    entry |= {f"behind: {name}": str(count) for name, count in behind.items()}
    entry |= {"beyond chance": str(beyond), "clients": str(len(shares["guarded"])), "seeds": str(len(cell.finished))}
    return entry | {f"log-loss: {name}": f"{sum(each) / len(each):.3f}" for name, each in losses.items() if each}


def table(lines: list[dict[str, str]]) -> str:
    head = ["data", "method", "Local on all", "federated", "guarded", "behind Local by more than one test sample"]
    head += ["of these beyond chance", "log-loss: Local → guarded"]
    rows = [" | ".join(head), " | ".join(["---"] * 2 + ["---:"] * (len(head) - 2))]
    for each in lines:
        behind = f"{each['behind: federated']} → {each['behind: guarded']} of {each['clients']}"
        loss = f"{each['log-loss: Local']} → {each['log-loss: guarded']}"
        numbers = (each[name] for name in ("data", "method", "Local", "federated", "guarded"))
        rows.append(" | ".join([*numbers, behind, each["beyond chance"], loss]))
    return "".join(f"| {row} |\n" for row in rows)


def page(text: str, lines: list[dict[str, str]]) -> str:
    before, _, rest = text.partition(START)
    return before + START + table(lines) + END + rest.partition(END)[2]


def read() -> list[dict[str, str]]:
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        lines = [line(cell) for cell in LoadedStudy(sys.argv[1]).cells if not cell.local and cell.finished]
        CSV.parent.mkdir(exist_ok=True)
        with CSV.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    PAGE.write_text(page(PAGE.read_text(), read()))
