"""``comity predict``."""

import sys
from pathlib import Path

from comity._errors import ComityError
from comity.commands._command import Command

SHOWN = 20
"""Number of problems that are printed; the output contains all."""


def predict(
    model: Path,
    file: Path,
    *,
    output: Path | None = None,
    id: str | None = None,
    strict: bool = False,
    allow_code: bool = False,
) -> int:
    """Predict new rows with a client's model.

    A row that does not fit the model's columns is reported with its number (the first row below the header is 1) and
    has an empty prediction.

    Examples:
        comity predict runs/first/models/000-cleveland new.csv --id patient -o predictions.csv
        comity predict runs/first/models/000-cleveland new.csv --strict

    Options:
        model: folder of a client's model, in models/ of a run folder
        file: a table with the model's input columns, an npz file with the samples as x, an image, or a
            folder of images
        output: CSV file to write; by default predictions are printed
        id: identifier column to copy to the output; by default that of the model's schema
        strict: stop at the first row that does not fit, without writing anything
        allow_code: allow the model to name your own network or method; its code will be executed
    """
    from comity._write import write_text
    from comity.deploy import check_output, load_model, predict_file

    check_output(output, file)
    made = predict_file(load_model(model, allow_code=allow_code), file, id)
    problems = sorted(made.problems.items())
    if strict and problems:
        row, reason = problems[0]
        raise ComityError(f"{file}, row {row + 1}: {reason}")
    for row, reason in problems[:SHOWN]:
        print(f"comity: row {row + 1}: {reason}", file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"comity: {len(problems) - SHOWN} more rows have a problem", file=sys.stderr)
    if output is None:
        print(made.csv(), end="")
        return 0
    write_text(output, made.csv())
    count = len(made.predicted)
    print(f"{count - len(problems):,} of {count:,} rows predicted: {output}")
    return 0


COMMAND = Command(predict, order=11)
