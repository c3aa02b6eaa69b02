"""The table of docs/guard.md: a line of docs/results/guard.csv from a study's cell, and the table of all lines."""

from measured import grid, number, read

from comity.compare import Cell
from comity.metrics import LOSS, OWN, UNGUARDED
from comity.results import TEST_SAMPLES


def line(cell: Cell) -> dict[str, str]:
    """One method on one data set: means over clients and seeds in percent, and clients of all seeds counted."""
    shares: dict[str, list[float]] = {"Local": [], "federated": [], "guarded": []}
    behind = {"federated": 0, "guarded": 0}
    losses: dict[str, list[float]] = {"Local": [], "guarded": []}
    local = cell.setting.local
    if cell.local:
        return {}
    for run in cell.finished:
        alone, tests = cell.local_values(run), run.by_client(TEST_SAMPLES)
        used = {"Local": alone, "federated": run.by_client(UNGUARDED.key), "guarded": run.by_client(OWN.key)}
        for name, accuracy in used.items():
            shares[name] += accuracy.values()
        for name in behind:
            behind[name] += sum((used[name][client] - alone[client]) * tests[client] < -1.5 for client in alone)
        losses["guarded"] += run.by_client(LOSS.key).values()
        losses["Local"] += local.runs[run.seed].by_client(LOSS.key).values() if local is not None else []
    beyond = len(cell.with_state("worse"))
    entry = {"data": str(cell.setting.options["data"]), "method": cell.method_label.replace(", guarded", "")}
    entry |= {name: f"{100 * sum(each) / len(each):.1f}" for name, each in shares.items()}
    entry |= {f"behind: {name}": str(count) for name, count in behind.items()}
    entry |= {"beyond chance": str(beyond), "clients": str(len(shares["guarded"])), "seeds": str(len(cell.finished))}
    return entry | {f"log-loss: {name}": f"{sum(each) / len(each):.3f}" for name, each in losses.items() if each}


def alone_on_all(data: str) -> str:
    """The accuracy of clients that train alone on all their samples, those for validation too."""
    return next(each["Local"] for each in read("guard.csv") if each["data"] == data)


def guarded() -> str:
    head = ["data", "method", "Local on all", "federated", "guarded", "behind Local by more than one test sample"]
    head += ["of these beyond chance", "log-loss: Local → guarded"]
    rows = []
    for each in read("guard.csv"):
        behind = f"{each['behind: federated']} → {each['behind: guarded']} of {each['clients']}"
        loss = f"{each['log-loss: Local']} → {each['log-loss: guarded']}"
        numbers = (each[name] for name in ("data", "method", "Local", "federated", "guarded"))
        rows.append([*numbers, behind, each["beyond chance"], loss])
    return grid(head, rows, left=2)


def margins(other: str) -> str:
    """In how many settings the guarded mean is above another, the same and below it, and by how much."""
    found = [round(float(each["guarded"]) - float(each[other]), 1) for each in read("guard.csv")]
    above, below = sum(margin > 0 for margin in found), sum(margin < 0 for margin in found)
    words = f"above in {above} of {len(found)}, the same in {len(found) - above - below} and below in {below}"
    return f"{words}, by {number(min(found), 1)} to {number(max(found), 1)} points"


def most_behind(which: str) -> str:
    """The largest count of clients behind Local by more than one test sample."""
    most = max(read("guard.csv"), key=lambda each: int(each[f"behind: {which}"]) / int(each["clients"]))
    return f"{most[f'behind: {which}']} of {most['clients']}"


def named_beyond_chance() -> str:
    """Clients of all settings that are behind Local by more than chance, and in how many settings they are counted."""
    rows = read("guard.csv")
    return f"{sum(int(each['beyond chance']) for each in rows)} in {len(rows)} settings"
