"""Run and study folders: write, read and check them. Needs no torch.

samples   the score of each test sample
transfer  what joining changed for each client
schema    names of files and columns, and the records in them
records   records as JSON and back
folder    writing and reading the files of a folder
check     whether the content of a run folder can be true
run       one run, loaded, and the options that decide its numbers
"""

# fmt: off
# isort: off
from comity.results import schema
from comity.results.check import DamagedRun
from comity.results.folder import ANEW, LOGS, Marks, RunFolder, StudyFolder, other_configuration, other_data
from comity.results.records import Count, Fixed, Real, Share, from_json, require, to_json
from comity.results.run import Flat, LoadedRun, flatten, show
from comity.results.schema import (
    CELLS, CHECKPOINT, CONFIG, FALL, FALLEN_TESTS, LOG, RESULT, ROUNDS, RUNS, SCHEMA, TEST_SAMPLES, TRAINING_SAMPLES,
    TUNING, ZERO,
    Against, Best, Columns, Conflict, Cosines, Evaluation, MetricInfo, Metrics, Newcomers,
    PartitionTable, PlannedRun, Result, RoundRecord, RuleNote, RunInfo, Seconds, Summary, Traffic,
    Trial, Tuned, Verdict, Weights,
)
from comity.results.transfer import ClientScores, Gain, State, Transfer

__all__ = [
    # folders
    "ANEW", "LOGS", "Marks", "RunFolder", "StudyFolder", "other_configuration", "other_data", "schema",
    # a run
    "DamagedRun", "Flat", "LoadedRun", "flatten", "show",
    # names of files and columns
    "CELLS", "CHECKPOINT", "CONFIG", "FALL", "FALLEN_TESTS", "LOG", "RESULT", "ROUNDS", "RUNS", "SCHEMA",
    "TEST_SAMPLES", "TRAINING_SAMPLES", "TUNING", "ZERO",
    # types of records
    "Count", "Fixed", "Real", "Share", "from_json", "require", "to_json",
    # records
    "Against", "Best", "ClientScores", "Columns", "Conflict", "Cosines", "Evaluation", "Gain", "MetricInfo", "Metrics",
    "Newcomers", "PartitionTable", "PlannedRun", "Result", "RoundRecord", "RuleNote", "RunInfo", "Seconds", "State",
    "Summary", "Traffic", "Transfer", "Trial", "Tuned", "Verdict", "Weights",
]
# isort: on
# fmt: on
