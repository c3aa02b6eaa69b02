"""Compare runs: which clients gain, which are worse, and whether to join. Needs no torch.

conditions  what differs among runs, and which local baseline goes with a run
evidence    the test for harm, intervals and states, from scores of single tests
harm        one row per client
statistics  spreads over seeds, mean differences
cells       runs of several seeds, and cells under the same conditions
clients     one row per client, as text and as CSV
study       which runs belong together, and which cell is compared with which
verdict     join, join with the guard, train locally, or undecided
overview    runs and studies below a folder: state, progress and verdict
columns     the numbers of the table
table       the table of a study and its forms
benchmark   the results of a benchmark, by configuration and federation
ranks       average ranks over federations with their uncertainty
leaderboard one row per configuration, one column per federation
"""

# fmt: off
# isort: off
from comity.compare.benchmark import (
    FederationClients, Result, benchmark_clients_csv, benchmark_studies, clients_of, read_results, results_csv,
    results_of,
)
from comity.compare.cells import Cell, Setting
from comity.compare.clients import ClientTable, clients_csv
from comity.compare.columns import ACCURACY, COLUMNS, CONFLICT, DIFFERENCE, GAIN, WORST, DifferenceColumn, Entry
from comity.compare.conditions import Varying, compared, in_words
from comity.compare.leaderboard import HEADINGS, Leaderboard, Row
from comity.compare.ranks import MeanRank, critical_difference, friedman, mean_ranks, ranks
from comity.compare.harm import STATES, ClientPairs, ClientRow, Paired, by_client, named, paired_rows, transfer
from comity.compare.statistics import Difference, Spread, holm
from comity.compare.study import LoadedStudy, NoRun, load
from comity.compare.overview import RunRow, overview
from comity.compare.table import Table, TableRow
from comity.compare.verdict import Advice, Verdict, interval, points

__all__ = [
    # several runs
    "Cell", "LoadedStudy", "NoRun", "RunRow", "Setting", "load", "overview", "Varying", "compared", "in_words",
    # gains and losses per client
    "Advice", "ClientPairs", "ClientRow", "ClientTable", "STATES", "Paired", "Verdict", "by_client", "clients_csv",
    "named", "paired_rows", "transfer",
    # their statistics
    "Difference", "Spread", "holm", "interval", "points",
    # a benchmark
    "FederationClients", "HEADINGS", "Leaderboard", "MeanRank", "Result", "Row", "benchmark_clients_csv",
    "benchmark_studies", "clients_of", "critical_difference", "friedman", "mean_ranks", "ranks", "read_results",
    "results_csv", "results_of",
    # the table
    "ACCURACY", "COLUMNS", "CONFLICT", "DIFFERENCE", "DifferenceColumn", "Entry", "GAIN", "Table", "TableRow", "WORST",
]
# isort: on
# fmt: on
