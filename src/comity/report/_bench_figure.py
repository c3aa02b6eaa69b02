"""The figure of a benchmark: each client's gain over local training by federation, with harmed clients marked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comity._write import atomically
from comity.compare import FederationClients, Leaderboard
from comity.report._assets import themes

THEME = themes()["light"]
COLOURS = {"undecided": THEME["faint"], "not worse": THEME["gain"], "worse": THEME["harm"]}
FIRST = "FedAvg"
LIMIT = 30.0
"""Points at which gains are clipped, so that one client does not flatten all others."""


def draw_clients(
    board: Leaderboard, clients: Sequence[FederationClients], file: Path, beside: str | None = None
) -> Path:
    """Draw FedAvg next to another configuration; federations are sorted by the mean gain of the first one.

    The other one is ``beside``, by default the one with the best mean rank. Without FedAvg, the other one is drawn.
    """
    known = [each for each in clients if each.metric.unit == "%"]
    every = {name for each in known for name in each.configurations}
    drawable = [row.configuration for row in board.rows if row.configuration in every]
    best = next((name for name in drawable if name != FIRST), None)
    shown = [name for name in (FIRST, beside or best) if name in drawable]
    if not shown:
        return file
    known = [each for each in known if all(name in each.configurations for name in shown)]
    known = sorted(known, key=lambda each: float(np.mean(_gains(each, shown[0]))))
    with style.context("comity.report.assets.paper"):
        figure = Figure(figsize=(1.6 + 3.4 * len(shown), 1.0 + 0.27 * len(known)), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True, sharex=True))
        for axes, name in zip(panels, shown, strict=True):
            _panel(axes, name, known)
        panels[0].set_yticks(range(len(known)), [each.federation.replace("_", " ") for each in known])
        clipped = any(abs(gain) > LIMIT for each in known for name in shown for gain in _gains(each, name))
        words = "gain over local training of each client, points" + f" (clipped at ±{LIMIT:.0f})" * clipped
        figure.supxlabel(words, fontsize="medium")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False)
        with atomically(file) as part:
            figure.savefig(part, dpi=200, format="png")
    return file


def _gains(each: FederationClients, name: str) -> list[float]:
    return [100 * row.gain for row in each.configurations[name].values()]


def _panel(axes: Axes, name: str, known: Sequence[FederationClients]) -> None:
    axes.axvline(0, color=THEME["ink"], linewidth=0.8)
    for state, colour in COLOURS.items():
        rows = [
            (place, row) for place, each in enumerate(known) for row in each.configurations[name].values()
            if row.state == state
        ]  # fmt: skip
        gains = np.clip([100 * row.gain for _, row in rows], -LIMIT, LIMIT)
        size = 20 if state == "worse" else 9
        axes.scatter(gains, [place for place, _ in rows], s=size, color=colour, alpha=0.8, linewidth=0, label=state)
    means = [float(np.mean(_gains(each, name))) for each in known]
    axes.scatter(np.clip(means, -LIMIT, LIMIT), range(len(known)), marker="|", s=110, color=THEME["ink"], label="mean")
    worse = sum(row.state == "worse" for each in known for row in each.configurations[name].values())
    count = sum(len(each.configurations[name]) for each in known)
    axes.set_title(f"{name}: {worse} of {count} clients worse", fontsize="medium", loc="left")
    axes.set_xlim(-LIMIT * 1.04, LIMIT * 1.04)
    axes.set_ylim(-0.7, len(known) - 0.3)
    axes.grid(axis="x", color=THEME["line"])
    axes.set_axisbelow(True)
