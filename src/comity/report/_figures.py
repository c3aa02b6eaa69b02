"""Four figures for a paper as PDF and PNG, without titles; the page can save all other plots as SVG.

convergence  the metric that decides over rounds
some         accuracy on their own and some other clients' tests over rounds (FedPG, Figures 1 and 2)
clients      the metric that decides, per client, of every method and rule (FedCALM, Figure 9)
weights      the rule's coefficients, clients × rounds for each layer (FedCALM, Figures 6 and 7)
"""

import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colors, style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comity._write import atomically
from comity.compare import Cell, LoadedStudy, Setting
from comity.config import MEAN
from comity.report._assets import themes
from comity.report._curves import curve_of
from comity.report._payload import curves
from comity.report._series import Floats, coefficients
from comity.report._words import opened_at
from comity.results import LoadedRun

COLUMN, PAGE = 3.4, 7.0  # inches: one column of a two-column paper, and both
WEIGHT_ROUNDS = 500  # columns of a heat map
ENDS = 3  # layers drawn at either end of a deep network
THEME = themes()["light"]
DASHES = {"plain": (0, (4, 2.5)), "local": (0, (1, 1.5)), "rules": ["-", (0, (1, 1.8)), "-.", (0, (7, 2))]}
DPI = 300


def draw(study: LoadedStudy, folder: Path) -> list[Path]:
    """Draw the figures that the study has data for, and return the PDFs; weights are those of the recommended cell."""
    folder.mkdir(parents=True, exist_ok=True)
    opened, drawn = opened_at(study), []
    with style.context("comity.report.assets.paper"):
        for setting in study.settings:
            cell = opened if setting is opened.setting else _focus(setting)
            suffix = f"-{re.sub(r'[^A-Za-z0-9.]+', '-', setting.label).strip('-.')}" if len(study.settings) > 1 else ""
            metric = setting.metric
            label = f"{metric.label}, %" if metric.unit == "%" else metric.label
            figures = {
                "convergence": _lines(setting, curve_of(metric), label, metric.points),
                "some": _lines(setting, "S", "accuracy on own and some others' tests (S-acc), %", 100),
                "clients": _clients(setting, label),
                "weights": _weights(cell.shown_runs[0]) if cell.shown_runs else None,
            }
            for name, figure in figures.items():
                if figure is not None:
                    drawn.append(_save(figure, folder / f"{name}{suffix}.pdf"))
    return drawn


class Picture(Figure):
    """A figure that a notebook displays."""

    def _repr_png_(self) -> bytes:
        made = io.BytesIO()
        self.savefig(made, dpi=DPI // 2, format="png")
        return made.getvalue()


def gain(cell: Cell) -> Picture:
    """Each client's gain over local training with its 95 % interval, best first."""
    rows, metric = sorted(cell.clients, key=lambda row: row.gain), cell.setting.metric
    colours = {"worse": THEME["harm"], "not worse": THEME["gain"], "undecided": THEME["faint"]}
    with style.context("comity.report.assets.paper"):
        figure = Picture(figsize=(PAGE * 0.7, 0.8 + 0.22 * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=THEME["ink"], linewidth=0.8)
        for state, colour in colours.items():
            mine = [(place, row) for place, row in enumerate(rows) if row.state == state]
            middle = [metric.points * row.gain for _, row in mine]
            ends = [[metric.points * abs(row.gain - end) for end in (row.low, row.high)] for _, row in mine]
            axes.errorbar(
                middle,
                [place for place, _ in mine],
                xerr=np.array(ends).reshape(-1, 2).T,
                fmt="o",
                color=colour,
                label=state,
            )
        axes.set_yticks(range(len(rows)), [str(row) for row in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set(xlabel=f"gain in {metric.label}{', points' if metric.unit == '%' else ''}, {cell.label}")
        axes.grid(axis="y", visible=False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _focus(setting: Setting) -> Cell:
    rivals = [cell for cell in setting.cells if not cell.local]
    return next((cell for cell in reversed(rivals) if cell.finished), (rivals or setting.cells)[-1])


def _save(figure: Figure, file: Path) -> Path:
    with atomically(file.with_name(f"{file.stem}.png")) as part:
        figure.savefig(part, format="png", dpi=DPI)
    figure.set_layout_engine("none")  # the PDF keeps the layout of the PNG
    with atomically(file) as part:
        figure.savefig(part, format="pdf")
    return file


def _style(cell: Cell) -> dict[str, Any]:
    """Colour and dashes as on the page: a colour per line if there are enough, else per method; dashes per rule."""
    if cell.local:
        return {"color": THEME["local"], "linestyle": DASHES["local"]}
    others = [other for other in cell.setting.cells if not other.local]
    methods = list(dict.fromkeys(other.method_label for other in others))
    lines = list(dict.fromkeys(other.label for other in others))
    rules = list(dict.fromkeys(other.rule for other in others if other.rule not in ("", MEAN)))
    own = len(lines) <= len(THEME["series"]) or len(methods) == 1
    which = lines.index(cell.label) if own else methods.index(cell.method_label)
    place = rules.index(cell.rule) % len(DASHES["rules"]) if cell.rule in rules else 0
    dashes = DASHES["plain"] if cell.rule == MEAN else DASHES["rules"][place]
    return {"color": THEME["series"][which % len(THEME["series"])], "linestyle": dashes}


def _whole(*axes: Axis) -> None:
    """Ticks at integers: there is no round 2.5."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", integer=True))


def _lines(setting: Setting, name: str, label: str, scale: float) -> Figure | None:
    known = [(cell, curve) for cell in setting.cells if (curve := curves(cell).get(name))]
    if not known:
        return None
    columns = max(1, min(len(known), int(COLUMN * 15 / (max(len(cell.label) for cell, _ in known) + 6))))
    figure = Figure(figsize=(COLUMN, 2.0 + 0.15 * math.ceil(len(known) / columns)), layout="constrained")
    axes = figure.subplots()
    for cell, curve in known:
        line, middle = _style(cell), scale * np.array(curve["m"], dtype=float)
        axes.plot(curve["r"], middle, label=cell.label, **line)
        if curve["d"] is not None:
            half = scale * np.array(curve["d"], dtype=float)
            axes.fill_between(curve["r"], middle - half, middle + half, color=line["color"], alpha=0.13, linewidth=0)
    axes.set(xlabel="round", ylabel=label)
    _whole(axes.xaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def _clients(setting: Setting, label: str) -> Figure | None:
    key, scale = setting.metric.key, setting.metric.points
    found = {
        cell: [scale * value for run in cell.shown_runs for value in run.by_client(key).values()]
        for cell in reversed(setting.cells)
    }
    known = {cell: [value for value in values if not math.isnan(value)] for cell, values in found.items() if values}
    if not known:
        return None
    figure = Figure(figsize=(COLUMN, 0.55 + 0.24 * len(known)), layout="constrained")
    axes = figure.subplots()
    for place, (cell, values) in enumerate(known.items(), 1):
        colour = _style(cell)["color"]
        line = {"color": colour}
        axes.boxplot(
            values,
            positions=[place],
            orientation="horizontal",
            tick_labels=[cell.label],
            widths=0.6,
            patch_artist=True,
            boxprops={"facecolor": (colour, 0.06 if cell.rule == MEAN else 0.22), "edgecolor": colour},
            whiskerprops=line,
            capprops=line,
            medianprops={"color": THEME["ink"], "linewidth": 1.2},
            flierprops={"marker": "o", "markersize": 2, "markeredgewidth": 0.5, "markeredgecolor": colour},
        )
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return figure


def _weights(run: LoadedRun) -> Figure | None:
    weights = coefficients(run, WEIGHT_ROUNDS)
    if weights is None:
        return None
    names = list(weights.drawn)
    names = names if len(names) <= 2 * ENDS else [*names[:ENDS], *names[-ENDS:]]
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(PAGE if columns > 1 else COLUMN, 0.4 + 1.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _weight_map(figure, axes, weights.drawn[name], (weights.rounds[0] - 0.5, weights.rounds[-1] + 0.5))
        axes.set_title(name.removeprefix("body."), fontsize=7)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("round", fontsize=8)
    figure.supylabel("client", fontsize=8)
    return figure


def _weight_map(figure: Figure, axes: Axes, values: Floats, ends: tuple[float, float]) -> None:
    known = values[~np.isnan(values)]
    high = abs(float(np.quantile(known, 0.995))) or 1.0
    signed = bool((known < -1e-6).any())
    palette = "both" if signed else "ramp"
    image = axes.imshow(
        values,
        cmap=colors.LinearSegmentedColormap.from_list(palette, THEME[palette]),
        norm=colors.TwoSlopeNorm(0, -high, high) if signed else colors.PowerNorm(0.5, 0, high),
        aspect="auto",
        extent=(*ends, len(values) - 0.5, -0.5),
        interpolation="nearest",
    )
    axes.grid(visible=False)
    _whole(axes.xaxis, axes.yaxis)
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize=6)
