"""The tables of the guard's pages and of how-to/feedback.md, from what benchmarks/guard_natural.py measured."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from measured import DOCS, Row, grid, number, read

from comity.compare import STATES, Cell, Difference, LoadedStudy, Setting
from comity.compare.harm import mean_gain, training_luck
from comity.report import draw_benchmark, read_benchmark

HALVES = ("choosing", "reporting")
GUARDS = {"": "no guard", "mixture": "`mixture`", "certified": "`certified`"}
NATURAL, CANDIDATES = "guard-natural.csv", "guard-candidates.csv"
PICTURE = DOCS / "images" / "natural.png"


# From the folder of the benchmark to docs/results.


def states(folder: Path) -> Iterator[dict[str, object]]:
    """A row for each federation, method and guard, and one for two local models mixed."""
    for path in sorted((folder / "studies").iterdir()):
        study = LoadedStudy(path)
        if study.unfinished or study.damaged:
            continue
        (setting,) = study.settings
        about = {"federation": path.name, "clients": len(setting.runs[0].client_ids), "seeds": len(setting.repeated)}
        about["local"] = f"{setting.local.value.mean:.2f}" if setting.local and setting.local.value else ""
        yield about | {"method": "", "guard": ""} | _numbers(_mixed(setting))
        for cell in setting.cells:
            if not cell.local and (gain := cell.mean_gain) is not None:
                counts = {state: len(cell.with_state(state)) for state in STATES}
                name = {"method": cell.method, "guard": cell.options.get("guard") or ""}
                yield about | name | _numbers(gain) | counts


def _mixed(setting: Setting) -> Difference:
    mean = mean_gain(setting.mixed, training_luck(setting.control, setting.mixed))
    return Difference.of(mean, setting.metric.points, len(setting.repeated))


def _numbers(gain: Difference) -> dict[str, str]:
    return {"gain": f"{gain.mean:.3f}", "low": f"{gain.low:.3f}", "high": f"{gain.high:.3f}"}


def candidates(folder: Path) -> Iterator[dict[str, object]]:
    """A row for each candidate and federation: means over methods and seeds."""
    for half in HALVES:
        with (folder / f"{half}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for name in dict.fromkeys(row["candidate"] for row in rows):
            for federation in dict.fromkeys(row["federation"] for row in rows):
                own = [row for row in rows if (row["candidate"], row["federation"]) == (name, federation)]
                means = {key: f"{fmean(float(row[key]) for row in own):.4f}" for key in ("gain", "log-loss", "behind")}
                yield (
                    {"half": half, "candidate": name, "federation": federation} | means | {"clients": own[0]["clients"]}
                )


# What the page may ask for.


def guard_states() -> str:
    """Gain over Local and the states of the clients, by federation, method and guard."""
    rows = read(NATURAL)
    body = []
    for federation in dict.fromkeys(row["federation"] for row in rows):
        control, *others = [row for row in rows if row["federation"] == federation]
        for method in dict.fromkeys(row["method"] for row in others):
            by_guard = {row["guard"]: row for row in others if row["method"] == method}
            cells = [text for guard in GUARDS for text in (_gain(by_guard[guard]), _counts(by_guard[guard]))]
            body.append([f"{federation} ({control['clients']})", control["local"], _gain(control), method, *cells])
    heads = [text for name in GUARDS.values() for text in (name, "w / u / n")]
    return grid(["federation (clients)", "Local", "two local models mixed", "method", *heads], body, left=1)


def _gain(row: Row) -> str:
    gain, low, high = (number(float(row[key]), 1) for key in ("gain", "low", "high"))
    return f"{gain} [{low}, {high}]"


def _counts(row: Row) -> str:
    return " / ".join(row[state] for state in STATES)


def guard_summary() -> str:
    """One row per guard: means over federations and methods, and clients counted."""
    rows = [row for row in read(NATURAL) if row["method"]]
    body = []
    for guard, name in GUARDS.items():
        own = [row for row in rows if row["guard"] == guard]
        gains, lows, highs = ([float(row[key]) for row in own] for key in ("gain", "low", "high"))
        total = sum(int(row["clients"]) for row in own)
        counts = [f"{sum(int(row[state]) for row in own)}" for state in STATES]
        sure = [str(sum(low > 0 for low in lows)), str(sum(high < 0 for high in highs))]
        body.append([name, number(fmean(gains)), number(min(gains), 1), *sure, *counts, str(total)])
    controls = [float(row["gain"]) for row in read(NATURAL) if not row["method"]]
    body.append(["two local models mixed", number(fmean(controls)), number(min(controls), 1), *["–"] * 6])
    heads = ["", "mean gain", "smallest", "settings with a gain", "with a loss", *STATES, "clients"]
    return grid(heads, body)


def guard_settings() -> str:
    """“45 settings (15 federations × 3 methods)”."""
    rows = read(NATURAL)
    federations, methods = ({row[key] for row in rows if row[key]} for key in ("federation", "method"))
    return f"{len(federations) * len(methods)} settings ({len(federations)} federations × {len(methods)} methods)"


def guard_mean(guard: str) -> str:
    """The mean gain under a guard over all settings; ``control``: of two local models mixed."""
    return number(fmean(_gains(guard)), 1)


def guard_above_control() -> str:
    """In how many settings the mixture gains more than two local models mixed."""
    controls = {row["federation"]: float(row["gain"]) for row in read(NATURAL) if not row["method"]}
    own = [row for row in read(NATURAL) if row["guard"] == "mixture"]
    return f"{sum(float(row['gain']) > controls[row['federation']] for row in own)} of {len(own)}"


def draw(folder: Path) -> None:
    """The README's picture: each client's gain under FedAvg, without and with the guard."""
    draw_benchmark(read_benchmark(folder / "studies"), PICTURE, "FedAvg, guarded")


def guard_count(guard: str, state: str, method: str = "") -> str:
    """Clients in a state, of all; of one ``method`` or of all."""
    own = [
        row for row in read(NATURAL) if row["guard"] == guard and (row["method"] == method if method else row["method"])
    ]
    return f"{sum(int(row[state]) for row in own)} of {sum(int(row['clients']) for row in own)}"


def guard_range(guard: str) -> str:
    """The smallest and the greatest mean gain of a setting."""
    gains = _gains(guard)
    return f"{number(min(gains), 1)} to {number(max(gains), 1)}"


def _gains(guard: str) -> list[float]:
    rows = read(NATURAL)
    if guard == "control":
        return [float(row["gain"]) for row in rows if not row["method"]]
    return [float(row["gain"]) for row in rows if row["method"] and row["guard"] == guard]


def guard_candidates() -> str:
    """Both halves: gain over Local, log-loss, clients behind, and in how many federations above the mixture."""
    rows = read(CANDIDATES)
    names = [name for name in dict.fromkeys(row["candidate"] for row in rows) if name != "local"]
    body = [[name, *(text for half in HALVES for text in _candidate(rows, half, name))] for name in names]
    heads = ("gain", "log-loss", "behind", "above")
    return grid(["", *(f"{half}: {head}" for half in HALVES for head in heads)], body)


def _candidate(rows: Sequence[Row], half: str, name: str) -> Iterable[str]:
    own, base = ([r for r in rows if r["half"] == half and r["candidate"] == n] for n in (name, "mixture"))
    gains = [float(row["gain"]) for row in own]
    losses = [float(row["log-loss"]) for row in own]
    yield number(fmean(gains))
    yield "–" if losses[0] != losses[0] else f"{fmean(losses):.3f}"
    yield f"{sum(float(row['behind']) for row in own):.0f} of {sum(int(row['clients']) for row in own)}"
    above = sum(gain > float(row["gain"]) for gain, row in zip(gains, base, strict=True))
    yield "–" if name == "mixture" else f"{above} of {len(own)}"


def guard_candidate(name: str, half: str, base: str = "") -> str:
    """The mean gain of a candidate on one half, or how much it is above another's."""
    rows = [row for row in read(CANDIDATES) if row["half"] == half]
    own, other = (fmean([float(r["gain"]) for r in rows if r["candidate"] == n] or [0.0]) for n in (name, base))
    return number(own - other)


def line(cell: Cell) -> dict[str, str]:
    """Of the study `guard`: the accuracy of local training on all samples, in percent."""
    if not cell.local or cell.value is None:
        return {}
    return {"data": str(cell.setting.options["data"]), "Local": f"{cell.value.mean:.1f}"}


def alone_on_all(data: str) -> str:
    """The accuracy of clients that train alone on all their samples, those for validation too."""
    return next(each["Local"] for each in read("guard.csv") if each["data"] == data)


def online_streams() -> str:
    """What benchmarks/online_guard.py found on streams with a bad model."""
    rows = read("online-guard.csv")
    head = ["bad model", "in use", "share", "before", "bad third", "after", "all", "alarms", "median labels to alarm"]
    return grid(head, [[each[name] for name in head] for each in rows], left=2)


def online_bets() -> str:
    """The same for both e-processes by themselves."""
    rows = read("online-guard-bets.csv")
    head = ["only the model in use errs", "only the own model errs", *list(rows[0])[2:]]
    return grid(head, [list(each.values()) for each in rows], left=0)
