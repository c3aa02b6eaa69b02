"""What runs and studies leave behind, and what it says. None of it needs torch.

schema      the records and the names of files and metrics
records     records as JSON and back
folder      writing and reading run and study folders
conditions  which options decide numbers, what varies, and which Local goes with a run
run         one run, loaded
harm        who gains and who is harmed by joining
found       which run folders are meant
study       several runs: cells, settings, and what is compared with what
statistics  spreads over seeds, differences paired by seed
columns     what the table's numbers are
table       the table of a study and its forms
words       numbers and lists in words
"""

from comity.results.folder import RunFolder, StudyFolder
from comity.results.harm import Balance, transfer
from comity.results.run import LoadedRun
from comity.results.statistics import Difference, Spread
from comity.results.study import Cell, LoadedStudy, Setting, load
from comity.results.table import Table

__all__ = [
    "Balance",
    "Cell",
    "Difference",
    "LoadedRun",
    "LoadedStudy",
    "RunFolder",
    "Setting",
    "Spread",
    "StudyFolder",
    "Table",
    "load",
    "transfer",
]
