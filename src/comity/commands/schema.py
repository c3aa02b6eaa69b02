"""``comity schema``."""

from pathlib import Path
from typing import TYPE_CHECKING

from comity._errors import ComityError, one_line
from comity._words import counted, listed
from comity.commands._command import Command

if TYPE_CHECKING:
    from comity.data import Schema

YAML = (".yaml", ".yml")


def schema(
    files: tuple[Path, ...],
    *,
    output: Path,
    target: str | None = None,
    client: str | None = None,
    sheet: str | None = None,
    all_categories: bool = False,
    drop: bool = False,
) -> int:
    """Write a table's schema, or merge the schemas of sites.

    A schema describes the columns: kinds, units, ranges, categories, classes and client names. It contains no rows.
    Ranges are rounded outwards to one significant digit, and categories with fewer than 5 rows are not listed.

    Examples:
        comity schema patients.csv --target outcome --client hospital -o schema.yaml
        comity schema cleveland.yaml hungary.yaml -o common.yaml

    Options:
        files: one table, or the schema files of several sites
        output: the schema file to write
        target: column to predict; by default one named target, label, outcome, …
        client: column with the client of each row; by default one named client, hospital, site, …
        sheet: the sheet of an .xlsx file; by default the first
        all_categories: also list categories with fewer than 5 rows
        drop: leave out columns on which the sites' schemas disagree; by default such columns are an error
    """
    merging = bool(files) and all(file.suffix.lower() in YAML for file in files)
    if not files or (not merging and len(files) > 1):
        raise ComityError(
            f"comity schema takes one table or several schema files (.yaml), got {counted(len(files), 'file')}"
        )
    if merging and (target or client or sheet or all_categories):
        raise ComityError(
            "--target, --client, --sheet and --all-categories are for a table; schema files have their own"
        )
    if drop and not merging:
        raise ComityError("--drop is for schema files, got a table")
    if output.exists() and any(output.samefile(file) for file in files if file.exists()):
        raise ComityError(f"--output must be another file than {output}, which is read")

    from comity._write import write_text
    from comity.data import schema_text

    made = _merge(files, drop) if merging else _of_table(files[0], target, client, sheet, all_categories)
    write_text(output, schema_text(made))
    print(one_line(f"{output}: {_summary(made)}"))
    return 0


def _of_table(file: Path, target: str | None, client: str | None, sheet: str | None, all_categories: bool) -> "Schema":
    from comity.data import site_schema

    found, questions = site_schema(file, target, client, all_categories=all_categories, sheet=sheet)
    for question in questions:
        print(question)
    for name, why in found.left_out.items():
        print(one_line(f"{name} is left out: {why}" + ("; kept for merging" if name in found.columns else "")))
    print("Ranges are rounded outwards to one significant digit; widen them by hand to what is plausible.")
    if hidden := [name for name, column in found.columns.items() if column.other]:
        print(f"Categories of fewer than 5 rows are not listed (--all-categories lists them): {listed(hidden)}")
    return found


def _merge(files: tuple[Path, ...], drop: bool) -> "Schema":
    from comity.data import merge_schemas, read_schema

    names = [file.stem for file in files]
    sites = {str(file) if names.count(file.stem) > 1 else file.stem: read_schema(file) for file in files}
    if len(sites) < len(files):
        raise ComityError("the same schema file is given twice")
    merged, found = merge_schemas(sites)
    for each in found:
        print(one_line(f"{each.column}: {each.words}"))
    if tables := [each for each in found if each.level == "table"]:
        raise ComityError(
            f"the sites must agree on {listed(sorted({each.column for each in tables}))} first; nothing is written"
        )
    columns = list(dict.fromkeys(each.column for each in found if each.level == "column"))
    if columns and not drop:
        raise ComityError(
            f"the sites must agree on {listed(columns)} first; nothing is written (--drop leaves these columns out)"
        )
    if columns:
        print(f"Left out: {listed(columns)}")
    return merged


def _summary(made: "Schema") -> str:
    whose = f", {counted(len(made.clients), 'client')} by {made.client}" if made.client else ""
    used, features = counted(len(made.used), "column"), counted(len(made.features), "feature")
    return f"{used}, {features}, target {made.target} ({len(made.classes)} classes){whose}"


COMMAND = Command(schema, order=14)
