"""The same plots for a paper: each as PDF with real letters, and as PNG, without a title, which the caption gives."""

import importlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comity._errors import ComityError, install, one_line
from comity.config import MEAN
from comity.report._assets import themes
from comity.report._choice import Choices
from comity.report._payload import COSTS, curves, mean_cost
from comity.report._pen import COLUMN, PAGE, STYLE, Pen
from comity.report._series import Floats, coefficients, conflict_by_layer
from comity.report._why import Agreement
from comity.report._words import answer
from comity.results import Cell, LoadedStudy, Setting, Spread
from comity.results.conditions import component_of, show
from comity.results.harm import harmed
from comity.results.schema import ALL, OWN

MOST_NAMED = 8
"""Clients or classes whose names have room beside an axis; more are numbered."""

WEIGHT_ROUNDS = 500  # columns of a heat map

Drawing = Callable[[Pen], bool]


def need(folder: Path) -> None:
    """Refuse before anything is written, if figures cannot be had."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ComityError(f"--figures needs matplotlib: {install('report')}") from None
    if folder.exists() and not folder.is_dir():
        raise ComityError(f"--figures {folder} is a file, not a folder")


def draw(study: LoadedStudy, folder: Path) -> list[Path]:
    """Every figure that the study has numbers for; the PDFs' paths. Of clients it shows what the headline speaks of."""
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib = importlib.import_module("matplotlib")
    told, drawn = answer(study, study.table()), []
    light = themes()["light"]
    with matplotlib.rc_context(STYLE | {"grid.color": light["line"], "text.color": light["ink"]}):
        for setting in study.settings:
            cell = told.cell if setting is told.cell.setting else _focus(setting)
            pen = Pen(study, cell, light, told.seed if cell is told.cell else None)
            suffix = f"-{_slug(setting.label)}" if len(study.settings) > 1 else ""
            for name, drawing in FIGURES.items():
                drawn += pen.save(folder / f"{name}{suffix}", drawing)
        for key in study.varying.keys:
            pen = Pen(study, told.cell, light)
            drawn += pen.save(folder / f"sweep-{_slug(key)}", lambda pen, key=key: _sweep(pen, key))  # type: ignore[misc]
    return drawn


def _focus(setting: Setting) -> Cell:
    rivals = [cell for cell in setting.cells if not cell.local]
    return next((cell for cell in reversed(rivals) if cell.finished), (rivals or setting.cells)[-1])


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")


# Curves.


def _lines(pen: Pen, name: str, label: str, share: bool) -> bool:
    known = [(cell, curve) for cell in pen.setting.cells if (curve := curves(cell).get(name))]
    if not known:
        return False
    axes, legend = pen.with_legend([cell.label for cell, _ in known])
    scale = 100 if share else 1
    for cell, curve in known:
        style, middle = pen.style(cell), scale * np.array(curve["m"], dtype=float)
        axes.plot(curve["r"], middle, label=cell.label, color=style["color"], linestyle=style["linestyle"])
        if curve["d"] is not None:
            half = scale * np.array(curve["d"], dtype=float)
            axes.fill_between(curve["r"], middle - half, middle + half, color=style["color"], alpha=0.13, linewidth=0)
    axes.set(xlabel="round", ylabel=label)
    _whole(axes.xaxis)
    legend()
    return True


def _sweep(pen: Pen, key: str) -> bool:
    """Accuracy over the values of an option; everything else as in the headline's setting."""
    inner = component_of(key) in ("method", "rule")
    lines: dict[tuple[Any, ...], list[tuple[Any, Spread, Cell]]] = {}
    for setting in pen.study.settings:
        if any(setting.options.get(k) != v for k, v in pen.setting.options.items() if k != key):
            continue
        for cell in setting.cells:
            if (cell.local and inner) or cell.accuracy is None:
                continue
            rest = [(k, show(v)) for k, v in cell.options.items() if k != key]
            value = (setting.options | cell.options).get(key)
            value = tuple(value) if isinstance(value, list) else value
            lines.setdefault((cell.local, *rest), []).append((value, cell.accuracy, cell))
    values = {value for line in lines.values() for value, _, _ in line if value is not None}
    if not any(len({value for value, _, _ in line if value is not None}) > 1 for line in lines.values()):
        return False
    numeric = all(isinstance(value, (int, float)) for value in values)
    order = sorted(values) if numeric else list(dict.fromkeys(v for line in lines.values() for v, _, _ in line))
    names = {id(line): _sweep_label(line[0][2], key, pen.study.varying.keys) for line in lines.values()}
    axes, legend = pen.with_legend(list(names.values()))
    for line in lines.values():
        style, label = pen.style(line[0][2]), names[id(line)]
        there = sorted(
            ((order.index(v), v, spread) for v, spread, _ in line if v is not None), key=lambda entry: entry[0]
        )
        if not there:
            axes.axhline(line[0][1].mean, label=label, color=style["color"], linestyle=style["linestyle"])
            continue
        x = [v if numeric else show(v) for _, v, _ in there]
        middle = [spread.mean for _, _, spread in there]
        axes.errorbar(
            x,
            middle,
            [(spread.std or 0) for _, _, spread in there],
            label=label,
            capsize=2,
            markersize=3,
            **style,
        )
    if numeric and min(values) > 0 and max(values) / min(values) >= 30:
        axes.set_xscale("log")
    axes.set(xlabel=key.rpartition(".")[2].replace("_", " "), ylabel="accuracy, %")
    legend()
    return True


def _sweep_label(cell: Cell, key: str, varying: list[str]) -> str:
    """The method and its rule, with the options that vary besides the one on the axis."""
    name = " + ".join(filter(None, (cell.method, cell.rule)))
    rest = [f"{k.partition('.')[2]}={show(cell.options[k])}" for k in varying if k != key and k in cell.options]
    return f"{name} ({', '.join(rest)})" if rest else name


def _whole(axis: Any) -> None:
    """There is no client 2.5."""
    axis.get_major_locator().set_params(integer=True)


# Clients.


def _clients(pen: Pen) -> bool:
    sets = [
        (cell, [100 * acc for run in cell.shown_runs for acc in run.by_client(OWN).values() if not math.isnan(acc)])
        for cell in pen.setting.cells
    ]
    sets = [(cell, values) for cell, values in sets if values][::-1]
    if not sets:
        return False
    axes = pen.axes(COLUMN, 0.55 + 0.24 * len(sets))
    boxes = axes.boxplot(
        [values for _, values in sets],
        orientation="horizontal",
        tick_labels=[cell.label for cell, _ in sets],
        widths=0.6,
        patch_artist=True,
        medianprops={"color": pen.theme["ink"], "linewidth": 1.2},
        flierprops={"marker": "o", "markersize": 2, "markeredgewidth": 0.5},
    )
    for i, (cell, _) in enumerate(sets):
        colour = pen.style(cell)["color"]
        boxes["boxes"][i].set(facecolor=(*_rgb(colour), 0.06 if cell.rule == MEAN else 0.22), edgecolor=colour)
        for part in (*boxes["whiskers"][2 * i : 2 * i + 2], *boxes["caps"][2 * i : 2 * i + 2]):
            part.set_color(colour)
        boxes["fliers"][i].set_markeredgecolor(colour)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("accuracy on own tests, %")
    return True


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _gain(pen: Pen) -> bool:
    if pen.run is None:
        return False
    transfer = pen.cell.transfer(pen.run)
    if transfer is None:
        return False
    known = sorted((gain, client) for client, gain in transfer.gain.items())
    axes = pen.axes(COLUMN, 2.0)
    for place, (gain, _) in enumerate(known):
        worse = harmed(gain)
        axes.bar(
            place,
            100 * gain,
            width=0.75,
            color=pen.theme["harm" if worse else "gain"],
            hatch="////" if worse else None,
            edgecolor="white" if worse else "none",
            linewidth=0,
        )
    axes.axhline(0, color=pen.theme["ink"], linewidth=0.7)
    places = range(len(known)) if len(known) <= 40 else range(0, len(known), 5)
    clients = [known[place][1] for place in places]
    named = map(pen.run.client_name, clients) if len(known) <= MOST_NAMED else map(str, clients)
    axes.set_xticks(list(places), list(named), fontsize=6, parse_math=False)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="client", ylabel="gain over training alone, points", title=f"{pen.cell.label}, seed {pen.run.seed}")
    axes.title.set_size(7)
    return True


def _partition(pen: Pen) -> bool:
    if pen.run is None or pen.run.partition is None:
        return False
    counts = np.array(pen.run.partition.counts)
    clients, classes = counts.shape
    axes = pen.axes(COLUMN, max(1.6, min(6.0, 0.5 + 0.12 * clients)))
    rows, columns = np.nonzero(counts)
    sizes = counts[rows, columns] / max(1, counts.max())
    series = pen.theme["series"]
    axes.scatter(columns, rows, s=60 * sizes, c=[series[k % len(series)] for k in columns], linewidths=0, alpha=0.85)
    for axis in (axes.xaxis, axes.yaxis):
        _whole(axis)
    if clients <= MOST_NAMED:
        axes.set_yticks(range(clients), [pen.run.client_name(client) for client in range(clients)], parse_math=False)
    if classes <= MOST_NAMED and (names := pen.run.partition.class_names):
        axes.set_xticks(range(classes), [one_line(name, 20) for name in names], parse_math=False)
    axes.set(xlabel="class", ylabel="client", xlim=(-0.7, classes - 0.3), ylim=(clients - 0.3, -0.7))
    return True


# Conflict and weights.


def _cosines(pen: Pen) -> bool:
    agreement = None if pen.run is None else Agreement.of(pen.run)
    if agreement is None or np.isnan(agreement.mean).all():
        return False
    axes = pen.axes(COLUMN, 2.9)
    most = float(np.nanmax(np.abs(agreement.mean)))
    image = axes.imshow(agreement.mean, cmap=pen.colours("both"), vmin=-most, vmax=most)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        _whole(axis)
    axes.set(xlabel="client", ylabel="client")
    pen.figure.colorbar(image, label="cosine of updates, mean over rounds", shrink=0.85)
    return True


def _layers(pen: Pen) -> bool:
    rates = {} if pen.run is None else conflict_by_layer(pen.run)
    if pen.run is None or not rates:
        return False
    names = list(rates)
    axes = pen.axes(COLUMN, max(1.4, min(7.0, 0.7 + 0.14 * len(names))))
    values = 100 * np.stack(list(rates.values()))
    ends = (pen.run.records[0].round - 0.5, pen.run.rounds_done + 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(values, cmap=pen.colours("heat"), vmin=0, aspect="auto", extent=ends, interpolation="nearest")
    axes.set_yticks(range(len(names)), [name.removeprefix("body.") for name in names], fontsize=6)
    axes.grid(visible=False)
    _whole(axes.xaxis)
    axes.set_xlabel("round")
    pen.figure.colorbar(image, label="pairs in conflict, %")
    return True


def _weights(pen: Pen) -> bool:
    """First and last three layers, as FedCALM's Figures 6 and 7, which draw λ."""
    weights = None if pen.run is None else coefficients(pen.run, WEIGHT_ROUNDS)
    if weights is None:
        return False
    names = list(weights.drawn)
    names = names if len(names) <= 6 else [*names[:3], *names[-3:]]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    panels = pen.axes(PAGE if columns > 1 else COLUMN, 0.4 + 1.6 * rows, rows, columns)
    for axes, name in zip(_each(panels), names, strict=False):
        values = weights.drawn[name]
        _weight_map(pen, axes, values, (weights.rounds[0] - 0.5, weights.rounds[-1] + 0.5))
        axes.set_title(name.removeprefix("body."), fontsize=7)
    for axes in list(_each(panels))[len(names) :]:
        axes.set_visible(False)
    pen.figure.supxlabel("round", fontsize=8)
    pen.figure.supylabel("client", fontsize=8)
    return True


def _choice(pen: Pen) -> bool:
    """Of the run that the figures are about if its rule chooses among others, or else of one beside it."""
    runs = [pen.run, *(run for cell in pen.setting.cells for run in cell.shown_runs)]
    choices = next((found for run in runs if run is not None and (found := Choices.of(run))), None)
    if choices is None:
        return False
    names, rounds = choices.names, choices.rounds
    axes = pen.axes(COLUMN, max(1.4, min(7.0, 0.7 + 0.14 * len(names))))
    extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(
        choices.weights, cmap=pen.colours("ramp"), vmin=0, aspect="auto", extent=extent, interpolation="nearest"
    )
    for name, first, last in choices.spans:
        axes.plot(
            [first - 0.5, last + 0.5], [names.index(name)] * 2, color=pen.theme["series"][1], solid_capstyle="butt"
        )
    axes.set_yticks(range(len(names)), names, fontsize=5)
    axes.grid(visible=False)
    _whole(axes.xaxis)
    axes.set_xlabel("round")
    pen.figure.colorbar(image, label="weight; the line is what was taken")
    return True


def _each(panels: Any) -> Iterator[Any]:
    return iter(np.atleast_1d(panels).ravel())


def _weight_map(pen: Pen, axes: Any, values: Floats, ends: tuple[float, float]) -> None:
    colors = importlib.import_module("matplotlib.colors")
    known = values[~np.isnan(values)]
    high = float(np.quantile(known, 0.995)) or 1.0
    signed = bool((known < -1e-6).any())
    norm = colors.TwoSlopeNorm(0, -abs(high), abs(high)) if signed else colors.PowerNorm(0.5, 0, high)
    extent = (*ends, len(values) - 0.5, -0.5)
    image = axes.imshow(
        values,
        cmap=pen.colours("both" if signed else "ramp"),
        norm=norm,
        aspect="auto",
        extent=extent,
        interpolation="nearest",
    )
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        _whole(axis)
    bar = pen.figure.colorbar(image, ax=axes)
    bar.ax.tick_params(labelsize=6)


# What it is good for, and what it costs.


def _general(pen: Pen) -> bool:
    known = []
    for cell in pen.setting.cells:
        general = cell.spread(lambda run: 100 * run.metric(ALL))
        if cell.accuracy is not None and general is not None:
            known.append((cell, cell.accuracy, general))
    if not known:
        return False
    axes, legend = pen.with_legend([cell.label for cell, _, _ in known])
    for cell, own, general in known:
        style = pen.style(cell)
        axes.errorbar(
            general.mean,
            own.mean,
            xerr=general.std or 0,
            yerr=own.std or 0,
            label=cell.label,
            color=style["color"],
            marker=style["marker"],
            markerfacecolor="white" if cell.rule == MEAN else style["color"],
            linestyle="none",
            elinewidth=0.7,
            markersize=4.5,
        )
    axes.set(xlabel="everybody's tests (G-acc), %", ylabel="own tests (L-acc), %")
    legend()
    return True


def _cost(pen: Pen) -> bool:
    parts = {
        "s a round": (("train", "training", "gain"), ("aggregate", "aggregation", "heat")),
        "MB a round": (("down", "down", "gain"), ("up", "up", "quiet")),
    }
    cells = [cell for cell in pen.setting.cells if cell.finished][::-1]
    if not cells:
        return False
    panels = pen.axes(PAGE, 0.75 + 0.2 * len(cells), 1, 2)
    for axes, (label, stack) in zip(_each(panels), parts.items(), strict=True):
        left = np.zeros(len(cells))
        for cost, name, colour in stack:
            spreads = [mean_cost(cell, COSTS[cost]) for cell in cells]
            values = np.array([0.0 if spread is None else spread.mean for spread in spreads])
            tone = _tone(pen.theme[colour])
            axes.barh(range(len(cells)), values, left=left, height=0.6, color=tone, label=name)
            left = left + values
        axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2)
    return True


def _tone(value: Any) -> str:
    """A colour, or the middle one of a ramp."""
    return str(value if isinstance(value, str) else value[len(value) // 2])


FIGURES: dict[str, Drawing] = {
    "convergence": lambda pen: _lines(pen, "acc", "accuracy on own tests, %", True),
    "some": lambda pen: _lines(pen, "S", "accuracy on own and some others' tests (S-acc), %", True),
    "loss": lambda pen: _lines(pen, "loss", "training loss", False),
    "clients": _clients,
    "gain": _gain,
    "partition": _partition,
    "cosines": _cosines,
    "against": lambda pen: _lines(pen, "against", "clients that the step goes against, %", True),
    "conflict": lambda pen: _lines(pen, "conflict", "pairs in conflict, %", True),
    "layers": _layers,
    "weights": _weights,
    "choice": _choice,
    "tradeoff": _general,
    "cost": _cost,
}
