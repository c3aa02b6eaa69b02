"""Predictions for a file of new samples."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError, one_line, unknown
from comity._words import csv_cell
from comity.data import is_blank, read_columns, read_samples
from comity.deploy.estimator import ClientModel, Floats
from comity.guard import Report


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row per row of a file. Rows with a problem have no prediction."""

    ids: dict[str, list[Any]]
    """Identifiers of the rows: row numbers, and the id column of the table or the name of the image."""
    classes: NDArray[Any]
    """All classes of the model."""
    predicted: NDArray[np.int64]
    """Class indices."""
    probabilities: Floats
    problems: dict[int, str]
    """Problems by row, from 0."""

    def csv(self) -> str:
        """CSV with a header; text that a spreadsheet would read as a formula gets an apostrophe."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            [*map(_cell, self.ids), "prediction", *(_cell(f"p_{name}") for name in self.classes), "problem"]
        )
        blank = [""] * (1 + len(self.classes))
        for row in range(len(self.predicted)):
            problem = self.problems.get(row, "")
            answer = [self.classes[self.predicted[row]], *(f"{share:.6g}" for share in self.probabilities[row])]
            names = [_cell(values[row]) for values in self.ids.values()]
            writer.writerow([*names, *(blank if problem else map(_cell, answer)), _cell(problem)])
        return text.getvalue()


def predict_file(model: ClientModel, path: Path, id: str | None = None, limit: int | str | None = None) -> Predictions:
    """Predict every row of a table, every sample of an npz file, or every image of a folder.

    ``id`` is a column of the table that is copied to the output; by default that of the schema.
    """
    inputs, schema = model.artefact.info.inputs, model.schema
    problems: dict[int, str] = {}
    names: dict[str, list[Any]] = {}
    if schema is not None and path.suffix.lower() != ".npz":
        table = read_columns(path, limit)
        samples, found = model.encode(table)
        for row, column, reason in found:
            problems[row] = "; ".join(filter(None, (problems.get(row), f"column {column}: {reason}")))
        if id is not None and id not in table:
            raise unknown("column", id, table, of="(--id)")
        carried = id or schema.id
        names = {carried: list(table[carried])} if carried is not None and carried in table else {}
    elif id is not None:
        raise ComityError(f"--id must be left out, got {one_line(id, 40)}: {path} is no table")
    else:
        read = read_samples(path, inputs.shape, limit)
        samples, _ = model.encode(read.x)
        names, problems = {} if read.names is None else {"file": read.names}, dict(read.problems)
    predicted, probabilities = model.answers(samples)
    for row in np.flatnonzero(predicted < 0).tolist():
        problems.setdefault(row, "the prediction is not finite; are its numbers of the right size?")
    numbers = list(range(1, len(samples) + 1))
    return Predictions({"row": numbers} | names, model.classes_, predicted, probabilities, problems)


def feedback_file(model: ClientModel, path: Path, limit: int | str | None = None) -> tuple[Report, dict[int, str]]:
    """Learn from the labelled rows of a table; also returns, by row from 0, why others are left out."""
    schema = model.schema
    if schema is None:
        raise ComityError("feedback from a file needs the model of a table; in Python give arrays to model.feedback")
    table = read_columns(path, limit)
    if schema.target not in table:
        raise unknown("column of labels", schema.target, table, f"({path} needs the column {schema.target})")
    problems: dict[int, str] = {}
    for row, column, reason in schema.encode(table).problems:
        problems[row] = "; ".join(filter(None, (problems.get(row), f"column {column}: {reason}")))
    labels = table[schema.target]
    problems |= {row: f"no {schema.target}" for row, cell in enumerate(labels) if is_blank(cell)}
    kept = [row for row in range(len(labels)) if row not in problems]
    if not kept:
        raise ComityError(f"{path}: no row has a {schema.target} and fits the schema")
    columns = {name: [table[name][row] for row in kept] for name in schema.columns}
    return model.feedback(columns, [labels[row] for row in kept]), problems


def check_output(output: Path | None, path: Path) -> None:
    """Reject an output that would replace the input."""
    if output is not None and output.exists() and output.resolve() == path.resolve():
        raise ComityError(f"-o {output} is the file that is read; give another name")


def _cell(value: Any) -> object:
    return csv_cell(one_line(value, 1000)) if isinstance(value, str) else "" if value is None else value
