"""Studies: grids of runs, compared. The entry points are ``comity.study(...)`` and ``comity study``.

The package is not called ``study`` because ``comity.study`` is the function.
"""

from comity.studies._bench import BENCHMARK, LEADERBOARD, Bench, bench, federations
from comity.studies._grid import examples
from comity.studies._join import Joined, join
from comity.studies._papers import MARKS, Row, overview, published_table
from comity.studies._show import Show
from comity.studies._study import dry_run, study

# fmt: off
__all__ = [
    "BENCHMARK", "LEADERBOARD", "MARKS", "Bench", "Joined", "Row", "Show", "bench", "dry_run", "examples",
    "federations", "join", "overview", "published_table", "study",
]
# fmt: on
