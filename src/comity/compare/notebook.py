"""Tables in a notebook: HTML, and data frames with named rows."""

import csv
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from comity._errors import ComityError, install

if TYPE_CHECKING:
    import pandas


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", note: str = "") -> str:
    """An HTML table whose first column names the rows."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        made = (
            f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    parts = [f"<p><b>{html.escape(title)}</b></p>"] if title else []
    parts += ["<table>", row(headings, "th"), *(row(each, "td") for each in rows)]
    return "".join([*parts, "</table>", f"<p><small>{html.escape(note)}</small></p>" if note else ""])


def frame_of(text: str, index: Sequence[str]) -> "pandas.DataFrame":
    """A CSV text as a data frame, indexed by the columns ``index``."""
    try:
        import pandas
    except ImportError as error:
        raise ComityError(f"data frames need pandas: {install('notebook')}") from error
    known = next(csv.reader(io.StringIO(text)))
    rows = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=["", "nan"])
    named = [name for name in index if name in known]
    return rows.fillna(dict.fromkeys(named, "")).set_index(named)
