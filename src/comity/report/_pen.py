"""How figures for a paper look: sizes, letters, and the colour and dashes of a method and its rule."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comity.config import MEAN
from comity.results import Cell, LoadedRun, LoadedStudy

COLUMN, PAGE = 3.4, 7.0  # inches: one column of a two-column paper, and both

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # letters stay letters; publishers refuse the outlines of type 3
    "savefig.dpi": 300,
}
DASHES = {"plain": (0, (4, 2.5)), "local": (0, (1, 1.5)), "rules": ["-", (0, (1, 1.8)), "-.", (0, (7, 2))]}


class Pen:
    """A figure on its way: what it is about, and the colours."""

    def __init__(self, study: LoadedStudy, cell: Cell, theme: dict[str, Any], seed: int | None = None) -> None:
        self.study, self.setting, self.cell, self.theme = study, cell.setting, cell, theme
        chosen = [run for run in cell.shown_runs if run.seed == seed] or cell.shown_runs
        self.run: LoadedRun | None = next(iter(chosen), None)

    def axes(self, width: float, height: float, rows: int = 1, columns: int = 1) -> Any:
        figure = importlib.import_module("matplotlib.figure")
        self.figure = figure.Figure(figsize=(width, height), layout="constrained")
        return self.figure.subplots(rows, columns, squeeze=rows * columns == 1)

    def save(self, path: Path, drawing: Callable[["Pen"], bool]) -> list[Path]:
        """Nothing where the runs have not noted what the figure shows."""
        if not drawing(self):
            return []
        for ending in (".png", ".pdf"):
            self.figure.savefig(path.with_name(path.name + ending))
            self.figure.set_layout_engine("none")  # it stays as it was laid out
        return [path.with_name(path.name + ".pdf")]

    def colours(self, name: str) -> Any:
        colors = importlib.import_module("matplotlib.colors")
        found = colors.LinearSegmentedColormap.from_list(name, self.theme[name])
        return found.with_extremes(bad=self.theme["page"])

    def style(self, cell: Cell) -> dict[str, Any]:
        """As on the page: a colour for each line while there are enough, else its method's; dashes say the rule."""
        if cell.local:
            return {"color": self.theme["local"], "linestyle": DASHES["local"], "marker": "^"}
        others = [other for other in self.setting.cells if not other.local]
        methods = list(dict.fromkeys(other.method_label for other in others))
        lines = list(dict.fromkeys(other.label for other in others))
        rules = list(dict.fromkeys(other.rule for other in others if other.rule not in ("", MEAN)))
        own = len(lines) <= len(self.theme["series"]) or len(methods) == 1
        which = lines.index(cell.label) if own else methods.index(cell.method_label)
        place = rules.index(cell.rule) % len(DASHES["rules"]) if cell.rule in rules else 0
        return {
            "color": self.theme["series"][which % len(self.theme["series"])],
            "linestyle": DASHES["plain"] if cell.rule == MEAN else DASHES["rules"][place],
            "marker": "o" if cell.rule == MEAN else "osDv"[place],
        }

    def with_legend(self, labels: list[str]) -> tuple[Any, Callable[[], None]]:
        """A plot of one column that leaves room for a legend below, and what draws that legend in the end."""
        columns = max(1, min(len(labels), int(COLUMN * 15 / (max(map(len, labels)) + 6))))
        axes = self.axes(COLUMN, 2.0 + 0.15 * -(-len(labels) // columns))

        def legend() -> None:
            self.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)

        return axes, legend
