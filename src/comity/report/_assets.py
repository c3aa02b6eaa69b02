"""Assets of the page: styles, scripts and colours."""

import json
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    *("basics.js", "charts.js", "state.js", "learning.js", "clients.js", "binary.js", "conflict.js", "weights.js"),
    *("costs.js", "save.js", "page.js"),
)
_STYLES = ("page.css", "tables.css", "plots.css", "narrow.css")


def script() -> str:
    """The page's whole script, without global names."""
    return "".join(("(() => {\n'use strict';\n", *map(_asset, _SCRIPTS), "\n})();"))


def styles() -> str:
    return "".join(map(_asset, _STYLES))


def themes() -> dict[str, Any]:
    """The colours of plots, light and dark, for page and figures."""
    palette: dict[str, Any] = json.loads(_asset("palette.json"))
    return palette


def _asset(name: str) -> str:
    return (files("comity.report") / "assets" / name).read_text(encoding="utf-8")
