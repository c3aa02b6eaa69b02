"""``comity feedback``."""

import sys
from pathlib import Path

from comity.commands._command import Command
from comity.commands.predict import SHOWN


def feedback(model: Path, file: Path, *, allow_code: bool = False) -> int:
    """Update a deployed model with the true classes of its rows.

    The labels update the mixture weights of the client's own model and the federated model. If the federated model
    becomes harmful, an alarm switches back to the client's own model. Give each label once, in the order of the
    predictions. The state and an HTML page about it are saved in the model's folder.

    Examples:
        comity feedback runs/first/models/000-cleveland labelled.csv
        comity feedback joined/models/001-hungary november.xlsx

    Options:
        model: folder of a client's model, in models/ of a run folder
        file: a table with the model's input columns and the true class
        allow_code: allow the model to name your own network or method; its code will be executed
    """
    from comity._write import write_text
    from comity.deploy import feedback_file, load_model
    from comity.guard import FEEDBACK, read
    from comity.report import feedback_page

    found = load_model(model, allow_code=allow_code)
    report, problems = feedback_file(found, file)
    for row, reason in sorted(problems.items())[:SHOWN]:
        print(f"comity: row {row + 1} is left out: {reason}", file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"comity: {len(problems) - SHOWN} more rows are left out", file=sys.stderr)
    assert found.folder is not None
    page = found.folder / "feedback.html"
    write_text(page, feedback_page(read(found.folder / FEEDBACK), found.artefact.info.provenance.client))
    print(f"{report}\nPage: {page}")
    return 0


COMMAND = Command(feedback, order=13)
