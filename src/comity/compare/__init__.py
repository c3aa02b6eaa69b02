"""Several runs compared: who gains, who is harmed, and whether it is more than noise. None of it needs torch.

conditions  what differs among runs, and which Local goes with a run
harm        who gains and who is harmed by joining
statistics  spreads over seeds, differences paired by seed
cells       runs of several seeds, and cells under the same conditions
study       which runs belong together, and which cell is compared with which
columns     the numbers of the table
table       the table of a study and its forms
"""

# fmt: off
# isort: off
from comity.compare.cells import Cell, Setting
from comity.compare.columns import ACCURACY, COLUMNS, CONFLICT, DIFFERENCE, GAIN, WORST, DifferenceColumn, Entry
from comity.compare.conditions import Varying, compared, in_words
from comity.compare.harm import Balance, HarmedClient, transfer
from comity.compare.statistics import MOST_SEEDS, Difference, Spread, holm
from comity.compare.study import LoadedStudy, load
from comity.compare.table import Line, Table

__all__ = [
    # several runs
    "Cell", "LoadedStudy", "Setting", "load", "Varying", "compared", "in_words",
    # their numbers
    "Balance", "Difference", "HarmedClient", "MOST_SEEDS", "Spread", "holm", "transfer",
    # the table
    "ACCURACY", "COLUMNS", "CONFLICT", "DIFFERENCE", "DifferenceColumn", "Entry", "GAIN", "Line", "Table", "WORST",
]
# isort: on
# fmt: on
