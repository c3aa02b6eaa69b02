"""Several runs compared: who gains, who is worse, and whether to join. None of it needs torch.

conditions  what differs among runs, and which local baseline goes with a run
evidence    the test for harm, intervals and states, from scores of single tests
harm        one row per client
statistics  spreads over seeds, mean differences
cells       runs of several seeds, and cells under the same conditions
clients     one row per client, as text and as CSV
study       which runs belong together, and which cell is compared with which
verdict     join, join with the guard, train locally, or undecided
columns     the numbers of the table
table       the table of a study and its forms
"""

# fmt: off
# isort: off
from comity.compare.cells import Cell, Setting
from comity.compare.clients import ClientTable, clients_csv
from comity.compare.columns import ACCURACY, COLUMNS, CONFLICT, DIFFERENCE, GAIN, WORST, DifferenceColumn, Entry
from comity.compare.conditions import Varying, compared, in_words
from comity.compare.harm import STATES, ClientRow, Paired, by_client, named, paired_rows, transfer
from comity.compare.statistics import Difference, Spread, holm
from comity.compare.study import LoadedStudy, load
from comity.compare.table import Line, Table
from comity.compare.verdict import Advice, Verdict, interval, points

__all__ = [
    # several runs
    "Cell", "LoadedStudy", "Setting", "load", "Varying", "compared", "in_words",
    # who gains and who is worse
    "Advice", "ClientRow", "ClientTable", "STATES", "Paired", "Verdict", "by_client", "clients_csv", "named",
    "paired_rows", "transfer",
    # their numbers
    "Difference", "Spread", "holm", "interval", "points",
    # the table
    "ACCURACY", "COLUMNS", "CONFLICT", "DIFFERENCE", "DifferenceColumn", "Entry", "GAIN", "Line", "Table", "WORST",
]
# isort: on
# fmt: on
