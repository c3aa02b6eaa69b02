"""``comity feedback``."""

import sys
from pathlib import Path

from comity.commands._command import Command
from comity.commands.predict import SHOWN


def feedback(model: Path, file: Path, *, allow_code: bool = False) -> int:
    """Give a model in use the true classes of rows that it predicted.

    The weights of the client's own and the federated model follow the labels, and an alarm returns to the own model.
    Give each label once, in the order of the predictions. State and page stay in the folder of the model.

    Examples:
        comity feedback runs/first/models/000-cleveland labelled.csv
        comity feedback joined/models/001-hungary november.xlsx

    Options:
        model: folder of a client's model, in models/ of a run folder
        file: a table with the columns that the model learnt from and the true class
        allow_code: let the model name a network or method that does not come with comity; its code is run
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
